"""The way of messages that run no skill: the same admission, guard and audit as a call's, and no more.

Lists, prompts, subscriptions and notifications of MCP that a hub hands on pass here (DESIGN 2, the
second thin path); what they mean is the business of the agent that they are for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from retinue.core.call import Call, Outcome, Status
from retinue.core.errors import (
    AccessError,
    BusyError,
    CallCancelledError,
    GuardError,
    LookupFailedError,
    RequestError,
    RetinueError,
)
from retinue.mesh.events import CallEndedEvent, EventBus, now
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.limits import Limits

_REFUSALS = (RequestError, LookupFailedError, AccessError, GuardError, BusyError)


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
    status: Status = "done"
    if error is not None:
        status = "refused" if isinstance(error, _REFUSALS) else "failed"
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status,
        agent=agent,
        duration_ms=(time.perf_counter() - started) * 1000,
        error=error,
    )
