"""Time limits that set no timer of the event loop for short calls.

Creating and cancelling a timer costs more than most of the call itself. So all alarms that were just set
share one timer, which ticks as long as new alarms are set; an alarm that is still set at the tick gets its
own timer and rings at its exact time.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

TICK_S = 0.025
"""An alarm that rings within this time gets its own timer at once."""

LATE_S = 0.25
"""A limit that rings so much too late belongs to a process that stood still: stopped, or busy."""

GRACE_S = 1.0
"""What such a limit leaves for data that arrived meanwhile and could not be read."""


class RecentAlarms:
    """The alarms of one event loop that were set since its last tick, each with its time."""

    __slots__ = ("_ticking", "alarms", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.alarms: dict[Alarm, float] = {}
        self._ticking = False

    def add(self, alarm: Alarm, when: float) -> None:
        self.alarms[alarm] = when
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        alarms, self.alarms = self.alarms, {}
        for alarm, when in alarms.items():
            alarm.start(when)


class _OfThread(threading.local):
    """The alarms of the loop that this thread runs; those of another loop are kept by their own tick."""

    recent: RecentAlarms | None = None


_here = _OfThread()


class Alarm(ABC):
    """Rings once, at a time of the running loop's clock, unless it is unset before."""

    __slots__ = ("_loop", "_recent", "_timer")

    def __init__(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        recent = _here.recent
        if recent is None or recent.loop is not loop:
            recent = _here.recent = RecentAlarms(loop)
        self._recent = recent
        self._timer: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        """Ring at ``when``, a time of the loop's clock."""
        if when - self._loop.time() > TICK_S:
            self._recent.add(self, when)
        else:
            self.start(when)

    def start(self, when: float) -> None:
        """Ring at ``when``, with an own timer."""
        self._timer = self._loop.call_at(when, self.ring)

    def unset(self) -> None:
        """Do not ring; no effect after it has rung."""
        if self._timer is None:
            self._recent.alarms.pop(self, None)
        else:
            self._timer.cancel()
            self._timer = None

    @abstractmethod
    def ring(self) -> None:
        """Called when the time is reached."""


class TimeLimit(Alarm):
    """A block that is cancelled when its time is over and then raises TimeoutError, like ``asyncio.timeout``.

    ``when`` is a time of the loop's clock; None = no limit. An answer that arrived while this process stood
    still is taken first: the limit of a process that is woken up waits for `GRACE_S` once.
    """

    __slots__ = ("_cancelling", "_had_grace", "_task", "expired", "when")

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.when: float | None = self._loop.time() + timeout_s
        self._had_grace = False
        self.expired = False

    def __enter__(self) -> Self:
        task: asyncio.Task[Any] | None = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a time limit needs a running task")
        self._task = task
        self._cancelling = task.cancelling()
        if self.when is not None:
            self.set(self.when)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.unset()
        # Only the cancellation that this limit caused becomes a TimeoutError.
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def reschedule(self, when: float | None) -> None:
        """Move the end of the block's time; None = no limit."""
        self.unset()
        self.when = when
        if when is not None:
            self.set(when)

    def ring(self) -> None:
        now = self._loop.time()
        if not self._had_grace and self.when is not None and now - self.when > LATE_S:
            self._had_grace = True
            self.start(now + GRACE_S)
            return
        self.expired = True
        self._task.cancel()
