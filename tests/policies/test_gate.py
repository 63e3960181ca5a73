"""The gate before each call: whom it evaluates, what it asks of a person, and which traces it believes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.approvals.records import Approval, ApprovalRequest
from retinue.core.call import Call, Hop, Principal, TraceContext, TraceExtension
from retinue.core.errors import AgentUnreachableError, ApprovalNeededError, PolicyDeniedError
from retinue.mesh.guard.trace_guard import TraceGuard, next_hop
from retinue.policies.decision import Engine
from retinue.policies.gate import ORIGIN, Gate, find_origin
from retinue.policies.policy_set import load_policies
from tests.mesh.scripted import make_call, make_dispatcher, make_listing, make_skill, unreachable

BOB = Principal("token:bob", "token", frozenset({"exposed", "mesh"}))


def make_gate(text: str) -> Gate:
    return Gate(Engine(load_policies({"p.cedar": text}, groups={})))


def test_the_first_call_of_a_chain_has_its_own_caller_as_origin_whatever_its_trace_says() -> None:
    claimed = TraceExtension(None, {ORIGIN: "token:admin"})
    claims = [TraceContext("", extension=claimed), TraceContext("t", trusted=True, extension=claimed)]
    for trace in claims:
        call = make_call(trace=trace, principal=BOB)
        admitted = TraceGuard().enter(call, "bank")
        assert find_origin(replace(call, trace=admitted.trace)) == "token:bob"
    # the next process would get a signature over what stays in the trace
    new = TraceGuard().enter(make_call(trace=claims[0], principal=BOB), "bank").trace
    assert next_hop(new, Hop("bank", "x"), calls_left=1, seconds_left=None).extension is None


class NoAnswers:
    """A store of approvals in which nobody has answered; keeps what was asked."""

    def __init__(self) -> None:
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest, *, expires_s: float) -> Approval:
        self.requests.append(request)
        return Approval.ask(request, 0.0, expires_s)


async def test_a_person_who_approves_a_call_of_an_agent_must_suit_the_policies_of_both() -> None:
    scope = 'action == Retinue::Action::"call", resource'
    gate = make_gate(
        f'@id("caller") @effect("approve") @approvers("token:ann") @expires("1h") '
        f'forbid(principal == Retinue::Caller::"token:bob", {scope});'
        f'@id("agent") @effect("approve") @approvers("token:eve") @expires("5m") '
        f'forbid(principal == Retinue::Agent::"bot", {scope});'
    )
    store = NoAnswers()

    async def open_approvals() -> NoAnswers:
        return store

    gate.open_approvals = open_approvals  # type: ignore[assignment]
    dispatcher, _, _ = make_dispatcher(check_policies=gate.check)
    error = (await dispatcher.dispatch(make_call(principal=replace(BOB, through="bot")))).error
    assert isinstance(error, ApprovalNeededError)
    assert sorted(error.policies) == ["agent", "caller"]
    assert sorted(store.requests[0].approvers) == [("token:ann",), ("token:eve",)]


@pytest.mark.parametrize("is_forbidden", [True, False])
async def test_each_candidate_of_a_fail_over_is_checked_although_the_one_before_was_permitted(
    is_forbidden: bool,
) -> None:
    gate = make_gate(
        '@id("old") forbid(principal, action, resource) when { resource.version == "%s" };'
        % ("2.0.0" if is_forbidden else "3.0.0")
    )
    skill = make_skill(idempotent=True)
    first, second = (make_listing("bank", skill, version=version) for version in ("1.0.0", "2.0.0"))
    second = replace(second, source="far")
    dispatcher, _, invoker = make_dispatcher(
        first, second, acts={"bank": [unreachable("bank"), {"plan": "1."}]}, check_policies=gate.check
    )
    outcome = await dispatcher.dispatch(make_call())
    assert len(invoker.invoked) == (1 if is_forbidden else 2)
    # the first failure is told, because the call could have run there
    assert isinstance(outcome.error, AgentUnreachableError if is_forbidden else type(None))


async def test_a_call_that_came_with_a_mark_of_this_mesh_is_not_checked_again() -> None:
    gate = make_gate('@id("new") forbid(principal, action, resource) when { resource.version == "2.0.0" };')
    received: list[Call] = []

    async def keep(call: Call) -> dict[str, str]:
        received.append(call)
        return {"plan": "1."}

    first, _, _ = make_dispatcher(acts={"plan-agent": keep}, check_policies=gate.check)
    assert (await first.dispatch(make_call())).error is None
    second, _, _ = make_dispatcher(make_listing(version="2.0.0"), check_policies=gate.check)
    assert isinstance((await second.dispatch(make_call())).error, PolicyDeniedError)
    assert (await second.dispatch(received[0])).error is None
