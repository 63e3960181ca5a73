"""``resources/*``, ``prompts/*`` and ``completion/complete``: each request is one read (S-02)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mcp_types as types
import structlog
from mcp.shared.exceptions import MCPError

from retinue.core.call import new_id
from retinue.core.errors import CannotAskError, ExecutionFailedError, UnknownResourceError
from retinue.mcp.codec.content import (
    render_completion,
    render_contents,
    render_message,
    render_prompt,
    render_resources,
    render_templates,
)
from retinue.mcp.server.change_notifier import Connections, find_resource
from retinue.mcp.server.channel import (
    Context,
    McpCaller,
    McpChannel,
    caller_of,
    complete,
    is_modern,
    principal_of,
)
from retinue.mcp.server.interactions import Interactions, refuse_unaskable
from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import Offer
from retinue.mesh.channel import Channel
from retinue.mesh.reading import Completion, PromptText, Reader, ReadKind, ReadOutcome, ReadRequest
from retinue.web.codec.trace import CALLS_USED_KEY
from retinue.web.error_table import mcp_read_fault

_log = structlog.get_logger(__name__)

ListParams = types.PaginatedRequestParams | None


@dataclass(frozen=True, slots=True)
class ReadHandlers:
    """Handlers of the requests about resources and prompts."""

    offer: Offer
    reads: Reader
    connections: Connections
    interactions: Interactions
    long_results: LongResults

    async def list_resources(self, context: Context, params: ListParams) -> dict[str, Any]:
        seen = self.offer.resources(principal_of(context))
        return complete(context, {"resources": render_resources(seen)}, cacheable=True)

    async def list_templates(self, context: Context, params: ListParams) -> dict[str, Any]:
        seen = self.offer.resources(principal_of(context))
        return complete(context, {"resourceTemplates": render_templates(seen)}, cacheable=True)

    async def list_prompts(self, context: Context, params: ListParams) -> dict[str, Any]:
        seen = self.offer.prompts(principal_of(context))
        return complete(context, {"prompts": [render_prompt(prompt) for prompt in seen]}, cacheable=True)

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> dict[str, Any]:
        caller = caller_of(context)
        kept = self.long_results.find(params.uri, caller.principal)
        if kept is not None:
            return complete(context, {"contents": render_contents(params.uri, kept)}, cacheable=True)

        async def run(channel: McpChannel) -> dict[str, Any]:
            outcome = await self._read(context, self._request(caller, "resource", params.uri), channel)
            parts = outcome.get()
            assert isinstance(parts, tuple)
            return _with_usage({"contents": render_contents(params.uri, parts)}, caller, outcome)

        return await self.interactions.run(context, params, run, logs=self.offer.facts.logs, cacheable=True)

    async def get_prompt(self, context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
        caller = caller_of(context)
        request = self._request(caller, "prompt", params.name, arguments=params.arguments or {})

        async def run(channel: McpChannel) -> dict[str, Any]:
            outcome = await self._read(context, request, channel)
            prompt = outcome.get()
            assert isinstance(prompt, PromptText)
            messages = [render_message(message.role, message.part) for message in prompt.messages]
            described = {"description": prompt.description} if prompt.description else {}
            return _with_usage({**described, "messages": messages}, caller, outcome)

        return await self.interactions.run(context, params, run, logs=self.offer.facts.logs)

    async def complete_argument(
        self, context: Context, params: types.CompleteRequestParams
    ) -> dict[str, Any]:
        known = (params.context.arguments if params.context else None) or {}
        caller = caller_of(context)
        is_template = isinstance(params.ref, types.ResourceTemplateReference)
        request = self._request(
            caller,
            "completion",
            params.ref.uri if isinstance(params.ref, types.ResourceTemplateReference) else params.ref.name,
            completes="resource" if is_template else "prompt",
            arguments=known,
            argument=params.argument.name,
            value=params.argument.value,
        )
        outcome = await self._read(context, request, McpChannel(context, None))
        read = outcome.get()
        assert isinstance(read, Completion)
        result = {"completion": render_completion(read.values, read.total)}
        return complete(context, _with_usage(result, caller, outcome))

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> dict[str, Any]:
        """Subscribe this connection to changes; a hidden resource is rejected like a missing one."""
        if find_resource(self.offer, params.uri, principal_of(context)) is None:
            raise MCPError(*mcp_read_fault(UnknownResourceError(params.uri)))
        self.connections.subscribe(context, params.uri)
        return {}

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> dict[str, Any]:
        self.connections.unsubscribe(context, params.uri)
        return {}

    async def set_level(self, context: Context, params: types.SetLevelRequestParams) -> dict[str, Any]:
        """Send log lines of this level and above to this connection."""
        live = self.connections.note(context)
        if live is not None:
            live.level = params.level
        return {}

    async def _read(self, context: Context, request: ReadRequest, channel: Channel) -> ReadOutcome:
        try:
            outcome = await self.reads.read(request, channel)
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not in a response
            _log.exception("read failed", request_id=request.id, name=request.name)
            error = ExecutionFailedError("internal error", remedy=f"see the log for request {request.id}")
            raise MCPError(*mcp_read_fault(error)) from None
        if isinstance(outcome.error, CannotAskError):
            refuse_unaskable(outcome.error, modern=is_modern(context))
        if outcome.error is not None:
            raise MCPError(*mcp_read_fault(outcome.error))
        return outcome

    def _request(self, caller: McpCaller, kind: ReadKind, name: str, **more: Any) -> ReadRequest:
        return ReadRequest(
            id=new_id(),
            kind=kind,
            name=name,
            principal=caller.principal,
            endpoint=caller.endpoint,
            trace=caller.trace,
            agent=self.offer.agent,
            **more,
        )


def _with_usage(result: dict[str, Any], caller: McpCaller, outcome: ReadOutcome) -> dict[str, Any]:
    """The result with the calls that it caused, for a process of the mesh, which divides a budget."""
    if caller.trace.mac is None or outcome.calls_used is None:
        return result
    return {**result, "_meta": {CALLS_USED_KEY: outcome.calls_used}}
