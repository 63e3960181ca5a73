"""``tools/list`` and ``tools/call``: a tool call is one dispatch (SPEC 5, S-09 … S-11; SPEC 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import structlog
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from retinue.core.call import Call, Outcome, new_id
from retinue.core.errors import (
    CannotAskError,
    ExecutionFailedError,
    OutputInvalidError,
    Problem,
    RetinueError,
)
from retinue.core.record import Schema
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Calls
from retinue.protocols.mcp.content import render_call_result, render_error_result
from retinue.protocols.mcp.tool_calls import WHOLE_KEY
from retinue.protocols.mcp.tools import read_arguments, render_output_schema
from retinue.protocols.trace import CALLS_USED_KEY
from retinue.surfaces.faults import mcp_fault, mcp_read_fault
from retinue.surfaces.mcp.callers import Caller, Context, asking, caller_of, principal_of
from retinue.surfaces.mcp.channel import McpChannel
from retinue.surfaces.mcp.eras import complete
from retinue.surfaces.mcp.interacting import Interactions, refuse_unaskable
from retinue.surfaces.mcp.long_results import LongResults
from retinue.surfaces.mcp.offer import Offer
from retinue.surfaces.mcp.ready_bytes import leave_mark

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolHandlers:
    """The requests about tools."""

    offer: Offer
    calls: Calls
    interactions: Interactions
    long_results: LongResults
    guard_as_tool_error: bool = False

    async def list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> dict[str, Any]:
        """Every tool at once: clients read all pages anyway."""
        try:
            catalog = self.offer.tools(principal_of(context))
        except RetinueError as error:
            raise MCPError(*mcp_read_fault(error)) from error
        request = context.request
        if isinstance(request, Request):
            tools: Any = leave_mark(request.scope, catalog.listed)
        else:
            tools = catalog.tools
        return complete(context, {"tools": tools}, cacheable=True)

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
        """Run one tool; a hidden one and a missing one are refused by the same dispatch."""
        caller = caller_of(context)

        async def run(channel: McpChannel) -> dict[str, Any]:
            return await self._run(context, caller, params, channel)

        return await self.interactions.run(context, params, run, logs=self.offer.facts.logs)

    def find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """What the SDK checks ``Mcp-Param-*`` headers against, for the caller of this request."""
        return self.offer.tools(asking.get()).find_input_schema(name)

    async def _run(
        self, context: Context, caller: Caller, params: types.CallToolRequestParams, channel: Channel
    ) -> dict[str, Any]:
        try:
            entry = self.offer.tools(caller.principal).find(params.name)
        except RetinueError as unreadable:
            return self._render_error(unreadable)
        schema = None if entry is None else entry.skill.input_schema
        call = Call(
            id=new_id(),
            skill=params.name if entry is None else entry.skill.id,
            arguments=read_arguments(schema, params.arguments),
            principal=caller.principal,
            door=caller.door,
            trace=caller.trace,
            agent=self.offer.agent if entry is None or entry.agent is None else entry.agent,
        )
        try:
            outcome = await self.calls.dispatch(call, channel)
        except Exception:  # noqa: BLE001 - a mistake of ours: its text belongs in the log, not on the wire
            _log.exception("dispatch failed", call_id=call.id, skill=call.skill)
            error = ExecutionFailedError("internal error", remedy=f"see the log for call {call.id}")
            return self._render_error(error)
        if isinstance(outcome.error, CannotAskError):
            refuse_unaskable(context, outcome.error)
        output_schema = None if entry is None else entry.skill.output_schema
        is_for_program = WHOLE_KEY in (context.meta or {})
        result = self._render(outcome, caller, output_schema, is_whole=is_for_program)
        if caller.trace.mac is not None and outcome.calls_used is not None:
            # a process of a mesh asks, which shares out a budget
            result["_meta"] = {**result.get("_meta", {}), CALLS_USED_KEY: outcome.calls_used}
        return result

    def _render(
        self, outcome: Outcome, caller: Caller, output_schema: Schema | None, *, is_whole: bool
    ) -> dict[str, Any]:
        if outcome.error is not None:
            return self._render_error(outcome.error)
        try:
            result = render_call_result(outcome.value, outcome.parts, output_schema)
        except TypeError as cause:
            problem = Problem("", f"it is no JSON value: {cause}")
            return self._render_error(OutputInvalidError(outcome.skill, [problem]))
        if is_whole or render_output_schema(output_schema) is not None:
            return result
        return self.long_results.shorten(result, caller.principal)

    def _render_error(self, error: RetinueError) -> dict[str, Any]:
        """A result that a model reads, or a JSON-RPC error (raised)."""
        code, message, data = mcp_fault(error, guard_as_tool_error=self.guard_as_tool_error)
        if code is not None:
            raise MCPError(code, message, data)
        return render_error_result(message, data)
