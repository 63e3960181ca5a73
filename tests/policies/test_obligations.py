"""Obligations of permitted calls: limits that count, values that are masked, and how they combine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retinue.approvals.records import MemoryApprovals
from retinue.core.call import Answer, Call, Hop, Principal, TraceContext, TraceExtension
from retinue.core.errors import ApprovalNeededError, BusyError, InvalidSettingError, PolicyDeniedError
from retinue.core.record import Listing, Skill
from retinue.guards.call_guards import CallGuards, GuardRule
from retinue.guards.guard import GuardedCall, Verdict
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.guard.call_marks import ORIGIN
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.policies.counts import CallCounts, Count, MemoryCounts
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies
from retinue.runtime.loading.guard_rules import ask_person
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.call_counts import CallCountTable
from retinue.workflows.durable.tables.own_tables import OwnTables
from tests.mesh.scripted import FakeClock, make_call, make_dispatcher, make_listing, make_skill, unreachable

ANY = 'forbid(principal, action == Retinue::Action::"call", resource)'
DENY = f'@id("deny") {ANY};'
ASK = f'@id("ask") @effect("approve") {ANY};'
LIMIT = f'@id("limit") @reason("mail is slow") @effect("limit") @limit("2 per hour") {ANY};'
MASK = f'@id("mask") @effect("redact") @results("email /plan/*/owner") {ANY};'

PLAN = {"plan": [{"owner": "Ann Lee"}, {"owner": "Bob Day"}], "note": "write to ann@example.org"}
CALLER = Principal("token:ann", "token", frozenset({"exposed", "mesh"}))


def make_gate(text: str, clock: FakeClock | None = None) -> Gate:
    return Gate(
        Engine(load_policies({"p.cedar": text}, groups={})), counts=MemoryCounts(clock or FakeClock())
    )


class Mesh:
    """One agent under policies; ``invoker`` tells which calls its skill has got."""

    def __init__(self, text: str, value: Any = PLAN, *, checked: bool = False) -> None:
        self.clock = FakeClock()
        self.gate = make_gate(text, self.clock)
        self.store = MemoryApprovals(self.clock)
        self.gate.open_approvals = self._open
        self.dispatcher, _, self.invoker = make_dispatcher(
            make_listing("plan-agent", make_skill(checked=checked)),
            acts={"plan-agent": [value] * 20},
            check_policies=self.gate.check,
        )

    async def _open(self) -> MemoryApprovals:
        return self.store

    async def call(self, **fields: Any) -> Any:
        return await self.dispatcher.dispatch(make_call(**{"principal": CALLER, **fields}))


TABLE = [
    (MASK, "done", "mask"),
    (LIMIT, "done", "limit"),
    (LIMIT + MASK, "done", "limit mask"),
    (ASK + LIMIT + MASK, "asked", "ask"),
    (DENY + LIMIT + MASK, "denied", "deny"),
    (DENY + ASK + LIMIT + MASK, "denied", "deny"),
]


@pytest.mark.parametrize(("text", "what", "ids"), TABLE)
async def test_the_strictest_effect_decides_and_all_that_apply_are_met(
    text: str, what: str, ids: str
) -> None:
    mesh = Mesh(text)
    outcome = await mesh.call()
    kinds = {"done": type(None), "asked": ApprovalNeededError, "denied": PolicyDeniedError}
    assert type(outcome.error) is kinds[what]
    if isinstance(outcome.error, ApprovalNeededError | PolicyDeniedError):
        assert outcome.error.policies == tuple(ids.split())
        assert not mesh.invoker.invoked
    elif "mask" in ids:
        assert outcome.value["plan"] == [{"owner": "[redacted]"}, {"owner": "[redacted]"}]
        assert outcome.value["note"] == "write to [email]"
    if what == "asked":
        (approval,) = await mesh.store.list_all()
        await mesh.store.answer(approval.id, "yes", "ann")
        outcome = await mesh.call()
        assert outcome.value["plan"][0] == {"owner": "[redacted]"}
    if "limit" in text and what != "denied":
        # a call that waited for a person was not counted
        for _ in range(2):
            outcome = await mesh.call()
            if isinstance(outcome.error, ApprovalNeededError):
                await mesh.store.answer(outcome.error.approval, "yes", "ann")
                outcome = await mesh.call()
        assert isinstance(outcome.error, BusyError)
        assert len(mesh.invoker.invoked) == 2


async def test_a_limited_call_says_when_it_is_possible_again_and_then_it_is() -> None:
    mesh = Mesh(LIMIT)
    for _ in range(2):
        assert (await mesh.call()).error is None
        mesh.clock.at += 600
    error = (await mesh.call()).error
    assert isinstance(error, BusyError)
    assert error.message == "Busy: plan-agent/create_plan is limited to 2 per hour: mail is slow (limit)"
    assert error.retry_after_s == pytest.approx(2400)
    mesh.clock.at += error.retry_after_s
    assert (await mesh.call()).error is None
    assert (await mesh.call()).error is not None


async def test_a_limit_by_origin_counts_what_agents_do_for_a_caller_in_pieces() -> None:
    mesh = Mesh(LIMIT.replace("per hour", "per hour by origin"))
    extension = TraceExtension(None, {ORIGIN: "token:ann"})
    for agent in ("clerk", "helper"):
        trace = TraceContext("t", 1, (Hop(agent, "x"),), trusted=True, extension=extension)
        principal = Principal(agent, "agent", frozenset({"mesh"}))
        assert (await mesh.call(principal=principal, trace=trace)).error is None
    assert isinstance((await mesh.call()).error, BusyError)  # as token:ann itself
    assert (await mesh.call(principal=replace(CALLER, id="token:bob"))).error is None
    unknown = TraceContext("t", 1, (Hop("clerk", "x"),))
    assert isinstance((await mesh.call(trace=unknown)).error, PolicyDeniedError)


async def test_a_result_that_breaks_its_schema_when_masked_is_withheld() -> None:
    mesh = Mesh(MASK.replace("/plan/*/owner", "/plan"), {"plan": "1. do it"}, checked=True)
    assert (await mesh.call()).value == {"plan": "[redacted]"}
    # the schema asks for a text, and the mask of a number is a number
    (skill,) = make_listing("plan-agent", make_skill()).record.skills
    schema = {"type": "object", "properties": {"plan": {"enum": ["a", "b"]}}}
    dispatcher, _, _ = make_dispatcher(
        make_listing("plan-agent", replace(skill, output_schema=schema)),
        acts={"plan-agent": [{"plan": "a"}]},
        check_policies=mesh.gate.check,
    )
    error = (await dispatcher.dispatch(make_call())).error
    assert isinstance(error, PolicyDeniedError)
    assert "is withheld" in error.message
    assert error.policies == ("mask",)


async def test_a_result_that_is_nested_too_deep_to_be_masked_is_refused() -> None:
    value: Any = {"owner": "Ann Lee"}
    for _ in range(140):
        value = [value]
    for masks in ("/**/owner", "email"):
        mesh = Mesh(MASK.replace("email /plan/*/owner", masks), value)
        error = (await mesh.call()).error
        assert isinstance(error, PolicyDeniedError), masks
        assert "Ann" not in error.message


async def test_arguments_are_masked_before_the_skill_gets_them() -> None:
    received: list[Any] = []

    async def keep(call: Call) -> Any:
        received.append(call.arguments)
        return PLAN

    gate = make_gate(f'@id("mask") @effect("redact") @arguments("card") {ANY};')
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": keep}, check_policies=gate.check)
    await dispatcher.dispatch(make_call(arguments={"requirements": "pay with 4111 1111 1111 1111"}))
    assert received == [{"requirements": "pay with [card]"}]


class AskingGuard:
    """A guard that asks a person about secrets, and denies forbidden words at one agent."""

    def before(self, call: GuardedCall) -> Verdict | None:
        word = call.arguments["requirements"]
        if word == "forbidden" and call.agent == "far":
            return Verdict("deny", "no such word leaves")
        return Verdict("ask", "a secret") if word == "secret" else None

    def after(self, call: GuardedCall, value: Any) -> Verdict | None:
        return None


async def test_a_limit_that_is_reached_leaves_the_yes_that_a_guard_has_asked_for() -> None:
    mesh = Mesh(LIMIT.replace("2 per", "1 per"))
    ask = partial(ask_person, mesh._open)
    mesh.dispatcher.guards = CallGuards([GuardRule("guards.words", AskingGuard())], ask)
    secret = {"requirements": "secret"}
    error = (await mesh.call(arguments=secret)).error
    assert isinstance(error, ApprovalNeededError)
    await mesh.store.answer(error.approval, "yes", "ann")
    assert (await mesh.call()).error is None
    assert isinstance((await mesh.call(arguments=secret)).error, BusyError)
    assert [approval.state for approval in await mesh.store.list_all()] == ["approved"]
    mesh.clock.at += 3600
    # the yes of the person is still there, but the question has expired by now
    assert isinstance((await mesh.call(arguments=secret)).error, ApprovalNeededError)


class Agents:
    """Agents that keep the call and the channel that they get; the first one cannot be reached."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any, Channel]] = []

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        self.received.append((listing.name, call.arguments, channel))
        if listing.name == "far":
            raise unreachable("far")
        return Answer(PLAN)


CARD = {"requirements": "pay with 4111 1111 1111 1111"}


async def test_the_next_candidate_gets_what_its_own_policies_and_guards_leave() -> None:
    far, near = make_listing("far"), make_listing("near", make_skill(checked=False))
    masks = MASK.replace("@results", '@arguments("card") @results').replace(
        "resource)", 'resource in Retinue::Agent::"far")'
    )
    agents, clock = Agents(), FakeClock()
    gate = make_gate(masks + LIMIT.replace("2 per", "1 per"), clock)
    dispatcher, _, _ = make_dispatcher(far, near, check_policies=gate.check)
    dispatcher.invoker_of = lambda listing: agents
    channel = NullChannel()
    deadline = asyncio.get_running_loop().time() + 60
    outcome = await dispatcher.dispatch(make_call(arguments=CARD, deadline=deadline), channel)
    # it is one call for the limit, too
    assert outcome.error is None
    assert agents.received[0][:2] == ("far", {"requirements": "pay with [card]"})
    assert agents.received[1] == ("near", CARD, channel)
    assert outcome.value == PLAN
    assert isinstance((await dispatcher.dispatch(make_call(arguments=CARD))).error, BusyError)


async def test_what_a_guard_denies_at_one_agent_may_be_done_at_another() -> None:
    agents = Agents()
    dispatcher, _, _ = make_dispatcher(make_listing("far"), make_listing("near", make_skill(checked=False)))
    dispatcher.invoker_of = lambda listing: agents
    dispatcher.guards = CallGuards([GuardRule("guards.words", AskingGuard())])
    assert (await dispatcher.dispatch(make_call(arguments={"requirements": "forbidden"}))).error is None
    assert [name for name, *_ in agents.received] == ["near"]


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ('@effect("limit")', "@limit is ''"),
        ('@effect("limit") @limit("0 per hour")', "it counts 1 to"),
        ('@effect("limit") @limit("5 per hour by colour")', "counted by principal, origin and skill"),
        ('@effect("limit") @limit("5 per 9 year")', "@limit is '5 per 9 year'"),
        ('@effect("limit") @limit("5 per hour") @expires("1h")', "@expires without @effect"),
        ('@limit("5 per hour")', "@limit without @effect"),
        ('@effect("redact")', "nothing to mask"),
        ('@effect("redact") @results("")', "@results is empty"),
        ('@effect("redact") @results("e-mail")', "no kind and no JSON Pointer"),
        ('@effect("redact") @result("email")', "unknown annotation @result"),
        ('@effect("readct") @results("email")', "@effect is 'readct'"),
    ],
)
def test_a_misspelt_obligation_refuses_the_file(annotations: str, problem: str) -> None:
    with pytest.raises(InvalidSettingError, match=problem):
        make_gate(f'@id("a") {annotations} {ANY};')


@pytest.fixture(params=["memory", "database"])
async def counts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[CallCounts, FakeClock]]:
    clock = FakeClock()
    if request.param == "memory":
        yield MemoryCounts(clock), clock
        return
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    OwnTables(database.engine).update()
    yield CallCountTable(database, clock), clock
    database.close()


async def test_a_call_is_counted_under_all_its_keys_or_under_none(
    counts: tuple[CallCounts, FakeClock],
) -> None:
    store, clock = counts
    few, many = Count("few", 1, 60.0), Count("many", 3, 3600.0)
    assert await store.take([few, many]) is None
    for look in (store.take, store.find_refusal, store.take):
        refusal = await look([few, many])
        assert refusal is not None
        assert refusal.count == few
        assert refusal.wait_s == pytest.approx(60.0)
    clock.at += 60.0
    assert await store.find_refusal([few, many]) is None
    assert await store.take([few, many]) is None
    await store.give_back([few, many])
    assert await store.take([few, many]) is None
    assert await store.take([many]) is None
    refusal = await store.take([many])
    assert refusal is not None
    assert refusal.count == many
    clock.at -= 5_000.0  # a clock that was set back does not free the count
    assert await store.take([many]) is not None


@pytest.mark.parametrize("agent", ["plan-agent", "owner/plan", "owner%2Fplan", "Pl\u00e4ne"])
def test_an_agent_whose_results_a_policy_masks_is_found_by_any_name(agent: str) -> None:
    quoted = agent.replace("/", "%2F")
    for scope in (f'== Retinue::Skill::"{quoted}/create_plan"', f'in Retinue::Agent::"{agent}"'):
        text = MASK.replace(", resource)", f", resource {scope})")
        assert make_gate(text).redacts(agent), scope
        assert not make_gate(text).redacts("other"), scope
