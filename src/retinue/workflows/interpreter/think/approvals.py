"""Asks a person before the calls of a step ``think`` that its ``approve`` names.

All calls of a turn are asked about before any answer is awaited. Below the path of the turn:

- ``/approve-1``: the question about the first call;
- ``/answer-1``: the wait for its answer, which no time limit of the loop counts;
- ``/use-1``: the use of a yes, which the store grants once.

The signal with the answer only ends the wait. What counts is the answer in the store, so a signal that
somebody else sends permits no call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson

from retinue.approvals.records import RUN_EXPIRES_S, Approval, ApprovalRequest, topic_of
from retinue.core.errors import InvalidSettingError
from retinue.thinking.completion import ToolCall, ToolResult
from retinue.thinking.plan import ThinkPlan
from retinue.thinking.results import refuse
from retinue.thinking.toolbox import PinnedTool, matches_any
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.think.plan import read_choice

ASK_S = 60.0

_ANSWER = {
    "type": "object",
    "properties": {"verdict": {"enum": ["yes", "no"]}, "comment": {"type": "string"}},
    "required": ["verdict"],
}


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that is to be made: the skill behind the function, and its arguments."""

    call: ToolCall
    tool: PinnedTool
    arguments: Any
    key: str
    path: str


def needs_person(plan: ThinkPlan, tool: PinnedTool) -> bool:
    """Whether a person is asked before each call of this tool."""
    return matches_any(plan.approve, tool.agent, tool.skill)


async def ask_person(frame: Frame, calls: Sequence[PlannedCall], turn: str) -> dict[str, ToolResult]:
    """The refusals of these calls of a turn, by call id; a call without one may be made once."""
    refusals: dict[str, ToolResult] = {}
    questions: list[tuple[PlannedCall, Approval]] = []
    for number, planned in enumerate(calls, 1):
        outcome = await _ask(frame, planned, f"{turn}/approve-{number}")
        if isinstance(outcome, Approval):
            questions.append((planned, outcome))
        else:
            refusals[planned.call.id] = refuse(planned.call, f"Not made: {outcome}")
    for number, (planned, approval) in enumerate(questions, 1):
        problem = await _await_answer(frame, planned, approval, turn, number)
        if problem is not None:
            refusals[planned.call.id] = refuse(planned.call, f"Not made: {problem}")
    return refusals


async def _ask(frame: Frame, planned: PlannedCall, path: str) -> Approval | str:
    """The question about a call, or why nobody can be asked."""
    origin, open_store = frame.request.origin, frame.tools.open_approvals
    tool = planned.tool
    request = ApprovalRequest(
        caller=origin.caller,
        scopes=origin.scopes,
        through=origin.reach.through,
        agent=tool.agent,
        version=read_choice(tool.choice).version or "",
        skill=tool.skill,
        arguments=planned.arguments,
        reason=f"the step asks a person before {tool.id}",
        run=frame.context.run_id,
        step=planned.path,
    )

    async def effect() -> Any:
        if open_store is None:
            raise InvalidSettingError(
                "approve", "this process keeps no approvals", remedy="run the workflow at a hub"
            )
        store = await open_store()
        approval = await store.ask(request, expires_s=RUN_EXPIRES_S, approval_id=_id_of(frame, planned))
        return approval.to_json()

    facts = {"kind": "approve", "skill": tool.skill, "agent": tool.agent, "below": ""}
    outcome = await frame.context.step(path, effect, timeout_s=ASK_S, facts=facts)
    if outcome.fault is not None:
        return f"nobody can be asked to approve it: {outcome.fault.message}"
    return Approval.from_json(outcome.value)


async def _await_answer(
    frame: Frame, planned: PlannedCall, approval: Approval, turn: str, number: int
) -> str | None:
    """Why a call may not be made; None after a yes, which is used for it."""
    tool = planned.tool
    facts = {
        "kind": "wait",
        "topic": topic_of(approval.id),
        "approval": approval.id,
        "call": planned.path,
        "message": f"{tool.id} with {_render(planned.arguments)}?",
        "schema": _ANSWER,
        "below": "",
    }
    path = f"{turn}/answer-{number}"
    outcome = await frame.context.receive(path, topic_of(approval.id), RUN_EXPIRES_S, facts=facts)
    if outcome.fault is not None:
        return "a person was asked to approve it, and nobody answered in time."
    answer = outcome.value if isinstance(outcome.value, dict) else {}
    if answer.get("verdict") != "yes":
        comment = str(answer.get("comment") or "").strip()
        return "a person refused it" + (f": {comment[:2000]}" if comment else ".")

    async def use() -> bool:
        assert frame.tools.open_approvals is not None
        store = await frame.tools.open_approvals()
        return await store.use(approval.id, approval.digest, frame.name(planned.path))

    facts = {"kind": "approve", "skill": tool.skill, "agent": tool.agent, "below": ""}
    used = await frame.context.step(f"{turn}/use-{number}", use, timeout_s=ASK_S, facts=facts)
    return None if used.value is True else "its approval does not count, because it expired or was not given."


def _id_of(frame: Frame, planned: PlannedCall) -> str:
    """The id of the question about a call, the same when the step is repeated after a crash."""
    return sha256(frame.name(planned.path).encode()).hexdigest()[:12]


def _render(arguments: Any) -> str:
    text = orjson.dumps(arguments).decode()
    return text if len(text) <= 300 else f"{text[:300]}…"
