"""Problems that keep a process from serving its callers, and the checks of ``retinue doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a process lacks; ``is_fatal`` = it can serve nobody until that is mended.

    ``what`` is ``process``, ``database``, ``source``, ``child``, ``upstream`` or ``part``; the first two have
    no name.
    """

    what: str
    name: str
    reason: str
    is_fatal: bool = True


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of ``retinue doctor``; ``remedy`` is "" if nothing needs to be fixed."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}
