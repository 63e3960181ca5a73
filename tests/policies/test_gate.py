"""The gate before each call: whom it evaluates, what it asks of a person, and which traces it believes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from retinue.approvals.records import Approval, ApprovalRequest
from retinue.core.allowance import Allowance
from retinue.core.call import Call, Hop, Outcome, Principal, TraceContext, TraceExtension
from retinue.core.errors import AgentUnreachableError, ApprovalNeededError, PolicyDeniedError
from retinue.core.record import LOCAL_SOURCE
from retinue.core.trust import Trust
from retinue.core.usage import SOURCES, Sources, Usage
from retinue.mesh.guard.call_marks import ORIGIN, find_origin, note_origin
from retinue.mesh.guard.sources import read_trace
from retinue.mesh.guard.spending import accept_usage
from retinue.mesh.guard.trace_guard import TraceGuard, next_hop
from retinue.policies.decision import MANY, Engine
from retinue.policies.entities import TeamScope
from retinue.policies.gate import Gate
from retinue.policies.policy_set import Policy, load_policies
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


def test_an_origin_that_is_too_long_for_a_trace_is_unknown_and_never_another_one() -> None:
    text = f'@id("long") forbid({CALL}) when {{ context.origin == Retinue::Caller::"jwt:{"a" * 400}" }};'
    for length, verdict in ((400, "deny"), (401, "allow")):
        caller = Principal(f"jwt:{'a' * length}", "token", frozenset({"mesh"}))
        (skill,) = WIPE.record.skills
        assert (
            make_gate(text).explain(make_call("wipe", {}, principal=caller), WIPE, skill)["verdict"]
            == verdict
        )
        noted = note_origin(TraceContext("t", 1, (Hop("clerk", "x"),), trusted=True), caller.id)
        assert find_origin(make_call("wipe", {}, principal=BOB, trace=noted)) == ""


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


CALL = 'principal, action == Retinue::Action::"call", resource'
READS_SOURCES = (
    f'@id("foreign") forbid({CALL}) when {{ resource.destructive && !context.foreign.isEmpty() }};'
)
READS_NAMES = f'@id("web") forbid({CALL}) when {{ context.sources.contains(Retinue::Agent::"web") }};'
WIPE = make_listing("disk", make_skill("wipe", checked=False, destructive=True))


def tell(own: list[str], foreign: list[str]) -> TraceContext:
    """A trace of this mesh whose chain has read these agents."""
    others = {SOURCES: Sources(tuple(own), tuple(foreign)).to_json()}
    return TraceContext("t", 1, (Hop("clerk", "x"),), trusted=True, extension=TraceExtension(None, others))


@pytest.mark.parametrize(
    ("text", "trace", "denied"),
    [
        (READS_SOURCES, TraceContext(""), ""),
        (READS_SOURCES, tell(["web"], []), ""),
        (READS_SOURCES, tell([], ["import"]), "foreign"),
        # what a chain without a signature says of itself does not count
        (READS_SOURCES, replace(tell(["web"], []), trusted=False), "foreign"),
        (READS_SOURCES, replace(tell([], []), extension=None), "foreign"),
        (READS_NAMES, tell(["disk"], []), ""),
        (READS_NAMES, tell(["web"], []), "web"),
        (READS_NAMES, tell([], ["web"]), "web"),
        (READS_NAMES, replace(tell([], []), extension=None), "does not tell all of them"),
        (READS_NAMES, tell([f"agent-{n}" for n in range(30)], []), "does not tell all of them"),
    ],
)
async def test_a_policy_reads_what_a_chain_has_taken_in(text: str, trace: TraceContext, denied: str) -> None:
    dispatcher, _, _ = make_dispatcher(WIPE, acts={"disk": ["wiped"]}, check_policies=make_gate(text).check)
    error = (await dispatcher.dispatch(make_call("wipe", {}, trace=trace, principal=BOB))).error
    assert isinstance(error, PolicyDeniedError) == bool(denied)
    assert error is None or denied in error.message


async def test_an_outcome_names_its_sources_only_where_a_policy_reads_them() -> None:
    own, foreign = make_listing("own"), replace(make_listing("far"), source_trust=Trust.IMPORTED)
    unsigned = replace(make_listing("peer"), source="hub")
    for listing, sources in (
        (replace(own, source=LOCAL_SOURCE), {"own": ["own"]}),
        (foreign, {"foreign": ["far"]}),
        (unsigned, {"foreign": ["peer"]}),
    ):
        acts = {listing.name: [{"plan": "1."}] * 2}
        dispatcher, _, _ = make_dispatcher(listing, acts=acts, check_policies=make_gate(READS_SOURCES).check)
        assert (await dispatcher.dispatch(make_call())).usage == {SOURCES: sources}
        plain = make_gate('@id("a") forbid(principal, action, resource) when { resource.runs_code };')
        dispatcher.check_policies = plain.check
        assert (await dispatcher.dispatch(make_call())).usage is None


def test_a_further_call_is_told_what_the_calls_before_it_have_read() -> None:
    guard = TraceGuard()
    admitted = guard.enter(make_call(trace=tell(["web"], [])), "clerk")
    with admitted.further_call() as outgoing:
        outgoing.record_outcome(Outcome("1", "x", "done", usage={SOURCES: {"own": ["mail"]}}))
    with admitted.further_call() as outgoing:
        assert read_trace(outgoing.trace) == Sources(("web", "mail"))
        outgoing.record_outcome(Outcome("2", "x", "done", agent="far"))  # nobody has signed it
    assert read_trace(admitted.further_call().trace) == Sources(("web", "mail"), ("far",))
    assert read_trace(admitted.relay().trace) == Sources(("web", "mail"), ("far",))


def test_sources_of_a_reply_count_only_with_the_signature_of_the_mesh() -> None:
    class Signer:
        def sign_usage(self, usage: Usage, request_mac: str) -> str:
            return f"{sorted(usage)} {request_mac}"

    sent = replace(tell([], []), mac="m")
    usage = {"input_tokens": 3, SOURCES: {"own": ["web"]}}
    signed = {**usage, "mac": Signer().sign_usage(usage, "m")}
    signer: Any = Signer()
    assert accept_usage(signed, sent, signer) == usage
    for reply, key in ((usage, signer), (signed, None), ({**signed, "mac": "x"}, signer)):
        assert accept_usage(reply, sent, key) == {"input_tokens": 3}


def test_the_time_and_the_budgets_of_a_call_are_facts_of_its_context() -> None:
    at = datetime(2026, 11, 26, 23, 30, tzinfo=UTC)  # a Thursday, and Friday in Zurich
    trace = replace(tell([], []), calls_left=3, extension=TraceExtension(Allowance.of(100, 0.5)))
    for condition, denied in [
        ("context.hour < 6", True),
        ("context.weekday == 5", True),
        ("context has calls_left && context.calls_left < 4", True),
        ("context has tokens_left && context.tokens_left < 100", False),
        ('context has dollars_left && context.dollars_left.lessThan(decimal("0.51"))', True),
        ("!context.can_ask", True),
    ]:
        gate = make_gate(f'@id("a") forbid({CALL}) when {{ {condition} }};')
        gate.clock, gate.zone = (lambda: at), ZoneInfo("Europe/Zurich")
        (skill,) = WIPE.record.skills
        verdict = gate.explain(make_call("wipe", {}, trace=trace), WIPE, skill)["verdict"]
        assert verdict == ("deny" if denied else "allow"), condition


def test_more_is_left_of_a_budget_than_the_engine_counts() -> None:
    dollars = 'context.dollars_left.greaterThan(decimal("5.0"))'
    condition = f"context.calls_left > 5 && context.tokens_left > 5 && {dollars}"
    left = "context has calls_left && context has tokens_left && context has dollars_left"
    trace = replace(tell([], []), calls_left=2**80, extension=TraceExtension(Allowance.of(2**80, 1e300)))
    gate = make_gate(f'@id("much") forbid({CALL}) when {{ {left} && {condition} }};')
    (skill,) = WIPE.record.skills
    explained = gate.explain(make_call("wipe", {}, trace=trace), WIPE, skill)
    assert (explained["policies"], explained.get("problem")) == (["much"], None)


def test_an_explanation_has_the_values_that_policies_read_and_what_else_decides() -> None:
    large = "when { context.args has n && context.args.n > 5 }"
    gate = make_gate(f'@id("deny") forbid({CALL}) {large}; @id("ask") @effect("approve") forbid({CALL});')
    (skill,) = WIPE.record.skills
    explained = gate.explain(make_call("wipe", {"n": 9, "x": 1}), WIPE, skill)
    assert (explained["verdict"], explained["policies"]) == ("deny", ["deny"])
    assert explained["without"] == {"verdict": "approve", "policies": ["ask"]}
    assert [(row["id"], row["values"]) for row in explained["concerned"]] == [("deny", {"n": 9}), ("ask", {})]


def test_lists_have_what_the_caller_and_the_agent_that_calls_for_it_may_see() -> None:
    gate = make_gate(
        '@id("bot") forbid(principal == Retinue::Agent::"bot", action == Retinue::Action::"list", resource);'
        f'@id("ask") @effect("approve") forbid({CALL}) when {{ principal == Retinue::Agent::"clerk" &&'
        ' context.origin == Retinue::Caller::"token:bob" };'
    )
    (skill,) = WIPE.record.skills
    for through, is_listed, is_marked in (("", True, False), ("bot", False, False), ("clerk", True, True)):
        principal = replace(BOB, through=through)
        lists, notes = gate.filter_lists(principal), gate.note_lists(principal)
        assert lists is not None
        assert notes is not None
        assert (lists(WIPE, skill), bool(notes(WIPE, skill))) == (is_listed, is_marked), through
        assert lists == gate.filter_lists(principal)


def test_lists_mark_what_the_team_of_the_agent_that_calls_asks_about() -> None:
    text = f'@id("ask") @effect("approve") forbid({CALL});'
    scope = TeamScope("shop", frozenset({"seller"}))
    gate = Gate(Engine(load_policies({"team.cedar": text}, teams={"team.cedar": scope})))
    (skill,) = WIPE.record.skills
    for through, is_marked in (("", False), ("stranger", False), ("seller", True)):
        principal = replace(BOB, through=through)
        notes = gate.note_lists(principal)
        assert notes is not None
        assert bool(notes(WIPE, skill)) == is_marked, through
        explained = gate.explain(make_call("wipe", {}, principal=principal), WIPE, skill)
        assert (explained["verdict"] == "approve") == is_marked, through


async def test_the_handles_of_many_policies_of_a_skill_are_made_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made_in: list[str] = []
    share = Engine._share

    def note(self: Engine, selected: Sequence[Policy]) -> Any:
        made_in.append(threading.current_thread().name)
        return share(self, selected)

    monkeypatch.setattr(Engine, "_share", note)
    rule = (
        '@id("p%d") forbid(principal, action == Retinue::Action::"call", resource in Retinue::Agent::"bank") '
        "when { context.args has n && context.args.n == %d };"
    )
    listing, main = make_listing("bank", make_skill("pay")), threading.current_thread().name
    for count in (MANY, MANY + 1):
        gate = make_gate("\n".join(rule % (number, number) for number in range(count)))
        gate.run_in_thread = asyncio.to_thread
        for number in (count, 0, 0):  # the first call makes what the others use
            call = make_call("pay", {"n": number}, principal=BOB)
            admitted = TraceGuard().enter(call, "bank")
            checking = gate.check(
                replace(call, trace=admitted.trace), listing, listing.record.skills[0], admitted
            )
            if number == count:
                await checking
                continue
            with pytest.raises(PolicyDeniedError, match="p0"):
                await checking
    few, many, *kept = made_in
    assert few == main
    assert many != main
    assert kept == [main]  # takes what the thread has made
