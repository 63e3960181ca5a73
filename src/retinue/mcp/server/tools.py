"""``tools/list`` and ``tools/call``: a tool call is one dispatch (S-09 … S-11; specification 6.2).

The list of tools is serialised once: the SDK would serialise a thousand tools for each client (10 ms of CPU).
The handler returns a random placeholder, which the bytes of the list replace on their way to the HTTP client.
Over stdio the list itself is sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import structlog
from mcp.shared.exceptions import MCPError
from starlette.requests import Request
from starlette.types import Message, Scope, Send

from retinue.core.call import Call, Outcome, new_id
from retinue.core.errors import (
    CannotAskError,
    ExecutionFailedError,
    OutputInvalidError,
    RetinueError,
)
from retinue.core.record import Schema
from retinue.mcp.codec.content import count_characters, render_call_result, render_error_result
from retinue.mcp.codec.tool_calls import WHOLE_KEY
from retinue.mcp.codec.tools import FINDER, read_arguments
from retinue.mcp.server.channel import (
    Context,
    McpCaller,
    McpChannel,
    caller_of,
    complete,
    current_principal,
    is_modern,
    principal_of,
    session_of,
)
from retinue.mcp.server.interactions import Interactions, refuse_unaskable
from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import Offer, ToolEntry
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Calls
from retinue.web.codec.trace import CALLS_USED_KEY, USAGE_KEY, WARNINGS_KEY
from retinue.web.error_table import mcp_fault, mcp_read_fault

_KEY = "retinue.mcp.ready"

PLACEHOLDER = f"retinue:{secrets.token_hex(16)}"

PLACEHOLDER_BYTES = f'"{PLACEHOLDER}"'.encode()


def leave_placeholder(scope: Scope, ready: bytes) -> str:
    """The placeholder for ``ready`` in the response to this request."""
    scope[_KEY] = ready
    return PLACEHOLDER


def fill_in(scope: Scope, send: Send) -> Send:
    """``send`` that replaces the placeholder by its bytes, if there is one."""

    async def send_filled(message: Message) -> None:
        ready: bytes | None = scope.get(_KEY)
        if ready is not None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [_longer(header, ready) for header in message["headers"]]}
            elif message["type"] == "http.response.body":
                message = {**message, "body": message.get("body", b"").replace(PLACEHOLDER_BYTES, ready)}
        await send(message)

    return send_filled


def _longer(header: tuple[bytes, bytes], ready: bytes) -> tuple[bytes, bytes]:
    name, value = header
    if name.lower() != b"content-length":
        return name, value
    return name, str(int(value) - len(PLACEHOLDER_BYTES) + len(ready)).encode()


_log = structlog.get_logger(__name__)

_APPROVES = "approves"
"""The scope of a token whose holder may answer approvals."""


@dataclass(slots=True)
class ToolRequest:
    """One call of a tool by a client.

    ``is_whole``: a program asks, which wants a long result whole. ``is_modern``: by 2026-07-28.
    """

    name: str
    arguments: Mapping[str, Any] | None
    is_whole: bool
    is_modern: bool


@dataclass(frozen=True, slots=True)
class ToolHandlers:
    """Handlers of the requests about tools."""

    offer: Offer
    calls: Calls
    interactions: Interactions
    long_results: LongResults
    guard_as_tool_error: bool = False
    metadata_key: str | None = None
    """The key of ``_meta`` whose value is also ``metadata`` of a result, where clients of seed 002 look."""

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        """All tools at once: clients read every page anyway."""
        try:
            catalog = self.offer.tools(principal_of(context), session_of(context))
        except RetinueError as error:
            raise MCPError(*mcp_read_fault(error)) from error
        request = context.request
        if isinstance(request, Request):
            tools: Any = leave_placeholder(request.scope, catalog.listed)
        else:
            tools = catalog.tools
        return complete(context, {"tools": tools}, cacheable=True)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Run one tool; the dispatch rejects a hidden and a missing one alike."""
        caller = caller_of(context)

        async def run(channel: McpChannel) -> dict[str, Any]:
            asked = ToolRequest(
                params.name,
                params.arguments,
                is_whole=WHOLE_KEY in (context.meta or {}),
                is_modern=is_modern(context),
            )
            try:
                entry = self.offer.tools(caller.principal, caller.session).find(params.name)
            except RetinueError as unreadable:
                return self._render_error(unreadable, params.name)
            if not _is_approver(caller) or "elicitation" not in channel.capabilities:
                return await self.run(asked, entry, caller, channel)
            from retinue.mcp.server.approval_questions import asking_about_approvals  # of few clients

            async with asking_about_approvals(self.calls, caller, channel):
                return await self.run(asked, entry, caller, channel)

        return await self.interactions.run(context, params, run, logs=self.offer.facts.logs)

    def find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema against which the SDK checks ``Mcp-Param-*`` headers, for the current caller."""
        return self.offer.tools(current_principal.get()).find_input_schema(name)

    async def run(
        self, asked: ToolRequest, entry: ToolEntry | None, caller: McpCaller, channel: Channel | None = None
    ) -> dict[str, Any]:
        """The result of one call of ``entry``; None = a name that the caller does not see.

        ``channel`` None = there is no way back but the result. Raises MCPError for the errors that are no
        results.
        """
        schema = None if entry is None else entry.skill.input_schema
        arguments: Any = asked.arguments or {}
        if schema is not None and schema.get("type") != "object":
            arguments = read_arguments(schema, arguments)
        call = Call(
            id=new_id(),
            skill=asked.name if entry is None else entry.skill.id,
            arguments=arguments,
            principal=caller.principal,
            endpoint=caller.endpoint,
            trace=caller.trace,
            agent=self.offer.agent if entry is None or entry.agent is None else entry.agent,
        )
        try:
            outcome = await (
                self.calls.dispatch(call) if channel is None else self.calls.dispatch(call, channel)
            )
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not in a response
            _log.exception("dispatch failed", call_id=call.id, skill=call.skill)
            error = ExecutionFailedError("internal error", remedy=f"see the log for call {call.id}")
            return self._render_error(error, call.skill)
        if isinstance(outcome.error, CannotAskError):
            refuse_unaskable(outcome.error, modern=asked.is_modern)
        output_schema = None if entry is None else entry.skill.output_schema
        is_finder = entry is not None and entry.agent is None and entry.skill.id == FINDER
        result = self._render(outcome, caller, output_schema, is_whole=asked.is_whole, is_compact=is_finder)
        if self.long_results.unsent:
            await self.long_results.send()
        if outcome.warnings:
            result["_meta"] = {**result.get("_meta", {}), WARNINGS_KEY: list(outcome.warnings)}
            # many clients show a model only the content
            warnings = [{"type": "text", "text": f"warning: {warning}"} for warning in outcome.warnings]
            result["content"] = [*result.get("content", ()), *warnings]
        if outcome.meta:
            result["_meta"] = {**result.get("_meta", {}), **outcome.meta}
            if self.metadata_key is not None and self.metadata_key in outcome.meta:
                result["metadata"] = outcome.meta[self.metadata_key]
        if outcome.usage is not None:
            result["_meta"] = {**result.get("_meta", {}), USAGE_KEY: dict(outcome.usage)}
        if caller.trace.mac is not None and outcome.calls_used is not None:
            # the caller is a process of the mesh, which divides a budget
            result["_meta"] = {**result.get("_meta", {}), CALLS_USED_KEY: outcome.calls_used}
        return result

    def _render(
        self,
        outcome: Outcome,
        caller: McpCaller,
        output_schema: Schema | None,
        *,
        is_whole: bool,
        is_compact: bool,
    ) -> dict[str, Any]:
        if outcome.error is not None:
            # an error has no ``_meta``, and the caller settles a budget by it
            spent = _spent_by(outcome) if caller.trace.extension is not None else {}
            return self._render_error(outcome.error, outcome.skill, spent)
        try:
            result = render_call_result(
                outcome.value, outcome.parts, output_schema, is_whole=is_whole, is_compact=is_compact
            )
        except TypeError as cause:
            return self._render_error(
                OutputInvalidError.not_json(outcome.skill, "", str(cause)), outcome.skill
            )
        if is_whole or count_characters(result) <= self.long_results.max_chars:
            return result
        return self.long_results.shorten(result, outcome, output_schema, caller.principal)

    def _render_error(
        self, error: RetinueError, tool: str, spent: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A result for a model to read; raises the error where the error table requires a JSON-RPC error.

        ``spent`` are the calls and the usage of the failed call, which a result has in its ``_meta``.
        """
        code, message, data = mcp_fault(error, tool=tool, guard_as_tool_error=self.guard_as_tool_error)
        if code is not None:
            raise MCPError(code, message, {**(data or {}), **spent} if spent else data)
        return render_error_result(message, data)


def _is_approver(caller: McpCaller) -> bool:
    """Whether the client itself, and no agent for it, may answer about calls that wait for approval."""
    principal = caller.principal
    return _APPROVES in principal.scopes and not principal.through and caller.trace.depth == 0


def _spent_by(outcome: Outcome) -> dict[str, Any]:
    """The part of its budgets that a failed call has used."""
    spent: dict[str, Any] = {} if outcome.usage is None else {USAGE_KEY: dict(outcome.usage)}
    return spent if outcome.calls_used is None else spent | {CALLS_USED_KEY: outcome.calls_used}
