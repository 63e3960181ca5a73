"""Time limits for what nearly always ends long before: a quick call costs the event loop no timer.

To make, cancel and close a timer costs more than most of a call. So all alarms that were just set share
one, which ticks as long as new ones come; an alarm that lives to see the tick gets a timer of its own and
rings at its exact time.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

TICK_S = 0.025
"""An alarm that is to ring within this time has a timer of its own at once."""


class Newcomers:
    """The alarms of one loop that were set since its last tick, and when each is to ring."""

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
    """A thread runs one loop at a time: its newcomers. Those of another loop live on by their own tick."""

    newcomers: Newcomers | None = None


_here = _OfThread()


class Alarm(ABC):
    """Something of the running loop that rings once, at a time of its clock, unless it is unset before."""

    __slots__ = ("_loop", "_newcomers", "_timer")

    def __init__(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        newcomers = _here.newcomers
        if newcomers is None or newcomers.loop is not loop:
            newcomers = _here.newcomers = Newcomers(loop)
        self._newcomers = newcomers
        self._timer: asyncio.TimerHandle | None = None

    def set(self, when: float) -> None:
        """Ring at ``when``."""
        if when - self._loop.time() > TICK_S:
            self._newcomers.add(self, when)
        else:
            self.start(when)

    def start(self, when: float) -> None:
        """The same, with a timer of its own."""
        self._timer = self._loop.call_at(when, self.ring)

    def unset(self) -> None:
        """Do not ring after all; nothing where it has rung."""
        if self._timer is None:
            self._newcomers.alarms.pop(self, None)
        else:
            self._timer.cancel()
            self._timer = None

    @abstractmethod
    def ring(self) -> None:
        """What is to happen."""


class TimeLimit(Alarm):
    """A block that is cancelled when its time is over, and then raises TimeoutError, as ``asyncio.timeout``.

    ``when`` is a time of the loop's clock, None = never.
    """

    __slots__ = ("_cancelling", "_task", "expired", "when")

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.when: float | None = self._loop.time() + timeout_s
        self.expired = False

    def __enter__(self) -> Self:
        task: asyncio.Task[Any] | None = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a time limit is for tasks")
        self._task = task
        self._cancelling = task.cancelling()
        self.reschedule(self.when)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.unset()
        # only the cancellation that came from here is ended here
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def reschedule(self, when: float | None) -> None:
        """Let the time be over at another moment."""
        self.unset()
        self.when = when
        if when is not None:
            self.set(when)

    def ring(self) -> None:
        self.expired = True
        self._task.cancel()
