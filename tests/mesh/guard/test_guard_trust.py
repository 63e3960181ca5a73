"""What the guard believes of a trace: signatures, claims, budgets of both, and the breaker of a chain."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import LOCAL, Call, Hop, Principal, TraceContext
from retinue.core.errors import BudgetSpentError, CallTooDeepError, CircuitOpenError, InvalidRequestError
from retinue.mesh.guard.trace_guard import AdmittedCall, GuardSettings, Strictness, TraceGuard, new_trace
from retinue.web.codec.trace import parse_trace_headers, render_trace_headers
from retinue.web.mesh_tokens import MeshSigner
from tests.mesh.scripted import FakeClock, make_call
from tests.requirements import requirement

KEY = b"the key of one mesh"
TOKEN = Principal("somebody", "token", frozenset({"exposed", "mesh"}))


def guard(*, hub_id: str | None = None, clock: Any = time.monotonic, **settings: Any) -> TraceGuard:
    """A guard of one process of the mesh."""
    return TraceGuard(GuardSettings(**settings), hub_id=hub_id, signer=MeshSigner(KEY), clock=clock)


def received(trace: TraceContext) -> TraceContext:
    found = parse_trace_headers({name.lower(): text for name, text in render_trace_headers(trace).items()})
    assert found is not None
    return found


def signed(trace: TraceContext, agent: str = "b", skill: str = "work", key: bytes = KEY) -> TraceContext:
    """As the next process reads it when a process with ``key`` sent it."""
    return received(MeshSigner(key).sign(replace(trace, trusted=True), agent, skill))


def a_call(trace: TraceContext, **fields: Any) -> Call:
    return make_call(fields.pop("skill", "work"), trace=trace, agent=fields.pop("agent", "b"), **fields)


DEEP = TraceContext("t", 3, (Hop("a", "x"), Hop("b", "y"), Hop("c", "z")), (), 7, 8.0)


# what is believed


@requirement("S-17")
def test_a_trace_that_the_mesh_signed_for_this_call_is_taken_as_it_is() -> None:
    trace = guard().enter(a_call(signed(DEEP)), "b").trace
    assert trace == replace(DEEP, trusted=True)


@pytest.mark.parametrize(
    ("forged", "call"),
    [
        (replace(signed(DEEP), depth=0), {}),
        (replace(signed(DEEP), calls_left=10**9), {}),
        (replace(signed(DEEP), path=()), {}),
        (replace(signed(DEEP), mac="f" * 64), {}),
        (replace(signed(DEEP), mac=None), {}),
        (signed(DEEP, agent="c"), {}),
        (signed(DEEP, skill="other"), {}),
        (signed(DEEP), {"agent": "c"}),
        (signed(DEEP, key=b"another"), {}),
    ],
    ids=[
        "lower depth",
        "higher budget",
        "no path",
        "made up",
        "stripped",
        "stolen from another agent",
        "stolen from another skill",
        "carried to another agent",
        "of another mesh",
    ],
)
def test_a_forged_trace_is_a_claim_that_own_calls_in_flight_outweigh(
    forged: TraceContext, call: dict[str, Any]
) -> None:
    here = guard()
    admitted = here.enter(a_call(TraceContext("t", depth=3, trusted=True, calls_left=100)), "a")
    with admitted.further_call() as outgoing:
        trace = here.enter(a_call(forged, **call), "b").trace
    assert trace.depth == 5
    assert not trace.trusted
    assert trace.mac is None
    assert trace.calls_left is not None
    assert outgoing.trace.calls_left is not None
    assert trace.calls_left < outgoing.trace.calls_left


@requirement("S-17")
def test_a_signed_trace_that_is_sent_again_is_a_claim() -> None:
    here = guard()
    sent = signed(DEEP)
    assert here.enter(a_call(sent), "b").trace.trusted
    with here.enter(a_call(TraceContext("t", depth=3, trusted=True)), "a").further_call():
        again = here.enter(a_call(sent), "b").trace
    assert (again.trusted, again.depth) == (False, 5)


def test_a_token_makes_no_claim_true() -> None:
    here = guard()
    with here.enter(a_call(TraceContext("t", depth=2, trusted=True)), "a").further_call():
        claim = a_call(TraceContext("t", depth=0), principal=TOKEN)
        assert here.enter(claim, "b").trace.depth == 4


def test_a_claim_that_comes_back_is_drawn_behind_the_call_that_it_came_from() -> None:
    """Of an ID-only peer nobody knows who it was; the loop is named all the same."""
    here = guard(max_depth=1)
    only_id = a_call(received(TraceContext("t", depth_given=False)), agent="a", skill="ask")
    with (
        here.enter(a_call(TraceContext("t"), agent="a", skill="ask"), "a").further_call(),
        pytest.raises(CallTooDeepError) as caught,
    ):
        here.enter(only_id, "a")
    assert caught.value.drawn_path == "a:ask → ?:? → a:ask"
    assert caught.value.cycle == "a → ? → a"


def test_a_hub_hands_claims_on_as_claims_and_signs_what_it_knows() -> None:
    """Else an ID-only peer behind the hub would get a signature for the depth that it hides."""
    hub, signer = guard(hub_id="h"), MeshSigner(KEY)
    claim = hub.enter(a_call(TraceContext("t", depth=1)), "b").forward().trace
    assert signer.sign(claim, "b", "work").mac is None
    for known in (signed(TraceContext("t", depth=1)), TraceContext("")):
        forwarded = hub.enter(a_call(known), "b").forward().trace
        assert signer.sign(forwarded, "b", "work").mac is not None


def test_what_this_process_itself_begins_is_believed() -> None:
    assert guard().enter(a_call(new_trace()), "b").trace.trusted
    assert guard().enter(a_call(TraceContext("")), "b").trace.trusted
    assert not guard().enter(a_call(TraceContext("", depth=2)), "b").trace.trusted


# strictness


MISSING, UNSIGNED, SIGNED = TraceContext(""), TraceContext("t", 1), DEEP
FORGED = replace(DEEP, kid="k", mac="m", sent_at_ms=1)


@pytest.mark.parametrize(
    ("strict", "refused"),
    [("off", []), ("trace", [MISSING, FORGED]), ("signed", [MISSING, FORGED, UNSIGNED])],
)
def test_a_strict_process_refuses_what_it_was_told_to(
    strict: Strictness, refused: list[TraceContext]
) -> None:
    for trace in (MISSING, UNSIGNED, FORGED, signed(DEEP), new_trace()):
        here = guard(strict=strict)
        if trace in refused:
            with pytest.raises(InvalidRequestError, match=r"trace\.strict"):
                here.enter(a_call(trace), "b")
        else:
            here.leave(here.enter(a_call(trace), "b"))
        assert here.is_idle


# budgets


def test_the_budget_of_a_claim_is_never_more_than_that_of_a_new_trace() -> None:
    here = guard(calls=50)
    for claimed, believed in ((10**9, 49), (None, 49), (7, 7)):
        assert here.enter(a_call(TraceContext("t", 1, calls_left=claimed)), "b").trace.calls_left == believed


def test_claims_live_from_what_own_calls_in_flight_were_given_and_give_back_what_they_leave() -> None:
    here = guard()
    admitted = here.enter(a_call(TraceContext("t", calls_left=1_000, trusted=True)), "a")
    with admitted.further_call() as outgoing:
        given = outgoing.trace.calls_left or 0
        claims: list[AdmittedCall] = []
        with pytest.raises(BudgetSpentError):
            claims.extend(here.enter(a_call(TraceContext("t", calls_left=20)), "a") for _ in range(given + 1))
        total = sum(1 + (claim.trace.calls_left or 0) for claim in claims)
        assert total == given
        for claim in claims:
            here.leave(claim)
        outgoing.record_usage(0)
    assert admitted.calls_used == 1 + len(claims), "what came back unannounced was spent all the same"


def test_a_call_handed_on_takes_the_whole_budget_and_brings_back_the_rest() -> None:
    admitted = guard(hub_id="h").enter(a_call(TraceContext("t", calls_left=50, trusted=True)), "hub")
    with admitted.forward() as outgoing:
        assert (outgoing.trace.calls_left, outgoing.trace.via) == (50, ("h",))
        outgoing.record_usage(20)
    assert admitted.calls_used == 20
    with admitted.relay() as outgoing:
        assert (outgoing.trace.calls_left, outgoing.trace.via) == (30, ())
    assert admitted.calls_used == 50, "nobody told what became of it"


@pytest.mark.parametrize("told", [True, False])
def test_a_call_that_ends_badly_gives_back_only_what_is_known_to_be_left(told: bool) -> None:
    admitted = guard().enter(a_call(TraceContext("t", calls_left=100, trusted=True)), "a")

    def fail() -> None:
        with admitted.further_call() as outgoing:
            if told:
                outgoing.record_usage(2)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert (admitted.calls_used == 3) is told


# the breaker


def test_a_chain_that_was_refused_stays_refused_for_a_minute_and_so_does_what_begins_with_it() -> None:
    clock = FakeClock()
    here = guard(clock=clock, refuse_cycles=True)
    path = (Hop("a", "x"), Hop("b", "y"))
    loop = TraceContext("t", 2, path, trusted=True)
    with pytest.raises(CallTooDeepError):
        here.enter(a_call(loop, agent="a", skill="x"), "a")
    for trace, agent, skill in (
        (loop, "a", "x"),
        (replace(loop, depth=3, path=(*path, Hop("a", "x"))), "c", "z"),
    ):
        with pytest.raises(CircuitOpenError) as caught:
            here.enter(a_call(trace, agent=agent, skill=skill), agent)
        assert caught.value.data["trace_id"] == "t"
        assert caught.value.data["path"].endswith(f"{agent}:{skill}")
    here.enter(a_call(loop, agent="c", skill="z"), "c")
    here.enter(a_call(replace(loop, id="other", depth=1, path=path[:1]), agent="c"), "c")
    clock.pass_time(60)
    with pytest.raises(CallTooDeepError):
        here.enter(a_call(loop, agent="a", skill="x"), "a")


def test_three_refusals_of_different_chains_open_the_whole_trace() -> None:
    here = guard(clock=FakeClock(), max_depth=1)
    for name in "xyz":
        path = (Hop("a", name), Hop("b", name))
        with pytest.raises(CallTooDeepError):
            here.enter(a_call(TraceContext("t", 2, path, trusted=True)), "c")
    with pytest.raises(CircuitOpenError, match="3 of its calls"):
        here.enter(a_call(TraceContext("t", trusted=True), principal=LOCAL), "d")


def test_twenty_siblings_in_flight_each_get_a_share_and_together_never_more_than_there_is() -> None:
    with ExitStack() as stack:
        admitted = guard().enter(a_call(TraceContext("t", calls_left=500, trusted=True)), "a")
        shares = [stack.enter_context(admitted.further_call()).trace.calls_left or 0 for _ in range(20)]
        assert min(shares) > 0
        assert sum(shares) + 20 + admitted.budget.left == 500
