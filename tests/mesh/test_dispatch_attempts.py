"""Attempts of a call: who is tried next and when nobody, and the breaker of each agent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.call import Call, Outcome
from retinue.core.errors import CircuitOpenError, RemoteFaultError, UnknownSkillError
from retinue.mesh.directory.routing import make_strategy
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.permissions import Access, AccessRule
from tests.mesh.scripted import (
    FakeClock,
    make_call,
    make_dispatcher,
    make_listing,
    make_skill,
    unreachable,
)
from tests.requirements import requirement


async def hang(_: Call) -> None:
    await asyncio.Event().wait()


def error_of(outcome: Outcome, status: str) -> Any:
    assert outcome.status == status
    assert outcome.value is None
    return outcome.error


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
    assert "healthy b" in lookup.told


async def test_a_call_that_may_have_run_is_not_given_to_another() -> None:
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a", sent=True)}
    )
    assert error_of(await dispatcher.dispatch(make_call()), "failed").sent
    assert invoker.invoked == ["a"]
    assert "degraded a" in lookup.told


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


async def test_a_card_that_has_another_name_by_now_is_called_only_by_whoever_sees_that_name() -> None:
    access = Access({"b": AccessRule(receive=())})
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), acts={"a": unreachable("a")}, access=access
    )
    lookup.newer["a"] = make_listing("b")
    assert error_of(await dispatcher.dispatch(make_call()), "failed").agent == "a"
    assert invoker.invoked == ["a"]


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
        make_listing("a"), acts={"a": unreachable("a")}, agent_stats=AgentStatsTable(clock=clock)
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
        agent_stats=AgentStatsTable(clock=FakeClock()),
    )
    for _ in range(5):
        assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked.count("a") == 3


@pytest.mark.parametrize("act", ["hangs", "cancelled"])
async def test_a_try_without_a_verdict_leaves_the_circuit_as_it_was(act: str) -> None:
    clock = FakeClock()
    dispatcher, _, invoker = make_dispatcher(
        make_listing("a"), acts={"a": unreachable("a")}, agent_stats=AgentStatsTable(clock=clock)
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


# measured, and preferred


async def test_the_next_candidate_takes_a_call_for_which_the_first_is_too_busy() -> None:
    busy = RemoteFaultError("a", -32000, "busy", {"type": "busy"})
    dispatcher, _, invoker = make_dispatcher(make_listing("a"), make_listing("b"), acts={"a": busy})
    assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked == ["a", "b"]


async def test_no_card_is_read_again_while_another_agent_can_take_the_call() -> None:
    dispatcher, lookup, _ = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": unreachable("a")}
    )
    assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert "reread a" not in lookup.told


async def test_every_card_is_read_again_when_nobody_could_be_reached() -> None:
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"),
        make_listing("b"),
        acts={"a": unreachable("a"), "b": [unreachable("b"), {"plan": ""}]},
    )
    lookup.newer["b"] = make_listing("b", url="http://elsewhere:9")
    assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked == ["a", "b", "b"]


@requirement("P-18")
async def test_calls_at_once_are_spread_over_the_agents_of_a_skill() -> None:
    agent_stats = AgentStatsTable()
    agents = [make_listing(name) for name in "abc"]
    release = asyncio.Event()

    async def wait(_: Call) -> dict[str, str]:
        await release.wait()
        return {"plan": ""}

    dispatcher, _, invoker = make_dispatcher(
        *agents,
        acts=dict.fromkeys("abc", wait),
        agent_stats=agent_stats,
        strategy=make_strategy("best", agent_stats),
    )
    calls = [asyncio.create_task(dispatcher.dispatch(make_call())) for _ in range(30)]
    while len(invoker.invoked) < len(calls):
        await asyncio.sleep(0)
    assert [agent_stats.of(one).in_flight for one in agents] == [10, 10, 10]
    release.set()
    assert {(await one).status for one in calls} == {"done"}
    assert [agent_stats.of(one).in_flight for one in agents] == [0, 0, 0]


async def test_an_agent_whose_calls_fail_is_left_for_a_healthy_one() -> None:
    agent_stats = AgentStatsTable()
    dispatcher, lookup, _ = make_dispatcher(
        make_listing("a"), acts={"a": RuntimeError("boom")}, agent_stats=agent_stats
    )
    for _ in range(4):
        assert (await dispatcher.dispatch(make_call())).status == "failed"
    assert lookup.told[-1] == "degraded a"
    assert agent_stats.of(make_listing("a")).snapshot().failures == 4


async def test_a_refusal_of_the_callers_own_making_says_nothing_against_the_agent() -> None:
    agent_stats = AgentStatsTable()
    fault = RemoteFaultError("a", -32603, "Invalid parameters: x", {"type": "validation_error"})
    dispatcher, _, _ = make_dispatcher(make_listing("a"), acts={"a": fault}, agent_stats=agent_stats)
    for _ in range(10):
        await dispatcher.dispatch(make_call())
    assert agent_stats.of(make_listing("a")).health == "healthy"


@pytest.mark.parametrize("remote_type", ["unknown_skill", "skill_not_offered"])
async def test_whoever_has_not_what_a_card_offers_is_not_taken_for_its_agent(remote_type: str) -> None:
    """Another agent may have taken the port of one that was killed."""
    agent_stats = AgentStatsTable()
    fault = RemoteFaultError("a", -32601, "Unknown skill: create_plan", {"type": remote_type})
    dispatcher, lookup, invoker = make_dispatcher(
        make_listing("a"), make_listing("b"), acts={"a": fault}, agent_stats=agent_stats
    )
    assert (await dispatcher.dispatch(make_call())).agent == "b"
    assert invoker.invoked == ["a", "b"]
    assert agent_stats.of(make_listing("a")).health == "unknown"
    assert not [told for told in lookup.told if told.startswith("healthy a")]


async def test_a_caller_that_gives_up_at_its_deadline_has_waited_too_long_for_the_agent() -> None:
    clock = FakeClock()
    agent_stats = AgentStatsTable(clock=clock)
    stats = agent_stats.of(make_listing("a"))
    for _ in range(20):
        stats.call_started()
        stats.answered("create_plan", 0.001)
    dispatcher, _, _ = make_dispatcher(make_listing("a"), acts={"a": hang}, agent_stats=agent_stats)
    for left_s, failures in ((60, 0), (0.02, 1)):
        deadline = asyncio.get_running_loop().time() + left_s
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await dispatcher.dispatch(make_call(deadline=deadline))
        assert stats.snapshot().failures == failures
    assert stats.in_flight == 0


async def test_a_call_of_an_exam_counts_in_no_statistic_and_opens_no_breaker() -> None:
    dispatcher, lookup, _ = make_dispatcher(make_listing("a"), acts={"a": unreachable("a")})
    for _ in range(10):
        await dispatcher.dispatch(replace(make_call(), endpoint="exam"))
    stats = dispatcher.agent_stats.of(make_listing("a"))
    assert (stats.calls, stats.breaker.is_open, "unreachable a" in lookup.told) == (0, False, False)
    await dispatcher.dispatch(make_call())
    assert stats.calls == 1
