"""Policies and guards as a part, and the skills by which people answer the approvals of policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog

from retinue.core.errors import RetinueError
from retinue.mesh.dispatch import CheckPolicies, Guards
from retinue.parts.part import LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Process, Tables
from retinue.runtime.joined_mesh import JoinedMesh
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.loading.guard_rules import make_guards
from retinue.runtime.loading.policy_files import PolicyFiles, Snapshot
from retinue.runtime.serving import end_task
from retinue.settings import Settings
from retinue.settings_tables import PolicyTable

LOOK_S = 1.0
"""Seconds between two looks for changed files."""

_log = structlog.get_logger("retinue.policies")


class LoadedPolicies:
    """The policies of a process, as a product: loaded at its start, and again when files change.

    A set that is not valid is not loaded: the old one stays, and ``problem`` says why. Before the first set
    is loaded, calls pass no gate, and the engine of policies is not imported.
    """

    def __init__(self, process: Process, table: PolicyTable) -> None:
        self._process = process
        self._table = table
        self.files = PolicyFiles.of(process.state.root, table)
        self._seen: Snapshot = ()
        self.problem: RetinueError | None = None

    def load(self) -> None:
        """Load the files; raises InvalidSettingError for a set that is not valid."""
        self._seen = self.files.look()
        policies = self.files.load(self._table)
        if policies is None:
            self._give(None)
            return
        # imported here, because most processes have no policies
        from retinue.policies.decision import Engine
        from retinue.policies.gate import Gate

        runs = self._process.find(LazyRuns)
        opening = None if runs is None else runs.open_approvals
        self._give(Gate(Engine(policies), self._table.mode, opening).check)

    def _give(self, check: CheckPolicies | None) -> None:
        self._process.dispatcher.check_policies = check
        if (joined := self._process.find(JoinedMesh)) is not None:
            joined.check_policies(check)

    def reload(self, table: PolicyTable | None = None) -> None:
        """Load again; a set that is not valid is told, and the old one stays."""
        before, self._table = self._table, table or self._table
        self.files = PolicyFiles.of(self._process.state.root, self._table)
        try:
            self.load()
        except RetinueError as error:
            self._table = before
            self.problem = error
            _log.error(
                "policies not loaded; the previous ones stay", error=error.message, remedy=error.remedy
            )
        else:
            self.problem = None
            _log.info("policies loaded", files=len(self._seen))

    async def watch(self) -> None:
        """Load the files again whenever one has changed."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.files.look() != self._seen:
                self.reload()


def _use_guards(process: Process, guards: Guards | None) -> None:
    process.dispatcher.guards = guards
    if (joined := process.find(JoinedMesh)) is not None:
        joined.use_guards(guards)


class PoliciesPart(Part):
    """Checks every call of the process against the policies and the guards of the owner."""

    name = "policies"
    kinds = frozenset({"hub", "agent", "worker", "stdio", "command"})
    gives = LoadedPolicies
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        loaded = LoadedPolicies(process, process.tables.get(PolicyTable))
        loaded.load()
        _use_guards(process, make_guards(process.tables.get(Settings).guards))

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            watching = asyncio.create_task(loaded.watch(), name="policy files")
            try:
                yield
            finally:
                await end_task(watching)

        async def find_problems() -> Sequence[ReadinessProblem]:
            problem = loaded.problem
            if problem is None:
                return []
            return [ReadinessProblem("part", self.name, problem.message, is_fatal=False)]

        def prepare(tables: Tables) -> Callable[[], None]:
            return partial(loaded.reload, tables.get(PolicyTable))

        def prepare_guards(tables: Tables) -> Callable[[], None]:
            return partial(_use_guards, process, make_guards(tables.get(Settings).guards))

        live = [LivePart(("policy.*",), prepare), LivePart(("guards.*",), prepare_guards)]
        yield Opened(product=loaded, running=running, problems=find_problems, live=live)


class ApprovalsPart(Part):
    """Adds the skills of approvals to the hub's agent."""

    name = "approvals"
    kinds = frozenset({"hub", "command"})
    needs = (LazyRuns,)
    rank = 86
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        from retinue.hub.approvals import ApprovalBook, add_approval_skills

        runs = process.get(LazyRuns)
        book = ApprovalBook(runs.open_approvals, exists=runs.store.exists)
        yield Opened(skills=partial(add_approval_skills, book=book))
