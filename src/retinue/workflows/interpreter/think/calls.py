"""The calls of one reply of a model: judged in their order, made together, and answered one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from retinue.core.errors import (
    BudgetSpentError,
    ExecutionFailedError,
    SchemaRefusedError,
    StepFailedError,
    VersionConflictError,
)
from retinue.mesh.schema.checks import compile_schema
from retinue.thinking.completion import CompletionReply, ToolCall, ToolResult
from retinue.thinking.limits import LimitName, batch_time_s
from retinue.thinking.plan import ThinkPlan
from retinue.thinking.read_tool import READ_RESULT
from retinue.thinking.repeats import ENDS_AT, TOLD_AT, Repeats, call_key
from retinue.thinking.results import (
    explain_problems,
    refuse,
    render_fault,
    render_result,
    text_of_result,
)
from retinue.thinking.toolbox import FIND_SKILLS, PinnedTool, Toolbox, digest_of
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Retry
from retinue.workflows.interpreter.calls import Ask, CallSteps
from retinue.workflows.interpreter.frame import Frame, StepResult
from retinue.workflows.interpreter.rounds import MarkedContext, Rounds
from retinue.workflows.interpreter.think.approvals import PlannedCall, ask_person, needs_person
from retinue.workflows.interpreter.think.plan import read_choice
from retinue.workflows.interpreter.think.results import keep_result, read_results
from retinue.workflows.interpreter.think.search import find_tools
from retinue.workflows.runs.records import StepOutcome

LOST_RETRY = Retry(attempts=3, delay="1s")
"""A call whose agent was lost in it is made again under the same key; other failures are told the model."""

AWAY_S = 20.0
"""How long an agent that is away is waited for: about as long as a restart takes."""


@dataclass(frozen=True, slots=True)
class _CallEnd:
    """The outcome of a call."""

    result: StepResult | None
    fault: Mapping[str, Any] | None
    outcomes: list[StepOutcome]


@dataclass(slots=True)
class CallTurn:
    """The calls of one turn; ``turn`` is the path of the turn, ``path`` that of the step.

    After `answer`, ``time_s`` is how long the calls took, and ``limit`` what ends the loop, if a limit does.
    """

    frame: Frame
    plan: ThinkPlan
    box: Toolbox
    repeats: Repeats
    path: str
    turn: str
    room: int
    left_s: float
    time_s: float = 0.0
    limit: LimitName | None = None

    async def answer(self, reply: CompletionReply) -> list[ToolResult]:
        """The results of all calls of a reply, in its order; raises StepFailedError to end the run."""
        if reply.finish == "length":
            # a reply that was cut may hold half a call
            return [
                refuse(call, "Not made, because your message was cut: make it shorter.")
                for call in reply.calls
            ]
        verdicts = [self._judge(call, number) for number, call in enumerate(reply.calls, 1)]
        answers = {verdict.id: verdict for verdict in verdicts if isinstance(verdict, ToolResult)}
        own = [verdict for verdict in verdicts if isinstance(verdict, ToolCall)]
        answers |= await self._answer_own(own)
        planned = [verdict for verdict in verdicts if isinstance(verdict, PlannedCall)]
        questioned = [call for call in planned if needs_person(self.plan, call.tool)]
        if questioned:
            answers |= await ask_person(self.frame, questioned, self.turn)
            planned = [call for call in planned if call.call.id not in answers]
        if planned:
            answers |= await self._make(planned)
        results = [answers[call.id] for call in reply.calls]
        for result in results:
            self.box.note_links(text_of_result(result))
        return results

    async def _answer_own(self, calls: list[ToolCall]) -> dict[str, ToolResult]:
        """The results of the tools of the loop itself, by call id."""
        searches = [call for call in calls if call.name == FIND_SKILLS]
        reads = [call for call in calls if call.name == READ_RESULT]
        results: list[ToolResult] = []
        if searches:
            results += await find_tools(self.frame, self.plan, self.box, searches, self.path, self.turn)
        if reads:
            results += await read_results(self.frame, self.box.links, reads, self.turn, self.plan.keep_bytes)
        return {result.id: result for result in results}

    def _judge(self, call: ToolCall, number: int) -> ToolResult | ToolCall | PlannedCall:
        """The refusal of a call, or the call itself for a tool of the loop, or what is to be made."""
        if number > self.room:
            self.limit = self.limit or "calls"
            return refuse(call, "Not made, because the limit of tool calls is reached.")
        if self.left_s <= 0:
            self.limit = self.limit or "time"
            return refuse(call, "Not made, because the time limit is reached.")
        key = call_key(call.name, call.arguments)
        tool = self.box.find(call.name)
        times = self.repeats.note_call(key)
        if tool is None or not tool.polls:
            if times >= ENDS_AT:
                self.limit = self.limit or "repeats"
            if times >= TOLD_AT:
                return refuse(
                    call,
                    f"Not made: this is call {times} with these arguments, and its result does not change. "
                    "Do something else.",
                )
        own = self.box.find_own(call.name)
        if own is not None:
            problem = _find_problem(own.input_schema, call.arguments)
            return call if problem is None else refuse(call, problem)
        if tool is None:
            return refuse(call, self._unknown(call.name))
        problem = _find_problem(tool.input_schema, call.arguments)
        if problem is not None or isinstance(call.arguments, str):
            return refuse(call, problem or "")
        arguments = tool.arguments_of(call.arguments)
        return PlannedCall(call, tool, arguments, key, f"{self.turn}/call-{number}")

    def _unknown(self, name: str) -> str:
        near = self.box.suggest(name)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"There is no tool {name[:100]!r}.{meant}"

    async def _make(self, planned: list[PlannedCall]) -> dict[str, ToolResult]:
        """Make calls together, each with its share of the budget; returns their results by call id."""
        frame = self.frame
        is_begun_here = await self._note_begin(planned)
        rounds = Rounds(frame.context, self.plan.parallel)
        origin = frame.budget.divide(len(planned))
        if origin.allowance is not None:
            # a share that is lost in a crash counts as spent: half of the rest stays for the model
            origin = origin.with_allowance(origin.allowance.portion(1, 2))
        request = replace(frame.request, origin=origin)
        parts = [frame.branch(MarkedContext(frame.context, None, rounds), request) for _ in planned]
        works = [
            partial(self._make_one, part, call, is_begun_here)
            for part, call in zip(parts, planned, strict=True)
        ]
        ends = await rounds.run(works, tolerated=None)
        for part in parts:
            frame.budget.settle_share(origin, part.budget.used, part.budget.usage)
        results: dict[str, ToolResult] = {}
        durations: list[float | None] = []
        for call, end in zip(planned, ends, strict=True):
            if isinstance(end, BaseException):
                raise end
            durations.append(sum(outcome.ms or 0.0 for outcome in end.outcomes))
            results[call.call.id] = self._render(call, end)
        self.time_s = batch_time_s(durations, self.plan.parallel)
        return results

    async def _note_begin(self, planned: list[PlannedCall]) -> bool:
        """Record that calls begin which must not be made twice; False if an earlier execution began them."""
        if all(call.tool.is_repeatable for call in planned):
            return True
        return await _note_new(self.frame, f"{self.turn}/begin")

    async def _make_one(self, frame: Frame, planned: PlannedCall, is_begun_here: bool) -> _CallEnd:
        tool, choice = planned.tool, read_choice(planned.tool.choice)
        is_new = is_begun_here

        async def begin(path: str) -> None:
            # the call before it was refused, so only this one may have had its effect
            nonlocal is_new
            is_new = await _note_new(frame, path)

        async def verify() -> None:
            if not (is_new or tool.is_repeatable):
                raise _unknown_outcome(tool)
            await self._check_pin(frame, tool, choice)

        ask = Ask(
            step_id=planned.path,
            arguments_for=lambda choice: planned.arguments,
            skill=tool.skill,
            agent=choice.agent,
            choice=choice,
            timeout_s=min(DEFAULT_STEP_TIMEOUT_S, self.left_s),
            retry=LOST_RETRY if tool.is_repeatable else None,
            once=True,
            wait_s=AWAY_S,
            allow_empty=True,
            verify=verify,
            begin=begin,
            keep=lambda outcome: keep_result(frame, tool.skill, outcome, self.plan.keep_bytes),
        )
        calls = CallSteps(frame)
        try:
            return _CallEnd(await calls.run(ask, planned.path), None, calls.outcomes)
        except StepFailedError as failed:
            return _CallEnd(None, failed.cause, calls.outcomes)

    async def _check_pin(self, frame: Frame, tool: PinnedTool, choice: Choice) -> None:
        """Refuse a skill that is not the pinned one any more; raises what `Caller.choose` raises as well."""
        origin = frame.request.origin
        current = await frame.tools.caller.choose(
            tool.skill, choice.agent, None, origin.scopes, origin.caller, origin.reach
        )
        if current.version == choice.version and digest_of(current.input_schema) == tool.digest:
            return
        error = VersionConflictError(tool.skill, f"=={choice.version}", [current.version or "no version"])
        error.message = f"{tool.id} has changed since this run began to use it"
        error.args = (error.message,)
        error.remedy = "find it again with find_skills" if self.box.searches else "use another tool"
        raise error

    def _render(self, planned: PlannedCall, end: _CallEnd) -> ToolResult:
        """The result of a call for the model; raises StepFailedError where its failure ends the run."""
        tool, fault, result = planned.tool, end.fault, end.result
        if result is None:
            assert fault is not None
            if fault["type"] == BudgetSpentError.type and fault["data"].get("what") in ("calls", "seconds"):
                # the budget of the whole chain: no further call of this run would be admitted
                raise StepFailedError(self.path, tool.agent, fault)
            self.repeats.note_result(planned.key, fault["message"], changes=False)
            return render_fault(planned.call, tool.id, fault)
        parts = result.facts.get("parts", ())
        self.repeats.note_result(planned.key, [result.output, parts], changes=not tool.is_read_only)
        return render_result(planned.call, tool.id, result.output, parts)


async def _note_new(frame: Frame, path: str) -> bool:
    """Record that calls begin; False if an earlier execution recorded it."""
    is_new = False

    async def effect() -> None:
        nonlocal is_new
        is_new = True

    await frame.context.step(path, effect, timeout_s=60.0, facts={"kind": "begin", "below": ""})
    return is_new


def _find_problem(schema: Mapping[str, Any], arguments: Mapping[str, Any] | str) -> str | None:
    """Why arguments do not fit a function; None if they do."""
    if isinstance(arguments, str):
        return "The arguments are no JSON object."
    try:
        problems = compile_schema(schema, "arguments").explain(arguments, schema)
    except SchemaRefusedError:
        return None  # the agent checks its arguments itself
    return f"The arguments do not fit:\n{explain_problems(problems)}" if problems else None


def _unknown_outcome(tool: PinnedTool) -> ExecutionFailedError:
    return ExecutionFailedError(
        f"the run was interrupted during this call of {tool.id}, which may have had its effect",
        remedy="find out what it did before you call it again",
    )
