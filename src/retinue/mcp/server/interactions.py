"""Runs one request: gives it a channel to its client, cancels it on disconnect, suspends it for questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import anyio
import mcp_types as types
import orjson
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from retinue.core.errors import BusyError, CannotAskError
from retinue.mcp.server.change_notifier import Connections
from retinue.mcp.server.channel import LEVELS, Context, McpChannel, complete, is_modern, principal_of
from retinue.mcp.server.suspended_calls import PendingQuestions, SuspendableCall, SuspendedCalls
from retinue.mesh.permissions import principal_key
from retinue.web.disconnect import DisconnectCallbacks
from retinue.web.error_table import mcp_read_fault

Run = Callable[[McpChannel], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SuspendedCall:
    """A suspended call with its channel."""

    conversation: SuspendableCall
    channel: McpChannel

    def end(self) -> None:
        self.conversation.end()


class Interactions:
    """Runs the requests of one server that may take long or ask the client.

    A client that asked for progress hears every ``heartbeat_s`` that its call still runs.
    """

    def __init__(
        self, connections: Connections, suspended: SuspendedCalls[SuspendedCall], heartbeat_s: float
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._connections = connections
        self._suspended = suspended

    async def run(
        self,
        context: Context,
        params: types.InputResponseRequestParams,
        run: Run,
        *,
        logs: bool,
        cacheable: bool = False,
    ) -> dict[str, Any]:
        """The result of ``run``, or the questions that it asks first."""
        level = self._least_level(context) if logs else None
        if is_modern(context) and (_can_be_asked(context) or params.request_state is not None):
            result = await self._converse(context, params, run, level)
        else:
            channel = McpChannel(context, level, heartbeat_s=self._heartbeat_s)
            with _ended_by_hang_up(context), _heartbeat(channel):
                result = await run(channel)
        return complete(context, result, cacheable=cacheable)

    async def _converse(
        self, context: Context, params: types.InputResponseRequestParams, run: Run, level: str | None
    ) -> dict[str, Any]:
        owner, subject = _owner(context), _subject(context, params)
        if params.request_state is None:
            conversation = SuspendableCall(params.input_responses)
            channel = McpChannel(context, level, conversation, heartbeat_s=self._heartbeat_s)
            conversation.start(_as_coroutine(run, channel))
        else:
            suspended = self._suspended.resume(params.request_state, owner, subject)
            conversation, channel = suspended.conversation, suspended.channel
            channel.move_to(context, level)
            conversation.answer(params.input_responses)
        with _heartbeat(channel):
            result = await conversation.proceed()
        if not isinstance(result, PendingQuestions):
            return result
        try:
            state = self._suspended.suspend(SuspendedCall(conversation, channel), owner, subject)
        except BusyError as error:
            raise MCPError(*mcp_read_fault(error)) from error
        requests = {
            name: request.model_dump(by_alias=True, mode="json", exclude_none=True)
            for name, request in result.requests.items()
        }
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    def _least_level(self, context: Context) -> str | None:
        if is_modern(context):
            level = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
            return level if isinstance(level, str) and level in LEVELS else None
        live = self._connections.note(context)
        return None if live is None else live.level


def refuse_unaskable(error: CannotAskError, *, modern: bool) -> None:
    """Raise the error for a capability that the client lacks; only 2026-07-28 has a code for it."""
    if modern:
        lacking: dict[str, Any] = {"requiredCapabilities": {error.capability: {}}}
        # programs show a model the message at most
        message = f"{error.message} — {error.remedy}"
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, message, lacking)


async def _as_coroutine(run: Run, channel: McpChannel) -> dict[str, Any]:
    return await run(channel)


def _can_be_asked(context: Context) -> bool:
    declared = context.session.client_capabilities
    return declared is not None and any(
        kind is not None for kind in (declared.elicitation, declared.sampling, declared.roots)
    )


def _owner(context: Context) -> str:
    return principal_key(principal_of(context))


def _subject(context: Context, params: types.InputResponseRequestParams) -> str:
    """Identifies the request: a state resumes only the request that it came from."""
    fields = params.model_dump(
        by_alias=True, mode="json", exclude={"meta", "input_responses", "request_state"}
    )
    return sha256(orjson.dumps([context.method, fields], option=orjson.OPT_SORT_KEYS)).hexdigest()


@contextmanager
def _heartbeat(channel: McpChannel) -> Iterator[None]:
    channel.start_heartbeat()
    try:
        yield
    finally:
        channel.stop_heartbeat()


@contextmanager
def _ended_by_hang_up(context: Context) -> Iterator[None]:
    """Cancel the body when its HTTP client disconnects.

    In 2026-07-28 and over stdio the SDK does so itself; with sessions it only drops the response.
    """
    request = context.request
    if not isinstance(request, Request) or is_modern(context):
        yield
        return
    callbacks = DisconnectCallbacks.of(request.scope)
    with anyio.CancelScope() as scope:
        callbacks.add(scope.cancel)
        try:
            yield
        finally:
            callbacks.remove(scope.cancel)
    if scope.cancelled_caught:
        raise MCPError(types.CONNECTION_CLOSED, "the client went away")
