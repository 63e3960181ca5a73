"""The port of the sessions of steps ``think``, with its twin in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Change = Callable[[Mapping[str, Any] | None], Mapping[str, Any]]
"""Makes the next history of a session of the one that is stored; None for a new session."""


class SessionStore(Protocol):
    """Histories of sessions by their keys (`retinue.thinking.session`); all methods may raise StateError.

    A session is deleted with the run that wrote it last.
    """

    async def find(self, key: str) -> Mapping[str, Any] | None:
        """The history of a session; None for an unknown one."""
        ...

    async def change(self, key: str, root: str, change: Change) -> None:
        """Replace the history of a session; ``root`` is the outermost run that does it.

        Changes of several runs at the same time are made one after the other.
        """
        ...


class MemorySessions:
    """A `SessionStore` that lives as long as its process; no deletion of runs reaches it."""

    def __init__(self) -> None:
        self._histories: dict[str, Mapping[str, Any]] = {}

    async def find(self, key: str) -> Mapping[str, Any] | None:
        return self._histories.get(key)

    async def change(self, key: str, root: str, change: Change) -> None:
        self._histories[key] = change(self._histories.get(key))
