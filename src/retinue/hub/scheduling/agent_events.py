"""Starts runs when agents join, leave, become unreachable, or are healthy again.

Every hub notices the changes of its own directory. The last known state of each agent is stored with the
trigger, and a change of it names the revision that it is based on: of two hubs that notice the same change,
one stores it together with the event, and the other finds it stored. The run of a stored event is started by
any hub, and the event is removed when the run is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import structlog

from retinue.core.call import Principal
from retinue.core.errors import NotAllowedError, RepeatedEventError, RetinueError
from retinue.hub.scheduling.events import EventStarter
from retinue.hub.scheduling.firing import may_pass
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.permissions import Access, is_seen, matches
from retinue.workflows.definitions.starts import OnAgent
from retinue.workflows.triggers import Event, StoredTrigger, TriggerProgress

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.triggers import TriggerTable

LOOK_S = 5.0
"""The interval at which events are taken up that could not start a run, here or at another hub."""

MAX_WAITING = 100
"""Events of one trigger that wait for their run; later ones are dropped."""

AgentState = Literal["present", "healthy", "unreachable"]

_log = structlog.get_logger("retinue.schedules")


def state_of(directory: Directory, name: str) -> AgentState | None:
    """The state of an agent in the directory; None if it is not there. A degraded agent answers."""
    entry = directory.find_named(name)
    if entry is None:
        return None
    if entry.health == "unreachable":
        return "unreachable"
    return "present" if entry.health == "unknown" else "healthy"


def name_event(before: str | None, after: str | None, *, was_added: bool) -> str | None:
    """The name of the event for a change of state; None for a change that is no event.

    An agent whose state was not known is new only where the directory has just added it.
    """
    if before is None:
        return "joined" if after is not None and was_added else None
    if after is None:
        return "left"
    if after == "unreachable" and before != after:
        return "unreachable"
    return "healthy" if before == "unreachable" and after == "healthy" else None


class AgentEvents:
    """Follows the agents of a directory. ``exists`` = whether there may be triggers."""

    def __init__(
        self,
        directory: Directory,
        access: Access,
        open_table: Callable[[], Awaitable[TriggerTable]],
        starter: EventStarter,
        *,
        exists: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._access = access
        self._open_table = open_table
        self._starter = starter
        self._exists = exists
        self._clock = clock
        self._changed: dict[str, bool] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def list_states(self) -> dict[str, str]:
        """The state of every agent, which a new trigger begins with."""
        names = {entry.name for entry in self._directory.list_entries()}
        return {name: state for name in names if (state := state_of(self._directory, name)) is not None}

    def note(self, change: ListingChange) -> None:
        """Remember that an agent has changed; called by the directory, in any thread."""
        if self._exists():
            self._loop.call_soon_threadsafe(self._remember, change.entry.name, change.kind == "added")

    def _remember(self, name: str, was_added: bool) -> None:
        self._changed[name] = self._changed.get(name, False) or was_added
        self._wake.set()

    async def run(self) -> None:
        """Take in changes and start runs, until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001  # the next look may succeed, and must come
                _log.debug("events of agents not taken in", error=str(error))
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def look(self) -> None:
        """Take in the changes so far, and start the runs of all events that wait; raises StateError.

        A trigger that fails keeps no other from its events; its changes are taken in at the next look.
        """
        table = await self._open_table()
        triggers = [trigger for trigger in await table.list_all() if trigger.rule.agent is not None]
        # the changes of all are stored before a run is started, which may take long
        for trigger in await self._take_in_all(table, triggers):
            if trigger.progress.waiting and not trigger.progress.paused:
                try:
                    await self._start_waiting(table, trigger)
                except Exception as error:  # noqa: BLE001  # the other triggers go on
                    _log.warning("events of agents wait", trigger=trigger.id, error=str(error))

    async def _take_in_all(
        self, table: TriggerTable, triggers: Iterable[StoredTrigger]
    ) -> Sequence[StoredTrigger]:
        """The triggers that exist still, with the changes so far; what one could not store is kept."""
        changed, self._changed = self._changed, {}
        if not changed:
            return list(triggers)
        advanced: list[StoredTrigger] = []
        is_complete = True
        for trigger in triggers:
            try:
                current = await self._take_in(table, trigger, changed.items())
            except Exception as error:  # noqa: BLE001  # the other triggers go on
                _log.warning("changes of agents not taken in", trigger=trigger.id, error=str(error))
                is_complete = False
                continue
            advanced += [] if current is None else [current]
        if not is_complete:
            # the triggers that have them already find no change in them
            for name, was_added in changed.items():
                self._changed[name] = self._changed.get(name, False) or was_added
        return advanced

    async def _take_in(
        self, table: TriggerTable, trigger: StoredTrigger, changed: Iterable[tuple[str, bool]]
    ) -> StoredTrigger | None:
        """The trigger with the states and events that are new; None once it was removed."""
        current: StoredTrigger | None = trigger
        while current is not None:
            progress = self._advance(current, changed)
            if progress == current.progress:
                return current
            if await table.change(current, progress):
                return replace(current, progress=progress, revision=current.revision + 1)
            # another hub was faster, and has perhaps stored the same change
            current = await table.find(trigger.id)
        return None

    def _advance(self, trigger: StoredTrigger, changed: Iterable[tuple[str, bool]]) -> TriggerProgress:
        options, progress = trigger.rule.agent, trigger.progress
        assert options is not None
        agents, waiting, seen = dict(progress.agents), list(progress.waiting), progress.seen
        began_ms = int(trigger.added_at * 1000)
        for name, was_added in changed:
            if not self._concerns(options, name, trigger.owner.principal):
                continue
            before, after = agents.get(name), state_of(self._directory, name)
            if before == after:
                continue
            if after is None:
                agents.pop(name)
            else:
                agents[name] = after
            seen += 1
            what = name_event(before, after, was_added=was_added)
            if what in options.event and not progress.paused and len(waiting) < MAX_WAITING:
                waiting.append(self._make_event(name, str(what), f"{began_ms}-{seen}"))
        return replace(progress, agents=agents, waiting=tuple(waiting), seen=seen)

    def _concerns(self, options: OnAgent, name: str, owner: Principal) -> bool:
        return matches(name, (options.name,)) and is_seen(self._access.view_of(owner), name)

    def _make_event(self, name: str, what: str, mark: str) -> Event:
        """The event; ``mark`` is unique, also after the trigger was added again."""
        value: dict[str, Any] = {"event": what, "agent": name}
        entry = self._directory.find_named(name)
        if entry is not None and entry.version is not None:
            value["version"] = str(entry.version)
        return Event(f"{what}-{name}-{mark}", self._clock(), value)

    async def _start_waiting(self, table: TriggerTable, trigger: StoredTrigger) -> None:
        is_home = trigger.home == await table.read_home()
        for event in trigger.progress.waiting:
            current = await table.find(trigger.id)
            if current is None or event not in current.progress.waiting:
                continue
            try:
                await self._starter.start(table, current, event, sent_at=self._clock())
            except RepeatedEventError:
                continue  # claimed elsewhere a moment ago; the next look finds the run, or starts it
            except RetinueError as error:
                if may_pass(error):
                    return
                if isinstance(error, NotAllowedError) and not is_home:
                    return  # its home knows the token of the owner and the workflow, and starts the run
                _log.warning("event of an agent starts nothing", trigger=trigger.id, error=error.message)
            while (current := await table.find(trigger.id)) is not None:
                left = tuple(waiting for waiting in current.progress.waiting if waiting.id != event.id)
                if await table.change(current, replace(current.progress, waiting=left)):
                    break
