"""Asks the person at an MCP client about calls of a run that wait for approval, while its request runs.

A run tells of such a call by a line of progress (`core.approval_lines`). The client is asked if its token has
the scope ``approves``. What it shows comes from the store of the hub, and the hub takes the answer with the
token of the client, so a skill that writes such a line itself permits nothing. Questions of policies are not
asked here, because only the policies say whether a client may answer about its own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from retinue.core.approval_lines import QUESTION_FORM, read_approval_line, render_question
from retinue.core.call import Call, new_id
from retinue.core.errors import CannotAskError, InputRefusedError, InputRequiredError
from retinue.mcp.server.channel import McpCaller, McpChannel
from retinue.mesh.channel import NullChannel
from retinue.mesh.dispatch import Calls

_READ, _ANSWER = "show_approval", "answer_approval"


@asynccontextmanager
async def asking_about_approvals(calls: Calls, caller: McpCaller, channel: McpChannel) -> AsyncIterator[None]:
    """Ask the client of a request about the calls that wait for approval, as long as the request runs.

    The client supports elicitation, and its token has the scope ``approves``.
    """
    questions = _Questions(calls, caller, channel)
    channel.on_line = questions.note
    try:
        yield
    finally:
        channel.on_line = None
        await questions.end()


class _Questions:
    """The open questions of one request, by the step that waits."""

    def __init__(self, calls: Calls, caller: McpCaller, channel: McpChannel) -> None:
        self._calls = calls
        self._caller = caller
        self._channel = channel
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def note(self, message: str) -> None:
        """Ask about a call that begins to wait; withdraw the question about an answered one."""
        line = read_approval_line(message)
        if line is None:
            return
        if line.approval is None:
            if (task := self._tasks.pop(line.step, None)) is not None:
                task.cancel()
        elif line.step not in self._tasks:
            self._tasks[line.step] = asyncio.create_task(
                self._ask(line.approval), name="question to a client"
            )

    async def end(self) -> None:
        """Withdraw all questions."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _ask(self, approval: str) -> None:
        shown = await self._call(_READ, {"approval": approval})
        if shown is None or shown["state"] != "open" or not shown.get("by_step"):
            return
        question = render_question(shown["agent"], shown["skill"], shown["arguments"], shown["reason"])
        if question is None:
            return
        # without an answer the call is approved or denied elsewhere
        with suppress(CannotAskError, InputRefusedError, InputRequiredError):
            reply = await self._channel.elicit(question, QUESTION_FORM, key=f"approval-{approval}")
            verdict = "yes" if reply["approve"] is True else "no"
            answer = {"approval": approval, "verdict": verdict, "comment": str(reply.get("comment") or "")}
            await self._call(_ANSWER, answer)

    async def _call(self, skill: str, arguments: Mapping[str, Any]) -> Any:
        """The value of a skill of the hub; None where it fails, as for an approval that has ended."""
        call = Call(
            id=new_id(),
            skill=skill,
            arguments=arguments,
            principal=self._caller.principal,
            endpoint=self._caller.endpoint,
            trace=self._caller.trace,
        )
        outcome = await self._calls.dispatch(call, NullChannel())
        return None if outcome.error is not None else outcome.value
