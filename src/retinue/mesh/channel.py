"""The way back to a caller while its call runs: progress, log lines, questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from retinue.core.errors import CannotAskError, InputRequiredError

LogLevel = Literal["debug", "info", "warning", "error"]


Capability = Literal["progress", "log", "elicitation", "sampling", "roots"]
"""What somebody at the other end listens to, or can be asked for."""


@dataclass(frozen=True, slots=True)
class Root:
    """A folder or other place that the caller works in; ``uri`` is mostly a ``file://`` one."""

    uri: str
    name: str | None = None


class Channel(Protocol):
    """What a door offers a running skill; a door that cannot do a thing says so by its error."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What is of use to this caller; empty where nobody listens."""

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Tell how far the call is: ``fraction`` 0 … 1, None when unknown."""

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        """Send one log line to the caller."""

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Ask the person behind the call; the answer fits ``schema``.

        ``key`` names the question within the call. Raises CannotAskError or InputRequiredError where
        nobody can answer, InputRefusedError where the person does not want to.
        """

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        """Ask the caller's own model; raises CannotAskError where there is none."""

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        """Where the caller works; raises CannotAskError where it does not say."""


class NullChannel:
    """The twin for doors without a way back: progress and logs go nowhere, questions fail."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset()

    async def progress(self, fraction: float | None, message: str = "") -> None:
        return None

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        return None

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        raise InputRequiredError(f"input required: {message}")

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        raise CannotAskError("sampling")

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        raise CannotAskError("roots")
