"""Schedules as a part: the skills of hubs and commands, and the scheduler of hubs and workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from retinue.core.call import TraceContext
from retinue.hub.scheduling.book import ScheduleBook
from retinue.hub.scheduling.firing import Firing, has_issued_token
from retinue.hub.scheduling.scheduler import Scheduler
from retinue.hub.scheduling.skills import add_schedule_skills
from retinue.hub.workflows import RunStarter
from retinue.mesh.guard.trace_guard import new_trace
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.lazy_runs import LOOK_S, LazyRuns
from retinue.runtime.serving import end_task
from retinue.web.issued_tokens import TokenFile
from retinue.workflows.schedules import ScheduleOwner

_FIRING = frozenset({"hub", "worker"})


class SchedulesPart(Part):
    """Fires schedules once the agents answer, and stops before the runs leave."""

    name = "schedules"
    kinds = frozenset({"hub", "worker", "command"})
    needs = (LazyRuns, RunStarter)
    runs_after = (FirstReading, AgentsStarted)
    ready_after = (AgentsStarted,)
    is_required = True

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        guard = process.dispatcher.admission.guard

        def begin_chain() -> TraceContext:
            return replace(new_trace(), calls_left=guard.new_trace_calls)

        firing = Firing(
            process.get(RunStarter), partial(find_end_of_rights, process.state.keys, self._clock), begin_chain
        )
        scheduler = Scheduler(runs.open_schedules, firing, clock=self._clock)
        book = ScheduleBook(
            runs.open_schedules,
            firing,
            exists=runs.store.exists,
            wake=scheduler.wake,
            clock=self._clock,
        )
        firing_task: list[asyncio.Task[None]] = []

        async def fire() -> None:
            # without runs there are no schedules, which are stored with them
            while not runs.store.exists():
                await asyncio.sleep(LOOK_S)
            await scheduler.run()

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                yield
            finally:
                for task in firing_task:
                    await end_task(task)

        async def on_ready() -> None:
            firing_task.append(asyncio.create_task(fire(), name="schedules"))

        is_firing = process.kind in _FIRING
        yield Opened(
            skills=partial(add_schedule_skills, book=book) if process.kind != "worker" else None,
            running=running if is_firing else None,
            on_ready=on_ready if is_firing else None,
        )


def find_end_of_rights(keys: Path, clock: Callable[[], float], owner: ScheduleOwner) -> str:
    """Why the rights of the owner of a schedule have ended, "" if they have not.

    ``keys`` is the folder of the issued tokens. Raises StateDamagedError.
    """
    if not has_issued_token(owner):
        return ""
    held = [token for token in TokenFile(keys).list_all() if token.principal.id == owner.id]
    if not held:
        return f"the token {owner.id} was revoked"
    valid = [token for token in held if not token.is_expired(clock())]
    if not valid:
        return f"the token {owner.id} has expired"
    if not any(owner.scopes <= set(token.scopes) and not token.agents for token in valid):
        return f"the token {owner.id} was replaced by one with fewer rights"
    return ""
