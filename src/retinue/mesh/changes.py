"""What changed of what somebody offers, told to whoever keeps a list of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

_log = structlog.get_logger("retinue.changes")

ChangeKind = Literal["tools", "resources", "prompts", "resource"]


@dataclass(frozen=True, slots=True)
class Change:
    """A list that is another one now, or one resource (``uri``) that reads otherwise."""

    kind: ChangeKind
    uri: str = ""


ChangeObserver = Callable[[Change], None]


class Changes:
    """Hands each change to every observer, in order; may be told in any thread, and hands on in the same."""

    def __init__(self) -> None:
        self._observers: tuple[ChangeObserver, ...] = ()

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        """Add an observer; returns the function that removes it."""
        self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            self._observers = tuple(one for one in self._observers if one is not observer)

        return unsubscribe

    def tell(self, change: Change) -> None:
        for observer in self._observers:
            try:
                observer(change)
            except Exception as error:  # noqa: BLE001 - one bad observer must not fail what changed
                _log.warning("observer failed", observer=repr(observer), error=str(error))
