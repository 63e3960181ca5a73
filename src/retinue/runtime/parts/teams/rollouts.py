"""Rolling upgrades of teams as a part: calls choose between two digests while a rollout runs.

Every process of a hub follows the rows of teams. The process that runs the agents takes each rollout through
its stages. A hub without a rollout looks at one file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.call import Principal, TraceContext
from retinue.core.errors import ExecutionFailedError, RetinueError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.parts.part import AgentsStarted, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.factories import HOME_SOURCE
from retinue.runtime.imports.files import is_import_source
from retinue.runtime.parts.children import find_teams_change
from retinue.runtime.parts.teams.missing_schedules import MissingSchedules, begin_chain, call_hub
from retinue.runtime.serving import end_task

if TYPE_CHECKING:  # only states with rollouts load these
    from retinue.hub.examiner import Examiner
    from retinue.hub.workflows import ChainChoice, RunStarter
    from retinue.mesh.directory.rollouts import Rollouts
    from retinue.runtime.teams.rolling import MeshOfRollout, RolloutStages
    from retinue.runtime.teams.rollout import StoredRollout
    from retinue.storage.state import State
    from retinue.team.package import Team
    from retinue.workflows.library import Library

LOOK_S = 0.25
AGAIN_S = 5.0
"""How long a rollout rests whose stage raised what it should not."""

_log = structlog.get_logger("retinue.teams")


class FollowedRollouts:
    """The rollouts of the state, as the calls of this process follow them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._directory = process.get(Directory)
        self._seen: object = None
        self._unsubscribe: Any = None
        self._names: Mapping[str, Set[str]] = {}
        self.rollouts: Rollouts | None = None

    def look(self) -> None:
        """Follow the rows where they have changed."""
        if (change := find_teams_change(self._process.state)) == self._seen:
            return
        self._seen = change
        try:
            self.apply()
        except RetinueError as error:
            _log.warning("rollouts not read", error=error.message)

    def apply(self) -> None:
        """Follow the rows as they are now. Raises StateDamagedError."""
        from retinue.runtime.teams.rollout import list_rollouts
        from retinue.runtime.teams.store import TeamStore

        if self._seen is not None:
            TeamStore(self._process.state).hide_secrets()
        stored = list_rollouts(self._process.state)
        if not stored:
            self._end()
            self._show_active()
            return
        if self.rollouts is None:
            from retinue.mesh.directory.rollouts import Rollouts

            self.rollouts = Rollouts(self._directory.set_enabled, self._is_member)
            self._unsubscribe = self._directory.subscribe(self.rollouts.note)
        self._names = _list_names(self._process.state, stored)
        calls = [rollout.for_calls(team) for team, rollout in sorted(stored.items())]
        self.rollouts.configure(calls, list(self._directory.list_held()))
        self._process.dispatcher.rollouts = self.rollouts
        self._directory.find_hidden = self.rollouts.find_hidden
        if (starter := self._find_starter()) is not None and starter.chains is None:
            starter.chains = _choose_for_runs(starter, self.rollouts, self._process.state)

    def _is_member(self, entry: Entry) -> bool:
        """Whether an agent with the tag of a digest was published in this state, under a locked name.

        This process itself gives imports their tags.
        """
        from retinue.mesh.directory.rollouts import read_mark

        is_own = entry.source == HOME_SOURCE or is_import_source(entry.source)
        return is_own and entry.name in self._names.get(read_mark(entry.tag), ())

    def _show_active(self) -> None:
        """Enable the agents of the digests that serve, which were hidden while they were checked."""
        from retinue.mesh.directory.rollouts import mark_of, read_mark
        from retinue.runtime.teams.store import TeamStore

        marks = {mark_of(row.active or "") for row in TeamStore(self._process.state).list_active()}
        hidden = [
            entry
            for entry in self._directory.list_held()
            if not entry.enabled and read_mark(entry.tag) in marks
        ]
        for entry in hidden:
            self._directory.set_enabled(entry, True)

    def _find_starter(self) -> RunStarter | None:
        from retinue.hub.workflows import RunStarter

        return self._process.find(RunStarter)

    def _end(self) -> None:
        if self.rollouts is not None and (starter := self._find_starter()) is not None:
            starter.chains = None
        self._process.dispatcher.rollouts = self.rollouts = self._directory.find_hidden = None
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None


def _list_names(state: State, stored: Mapping[str, StoredRollout]) -> dict[str, Set[str]]:
    """The names of the digests that are rolled out, by mark; one whose files are damaged has no agents."""
    from retinue.mesh.directory.rollouts import mark_of
    from retinue.runtime.teams.programs import read_installed
    from retinue.runtime.teams.store import TeamStore

    store, names = TeamStore(state), dict[str, Set[str]]()
    for team, rollout in stored.items():
        for digest in (rollout.old, rollout.new):
            try:
                names[mark_of(digest)] = read_installed(store, team, digest).names
            except RetinueError as error:
                _log.warning("team not read", team=team, digest=digest, error=error.message)
    return names


def _choose_for_runs(starter: RunStarter, rollouts: Rollouts, state: State) -> ChainChoice:
    """What lets runs keep the digests of their chain, with the workflows of them."""
    from retinue.hub.workflows import ChainChoice
    from retinue.runtime.shelves import TeamShelf

    def library_of(trace: TraceContext) -> Library:
        chosen = rollouts.read_choice(trace)
        return starter.library.with_teams(TeamShelf(state, chosen))

    return ChainChoice(rollouts.begin, rollouts.mark_run, library_of, rollouts.list_choices)


class FollowedRecording:
    """Records calls of this process while a command asks for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._marker = process.state.root / "teams" / "recording.json"
        self._seen: object = None
        self._unsubscribe: Callable[[], None] | None = None

    def look(self) -> None:
        """Follow the marker where it has changed."""
        try:
            status = self._marker.stat()
            # the inode alone would not do, because a new file often gets that of the removed one
            seen: object = (status.st_mtime_ns, status.st_ino)
        except OSError:
            seen = None
        if seen == self._seen:
            return
        self._seen = seen
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if seen is not None:
            from retinue.runtime.teams.recording import open_recorder  # only while somebody records

            try:
                recorder = open_recorder(self._process.state)
            except (RetinueError, OSError) as error:
                _log.warning("calls of a team are not recorded", error=str(error))
                return
            if recorder is not None:
                self._unsubscribe = self._process.dispatcher.admission.events.subscribe(recorder)


class RolloutsPart(Part):
    """Lets calls choose their digest while a rollout runs; ``leads`` = it takes rollouts through stages.

    Records calls of teams for traces, while a command asks for it.
    """

    name = "rollouts"
    kinds = frozenset({"hub"})
    needs = (Directory,)
    ready_after = (AgentsStarted,)
    is_required = True

    def __init__(self, *, leads: bool) -> None:
        self._leads = leads

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        followed = FollowedRollouts(process)
        if self._leads and find_teams_change(process.state) is not None:
            from retinue.runtime.teams.rollout import begin_again

            begin_again(process.state, time.time())
        followed.look()  # before the first program starts
        recording = FollowedRecording(process)
        schedules = MissingSchedules(process)
        tasks: dict[str, asyncio.Task[None]] = {}
        is_ready = asyncio.Event()

        async def follow() -> None:
            while True:
                await asyncio.sleep(LOOK_S)
                followed.look()
                recording.look()
                if self._leads and is_ready.is_set():
                    await schedules.look()
                if self._leads and is_ready.is_set() and followed.rollouts is not None:
                    for rollout in followed.rollouts.rollouts:
                        if rollout.team not in tasks or tasks[rollout.team].done():
                            tasks[rollout.team] = asyncio.create_task(_lead(process, followed, rollout.team))

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            following = asyncio.create_task(follow(), name="rollouts")
            try:
                yield
            finally:
                for task in (following, *tasks.values()):
                    await end_task(task)

        async def on_ready() -> None:
            is_ready.set()

        yield Opened(running=running, on_ready=on_ready)


async def _lead(process: Process, followed: FollowedRollouts, team: str) -> None:
    """Take one team through the stages of its rollout."""
    from retinue.runtime.teams.rolling import RolloutStages
    from retinue.runtime.teams.store import TeamStore

    if followed.rollouts is None:
        return
    rollout: RolloutStages = RolloutStages(
        team, TeamStore(process.state), _mesh_of(process, followed, followed.rollouts)
    )
    unsubscribe = process.dispatcher.admission.events.subscribe(rollout.note)
    try:
        await rollout.run()
    except Exception as error:  # noqa: BLE001 - the next look begins the stage anew
        _log.exception("rollout interrupted", team=team, error=str(error))
        await asyncio.sleep(AGAIN_S)
    finally:
        unsubscribe()


def _make_examiner(process: Process, chain: TraceContext) -> Examiner:
    """An examiner whose questions go to the digest of a chain of calls, which no list shows yet."""
    from retinue.core.call import Call, Outcome, TraceExtension
    from retinue.hub.examiner import Examiner, ExamLimits
    from retinue.settings_tables import ExamTable

    others = {} if chain.extension is None else chain.extension.others
    table = process.tables.get(ExamTable)

    async def dispatch(call: Call) -> Outcome:
        own = {} if call.trace.extension is None else call.trace.extension.others
        trace = call.trace.with_extension(TraceExtension(call.trace.allowance, {**others, **own}))
        return await process.dispatcher.dispatch(replace(call, trace=trace, listing=None))

    return Examiner(dispatch, ExamLimits(table.calls, table.timeout_s, table.dollars))


def _mesh_of(process: Process, followed: FollowedRollouts, rollouts: Rollouts) -> MeshOfRollout:
    from retinue.hub.workflows import RunStarter
    from retinue.mesh.directory.rollouts import CHOSEN, OtherCalls
    from retinue.runtime.lazy_runs import LazyRuns
    from retinue.runtime.teams.rolling import MeshOfRollout
    from retinue.runtime.teams.schedules import renew_schedules
    from retinue.runtime.teams.store import TeamStore

    directory, dispatcher = process.get(Directory), process.dispatcher
    exams = process.find(ExamBook)

    async def open_record(entry: Entry) -> Any:
        listing = await directory.open(entry)
        return None if listing is None else listing.record

    async def examine(entry: Entry, chain: TraceContext) -> None:
        listing = None if exams is None or exams.policy == "off" else await directory.open(entry)
        if exams is not None and listing is not None:
            result = await _make_examiner(process, chain).examine(listing, entry.name)
            exams.put(entry, result)

    def find_exam(entry: Entry) -> str:
        result = None if exams is None else exams.find(entry)
        return "; ".join(result.problems) if result is not None and result.status == "failed" else ""

    async def run_workflow(
        name: str, given: Mapping[str, Any], principal: Principal, trace: TraceContext
    ) -> None:
        starter = process.get(RunStarter)
        loaded = await starter.load(name, trace, principal)
        started = await starter.start(loaded, loaded.definition, dict(given), principal, trace)
        record = await starter.runs.finish(started.record.id)
        if record.status != "done":
            raise ExecutionFailedError(record.status if record.fault is None else record.fault.message)

    async def list_runs(team: str, mark: str, before: float) -> Sequence[str]:
        runs, held = process.get(LazyRuns), []
        if not runs.store.exists():
            return ()
        for record in await process.get(RunStarter).runs.list_all(status="running", children=True):
            trace = record.request.origin.trace
            others = {} if trace is None or trace.extension is None else trace.extension.others
            chosen = others.get(CHOSEN, {}).get(team)
            if chosen == mark or (chosen is None and record.started_at < before):
                held.append(record.id)
        return held

    async def renew(team: Team) -> None:
        await renew_schedules(call_hub(process), TeamStore(process.state), team)

    async def count_elsewhere(mark: str) -> int:
        others = process.find(OtherCalls)
        return 0 if others is None else await others.count(mark)

    return MeshOfRollout(
        rollouts=rollouts,
        dispatch=dispatcher.dispatch,
        open_record=open_record,
        count_calls=lambda entry: dispatcher.agent_stats.of(entry).in_flight,
        count_elsewhere=count_elsewhere,
        examine=examine,
        find_exam=find_exam,
        run_workflow=run_workflow,
        list_runs=list_runs,
        renew_schedules=renew,
        begin_chain=partial(begin_chain, process),
        apply=followed.apply,
    )
