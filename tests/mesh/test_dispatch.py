"""The one dispatch path: its order, its refusals and its time limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.call import LOCAL, Call, Outcome, Principal, TraceContext
from retinue.core.errors import (
    BudgetSpentError,
    BusyError,
    CallTimedOutError,
    CallTooDeepError,
    ExecutionFailedError,
    InputRequiredError,
    InvalidParametersError,
    NotAuthenticatedError,
    OutputInvalidError,
    UnknownSkillError,
)
from retinue.mesh.admission import LimitSettings, ProcessLimits
from retinue.mesh.dispatch import TimeoutSettings
from retinue.mesh.guard.trace_guard import GuardSettings, TraceGuard
from retinue.mesh.observing.events import EventBus
from tests.mesh.scripted import (
    make_call,
    make_dispatcher,
    make_listing,
    make_skill,
)
from tests.requirements import requirement

EXPOSED_ONLY = Principal("client", "token", frozenset({"exposed"}))


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

    class NotingLimits(ProcessLimits):
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
        "healthy plan-agent",
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
        make_listing("a"), make_listing("b"), strategy=lambda candidates, _: candidates[::-1]
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
        acts={"plan-agent": [hang, {"plan": ""}]}, limits=ProcessLimits(LimitSettings(max_in_flight=1))
    )
    first = asyncio.create_task(dispatcher.dispatch(make_call()))
    await asyncio.sleep(0)
    assert isinstance(error_of(await dispatcher.dispatch(make_call()), "refused"), BusyError)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert dispatcher.admission.limits.in_flight == 0
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
    assert dispatcher.admission.limits.in_flight == 0


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
        timeouts=TimeoutSettings(endpoint_s=0.02),
    )
    deadline = None if deadline_s is None else asyncio.get_running_loop().time() + deadline_s
    outcome = await dispatcher.dispatch(make_call(deadline=deadline))
    error = error_of(outcome, "failed")
    assert isinstance(error, CallTimedOutError)
    assert (error.layer, error.setting) == (layer, setting)
    assert 0 < error.timeout_s <= 0.02
    assert len(outcome.attempts) == 1


async def test_the_time_that_a_chain_has_left_is_a_deadline_at_the_next_endpoint() -> None:
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
