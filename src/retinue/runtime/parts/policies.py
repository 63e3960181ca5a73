"""Policies and guards as a part: they check every call of a process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from retinue.authoring.agent import Agent
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError, RetinueError, StateError
from retinue.core.record import HUB_NAME
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import CheckPolicies, Guards
from retinue.mesh.observing.metrics import Figures, Metric
from retinue.parts.part import LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Process, Tables
from retinue.runtime.joined_mesh import JoinedMesh
from retinue.runtime.loading.guard_rules import ask_person, make_guards
from retinue.runtime.loading.policy_files import PolicyFiles, Snapshot, set_mode
from retinue.runtime.serving import end_task
from retinue.settings import Settings
from retinue.settings_tables import AuthTable, PolicyTable

KEEP_APPROVALS = frozenset({"hub", "worker", "command"})
"""The processes that keep approvals, because they have runs."""

FREEZE_FROM = 500
"""Policies whose objects are left out of garbage collections, each of which takes up to 8 µs for one."""

LOOK_S = 1.0
"""Seconds between two looks for changed files."""

DIGESTS_WITHIN_S = 2.0
"""``/ready`` does not wait longer for the policies of other nodes, because the database may be away."""

if TYPE_CHECKING:  # the engine of policies is imported where policies exist
    from retinue.approvals.records import ApprovalStore
    from retinue.policies.approving import OpenApprovals
    from retinue.policies.caller_groups import CallerGroups
    from retinue.policies.counts import CallCounts, MemoryCounts
    from retinue.policies.decision_figures import DecisionFigures
    from retinue.policies.gate import Gate
    from retinue.policies.policy_set import PolicySet
    from retinue.policies.recording import InputRecorder
    from retinue.runtime.lazy_runs import LazyRuns

METRICS = {
    "retinue_policy_decisions_total": Metric(
        "counter", "Decisions of policies, by the policies that decided", ("decision", "policy")
    )
}

_log = structlog.get_logger("retinue.policies")


@dataclass(frozen=True, slots=True)
class _Reading:
    """The files as they were read once. ``applied`` is ``table`` with the mode that the owner has set."""

    number: int
    files: PolicyFiles
    table: PolicyTable
    seen: Snapshot
    applied: PolicyTable
    policies: PolicySet | None = None
    zone: tzinfo = UTC
    problem: RetinueError | None = None


def _read(number: int, files: PolicyFiles, table: PolicyTable, before: Snapshot) -> _Reading:
    """Read the files, in any thread. Whatever is wrong is a ``problem``, because the watch must go on."""
    seen: Snapshot = ()
    try:
        seen = files.look()
        applied = files.apply_mode(table)
        policies = files.load(applied, before=before)
        zone: tzinfo = UTC if policies is None else _read_zone(table)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of the engine is no Exception
        return _Reading(number, files, table, seen, table, problem=_explain(error))
    return _Reading(number, files, table, seen, applied, policies, zone)


def _read_zone(table: PolicyTable) -> tzinfo:
    """The zone of hours and days; raises InvalidSettingError."""
    from retinue.policies.entities import read_zone

    try:
        return read_zone(table.timezone)
    except ValueError as error:
        raise InvalidSettingError("policy.timezone", str(error), remedy="correct it") from error


def _explain(error: BaseException) -> RetinueError:
    """Why policies are not loaded."""
    if isinstance(error, RetinueError):
        return error
    _log.debug("policies not read for a reason that is not known", exc_info=error)
    problem = f"not read: {type(error).__name__}: {str(error)[:200]}"
    return InvalidSettingError("policies", problem, remedy="check the files: retinue policy check")


@dataclass(frozen=True, slots=True)
class LedPolicies:
    """A product of a process of a hub that does not lead: what the leader keeps for its policies."""

    open_approvals: Callable[[], Awaitable[ApprovalStore]]
    open_counts: Callable[[], Awaitable[CallCounts]]
    append_inputs: Callable[[Mapping[str, Any]], None]


class LoadedPolicies:
    """The policies of a process, as a product: loaded at its start, and again when files change.

    A set that is not valid is not loaded: the old one stays, and ``problem`` says why. Before the first set
    is loaded, calls pass no gate, and the engine of policies is not imported.
    """

    def __init__(self, process: Process, table: PolicyTable, team: str = "") -> None:
        self._process = process
        self._team = team
        self._table = table
        self.files = PolicyFiles.of(process.state.root, table)
        self._seen: Snapshot = ()
        self._in_force: Snapshot = ()
        self.problem: RetinueError | None = None
        self._gate: Gate | None = None
        self._counts: MemoryCounts | None = None
        self._figures: DecisionFigures | None = None
        self._groups: CallerGroups | None = None
        self.revision = 0
        """How often policies were put in force."""
        self._announced: str | None = None
        self._begun = 0
        self._next_table: PolicyTable | None = None
        self._is_asked = asyncio.Event()
        self.on_loaded: Callable[[], None] = lambda: None
        """Called when other policies, or none, are in force."""

    def load(self) -> None:
        """Load the files; raises InvalidSettingError for a set that is not valid."""
        reading = self._begin(None)()
        self._seen = reading.seen
        if reading.problem is not None:
            raise reading.problem
        self._use(reading)

    def _begin(self, table: PolicyTable | None) -> Callable[[], _Reading]:
        """What reads the files as they are now, in any thread; a later one replaces it."""
        self._begun += 1
        number, table = self._begun, table or self._table
        before = self._in_force
        if table.files != self._table.files:
            before = ()  # the owner names other files
        files = PolicyFiles.of(self._process.state.root, table)
        return partial(_read, number, files, table, before)

    def _use(self, reading: _Reading) -> None:
        """Put a set in force."""
        self.revision += 1
        self.files, self._table, self._in_force = reading.files, reading.table, reading.seen
        policies, table = reading.policies, reading.applied
        if self._gate is not None:
            self._gate.forget()
        if policies is None:
            self._gate = None
            self._give(None)
            self.on_loaded()
            return
        # imported here, because most processes have no policies
        from retinue.policies.counts import MemoryCounts
        from retinue.policies.decision import Engine
        from retinue.policies.decision_figures import DecisionFigures
        from retinue.policies.gate import Gate

        opening, counting = self.find_approvals(), self._find_counts()
        # what was counted stays counted when files change
        self._counts = self._counts or MemoryCounts()
        self._groups = self._groups or self._make_groups()
        self._figures = self._figures or DecisionFigures()
        self._gate = Gate(
            Engine(policies),
            table.mode,
            opening,
            counts=self._counts,
            open_counts=counting,
            zone=reading.zone,
            groups=self._groups,
            recorder=self._make_recorder(),
            figures=self._figures,
            find_digest=lambda: self._digest,
            run_in_thread=asyncio.to_thread,
            team=self._team,
        )
        if opening is not None:
            from retinue.hub.approvals.client_questions import ask_client

            self._gate.ask_client = ask_client
        self._give(self._gate.check)
        self.on_loaded()
        if len(policies.policies) >= FREEZE_FROM:
            # as after the start, for a set that is loaded later; it stays until its files change
            gc.freeze()

    def describe(self) -> list[str]:
        """Digest and mode of the policies in force, equal in processes that decide alike."""
        return ["", ""] if self._gate is None else [self._digest, self._gate.mode]

    @property
    def asks_people(self) -> bool:
        """Whether a policy in force may ask a person."""
        policies = () if self._gate is None else self._gate.engine.policies.policies
        return any(policy.effect == "approve" for policy in policies)

    @property
    def zone(self) -> tzinfo:
        """The zone of hours and days, also while there are no policies. Raises InvalidSettingError."""
        return _read_zone(self._table)

    @property
    def figures(self) -> DecisionFigures | None:
        """The decisions since the process started; None before the first policies."""
        return self._figures

    def find_approvals(self) -> OpenApprovals | None:
        """The function that opens the store of approvals; None in a process that keeps none."""
        if (led := self._process.find(LedPolicies)) is not None:
            return led.open_approvals
        runs = self._find_runs()
        return None if runs is None else runs.open_approvals

    def _find_counts(self) -> Callable[[], Awaitable[CallCounts]] | None:
        if (led := self._process.find(LedPolicies)) is not None:
            return led.open_counts
        runs = self._find_runs()
        return None if runs is None else runs.open_call_counts

    def _make_recorder(self) -> InputRecorder | None:
        """The recorder of arguments that policies read; None in a process without an audit."""
        if self._table.record != "inputs":
            return None
        from retinue.policies.recording import InputRecorder
        from retinue.storage.audit_store import SqliteAudit

        if (led := self._process.find(LedPolicies)) is not None:
            return InputRecorder(led.append_inputs)
        audit = self._process.find(SqliteAudit)
        return None if audit is None else InputRecorder(audit.append_inputs)

    async def read_figures(self, figures: Figures) -> None:
        """Add the decisions since the process started."""
        if self._figures is not None:
            self._figures.read(figures)

    def read_mode(self) -> tuple[str, bool]:
        """What policies do now, and whether the owner has set it. Raises InvalidSettingError."""
        return self.files.apply_mode(self._table).mode, self.files.has_mode

    async def set_mode(self, mode: str | None) -> None:
        """Set what policies do in all processes of the state folder; None = what the settings say."""
        set_mode(self._process.state.root, mode)
        await self.reload_in_thread()

    def _make_groups(self) -> CallerGroups:
        from retinue.policies.caller_groups import CallerGroups
        from retinue.web.issued_tokens import TokenGroups

        has_claim = self._process.tables.get(AuthTable).groups_claim is not None
        return CallerGroups(TokenGroups(self._process.state.keys).find, has_claim)

    @property
    def gate(self) -> Gate | None:
        """The gate that calls pass; None while there are no policies."""
        return self._gate

    def _give(self, check: CheckPolicies | None) -> None:
        self._process.dispatcher.check_policies = check
        self._process.dispatcher.redacts = None if self._gate is None else self._gate.redacts
        self._process.dispatcher.reads_channel = self._gate is not None and self._gate.engine.reads_channel
        self._process.dispatcher.check_read = None if self._gate is None else self._gate.check_read
        self._process.dispatcher.access.filter_lists(None if self._gate is None else self._gate.filter_lists)
        self._process.dispatcher.access.note_lists(None if self._gate is None else self._gate.note_lists)
        self._process.dispatcher.access.check_starts(None if self._gate is None else self._gate.check_start)
        publish = None if self._gate is None else self._gate.check_publish
        self._process.dispatcher.access.check_publishes(publish)
        if (joined := self._process.find(JoinedMesh)) is not None:
            joined.check_policies(check)

    def reload(self) -> None:
        """Load again; a set that is not valid is told, and the old one stays."""
        self._take(self._begin(None)())

    async def catch_up(self) -> None:
        """Put the files of now in force, before what they bind starts.

        Raises a RetinueError for files that cannot be in force, so that the former ones stay.
        """
        # the watch may begin a reading at the same time, and then the earlier one does not count
        while await asyncio.to_thread(self.files.look) != self._seen:
            await self.reload_in_thread()
        if self.problem is not None:
            raise self.problem

    async def reload_in_thread(self, table: PolicyTable | None = None) -> None:
        """The same, with other settings if given, while other calls run: a large set takes a second."""
        self._take(await asyncio.to_thread(self._begin(table)))

    def use_settings(self, table: PolicyTable) -> None:
        """Load again with other settings, soon."""
        self._next_table = table
        self._is_asked.set()

    def look_soon(self) -> None:
        """Look for changed files at once."""
        self._is_asked.set()

    def _take(self, reading: _Reading) -> None:
        if reading.number != self._begun:
            return  # the files were read again meanwhile
        self._seen = reading.seen
        if reading.problem is not None:
            self._tell(reading.problem)
            return
        self._use(reading)
        self.problem = None
        _log.info("policies loaded", files=len(self._seen))

    def _tell(self, error: RetinueError) -> None:
        self.problem = error
        _log.error("policies not loaded; the previous ones stay", error=error.message, remedy=error.remedy)

    async def find_problems(self) -> Sequence[ReadinessProblem]:
        """Why files are not loaded, and which nodes of the same database have others, for ``/ready``."""
        problems = [] if self.problem is None else [self.problem.message]
        if (runs := self._find_runs()) is not None:
            try:
                async with asyncio.timeout(DIGESTS_WITHIN_S):
                    await self.announce()
                    others = await runs.find_other_policies(self._digest)
                for node, digest in sorted(others.items()):
                    theirs = f"other policies ({digest[:19]})" if digest else "no policies"
                    own = f"this one has {self._digest[:19]}" if self._digest else "this one has none"
                    problems.append(f"node {node} of the same database has {theirs}; {own}")
            except (StateError, TimeoutError) as error:
                _log.debug("policies of other nodes not read", error=str(error))
        return [ReadinessProblem("part", PoliciesPart.name, text, is_fatal=False) for text in problems]

    async def announce(self) -> None:
        """Tell the other nodes of the database which policies this process has, once."""
        runs, digest = self._find_runs(), self._digest
        if runs is not None and self._announced != digest and await runs.announce_policies(digest):
            self._announced = digest

    @property
    def _digest(self) -> str:
        return "" if self._gate is None else self._gate.engine.policies.digest

    def _find_runs(self) -> LazyRuns | None:
        return self._process.find(_lazy_runs()) if self._process.kind in KEEP_APPROVALS else None

    async def watch(self, look_s: float = LOOK_S) -> None:
        """Load the files again whenever one, or a setting, has changed."""
        has_failed = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._is_asked.wait()
            self._is_asked.clear()
            table, self._next_table = self._next_table, None
            try:
                has_changed = await asyncio.to_thread(self.files.look) != self._seen
                if table is not None or has_changed or has_failed:
                    await self.reload_in_thread(table)
                has_failed = False
            except Exception as error:  # noqa: BLE001 - no later policy would be loaded
                has_failed = True
                problem = _explain(error)
                if self.problem is None or self.problem.message != problem.message:
                    self._tell(problem)
            try:
                await self.announce()
            except StateError:
                pass  # the next look tells it
            except Exception as error:  # noqa: BLE001 - the watch goes on
                _log.error("policies not announced", error=str(error))


def _lazy_runs() -> type[LazyRuns]:
    # imported here, because an agent loads nothing of workflows
    from retinue.runtime.lazy_runs import LazyRuns

    return LazyRuns


def _use_guards(process: Process, guards: Guards | None) -> None:
    process.dispatcher.guards = guards
    if (joined := process.find(JoinedMesh)) is not None:
        joined.use_guards(guards)


def check_answer(process: Process, principal: Principal, agent: str, skill: str) -> None:
    """Raise PolicyDeniedError where the policies of a process forbid an answer about calls of a skill."""
    loaded = process.find(LoadedPolicies)
    if loaded is not None and loaded.gate is not None:
        loaded.gate.check_answer(principal, agent, skill)


def check_publish(process: Process, principal: Principal, repository: str) -> None:
    """Raise PolicyDeniedError where the policies of a process forbid a push to a repository."""
    loaded = process.find(LoadedPolicies)
    if loaded is not None and loaded.gate is not None:
        loaded.gate.check_publish(principal, repository)


def check_import(process: Process, name: str, kind: str, place: str) -> None:
    """Raise PolicyDeniedError where the policies of a process forbid an import."""
    loaded = process.find(LoadedPolicies)
    if loaded is not None and loaded.gate is not None:
        loaded.gate.check_import(name, kind, place)


async def catch_up(process: Process) -> None:
    """Put the policies of a process in force as its files have them now; as `LoadedPolicies.catch_up`."""
    loaded = process.find(LoadedPolicies)
    if loaded is not None:
        await loaded.catch_up()


def read_revision(process: Process) -> int:
    """How often the policies of a process were put in force."""
    loaded = process.find(LoadedPolicies)
    return 0 if loaded is None else loaded.revision


class PoliciesPart(Part):
    """Checks every call of the process against the policies and the guards of the owner.

    ``team`` is that of the agent of the process, "" for none.
    """

    name = "policies"
    kinds = frozenset({"hub", "agent", "worker", "stdio", "command"})
    gives = LoadedPolicies
    is_required = True

    def __init__(self, team: str = "") -> None:
        self._team = team

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        loaded = LoadedPolicies(process, process.tables.get(PolicyTable), self._team)
        loaded.load()
        ask = partial(ask_person, loaded.find_approvals())
        _use_guards(process, make_guards(process.tables.get(Settings).guards, ask))

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            watching = asyncio.create_task(loaded.watch(), name="policy files")
            try:
                yield
            finally:
                await end_task(watching)

        def prepare(tables: Tables) -> Callable[[], None]:
            return partial(loaded.use_settings, tables.get(PolicyTable))

        def prepare_guards(tables: Tables) -> Callable[[], None]:
            return partial(_use_guards, process, make_guards(tables.get(Settings).guards, ask))

        yield Opened(
            product=loaded,
            running=running,
            problems=loaded.find_problems,
            metrics=METRICS,
            figures=loaded.read_figures,
            live=[LivePart(("policy.*",), prepare), LivePart(("guards.*",), prepare_guards)],
            skills=partial(_add_skills, process, loaded) if process.find(Directory) else None,
        )


def _add_skills(process: Process, loaded: LoadedPolicies, agent: Agent) -> None:
    """Add the skills about policies to the agent of a process that has a directory, which is a hub's."""
    from retinue.hub.policies import CurrentPolicies, ModeSwitch, PastMesh, PolicyBook, add_policy_skills
    from retinue.storage.audit_log import AuditLog
    from retinue.web.issued_tokens import TokenFile, TokenGroups

    if agent.name == HUB_NAME:
        dispatcher, directory = process.dispatcher, process.get(Directory)
        keys = process.state.keys
        read_past = AuditLog(process.state.database).iterate_past
        past = PastMesh(read_past, TokenGroups(keys).find, TokenFile(keys).find_scopes)
        modes = ModeSwitch(loaded.read_mode, loaded.set_mode)
        book = PolicyBook(
            lambda: loaded.gate,
            dispatcher.lookup,
            directory,
            dispatcher.access,
            past,
            modes,
            lambda: CurrentPolicies(*loaded.files.read_all()),
            lambda: "" if loaded.problem is None else loaded.problem.message,
            lambda: loaded.zone,
        )
        add_policy_skills(agent, book)
