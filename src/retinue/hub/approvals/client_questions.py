"""Asks the client of a call for a yes, or lets a task of A2A wait for an answer from anywhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf

from retinue.approvals.records import MAX_COMMENT, SCOPE, Approval, ApprovalStore, Verdict
from retinue.core.approval_lines import QUESTION_FORM, render_open, render_over, render_question
from retinue.core.call import Call
from retinue.core.errors import CannotAskError, InputRefusedError, InputRequiredError, InvalidRequestError
from retinue.mesh.channel import Channel

A2A = "a2a"
"""The endpoint whose tasks wait for an answer."""

FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0
"""Seconds between two looks for an answer."""


async def ask_client(
    channel: Channel, store: ApprovalStore, approval: Approval, call: Call, names_caller: bool
) -> Approval:
    """The approval after the client of its call was asked, or has waited; still open without an answer.

    ``names_caller`` = the caller is an approver of its own call. It is asked if its token has the scope
    ``approves`` as well, and if no agent stands between them.
    """
    request, principal = approval.request, call.principal
    question = render_question(request.agent, request.skill, request.arguments, request.reason)
    if question is None or call.trace.depth > 0 or principal.through:
        return approval
    if call.endpoint == A2A and "progress" in channel.capabilities:
        return await _await_answer(channel, store, approval, call, question)
    if names_caller and SCOPE in principal.scopes and "elicitation" in channel.capabilities:
        return await _ask_person(channel, store, approval, call, question)
    return approval


async def _ask_person(
    channel: Channel, store: ApprovalStore, approval: Approval, call: Call, question: str
) -> Approval:
    try:
        reply = await channel.elicit(question, QUESTION_FORM, key="approval")
    except (CannotAskError, InputRequiredError, InputRefusedError):
        return await store.find(approval.id) or approval
    comment = str(reply.get("comment") or "")[:MAX_COMMENT]
    verdict: Verdict = "yes" if reply["approve"] is True else "no"
    with suppress(InvalidRequestError):  # somebody else has answered meanwhile
        return await store.answer(approval.id, verdict, call.principal.id, comment)
    return await store.find(approval.id) or approval


async def _await_answer(
    channel: Channel, store: ApprovalStore, approval: Approval, call: Call, question: str
) -> Approval:
    """The approval after it was answered anywhere, has expired, or the time of its call is over."""
    loop, deadline, look_s = asyncio.get_running_loop(), call.deadline or inf, FIRST_LOOK_S
    step = f"{approval.request.agent}/{approval.request.skill}/answer-1"
    await channel.progress(None, render_open(step, question, approval.id))
    while approval.state == "open" and loop.time() + look_s < deadline:
        await asyncio.sleep(look_s)
        look_s = min(look_s * 1.3, LONGEST_LOOK_S)
        approval = await store.find(approval.id) or approval
    await channel.progress(None, render_over(step, is_late=approval.state in ("open", "expired")))
    return approval
