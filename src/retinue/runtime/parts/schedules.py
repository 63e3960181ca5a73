"""Schedules and triggers as a part: skills of hubs and commands, scheduler of hubs and workers, webhooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from starlette.routing import BaseRoute

from retinue.core.call import TraceContext
from retinue.hub.scheduling.agent_events import AgentEvents
from retinue.hub.scheduling.all_schedules import AllSchedules
from retinue.hub.scheduling.book import ScheduleBook
from retinue.hub.scheduling.events import EventStarter
from retinue.hub.scheduling.firing import Firing, has_issued_token
from retinue.hub.scheduling.inspection import Inspection
from retinue.hub.scheduling.message_events import MessageEvents
from retinue.hub.scheduling.scheduler import Scheduler
from retinue.hub.scheduling.skills import add_schedule_skills
from retinue.hub.scheduling.trigger_book import HOOKS_PATH, TriggerBook
from retinue.hub.scheduling.webhooks import Webhooks
from retinue.hub.workflows import RunStarter
from retinue.mesh.directory.directory import Directory
from retinue.mesh.guard.trace_guard import new_trace
from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import AgentsStarted, FirstReading, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.endpoints.webhooks import webhook_route
from retinue.runtime.lazy_runs import LOOK_S, LazyRuns
from retinue.runtime.messages import Messages
from retinue.runtime.serving import ending
from retinue.web.issued_tokens import TokenFile
from retinue.workflows.schedules import ScheduleOwner

_FIRING = frozenset({"hub", "worker"})


class SchedulesPart(Part):
    """Fires schedules once the agents answer, and stops before the runs leave."""

    name = "schedules"
    kinds = frozenset({"hub", "worker", "command"})
    needs = (LazyRuns, RunStarter, Directory, Messages)
    runs_after = (FirstReading, AgentsStarted)
    ready_after = (AgentsStarted,)
    rank = 85
    is_required = True

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        runs = process.get(LazyRuns)
        guard = process.dispatcher.admission.guard

        def begin_chain() -> TraceContext:
            trace = replace(new_trace(), calls_left=guard.new_trace_calls)
            return trace.with_allowance(guard.new_trace_allowance)

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
        starter = EventStarter(firing, clock=self._clock)
        agents = AgentEvents(
            process.get(Directory),
            process.dispatcher.access,
            runs.open_triggers,
            starter,
            exists=runs.store.exists,
            clock=self._clock,
        )
        triggers = TriggerBook(
            runs.open_triggers,
            firing,
            exists=runs.store.exists,
            url=process.url,
            list_agents=agents.list_states,
            clock=self._clock,
        )
        schedules = AllSchedules(book, triggers, firing)
        inspection = Inspection(runs.open_schedules, runs.open_triggers, firing)
        tasks: list[asyncio.Task[None]] = []

        async def when_there_are_runs(work: Callable[[], Awaitable[None]]) -> None:
            # without runs there are no schedules, which are stored with them
            while not runs.store.exists():
                await asyncio.sleep(LOOK_S)
            await work()

        async def on_ready() -> None:
            works = [scheduler.run, inspection.run, *([agents.run] if process.kind == "hub" else [])]
            tasks.extend(asyncio.create_task(when_there_are_runs(work), name="schedules") for work in works)

        async def figures(figures: Figures) -> None:
            for status, count in inspection.counts.items():
                figures.put("retinue_schedules", count, status)

        is_hub, is_firing = process.kind == "hub", process.kind in _FIRING
        async with self._listening(process, runs, starter, agents) if is_hub else nullcontext(()) as routes:
            yield Opened(
                skills=partial(add_schedule_skills, book=schedules) if process.kind != "worker" else None,
                routes=routes,
                open_prefixes=(f"{HOOKS_PATH}/",) if is_hub else (),
                running=(lambda: ending(tasks)) if is_firing else None,
                on_ready=on_ready if is_firing else None,
                figures=figures if is_firing else None,
            )

    @asynccontextmanager
    async def _listening(
        self, process: Process, runs: LazyRuns, starter: EventStarter, agents: AgentEvents
    ) -> AsyncIterator[tuple[BaseRoute, ...]]:
        """Events reach the triggers of a hub; gives the routes by which some of them come."""
        exists = runs.store.exists
        webhooks = Webhooks(
            runs.open_triggers,
            starter,
            exists=exists,
            take=process.dispatcher.admission.limits.take,
            clock=self._clock,
        )
        messages = MessageEvents(runs.open_triggers, starter, exists=exists, clock=self._clock)
        process.get(Messages).observe(messages.note)
        unsubscribe = process.get(Directory).subscribe(agents.note)
        try:
            yield (webhook_route(webhooks),)
        finally:
            unsubscribe()
            await messages.aclose()


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
