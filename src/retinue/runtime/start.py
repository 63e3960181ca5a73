"""The arguments with which the core of a process is opened."""

from __future__ import annotations

from dataclasses import dataclass

from retinue.parts.process import Echo
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.state import State


@dataclass(frozen=True, slots=True)
class Start:
    """What the core of a process is opened with; the URLs are None for a process that serves nothing."""

    settings: Settings
    state: State
    echo: Echo
    stop: Stop
    url: str | None = None
    own_url: str | None = None
