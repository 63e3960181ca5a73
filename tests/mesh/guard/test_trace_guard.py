"""The trace guard: limits of a chain of calls, and the reason in a refusal (specification 5 and 7.5)."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

from retinue.core.call import LOCAL, Call, Hop, Principal, TraceContext
from retinue.core.errors import BudgetSpentError, CallTooDeepError, CircuitOpenError
from retinue.mesh.guard.cycles import draw_path, find_cycle, guess_cycle
from retinue.mesh.guard.trace_guard import AdmittedCall, GuardSettings, TraceGuard, new_trace
from retinue.web.codec.merged_traces import merge_traces
from retinue.web.codec.trace import parse_trace_headers, parse_trace_meta, render_trace_headers
from retinue.web.mesh_tokens import MeshSigner
from tests.mesh.scripted import FakeClock, make_call, make_dispatcher
from tests.requirements import requirement

PEER = Principal("local", "token", frozenset({"exposed", "mesh"}))
SIGNER = MeshSigner(b"the key of one mesh")


def mesh_guard(**settings: Any) -> TraceGuard:
    """A guard of a process of the mesh."""
    return TraceGuard(GuardSettings(**settings), signer=MeshSigner(b"the key of one mesh"))


def a_call(trace: TraceContext, skill: str = "work", principal: Principal | None = None) -> Call:
    return (
        make_call(skill, trace=trace)
        if principal is None
        else make_call(skill, trace=trace, principal=principal)
    )


def received(trace: TraceContext) -> TraceContext:
    """The trace as the next process reads it off the wire."""
    headers = {name.lower(): value for name, value in render_trace_headers(trace).items()}
    found = parse_trace_headers(headers)
    assert found is not None
    return found


def signed(trace: TraceContext, skill: str = "work") -> TraceContext:
    """The trace as another process of the mesh reads it off the wire, when one of the mesh sent it."""
    return received(SIGNER.sign(trace, "", skill))


def chain(guards: dict[str, TraceGuard], agents: list[str]) -> AdmittedCall:
    """Calls from agent to agent, each in its own process, all in flight; the passage of the last."""
    trace = TraceContext("chain")
    with ExitStack() as stack:
        for agent in agents:
            admitted = guards[agent].enter(a_call(trace), agent)
            trace = signed(stack.enter_context(admitted.further_call()).trace)
        return admitted


def guards_of(agents: str, **settings: Any) -> dict[str, TraceGuard]:
    return {agent: mesh_guard(**settings) for agent in agents}


# depth


@requirement("S-14")
@pytest.mark.parametrize("depth", [0, 1, 5])
def test_a_chain_runs_up_to_depth_five(depth: int) -> None:
    assert TraceGuard().enter(a_call(TraceContext("t", depth=depth)), "b").trace.depth == depth


@requirement("S-14")
def test_hop_six_is_refused() -> None:
    with pytest.raises(CallTooDeepError) as caught:
        TraceGuard().enter(a_call(TraceContext("t", depth=6)), "b")
    assert caught.value.data == {"trace_id": "t", "depth": 6, "max_depth": 5, "path": "b:work"}


def test_a_call_from_outside_starts_a_chain_at_depth_nought_and_its_first_call_is_hop_one() -> None:
    guard = TraceGuard()
    admitted = guard.enter(a_call(TraceContext("")), "a")
    assert len(admitted.trace.id) == 32
    assert admitted.trace.depth == 0
    further = admitted.further_call().trace
    assert (further.id, further.depth, further.path) == (admitted.trace.id, 1, (Hop("a", "work"),))


@requirement("S-15")
def test_a_loop_over_three_agents_is_refused_at_hop_six_with_its_path_drawn_and_its_cycle_named() -> None:
    guards = guards_of("abc")
    with pytest.raises(CallTooDeepError) as caught:
        chain(guards, list("abcabcabc"))
    error = caught.value
    assert error.depth == 6
    assert error.drawn_path == "a:work → b:work → c:work → a:work → b:work → c:work → a:work"
    assert error.cycle == "a → b → c → a"
    assert error.drawn_path in error.message
    assert error.cycle in error.message


@requirement("S-15")
def test_a_loop_is_named_at_its_shortest() -> None:
    path = (Hop("a", "x"), Hop("b", "y"), Hop("a", "z"), Hop("c", "w"))
    assert find_cycle(path, Hop("a", "x")) == "a → c → a"
    assert find_cycle(path, Hop("d", "x")) == ""
    assert draw_path(path[:2], Hop("a", "z")) == "a:x → b:y → a:z"


@requirement("S-15")
def test_a_hub_that_does_not_know_yet_who_takes_the_call_names_the_cycle_by_its_skill() -> None:
    path = (Hop("a", "x"), Hop("b", "y")) * 3
    with pytest.raises(CallTooDeepError) as caught:
        TraceGuard(hub_id="h").enter(a_call(TraceContext("t", depth=6, path=path), skill="x"), "retinue")
    assert caught.value.cycle == "a → b → a"
    assert guess_cycle(path, Hop("retinue", "z")) == ""


def test_the_hop_of_a_call_is_the_agent_that_took_it() -> None:
    admitted = TraceGuard().enter(a_call(TraceContext("t")), "hub")
    admitted.set_agent("b")
    assert admitted.further_call().trace.path == (Hop("b", "work"),)


def test_cycles_are_refused_at_re_entry_only_where_that_was_asked_for() -> None:
    assert chain(guards_of("ab"), list("aba")).trace.depth == 2
    with pytest.raises(CallTooDeepError) as caught:
        chain(guards_of("ab", refuse_cycles=True), list("aba"))
    assert caught.value.cycle == "a → b → a"
    assert chain(guards_of("abcd", refuse_cycles=True), list("abcd")).trace.depth == 3


# an id without a depth, and depths that may not be true


def only_id(trace: TraceContext) -> TraceContext:
    """What an agent sends that passes on the id and knows nothing of depths."""
    found = parse_trace_headers({"x-openstarry-trace-id": trace.id})
    assert found is not None
    return found


@requirement("S-15")
def test_a_loop_through_a_peer_that_carries_only_the_id_still_ends() -> None:
    guard = TraceGuard()
    depths: list[int] = []

    def loop(trace: TraceContext) -> None:
        admitted = guard.enter(a_call(trace), "a")
        depths.append(admitted.trace.depth)
        with admitted.further_call() as further:
            loop(only_id(further.trace))

    with pytest.raises(CallTooDeepError):
        loop(TraceContext("t"))
    assert depths == [0, 2, 4]


def test_an_id_without_a_depth_is_at_nought_where_nothing_of_it_is_in_flight() -> None:
    guard = TraceGuard()
    admitted = guard.enter(a_call(only_id(TraceContext("t"))), "a")
    assert admitted.trace.depth == 0
    with admitted.further_call():
        pass
    assert guard.enter(a_call(only_id(TraceContext("t"))), "a").trace.depth == 0


@pytest.mark.parametrize("principal", [None, PEER], ids=["nobody", "with a token"])
def test_a_depth_claimed_too_low_is_believed_of_nobody(principal: Principal | None) -> None:
    """A token says who calls, not that it counts: only a signature does."""
    guard = mesh_guard()
    admitted = guard.enter(a_call(TraceContext("t", depth=3)), "a")
    with admitted.further_call():
        assert guard.enter(a_call(TraceContext("t", depth=1), principal=principal), "a").trace.depth == 5


def test_a_depth_that_this_mesh_has_signed_is_taken_as_it_is() -> None:
    guard = mesh_guard()
    with guard.enter(a_call(TraceContext("t", depth=3)), "a").further_call():
        trace = signed(TraceContext("t", depth=1, trusted=True))
        assert guard.enter(a_call(trace), "a").trace.depth == 1


def test_a_depth_claimed_higher_than_needed_counts() -> None:
    guard = TraceGuard()
    with guard.enter(a_call(TraceContext("t")), "a").further_call():
        assert guard.enter(a_call(TraceContext("t", depth=4)), "a").trace.depth == 4


def test_a_fan_out_of_twenty_to_one_agent_and_back_does_not_grow() -> None:
    here, there = mesh_guard(), mesh_guard()
    admitted = here.enter(a_call(TraceContext("t")), "a")
    with ExitStack() as stack:
        for _ in range(20):
            trace = stack.enter_context(admitted.further_call()).trace
            assert there.enter(a_call(signed(trace)), "b").trace.depth == 1
            assert here.enter(a_call(only_id(trace)), "a").trace.depth == 2


def test_siblings_on_an_agent_that_calls_on_do_not_push_each_other_deeper() -> None:
    here, there = mesh_guard(), mesh_guard()
    admitted = here.enter(a_call(TraceContext("t")), "a")
    with ExitStack() as stack:
        for _ in range(20):
            trace = signed(stack.enter_context(admitted.further_call()).trace)
            sibling = there.enter(a_call(trace), "b")
            assert sibling.trace.depth == 1
            assert stack.enter_context(sibling.further_call()).trace.depth == 2


async def test_a_fan_out_of_twenty_siblings_passes_through_the_dispatch_path() -> None:
    everybody_in = asyncio.Event()
    running = 0

    async def wait_for_all(_: Call) -> dict[str, str]:
        nonlocal running
        running += 1
        if running == 20:
            everybody_in.set()
        await everybody_in.wait()
        return {"plan": ""}

    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": wait_for_all})
    admitted = dispatcher.admission.guard.enter(make_call(), "hub")

    async def one() -> str:
        with admitted.further_call() as outgoing:
            return (await dispatcher.dispatch(make_call(trace=outgoing.trace))).status

    assert await asyncio.gather(*(one() for _ in range(20))) == ["done"] * 20


# where the claim comes from (specification 5, doubts 1 to 3 and 7)


def test_metadata_wins_over_headers_and_the_larger_depth_counts() -> None:
    header = parse_trace_headers({"x-openstarry-trace-id": "outer", "x-openstarry-trace-depth": "4"})
    meta = parse_trace_meta({"X-OpenStarry-Trace-ID": "inner", "X-OpenStarry-Trace-Depth": 2})
    merged = merge_traces(header, meta)
    assert merged is not None
    admitted = TraceGuard().enter(a_call(merged), "a")
    assert (admitted.trace.id, admitted.trace.depth) == ("inner", 4)


@pytest.mark.parametrize("junk", ["", "a b", "x" * 129, "ä", "<script>"])
def test_an_id_that_no_trace_may_have_is_replaced(junk: str) -> None:
    found = parse_trace_headers({"x-openstarry-trace-id": junk, "x-openstarry-trace-depth": "3"})
    assert found is not None
    trace = TraceGuard().enter(a_call(found), "a").trace
    assert trace.id != junk
    assert len(trace.id) == 32
    assert trace.depth == 3, "the chain is no shorter for its unusable id"


def test_an_ordinary_client_without_a_trace_starts_one_of_its_own() -> None:
    assert parse_trace_headers({"content-type": "application/json"}) is None
    assert new_trace().id != new_trace().id


def test_what_other_tracers_sent_travels_on() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    found = parse_trace_headers({"traceparent": parent, "baggage": "tenant=blue"})
    assert found is not None
    further = TraceGuard().enter(a_call(found), "a").further_call().trace
    assert further.traceparent == parent
    assert further.baggage == {"tenant": "blue"}


# hubs


def test_a_hub_forwards_at_the_same_depth_and_adds_itself() -> None:
    hub = TraceGuard(hub_id="hub-1")
    trace = hub.enter(a_call(TraceContext("t", depth=2)), "b").trace
    forwarded = hub.forward(trace)
    assert (forwarded.depth, forwarded.via) == (2, ("hub-1",))
    assert TraceGuard().forward(trace) is trace


def test_two_hubs_that_forward_to_each_other_are_stopped_at_once() -> None:
    one, two = TraceGuard(hub_id="hub-1"), TraceGuard(hub_id="hub-2")
    trace = TraceContext("t", depth=1)
    trace = received(one.forward(one.enter(a_call(trace), "b").trace))
    trace = received(two.forward(two.enter(a_call(trace), "b").trace))
    with pytest.raises(CallTooDeepError) as caught:
        one.enter(a_call(trace), "b")
    assert caught.value.cycle == "hub-1 → hub-2 → hub-1"


def test_a_call_may_pass_the_same_hub_again_once_an_agent_has_called() -> None:
    hub, agent = TraceGuard(hub_id="hub-1"), TraceGuard()
    forwarded = received(hub.forward(hub.enter(a_call(TraceContext("t")), "b").trace))
    with agent.enter(a_call(forwarded), "b").further_call() as further:
        assert further.trace.via == ()
        assert hub.enter(a_call(received(further.trace)), "c").trace.depth == 1


# budgets


def test_a_chain_has_a_budget_of_calls_that_every_call_shortens() -> None:
    admitted = TraceGuard(GuardSettings(calls=3)).enter(a_call(TraceContext("t")), "a")
    for _ in range(2):
        with admitted.further_call() as outgoing:
            outgoing.record_usage(0)
    with pytest.raises(BudgetSpentError, match="calls"):
        admitted.further_call()


def test_the_last_call_of_a_budget_runs_but_calls_nobody() -> None:
    admitted = TraceGuard().enter(a_call(TraceContext("t", depth=1, calls_left=0)), "a")
    with pytest.raises(BudgetSpentError):
        admitted.further_call()


@pytest.mark.parametrize(
    ("left", "what"), [({"calls_left": -1}, "calls"), ({"seconds_left": 0.0}, "seconds")]
)
def test_a_chain_without_budget_is_refused_and_says_what_is_spent(left: dict[str, Any], what: str) -> None:
    with pytest.raises(BudgetSpentError) as caught:
        TraceGuard().enter(a_call(TraceContext("t", depth=1, **left)), "a")
    assert caught.value.what == what


def test_nothing_is_kept_of_a_chain_that_has_ended() -> None:
    guard = TraceGuard()
    for number in range(50):
        admitted = guard.enter(a_call(TraceContext(f"t{number}")), "a")
        with pytest.raises(ValueError, match="boom"), admitted.further_call():
            raise ValueError("boom")
        guard.leave(admitted)
    assert guard.is_idle
    assert guard.refused_traces == 0


async def test_a_client_that_always_sends_the_same_id_is_not_refused_for_it() -> None:
    dispatcher, _, _ = make_dispatcher(guard=TraceGuard(GuardSettings(calls=3)))
    for _ in range(10):
        assert (await dispatcher.dispatch(make_call(trace=TraceContext("mine")))).status == "done"


# the breaker of a trace


def test_three_refusals_open_the_trace_for_sixty_seconds() -> None:
    clock = FakeClock()
    guard = TraceGuard(clock=clock)
    for _ in range(3):
        with pytest.raises(CallTooDeepError):
            guard.enter(a_call(TraceContext("t", depth=6, path=(Hop("a", "x"),))), "b")
    with pytest.raises(CircuitOpenError) as caught:
        guard.enter(a_call(TraceContext("t", depth=1, path=(Hop("a", "x"),))), "b")
    assert caught.value.retry_after_s == 60
    assert "a:x → b:work" in caught.value.message
    guard.enter(a_call(TraceContext("other", depth=1)), "b")
    clock.pass_time(59)
    with pytest.raises(CircuitOpenError):
        guard.enter(a_call(TraceContext("t", depth=1)), "b")
    clock.pass_time(1)
    assert guard.enter(a_call(TraceContext("t", depth=1)), "b").trace.depth == 1


def test_two_refusals_leave_the_trace_open_to_calls_that_are_not_too_deep() -> None:
    guard = TraceGuard(clock=FakeClock())
    for _ in range(2):
        with pytest.raises(CallTooDeepError):
            guard.enter(a_call(TraceContext("t", depth=6)), "b")
    assert guard.enter(a_call(TraceContext("t", depth=5)), "b").trace.depth == 5


def test_refusals_are_remembered_of_a_bounded_number_of_traces() -> None:
    guard = TraceGuard(GuardSettings(keep_traces=10), clock=FakeClock())
    for number in range(40):
        with pytest.raises(CallTooDeepError):
            guard.enter(a_call(TraceContext(f"t{number}", depth=6)), "b")
    assert guard.refused_traces == 10


def test_this_process_itself_is_bounded_like_everybody() -> None:
    with pytest.raises(CallTooDeepError):
        TraceGuard().enter(a_call(TraceContext("t", depth=6), principal=LOCAL), "b")
