"""A call that needs a person: what uses a yes, what leaves it unused, and what a no answers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from retinue.approvals.records import Approval, ApprovalRequest, MemoryApprovals, Verdict
from retinue.core.call import Answer, Call, Outcome, TraceContext
from retinue.core.errors import BusyError, PolicyDeniedError, RetinueError
from retinue.core.record import LOCAL_SOURCE, Listing, Skill
from retinue.core.usage import SOURCES
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.approvals import ApprovalTable
from retinue.workflows.durable.tables.call_counts import CallCountTable
from retinue.workflows.durable.tables.signals import SignalTable
from tests.mesh.scripted import (
    FakeClock,
    ScriptedInvoker,
    ScriptedLookup,
    make_call,
    make_dispatcher,
    make_listing,
    unreachable,
)
from tests.policies.test_gate import BOB
from tests.workflows.implementations import make_database

ASK = '@id("ask") @reason("a person plans") @effect("approve") forbid(principal, action, resource);'


class NoGuests:
    """A guard that denies while it is closed."""

    is_closed = False

    async def before(self, call: Call, listing: Listing, skill: Skill) -> tuple[Call, None]:
        if self.is_closed:
            raise PolicyDeniedError("the guard is closed")
        return call, None

    def watch(self, channel: Channel, call: Call, listing: Listing, skill: Skill) -> Channel:
        return channel

    async def after(self, call: Call, listing: Listing, skill: Skill, answer: Answer) -> Answer:
        return answer

    def concern(self, agent: str) -> bool:
        return True

    async def clean_error(self, call: Call, listing: Listing, skill: Skill, error: RetinueError) -> None:
        return


class SlowApprovals(MemoryApprovals):
    """Lets another call run after each question, as a database does."""

    async def ask(self, request: ApprovalRequest, *, expires_s: float, approval_id: str = "") -> Approval:
        approval = await super().ask(request, expires_s=expires_s, approval_id=approval_id)
        await asyncio.sleep(0)
        return approval


class Mesh:
    """An agent whose calls need a yes."""

    def __init__(self, policies: str = ASK) -> None:
        self.clock = FakeClock()
        self.store = SlowApprovals(self.clock)
        self.guard = NoGuests()
        self.dispatcher: Dispatcher
        self.invoker: ScriptedInvoker
        self.dispatcher, _, self.invoker = make_dispatcher(
            make_listing("a"), agent_stats=AgentStatsTable(clock=self.clock)
        )
        self.breaker = self.dispatcher.agent_stats.of(make_listing("a")).breaker
        self.gate = Gate(Engine(load_policies({"p.cedar": policies})), open_approvals=self._open)
        self.dispatcher.check_policies = self.gate.check
        self.dispatcher.guards = self.guard

    async def _open(self) -> MemoryApprovals:
        return self.store

    async def ask(self, call: Call | None = None) -> Outcome:
        return await self.dispatcher.dispatch(call or make_call())

    async def answer(self, verdict: Verdict, comment: str = "") -> Approval:
        (question,) = await self.store.list_all(state="open")
        return await self.store.answer(question.id, verdict, "owner", comment)

    def open_breaker(self) -> None:
        for _ in range(3):
            self.breaker.failed(unreachable("a"))

    async def states(self) -> list[str]:
        return [each.state for each in await self.store.list_all()]


def type_of(outcome: Outcome) -> str:
    assert outcome.error is not None
    return outcome.error.type


async def test_a_call_that_a_guard_denies_asks_nobody_and_uses_no_yes() -> None:
    mesh = Mesh()
    mesh.guard.is_closed = True
    assert type_of(await mesh.ask()) == "policy_denied"
    assert await mesh.states() == []
    mesh.guard.is_closed = False
    assert type_of(await mesh.ask()) == "approval_needed"
    await mesh.answer("yes")
    mesh.guard.is_closed = True
    assert type_of(await mesh.ask()) == "policy_denied"
    assert await mesh.states() == ["approved"]
    mesh.guard.is_closed = False
    assert (await mesh.ask()).status == "done"
    assert await mesh.states() == ["used"]


async def test_a_call_that_the_breaker_refuses_uses_no_yes() -> None:
    mesh = Mesh()
    assert type_of(await mesh.ask()) == "approval_needed"
    await mesh.answer("yes")
    mesh.open_breaker()
    assert type_of(await mesh.ask()) == "circuit_open"
    assert await mesh.states() == ["approved"]


async def test_a_question_to_a_person_leaves_the_trial_of_an_open_breaker_to_the_next_call() -> None:
    mesh = Mesh()
    mesh.open_breaker()
    mesh.clock.pass_time(6)
    assert type_of(await mesh.ask()) == "approval_needed"
    await mesh.answer("yes")
    assert (await mesh.ask()).status == "done"


@pytest.mark.parametrize("at_once", [False, True], ids=["one-after-another", "at-once"])
async def test_one_yes_runs_one_of_two_calls_with_one_id(at_once: bool) -> None:
    mesh = Mesh()
    call = make_call(idempotency_key="step")
    assert type_of(await mesh.ask(call)) == "approval_needed"
    await mesh.answer("yes")
    if at_once:
        outcomes = list(await asyncio.gather(mesh.ask(call), mesh.ask(call)))
    else:
        outcomes = [await mesh.ask(call), await mesh.ask(call)]
    # the one that comes after its end gets its outcome
    assert sorted(outcome.status for outcome in outcomes) == ["done", "refused" if at_once else "done"]
    assert mesh.invoker.invoked == ["a"]


async def test_a_no_reaches_the_caller_with_its_comment_until_the_question_would_have_expired() -> None:
    mesh = Mesh()
    assert type_of(await mesh.ask()) == "approval_needed"
    approval = await mesh.answer("no", "plan less")
    for _ in range(2):
        error = (await mesh.ask()).error
        assert isinstance(error, PolicyDeniedError)
        assert error.message == f"a/create_plan is denied by a person: plan less (approval {approval.id})"
        assert error.policies == ("ask",)
    assert type_of(await mesh.ask(make_call(arguments={"requirements": "other"}))) == "approval_needed"
    mesh.clock.pass_time(15 * 60)
    assert type_of(await mesh.ask()) == "approval_needed"
    assert mesh.invoker.invoked == []


async def test_a_yes_counts_for_the_agent_that_calls_for_the_caller() -> None:
    mesh = Mesh()
    clerk, other = (make_call(principal=replace(BOB, through=name)) for name in ("clerk", "other"))
    assert type_of(await mesh.ask(clerk)) == "approval_needed"
    await mesh.answer("yes")
    for call in (other, make_call(principal=BOB)):
        assert type_of(await mesh.ask(call)) == "approval_needed"
    assert mesh.invoker.invoked == []
    assert (await mesh.ask(clerk)).status == "done"


LIMIT = '@id("few") @effect("limit") @limit("%d per hour") forbid(principal, action, resource);'
SOME = """@id("ask") @effect("approve") forbid(principal, action == Retinue::Action::"call", resource)
    when { context.args has requirements && context.args.requirements == "wait" };"""
WAITING = {"requirements": "wait"}


class WaitingMesh(Mesh):
    """A mesh whose caller waits for the answer of a person, as a task of A2A does."""

    def __init__(self, policies: str) -> None:
        super().__init__(policies)
        self.waiting, self.answered = asyncio.Event(), asyncio.Event()
        self.gate.ask_client = self._wait

    async def _wait(
        self, channel: Channel, store: Any, approval: Approval, call: Call, names_caller: bool
    ) -> Approval:
        self.waiting.set()
        await self.answered.wait()
        return await self.store.find(approval.id) or approval

    async def ask_while(self, act: Callable[[], Any]) -> Outcome:
        """The outcome of a call that waits while something else is done, and then gets its yes."""
        waiting = asyncio.create_task(self.ask(make_call(arguments=WAITING)))
        await self.waiting.wait()
        done = act()
        if asyncio.iscoroutine(done):
            await done
        await self.answer("yes")
        self.answered.set()
        return await waiting


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_call_that_waits_takes_no_place_of_a_limit_and_a_full_one_leaves_its_yes(limit: int) -> None:
    mesh = WaitingMesh(SOME + LIMIT % limit)

    async def call_another() -> None:
        assert (await mesh.ask()).status == "done"

    outcome = await mesh.ask_while(call_another)
    assert len(mesh.invoker.invoked) == limit
    if limit == 1:
        assert isinstance(outcome.error, BusyError)
    assert await mesh.states() == ["approved" if limit == 1 else "used"]
    assert isinstance((await mesh.ask()).error, BusyError)


async def test_policies_that_change_while_a_call_waits_decide_about_it() -> None:
    mesh = WaitingMesh(SOME)

    def close() -> None:
        closed = SOME + '@id("closed") forbid(principal, action, resource);'
        mesh.gate.engine = Engine(load_policies({"p.cedar": closed}))

    outcome = await mesh.ask_while(close)
    assert isinstance(outcome.error, PolicyDeniedError)
    assert "the policies have changed meanwhile" in outcome.error.message
    assert (mesh.invoker.invoked, await mesh.states()) == ([], ["approved"])


async def test_a_yes_that_comes_after_the_hours_of_a_policy_does_not_count() -> None:
    night = '@id("night") forbid(principal, action == Retinue::Action::"call", resource)'
    mesh = WaitingMesh(SOME + night + " when { context.hour >= 22 };")
    at = datetime(2026, 11, 27, 21, 59, tzinfo=UTC)
    mesh.gate.clock = lambda: at + timedelta(minutes=2 * mesh.waiting.is_set())
    outcome = await mesh.ask_while(lambda: None)
    assert isinstance(outcome.error, PolicyDeniedError)
    assert outcome.error.policies == ("night",)
    assert (mesh.invoker.invoked, await mesh.states()) == ([], ["approved"])


READS_WEB = """@id("web") forbid(principal, action == Retinue::Action::"call", resource)
    when { context.sources.contains(Retinue::Agent::"web") };"""


@pytest.mark.parametrize(
    ("source", "usage", "sources"),
    [
        ("home", {SOURCES: {"own": ["disk"]}}, {"own": ["disk", "a"]}),
        ("home", None, {"foreign": ["a"]}),
        (LOCAL_SOURCE, None, {"own": ["a"]}),
    ],
)
async def test_the_kept_outcome_of_a_repetition_names_the_sources_of_the_first_call(
    source: str, usage: Any, sources: Any
) -> None:
    mesh = Mesh(ASK + READS_WEB)

    class Signed:
        """An agent whose reply tells what it has read."""

        async def invoke(
            self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
        ) -> Answer:
            return Answer({"plan": "1."}, usage=usage)

    mesh.dispatcher.lookup = ScriptedLookup([replace(make_listing("a"), source=source)])
    mesh.dispatcher.invoker_of = lambda listing: Signed()
    call = make_call(idempotency_key="k", trace=TraceContext(""))
    assert type_of(await mesh.ask(call)) == "approval_needed"
    await mesh.answer("yes")
    outcomes = [await mesh.ask(call), await mesh.ask(call)]
    assert [len(outcome.attempts) for outcome in outcomes] == [1, 0]
    for outcome in outcomes:
        assert outcome.usage is not None
        assert outcome.usage[SOURCES] == sources


async def test_two_hubs_on_one_database_use_a_yes_once_and_count_together(tmp_path: Path) -> None:
    shutil.copy(await make_database(), tmp_path / "runs.db")
    hubs: list[Mesh] = []
    databases = [RunDatabase(f"sqlite:///{tmp_path}/runs.db") for _ in range(2)]
    for database in databases:
        hub = Mesh(SOME + LIMIT % 2)
        approvals, counts = ApprovalTable(database, SignalTable(database)), CallCountTable(database)
        hub.gate.open_approvals, hub.gate.open_counts = give(approvals), give(counts)
        hubs.append(hub)
    asked = make_call(arguments=WAITING)
    try:
        refused = [await hub.ask(asked) for hub in hubs]
        assert [type_of(outcome) for outcome in refused] == ["approval_needed"] * 2
        (question,) = await approvals.list_all(state="open")
        await approvals.answer(question.id, "yes", "owner")
        outcomes = await asyncio.gather(*(hub.ask(asked) for hub in hubs))
        assert sorted(outcome.status for outcome in outcomes) == ["done", "refused"]
        # the call that got no yes was not counted
        statuses = [(await hub.ask(make_call())).status for hub in hubs]
        assert statuses == ["done", "refused"]
        assert sum(len(hub.invoker.invoked) for hub in hubs) == 2
    finally:
        for database in databases:
            database.close()


def give(value: Any) -> Any:
    """What opens a store that is open already."""

    async def open_value() -> Any:
        return value

    return open_value


@pytest.mark.parametrize("change", [{"version": "1.0.1"}, {"digest": "sha256:other"}])
async def test_a_yes_does_not_count_for_an_agent_that_was_replaced_after_it(change: Any) -> None:
    mesh = Mesh()
    assert type_of(await mesh.ask()) == "approval_needed"
    await mesh.answer("yes")
    mesh.dispatcher.lookup = ScriptedLookup([make_listing("a", **change)])
    assert type_of(await mesh.ask()) == "approval_needed"
    assert (mesh.invoker.invoked, await mesh.states()) == ([], ["open", "approved"])
