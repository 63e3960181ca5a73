"""The one dispatch path: its order, its refusals, its attempts, and what it tells about them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import LOCAL, Call, Hop, Outcome, Principal, TraceContext
from retinue.core.errors import (
    BudgetSpentError,
    BusyError,
    CallTimedOutError,
    CallTooDeepError,
    CircuitOpenError,
    ExecutionFailedError,
    InputRequiredError,
    InvalidParametersError,
    NotAuthenticatedError,
    OutputInvalidError,
    RemoteFaultError,
    UnknownSkillError,
)
from retinue.mesh.dispatch import Dispatcher, TimeoutSettings
from retinue.mesh.events import CallEndedEvent, Event, EventBus, ToolCallEvent
from retinue.mesh.guards import GuardSettings, TraceGuard
from retinue.mesh.health import Breakers
from retinue.mesh.limits import Limits, LimitSettings
from tests.mesh.scripted import (
    FakeClock,
    make_call,
    make_dispatcher,
    make_listing,
    make_skill,
    unreachable,
)
from tests.requirements import requirement

EXPOSED_ONLY = Principal("client", "token", frozenset({"exposed"}))


def observed(dispatcher: Dispatcher) -> list[Event]:
    seen: list[Event] = []
    dispatcher.events.subscribe(seen.append)
    return seen


async def hang(_: Call) -> None:
    await asyncio.Event().wait()


def error_of(outcome: Outcome, status: str) -> Any:
    assert outcome.status == status
    assert outcome.value is None
    return outcome.error


# what goes well


@requirement("P-07")
async def test_a_call_ends_in_the_value_of_the_skill_and_names_who_ran_it() -> None:
    dispatcher, _, _ = make_dispatcher()
    call = make_call()
    outcome = await dispatcher.dispatch(call)
    assert (outcome.call_id, outcome.skill, outcome.status) == (call.id, "create_plan", "done")
    assert (outcome.agent, outcome.version) == ("plan-agent", "1.0.0")
    assert outcome.get() == {"plan": "1. read"}
    assert [(a.agent, a.error) for a in outcome.attempts] == [("plan-agent", None)]
    assert outcome.duration_ms >= outcome.attempts[0].duration_ms >= 0


async def test_each_stage_runs_in_its_order() -> None:
    stages: list[str] = []

    class NotingLimits(Limits):
        def admit(self, caller: str) -> None:
            stages.append("admit")
            super().admit(caller)

        def release(self) -> None:
            stages.append("release")
            super().release()

    class NotingGuard(TraceGuard):
        def enter(self, call: Call, agent: str) -> Any:
            stages.append("guard")
            return super().enter(call, agent)

    async def act(_: Call) -> dict[str, str]:
        stages.append("invoke")
        return {"plan": ""}

    bus = EventBus()
    bus.subscribe(lambda event: stages.append(event.type))
    dispatcher, lookup, _ = make_dispatcher(
        acts={"plan-agent": act}, limits=NotingLimits(), guard=NotingGuard(), events=bus
    )
    lookup.told = stages
    await dispatcher.dispatch(make_call())
    assert stages == [
        "admit",
        "guard",
        "resolve create_plan",
        "EXEC:TOOL_CALL",
        "invoke",
        "reachable plan-agent",
        "release",
        "CALL:ENDED",
    ]


async def test_the_first_candidate_takes_the_call_and_one_known_as_unreachable_comes_last() -> None:
    dead = make_listing("a", reachable=False)
    dispatcher, _, invoker = make_dispatcher(dead, make_listing("b"), make_listing("c"))
    assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked == ["b"]


async def test_a_strategy_arranges_the_candidates() -> None:
    dispatcher, _, _ = make_dispatcher(
        make_listing("a"), make_listing("b"), strategy=lambda candidates: candidates[::-1]
    )
    assert (await dispatcher.dispatch(make_call())).agent == "b"


# refusals


@requirement("P-11")
@requirement("P-22")
async def test_an_unknown_skill_is_refused_and_nothing_runs() -> None:
    dispatcher, _, invoker = make_dispatcher()
    error = error_of(await dispatcher.dispatch(make_call("nope")), "refused")
    assert isinstance(error, UnknownSkillError)
    assert error.message == "Unknown skill: nope"
    assert invoker.invoked == []


@requirement("P-22")
async def test_an_unknown_skill_wins_over_bad_parameters() -> None:
    dispatcher, _, _ = make_dispatcher()
    error = error_of(await dispatcher.dispatch(make_call("nope", {"requirements": 5})), "refused")
    assert isinstance(error, UnknownSkillError)


async def test_a_hidden_skill_answers_exactly_as_a_missing_one() -> None:
    dispatcher, _, _ = make_dispatcher(make_listing(skill=make_skill(visibility="private")))
    hidden = await dispatcher.dispatch(make_call("create_plan"))
    missing = await dispatcher.dispatch(make_call("create_plam"))
    assert isinstance(hidden.error, UnknownSkillError)
    assert isinstance(missing.error, UnknownSkillError)
    assert type(hidden.error) is type(missing.error)
    assert hidden.error.message == missing.error.message.replace("plam", "plan")
    assert (hidden.status, hidden.agent, hidden.version, hidden.error.data, hidden.error.remedy) == (
        (missing.status, missing.agent, missing.version, missing.error.data, missing.error.remedy)
    )


async def test_a_mesh_skill_is_hidden_from_a_caller_who_sees_exposed_ones_only() -> None:
    dispatcher, _, _ = make_dispatcher()
    outcome = await dispatcher.dispatch(make_call(principal=EXPOSED_ONLY))
    assert isinstance(error_of(outcome, "refused"), UnknownSkillError)


@requirement("P-12")
@requirement("P-23")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing required field 'requirements'"),
        ({"requirements": 5}, "'requirements'"),
        ([1, 2], ""),
    ],
)
async def test_arguments_that_break_the_input_schema_never_reach_the_skill(
    arguments: Any, message: str
) -> None:
    dispatcher, _, invoker = make_dispatcher()
    error = error_of(await dispatcher.dispatch(make_call(arguments=arguments)), "refused")
    assert isinstance(error, InvalidParametersError)
    assert message in error.message
    assert invoker.invoked == []


@requirement("P-13")
@pytest.mark.parametrize("value", [{"code": "x"}, None, "text", {"plan": {1, 2}}, {"plan": float("nan")}])
async def test_a_result_that_breaks_the_output_schema_is_a_failure_of_the_skill(value: Any) -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": value})
    error = error_of(await dispatcher.dispatch(make_call()), "failed")
    assert isinstance(error, OutputInvalidError)
    assert "create_plan" in error.message


@requirement("P-24")
async def test_a_skill_that_raises_has_failed_with_one_line_of_reason() -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": RuntimeError("Claude API timeout\ntrace …")})
    outcome = await dispatcher.dispatch(make_call())
    error = error_of(outcome, "failed")
    assert isinstance(error, ExecutionFailedError)
    assert error.message == "Claude API timeout"
    assert [a.error for a in outcome.attempts] == ["Claude API timeout"]


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), TimeoutError("db")])
async def test_no_exception_of_a_skill_passes_for_one_of_the_process(raised: BaseException) -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": raised})
    error = error_of(await dispatcher.dispatch(make_call()), "failed")
    assert type(error) is ExecutionFailedError


async def test_a_skill_that_needs_an_answer_is_neither_failed_nor_refused() -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": InputRequiredError("which module?")})
    assert isinstance(error_of(await dispatcher.dispatch(make_call()), "needs_input"), InputRequiredError)


@requirement("S-14")
async def test_a_chain_that_is_too_deep_is_refused_before_anybody_is_asked() -> None:
    dispatcher, lookup, _ = make_dispatcher()
    outcome = await dispatcher.dispatch(make_call(trace=TraceContext("t", depth=6)))
    assert isinstance(error_of(outcome, "refused"), CallTooDeepError)
    assert lookup.told == []


async def test_one_caller_too_many_is_refused_and_a_place_is_free_again_afterwards() -> None:
    dispatcher, _, _ = make_dispatcher(
        acts={"plan-agent": [hang, {"plan": ""}]}, limits=Limits(LimitSettings(max_in_flight=1))
    )
    first = asyncio.create_task(dispatcher.dispatch(make_call()))
    await asyncio.sleep(0)
    assert isinstance(error_of(await dispatcher.dispatch(make_call()), "refused"), BusyError)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert dispatcher.limits.in_flight == 0
    assert (await dispatcher.dispatch(make_call())).status == "done"


async def test_every_refusal_gives_its_place_back() -> None:
    dispatcher, _, _ = make_dispatcher(guard=TraceGuard(GuardSettings(max_depth=1)))
    for call in (
        make_call("nope"),
        make_call(arguments={}),
        make_call(trace=TraceContext("t", depth=2)),
        make_call(version_range="no range"),
    ):
        assert (await dispatcher.dispatch(call)).status != "needs_input"
    assert dispatcher.limits.in_flight == 0


async def test_a_skill_that_runs_code_wants_more_than_an_anonymous_caller() -> None:
    dispatcher, _, invoker = make_dispatcher(make_listing(skill=make_skill(runs_code=True)))
    error = error_of(await dispatcher.dispatch(make_call(arguments={})), "refused")
    assert isinstance(error, NotAuthenticatedError)
    assert "local.token" in error.remedy
    assert invoker.invoked == []
    assert (await dispatcher.dispatch(make_call(principal=LOCAL))).status == "done"


# time


@pytest.mark.parametrize(
    ("skill_s", "deadline_s", "layer", "setting"),
    [
        (None, None, "door execute", "timeouts.door_s"),
        (0.02, None, "skill create_plan", "timeout_s of the skill"),
        (0.02, 9.0, "skill create_plan", "timeout_s of the skill"),
        (9.0, 0.02, "caller", "the caller's timeout"),
        (None, 0.02, "caller", "the caller's timeout"),
    ],
)
async def test_a_skill_that_hangs_is_cut_off_by_the_layer_that_gave_the_least_time(
    skill_s: float | None, deadline_s: float | None, layer: str, setting: str
) -> None:
    dispatcher, _, _ = make_dispatcher(
        make_listing(skill=make_skill(timeout_s=skill_s)),
        acts={"plan-agent": hang},
        timeouts=TimeoutSettings(door_s=0.02),
    )
    deadline = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s
    outcome = await dispatcher.dispatch(make_call(deadline=deadline))
    error = error_of(outcome, "failed")
    assert isinstance(error, CallTimedOutError)
    assert (error.layer, error.setting) == (layer, setting)
    assert 0 < error.timeout_s <= 0.02
    assert len(outcome.attempts) == 1


async def test_the_time_that_a_chain_has_left_is_a_deadline_at_the_next_door() -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": hang})
    outcome = await dispatcher.dispatch(make_call(trace=TraceContext("t", depth=1, seconds_left=0.02)))
    assert error_of(outcome, "failed").layer == "caller"


async def test_a_chain_without_time_is_refused_by_the_guard() -> None:
    dispatcher, _, _ = make_dispatcher()
    outcome = await dispatcher.dispatch(make_call(trace=TraceContext("t", depth=1, seconds_left=0)))
    assert isinstance(error_of(outcome, "refused"), BudgetSpentError)


async def test_a_deadline_that_is_over_invokes_nobody() -> None:
    dispatcher, _, invoker = make_dispatcher()
    past = asyncio.get_running_loop().time() - 1
    error = error_of(await dispatcher.dispatch(make_call(deadline=past)), "failed")
    assert isinstance(error, CallTimedOutError)
    assert invoker.invoked == []


# attempts


async def test_the_next_candidate_takes_a_call_that_was_not_sent() -> None:
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a")}
    )
    outcome = await dispatcher.dispatch(make_call())
    assert (outcome.status, outcome.agent, outcome.version) == ("done", "b", "1.0.0")
    assert [(a.agent, a.error is None) for a in outcome.attempts] == [("a", False), ("b", True)]
    assert invoker.invoked == ["a", "b"]
    assert "unreachable a" in lookup.told
    assert "reachable b" in lookup.told


async def test_a_call_that_may_have_run_is_not_given_to_another() -> None:
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a", sent=True)}
    )
    assert error_of(await dispatcher.dispatch(make_call()), "failed").sent
    assert invoker.invoked == ["a"]
    assert "unreachable a" in lookup.told


@pytest.mark.parametrize("hint", ["idempotent", "read_only"])
async def test_a_call_that_may_have_run_goes_on_where_twice_does_no_harm(hint: str) -> None:
    skill = make_skill(idempotent=hint == "idempotent", read_only=hint == "read_only")
    dispatcher, _, _ = make_dispatcher(
        make_listing("a", skill), make_listing("b", skill), acts={"a": unreachable("a", sent=True)}
    )
    assert (await dispatcher.dispatch(make_call())).agent == "b"


@pytest.mark.parametrize("answer", [RuntimeError("boom"), RemoteFaultError("a", -32603, "boom")])
async def test_an_agent_that_answers_with_an_error_has_answered(answer: Exception) -> None:
    dispatcher, lookup, invoker = make_dispatcher(make_listing("a"), make_listing("b"), acts={"a": answer})
    assert error_of(await dispatcher.dispatch(make_call()), "failed").message == "boom"
    assert invoker.invoked == ["a"]
    assert "unreachable a" not in lookup.told


async def test_a_call_that_nobody_took_names_who_was_asked_last() -> None:
    dispatcher, _, _ = make_dispatcher(
        make_listing("a"),
        make_listing("b", version="2.0.0"),
        acts={"a": unreachable("a"), "b": unreachable("b")},
    )
    outcome = await dispatcher.dispatch(make_call())
    assert error_of(outcome, "failed").agent == "b"
    assert (outcome.agent, outcome.version) == ("b", "2.0.0")


async def test_a_card_is_read_again_once_after_a_connection_error_and_its_new_url_tried() -> None:
    moved = make_listing("a", url="http://elsewhere:9")
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), acts={"a": [unreachable("a"), {"plan": ""}]}
    )
    lookup.newer["a"] = moved
    assert (await dispatcher.dispatch(make_call())).status == "done"
    assert invoker.invoked == ["a", "a"]
    assert lookup.told.count("reread a") == 1


@pytest.mark.parametrize("newer", ["same", "gone", "moved, dead too"])
async def test_an_agent_is_not_asked_for_ever(newer: str) -> None:
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), acts={"a": [unreachable("a"), unreachable("a")]}
    )
    if newer != "same":
        lookup.newer["a"] = None if newer == "gone" else make_listing("a", url="http://elsewhere:9")
    assert error_of(await dispatcher.dispatch(make_call()), "failed").type == "agent_unreachable"
    assert lookup.told.count("reread a") == 1
    assert len(invoker.invoked) == (2 if newer.startswith("moved") else 1)


@pytest.mark.parametrize("remote_type", ["validation_error", "unknown_skill"])
async def test_a_card_is_read_again_once_when_the_agent_knows_another_schema(remote_type: str) -> None:
    fault = RemoteFaultError("a", -32603, "Invalid parameters: x", {"type": remote_type})
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a", digest="sha256:old"), acts={"a": [fault, fault]}
    )
    lookup.newer["a"] = make_listing("a", digest="sha256:new")
    outcome = await dispatcher.dispatch(make_call())
    assert outcome.error is fault
    assert invoker.invoked == ["a", "a"]
    assert lookup.told.count("reread a") == 1


async def test_a_card_that_did_not_change_is_no_reason_to_ask_again() -> None:
    fault = RemoteFaultError("a", -32603, "Invalid parameters: x", {"type": "validation_error"})
    dispatcher, lookup, invoker = make_dispatcher(make_listing("a", digest="sha256:old"), acts={"a": fault})
    assert (await dispatcher.dispatch(make_call())).error is fault
    assert (invoker.invoked, lookup.told.count("reread a")) == (["a"], 1)


async def test_the_new_card_is_what_the_input_is_checked_against() -> None:
    fault = RemoteFaultError("a", -32603, "Invalid parameters: x", {"type": "validation_error"})
    dispatcher, lookup, invoker = make_dispatcher(make_listing("a", digest="old"), acts={"a": [fault]})
    stricter = {"type": "object", "required": ["language"]}
    lookup.newer["a"] = make_listing("a", replace(make_skill(), input_schema=stricter), digest="new")
    error = error_of(await dispatcher.dispatch(make_call()), "refused")
    assert error.message == "missing required field 'language'"
    assert invoker.invoked == ["a"]


async def test_a_skill_that_is_gone_from_the_new_card_is_unknown() -> None:
    fault = RemoteFaultError("a", -32601, "Unknown skill: create_plan", {"type": "unknown_skill"})
    dispatcher, lookup, _ = make_dispatcher(make_listing("a", digest="old"), acts={"a": [fault]})
    lookup.newer["a"] = make_listing("a", make_skill("draw_plan"), digest="new")
    assert isinstance(error_of(await dispatcher.dispatch(make_call()), "refused"), UnknownSkillError)


# the breaker of an agent


async def test_an_agent_that_was_unreachable_three_times_is_spared_and_tried_again_later() -> None:
    clock = FakeClock()
    dispatcher, _, invoker = make_dispatcher(
        make_listing("a"), acts={"a": unreachable("a")}, breakers=Breakers(clock=clock)
    )
    for _ in range(3):
        await dispatcher.dispatch(make_call())
    error = error_of(await dispatcher.dispatch(make_call()), "refused")
    assert isinstance(error, CircuitOpenError)
    assert "connection refused" in error.message
    assert len(invoker.invoked) == 3
    clock.pass_time(6)
    invoker.acts["a"] = {"plan": ""}
    assert (await dispatcher.dispatch(make_call())).status == "done"


async def test_a_call_goes_to_the_next_candidate_while_the_first_is_spared() -> None:
    dispatcher, _, invoker = make_dispatcher(
        make_listing("a"),
        make_listing("b"),
        acts={"a": unreachable("a")},
        breakers=Breakers(clock=FakeClock()),
    )
    for _ in range(5):
        assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked.count("a") == 3


@pytest.mark.parametrize("act", ["hangs", "cancelled"])
async def test_a_try_without_a_verdict_leaves_the_circuit_as_it_was(act: str) -> None:
    clock = FakeClock()
    dispatcher, _, invoker = make_dispatcher(
        make_listing("a"), acts={"a": unreachable("a")}, breakers=Breakers(clock=clock)
    )
    for _ in range(3):
        await dispatcher.dispatch(make_call())
    clock.pass_time(6)
    invoker.acts["a"] = hang
    if act == "hangs":
        deadline = asyncio.get_running_loop().time() + 0.01
        assert (await dispatcher.dispatch(make_call(deadline=deadline))).error is not None
    else:
        task = asyncio.create_task(dispatcher.dispatch(make_call()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    invoker.acts["a"] = unreachable("a")
    assert isinstance((await dispatcher.dispatch(make_call())).error, type(unreachable("a")))
    assert isinstance((await dispatcher.dispatch(make_call())).error, CircuitOpenError)


# cancellation


async def test_a_cancelled_call_is_recorded_once_and_the_cancellation_goes_on() -> None:
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": hang})
    seen = observed(dispatcher)
    call = make_call()
    task = asyncio.create_task(dispatcher.dispatch(call))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = [event for event in seen if isinstance(event, CallEndedEvent)]
    assert [(e.call.id, e.outcome.error and e.outcome.error.type) for e in ended] == [(call.id, "cancelled")]
    assert ended[0].outcome.agent == "plan-agent"


# events


@requirement("P-26")
async def test_a_call_is_announced_once_before_it_runs_and_told_once_when_it_ended() -> None:
    order: list[str] = []

    async def act(_: Call) -> dict[str, str]:
        order.append("runs")
        return {"plan": ""}

    dispatcher, _, _ = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a"), "b": act}
    )
    dispatcher.events.subscribe(lambda event: order.append(event.type))
    await dispatcher.dispatch(make_call())
    assert order == ["EXEC:TOOL_CALL", "runs", "CALL:ENDED"]


async def test_the_announcement_has_the_keys_of_seed_004_and_the_trace_that_the_guard_gave() -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    call = make_call(trace=TraceContext("abc", depth=2))
    await dispatcher.dispatch(call)
    announced = seen[0]
    assert isinstance(announced, ToolCallEvent)
    row = announced.as_json()
    assert row.pop("timestamp")
    assert row == {
        "type": "EXEC:TOOL_CALL",
        "id": call.id,
        "tool": "create_plan",
        "arguments": {"requirements": "a parser"},
        "caller": "anonymous",
        "trace_id": "abc",
        "depth": 2,
    }


@requirement("P-26")
@pytest.mark.parametrize(
    "call",
    [
        make_call("nope"),
        make_call(arguments={}),
        make_call(trace=TraceContext("t", depth=9)),
        make_call(principal=EXPOSED_ONLY),
    ],
    ids=["unknown", "bad parameters", "too deep", "hidden"],
)
async def test_a_refused_call_is_not_announced_but_told(call: Call) -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    await dispatcher.dispatch(call)
    assert [event.type for event in seen] == ["CALL:ENDED"]


async def test_nothing_of_a_call_is_lost_when_it_gets_its_trace() -> None:
    seen: list[Call] = []

    async def act(call: Call) -> dict[str, str]:
        seen.append(call)
        return {"plan": ""}

    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    given = TraceContext("", 2, (Hop("a", "x"),), ("h",), 9, 8.0, parent, "v=1", {"k": "v"}, "kid", "mac")
    call = make_call(
        principal=LOCAL,
        trace=given,
        door="a2a",
        agent="plan-agent",
        version_range=">=1",
        idempotency_key="k",
        run_step="r/1",
    )
    dispatcher, _, _ = make_dispatcher(acts={"plan-agent": act})
    assert (await dispatcher.dispatch(call)).status == "done"
    ran = seen[0]
    assert ran.deadline == pytest.approx(asyncio.get_running_loop().time() + 8, abs=1)
    assert replace(ran, trace=given, deadline=None) == call
    assert replace(ran.trace, id="") == given


async def test_a_new_chain_gets_an_id_at_depth_nought() -> None:
    dispatcher, _, _ = make_dispatcher()
    seen = observed(dispatcher)
    for _ in range(2):
        await dispatcher.dispatch(make_call())
    traces = [event.call.trace for event in seen if isinstance(event, CallEndedEvent)]
    assert len({trace.id for trace in traces}) == 2
    assert all(trace.id and trace.depth == 0 for trace in traces)
