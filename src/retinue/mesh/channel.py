"""The way back to a caller while its call runs: progress, log lines, questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from retinue.core.errors import InputRequiredError

LogLevel = Literal["debug", "info", "warning", "error"]


class Channel(Protocol):
    """What a door offers a running skill; a door that cannot do a thing says so by its error."""

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Tell how far the call is: ``fraction`` 0 … 1, None when unknown."""

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Send one log line to the caller."""

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Ask the person behind the call; raises InputRequiredError where nobody can answer."""

    async def sample(self, prompt: str, *, max_tokens: int = 1024) -> str:
        """Ask the caller's own model; raises InputRequiredError where there is none."""


class NullChannel:
    """The twin for doors without a way back: progress and logs go nowhere, questions fail."""

    async def progress(self, fraction: float | None, message: str = "") -> None:
        return None

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        return None

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Any:
        raise InputRequiredError(f"input required: {message}")

    async def sample(self, prompt: str, *, max_tokens: int = 1024) -> str:
        raise InputRequiredError("no model behind this caller")
