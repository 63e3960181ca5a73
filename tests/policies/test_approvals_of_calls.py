"""A call that needs a person: what uses a yes, what leaves it unused, and what a no answers."""

from __future__ import annotations

import asyncio

import pytest

from retinue.approvals.records import Approval, ApprovalRequest, MemoryApprovals, Verdict
from retinue.core.call import Answer, Call, Outcome
from retinue.core.errors import PolicyDeniedError, RetinueError
from retinue.core.record import Listing, Skill
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies
from tests.mesh.scripted import (
    FakeClock,
    ScriptedInvoker,
    make_call,
    make_dispatcher,
    make_listing,
    unreachable,
)

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

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = SlowApprovals(self.clock)
        self.guard = NoGuests()
        self.dispatcher: Dispatcher
        self.invoker: ScriptedInvoker
        self.dispatcher, _, self.invoker = make_dispatcher(
            make_listing("a"), agent_stats=AgentStatsTable(clock=self.clock)
        )
        self.breaker = self.dispatcher.agent_stats.of(make_listing("a")).breaker
        gate = Gate(Engine(load_policies({"p.cedar": ASK})), open_approvals=self._open)
        self.dispatcher.check_policies = gate.check
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
