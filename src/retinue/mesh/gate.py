"""The way of messages that run no skill: the same admission, guard and audit as a call's, and no more.

What is read of an agent passes here (`mesh.reading`), and what a hub hands on of MCP: lists, subscriptions,
notifications (DESIGN 2, the second thin path).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from retinue.core.call import Call, Outcome
from retinue.core.errors import (
    CallCancelledError,
    RetinueError,
)
from retinue.mesh.events import CallEndedEvent, EventBus, now
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.limits import Limits
from retinue.mesh.verdicts import status_of


@dataclass(frozen=True, slots=True)
class Gate:
    """Admits messages to ``guard`` and ``limits``, and tells ``events`` what became of each."""

    guard: TraceGuard
    limits: Limits
    events: EventBus

    @contextmanager
    def admit(self, call: Call, agent: str) -> Iterator[Passage]:
        """Take one message through; ``call.skill`` is its method. Raises what it is refused for.

        What the block raises is what became of the message.
        """
        started = time.perf_counter()
        error: RetinueError | None = None
        try:
            self.limits.admit(call.principal.id)
            try:
                passage = self.guard.enter(call, agent)
                call = replace(call, trace=passage.trace)
                try:
                    yield passage
                finally:
                    self.guard.leave(passage)
            finally:
                self.limits.release()
        except RetinueError as caught:
            error = caught
            raise
        except asyncio.CancelledError:
            error = CallCancelledError(call.skill)
            raise
        finally:
            if self.events.observed:
                self.events.emit(CallEndedEvent(call, _outcome(call, agent, started, error), now()))


def _outcome(call: Call, agent: str, started: float, error: RetinueError | None) -> Outcome:
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status_of(error),
        agent=agent,
        duration_ms=(time.perf_counter() - started) * 1000,
        error=error,
    )
