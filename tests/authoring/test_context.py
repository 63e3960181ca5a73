"""What a running skill is given: the way back to its caller, and the way on to other agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.authoring.local import local_dispatcher
from retinue.core.call import LOCAL, Hop, Principal
from retinue.core.errors import (
    BusyError,
    CallTimedOutError,
    CallTooDeepError,
    CircuitOpenError,
    ExecutionFailedError,
    InputRequiredError,
    RemoteFaultError,
    RetinueError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.record import Skill
from retinue.mesh.channel import Capability, LogLevel, NullChannel
from retinue.mesh.health.failure_policy import may_fail_over
from retinue.web.error_table import execute_fault
from tests.authoring.meshes import ScriptedMesh, caller_of, go, offering
from tests.mesh.scripted import make_call, unreachable
from tests.requirements import requirement


@dataclass
class NotingChannel(NullChannel):
    told: list[Any] = field(default_factory=list)

    async def progress(self, fraction: float | None, message: str = "") -> None:
        self.told.append((fraction, message))

    async def log(self, level: LogLevel, message: str, data: Mapping[str, Any] | None = None) -> None:
        self.told.append((level, message, data))

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        return {"answer": message}


# the way back


async def test_progress_and_log_lines_reach_the_caller() -> None:
    agent = Agent("a")

    @agent.skill
    async def work(ctx: Context) -> Any:
        await ctx.progress(0.5, "half")
        await ctx.log("look", level="warning", data={"n": 1})
        return await ctx.elicit("which?", {"type": "string"})

    channel = NotingChannel()
    assert await agent.call("work", channel=channel) == {"answer": "which?"}
    assert channel.told == [(0.5, "half"), ("warning", "look", {"n": 1})]


async def test_progress_of_an_agent_further_on_reaches_the_caller_too() -> None:
    far = Agent("far")

    @far.skill
    async def work(ctx: Context) -> None:
        await ctx.progress(None, "far away")

    channel = NotingChannel()
    await caller_of("work").call("go", channel=channel, peers=[far])
    assert channel.told == [(None, "far away")]


async def test_a_question_that_nobody_can_answer_is_told_as_such_through_the_chain() -> None:
    far = Agent("far")

    @far.skill
    async def work(ctx: Context) -> Any:
        return await ctx.elicit("which?", {})

    outcome = await caller_of("work").ask("go", peers=[far])
    assert outcome.status == "needs_input"
    assert isinstance(outcome.error, InputRequiredError)


async def test_the_context_says_who_calls_and_until_when() -> None:
    agent = Agent("a")
    seen: list[Any] = []

    @agent.skill
    async def work(ctx: Context) -> None:
        seen.extend([ctx.principal, ctx.deadline, ctx.idempotency_key, ctx.trace.id])

    call = make_call(
        "work", {}, principal=LOCAL, idempotency_key="k", deadline=asyncio.get_running_loop().time() + 9
    )
    await local_dispatcher(agent).dispatch(call)
    assert seen[:3] == [LOCAL, call.deadline, "k"]
    assert seen[3]


# the way on


async def test_an_agent_calls_another_by_skill() -> None:
    assert await caller_of("work").call("go", peers=[offering("work")]) == "here"


async def test_the_chain_grows_by_one_hop_and_keeps_its_id() -> None:
    far = Agent("far")

    @far.skill
    async def work(ctx: Context) -> list[Any]:
        return [ctx.trace.id, ctx.trace.depth, [(h.agent, h.skill) for h in ctx.trace.path], ctx.principal.id]

    near = Agent("near")

    @near.skill
    async def go(ctx: Context) -> Any:
        return [ctx.trace.id, ctx.trace.depth, await ctx.call("work")]

    trace_id, depth, further = await near.call("go", peers=[far])
    assert depth == 0
    assert further == [trace_id, 1, [["near", "go"]], "near"]


async def test_what_goes_out_carries_trace_budget_deadline_and_its_own_name() -> None:
    mesh = ScriptedMesh(value=7)
    outcome = await go(caller_of("work", agent="far", version=">=2", timeout_s=3), mesh)
    assert outcome.value == 7
    call = mesh.calls[0]
    now = asyncio.get_running_loop().time()
    assert (call.agent, call.version_range, call.endpoint) == ("far", ">=2", "agent")
    assert (call.principal.id, call.principal.kind) == ("caller", "agent")
    assert "private" not in call.principal.scopes
    assert (call.trace.depth, call.trace.path) == (1, (Hop("caller", "go"),))
    assert call.trace.calls_left == 1_110, "a share, so that siblings may have something as well"
    assert call.deadline is not None
    assert 0 < call.deadline - now <= 3
    assert call.trace.seconds_left == pytest.approx(3, abs=0.5)


async def test_a_call_for_the_caller_names_the_agent_between_without_the_limits_of_an_earlier_one() -> None:
    agent, mesh = Agent("bot"), ScriptedMesh()

    @agent.skill
    async def go(ctx: Context) -> None:
        await ctx.ask_as_caller("orchestrate_workflow", {}, agent="retinue")

    caller = Principal("token:bob", "mesh", frozenset({"mesh"}), through="other", send=("bank",))
    await local_dispatcher(agent, mesh=mesh).dispatch(make_call("go", {}, principal=caller))
    assert mesh.calls[0].principal == replace(caller, through="bot", send=None)


async def test_the_time_of_a_further_call_is_cut_to_what_the_caller_has_left() -> None:
    mesh = ScriptedMesh()
    now = asyncio.get_running_loop().time()
    call = make_call("go", {}, deadline=now + 2)
    await local_dispatcher(caller_of("work"), mesh=mesh).dispatch(call)
    assert mesh.calls[0].deadline == pytest.approx(now + 2)


async def test_a_further_call_that_takes_too_long_is_a_timeout_of_the_skill() -> None:
    far = Agent("far")

    @far.skill
    async def work() -> None:
        await asyncio.Event().wait()

    outcome = await caller_of("work", timeout_s=0.01).ask("go", peers=[far])
    assert isinstance(outcome.error, CallTimedOutError)
    assert outcome.error.message.startswith("work did not answer within")


@pytest.mark.parametrize("told_by_a_hub", [False, True])
@pytest.mark.parametrize(
    ("timeout_s", "own_s", "layer", "setting"),
    [
        (None, None, "ctx.call of near", "timeouts.agent_call_s"),
        (3.0, 60.0, "ctx.call of near", "the timeout_s of this ctx.call"),
        (None, 2.0, "caller", "the caller's timeout"),
    ],
)
async def test_a_timeout_of_a_further_call_names_whose_limit_it_was(
    told_by_a_hub: bool, timeout_s: float | None, own_s: float | None, layer: str, setting: str
) -> None:
    late: RetinueError = CallTimedOutError("work", 30, layer="caller", setting="the caller's timeout")
    if told_by_a_hub:
        late = RemoteFaultError("hub", -32603, str(late), {"type": late.type, **late.data})
    agent = Agent("near")
    errors: list[Any] = []

    @agent.skill
    async def work(ctx: Context) -> None:
        errors.append((await ctx.ask("far", timeout_s=timeout_s)).error)

    deadline = None if own_s is None else asyncio.get_running_loop().time() + own_s
    dispatcher = local_dispatcher(agent, mesh=ScriptedMesh(error=late))
    await dispatcher.dispatch(make_call("work", {}, deadline=deadline))
    (error,) = errors
    told = error.fault_data if isinstance(error, RemoteFaultError) else error.data
    assert (told["layer"], told["setting"]) == (layer, setting)


async def test_a_call_with_no_time_left_is_not_made() -> None:
    mesh = ScriptedMesh()
    outcome = await go(caller_of("work", timeout_s=0), mesh)
    assert isinstance(outcome.error, CallTimedOutError)
    assert mesh.calls == []


@requirement("S-15")
async def test_agents_that_call_each_other_for_ever_are_stopped_with_the_cycle_named() -> None:
    one = caller_of("back", name="one")
    two = Agent("two")

    @two.skill
    async def back(ctx: Context) -> Any:
        return await ctx.call("go")

    outcome = await one.ask("go", peers=[two])
    assert isinstance(outcome.error, CallTooDeepError)
    assert outcome.error.depth == 6
    assert outcome.status == "refused"
    assert outcome.error.cycle == "one → two → one"


# what a further call fails with


async def test_a_skill_may_handle_what_its_further_call_failed_with() -> None:
    agent = Agent("a")

    @agent.skill
    async def go(ctx: Context) -> str:
        try:
            await ctx.call("work")
        except UnknownSkillError as error:
            return error.message
        return "found"

    assert await agent.call("go") == "Unknown skill: work"


@pytest.mark.parametrize("error", [UnknownSkillError("work"), unreachable("far"), UnknownAgentError("far")])
async def test_a_failed_further_call_is_a_failure_of_the_skill_and_says_nothing_of_the_skill_itself(
    error: RetinueError,
) -> None:
    dispatcher = local_dispatcher(caller_of("work"), mesh=ScriptedMesh(error=error))
    for _ in range(4):
        outcome = await dispatcher.dispatch(make_call("go", {}))
        assert type(outcome.error) is ExecutionFailedError
        assert outcome.error.message == error.message
        assert outcome.status == "failed"


async def test_what_the_guard_said_further_on_reaches_the_caller_as_it_is() -> None:
    error = CircuitOpenError("trace t", 5)
    assert (await go(caller_of("work"), ScriptedMesh(error=error))).error is error


async def test_an_error_that_the_skill_itself_chose_stays_what_it_is() -> None:
    agent = Agent("a")

    @agent.skill
    async def go() -> None:
        raise UnknownAgentError("whoever")

    assert isinstance((await agent.ask("go")).error, UnknownAgentError)


# giving up


async def test_a_synchronous_skill_learns_in_its_thread_that_nobody_waits_any_longer() -> None:
    agent = Agent("a")
    started, noticed = threading.Event(), threading.Event()
    look_again = threading.Event()

    @agent.skill
    def work(ctx: Context) -> None:
        assert not ctx.cancelled
        started.set()
        look_again.wait(timeout=5)
        if ctx.cancelled:
            noticed.set()

    task = asyncio.create_task(agent.call("work"))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    look_again.set()
    assert await asyncio.to_thread(noticed.wait, 5)


async def test_a_skill_that_timed_out_sees_itself_as_cancelled() -> None:
    agent = Agent("a")
    seen: list[bool] = []

    @agent.skill
    async def work(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled)

    assert isinstance((await agent.ask("work", timeout_s=0.01)).error, CallTimedOutError)
    assert seen == [True]


async def test_giving_up_gives_up_everything_that_was_called_from_here() -> None:
    far = Agent("far")
    started = asyncio.Event()
    seen: list[str] = []

    @far.skill
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(caller_of("work").call("go", peers=[far]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


class SlowPerson(NullChannel):
    """Can be asked, and takes longer for an answer than an agent gives another."""

    capabilities: frozenset[Capability] = frozenset({"elicitation"})

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.2, answer.set_result, "Ada")
        return await answer


def hotel() -> tuple[Agent, Agent]:
    """An agent that gives another 0.1 s, and the other, which asks and may then sleep."""
    desk, guide = Agent("desk"), Agent("guide")

    @desk.skill
    async def check_in(ctx: Context, sleep: bool = False) -> str:
        name = await ctx.elicit("Who arrives?", str)
        if sleep:
            await asyncio.get_running_loop().create_future()
        return name

    @guide.skill
    async def travel(ctx: Context, sleep: bool = False) -> Any:
        return await ctx.call("check_in", {"sleep": sleep}, timeout_s=0.1)

    return guide, desk


async def test_the_limit_of_a_further_call_pauses_while_a_person_is_asked() -> None:
    guide, desk = hotel()
    assert await guide.call("travel", channel=SlowPerson(), peers=[desk]) == "Ada"


async def test_after_the_answer_the_limit_of_a_further_call_goes_on() -> None:
    guide, desk = hotel()
    with pytest.raises(CallTimedOutError) as caught:
        await guide.call("travel", {"sleep": True}, channel=SlowPerson(), peers=[desk])
    assert caught.value.setting == "the timeout_s of this ctx.call"
    assert caught.value.timeout_s == 0.1


async def test_a_deadline_of_the_caller_does_not_pause() -> None:
    guide, desk = hotel()
    outcome = await guide.ask("travel", channel=SlowPerson(), peers=[desk], timeout_s=0.05)
    assert isinstance(outcome.error, CallTimedOutError)


async def test_an_agent_that_is_busy_further_on_does_not_make_its_caller_one_that_has_not_begun() -> None:
    """Else another agent would get the call, whose first half has happened already."""
    busy = RemoteFaultError("peer", -33029, "Busy: 10 calls", {"type": "busy", "retry_after_s": 1.0})
    outcome = await go(caller_of("lint"), ScriptedMesh(error=busy))
    assert isinstance(outcome.error, BusyError)
    assert outcome.error.data == {"retry_after_s": 1.0, "nested": True}
    skill = Skill("go")
    assert may_fail_over(busy, skill)
    assert not may_fail_over(RemoteFaultError("a", *execute_fault(outcome.error)), skill)
