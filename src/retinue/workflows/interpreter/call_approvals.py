"""Waits for the person who decides about a call of a step that policies ask about.

The call is refused with ``approval_needed``, which names the question. The wait for its answer is a durable
call of its own, ``PATH/answer-1``, which a later execution of the run takes up. After it the call is made
again under the same key, ``PATH/answered-1``, and the policies decide. A yes lets it pass. A no or an expired
question denies it. The answer in the store counts, and not what the wait returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from retinue.approvals.records import topic_of
from retinue.core.errors import ApprovalNeededError, StateError, StepFailedError
from retinue.workflows.interpreter.frame import Frame, overdue
from retinue.workflows.runs.records import Fault
from retinue.workflows.runs.replay_rules import is_step_time_out

MAX_QUESTIONS = 10
"""Questions about one attempt: a changed agent or policy asks anew."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.2, 2.0
"""Seconds between two looks for the answer."""

LONGEST_WAIT_S = 366 * 24 * 3600.0
"""The question expires before that, which ends the wait."""

ANSWER_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"verdict": {"enum": ["yes", "no"]}, "comment": {"type": "string"}},
    "required": ["verdict"],
}


def find_question(fault: Fault, run_step: str) -> str | None:
    """The id of the question about the call of a step with this fault; None where it failed otherwise.

    A question about a further call, which the agent made, belongs to that agent.
    """
    if fault.type != ApprovalNeededError.type or fault.data.get("step") != run_step:
        return None
    return str(fault.data["approval"])


async def await_answer(
    frame: Frame, approval_id: str, path: str, *, step: str, call: str, arguments: Any
) -> bool:
    """Wait until a question is answered or expires; False where this process does not know it.

    ``path`` is that of the wait, ``step`` that of the step, and ``call`` names the skill. Raises
    StepFailedError where a limit around the step ends the wait.
    """

    async def effect() -> bool:
        if frame.tools.open_approvals is None:
            return False
        look_s = FIRST_LOOK_S
        while True:
            try:
                store = await frame.tools.open_approvals()
                approval = await store.find(approval_id)
            except StateError:
                pass  # the database is away
            else:
                if approval is None:
                    return False
                if approval.state != "open":
                    return True
            await frame.context.pause(look_s)
            look_s = min(look_s * 1.3, LONGEST_LOOK_S)

    facts = {
        "kind": "wait",
        "topic": topic_of(approval_id),
        "approval": approval_id,
        "call": step,
        "message": f"{call} with {_shorten(arguments)}?",
        "schema": ANSWER_SCHEMA,
        "below": "",
    }
    timeout_s, limit = await frame.bound(path, LONGEST_WAIT_S, step=step)
    outcome = await frame.context.step(path, effect, timeout_s=timeout_s, facts=facts)
    if outcome.fault is not None and limit is not None and is_step_time_out(outcome.fault):
        raise StepFailedError(step, None, overdue(step, limit))
    return outcome.value is True


def _shorten(arguments: Any) -> str:
    text = orjson.dumps(arguments).decode()
    return text if len(text) <= 300 else f"{text[:300]}…"
