"""The result of one check of ``retinue doctor``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from retinue.core.errors import RetinueError

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``remedy`` is "" if nothing needs to be fixed."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}


def failed(name: str, error: Exception) -> Check:
    """The check of this name, failed with the error."""
    if isinstance(error, RetinueError):
        return Check(name, "fail", error.message, error.remedy)
    return Check(name, "fail", str(error), "see the message")


async def guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    """The result of a check; failed where it raises."""
    try:
        return await check()
    except (RetinueError, OSError) as error:
        return failed(name, error)
