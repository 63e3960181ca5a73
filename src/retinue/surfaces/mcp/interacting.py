"""How one request runs: with a way back to its client, ended when the client goes, suspended when it asks."""

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
from retinue.surfaces.faults import mcp_read_fault
from retinue.surfaces.mcp.callers import Context, principal_of
from retinue.surfaces.mcp.channel import LEVELS, McpChannel
from retinue.surfaces.mcp.connections import Connections
from retinue.surfaces.mcp.eras import complete, is_modern
from retinue.surfaces.mcp.hangups import HangUps
from retinue.surfaces.mcp.suspended import Conversation, Questions, Suspensions
from retinue.surfaces.mcp_visitors import owner_of

Run = Callable[[McpChannel], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Talk:
    """A suspended call with its way back."""

    conversation: Conversation
    channel: McpChannel

    def end(self) -> None:
        self.conversation.end()


class Interactions:
    """Runs the requests of one door that may take a while or ask back."""

    def __init__(self, connections: Connections, suspensions: Suspensions[Talk]) -> None:
        self._connections = connections
        self._suspensions = suspensions

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
            channel = McpChannel(context, level)
            with _ended_by_hang_up(context), _heartbeat(channel):
                result = await run(channel)
        return complete(context, result, cacheable=cacheable)

    async def _converse(
        self, context: Context, params: types.InputResponseRequestParams, run: Run, level: str | None
    ) -> dict[str, Any]:
        owner, subject = _owner(context), _subject(context, params)
        if params.request_state is None:
            conversation = Conversation(params.input_responses)
            channel = McpChannel(context, level, conversation)
            conversation.start(_as_coroutine(run, channel))
        else:
            talk = self._suspensions.resume(params.request_state, owner, subject)
            conversation, channel = talk.conversation, talk.channel
            channel.move_to(context, level)
            conversation.answer(params.input_responses)
        with _heartbeat(channel):
            found = await conversation.proceed()
        if not isinstance(found, Questions):
            return found
        try:
            state = self._suspensions.suspend(Talk(conversation, channel), owner, subject)
        except BusyError as error:
            raise MCPError(*mcp_read_fault(error)) from error
        requests = {
            name: request.model_dump(by_alias=True, mode="json", exclude_none=True)
            for name, request in found.requests.items()
        }
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}

    def _least_level(self, context: Context) -> str | None:
        if is_modern(context):
            wanted = (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
            return wanted if isinstance(wanted, str) and wanted in LEVELS else None
        live = self._connections.note(context)
        return None if live is None else live.level


def refuse_unaskable(context: Context, error: CannotAskError) -> None:
    """In the sessionless era a lacking capability has a code of its own (raised); elsewhere it is told
    as any other failure."""
    if is_modern(context):
        lacking: dict[str, Any] = {"requiredCapabilities": {error.capability: {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, error.message, lacking)


async def _as_coroutine(run: Run, channel: McpChannel) -> dict[str, Any]:
    return await run(channel)


def _can_be_asked(context: Context) -> bool:
    declared = context.session.client_capabilities
    return declared is not None and any(
        one is not None for one in (declared.elicitation, declared.sampling, declared.roots)
    )


def _owner(context: Context) -> str:
    return owner_of(principal_of(context))


def _subject(context: Context, params: types.InputResponseRequestParams) -> str:
    """What the request is about: a state resumes the request that it came from and no other."""
    said = params.model_dump(by_alias=True, mode="json", exclude={"meta", "input_responses", "request_state"})
    return sha256(orjson.dumps([context.method, said], option=orjson.OPT_SORT_KEYS)).hexdigest()


@contextmanager
def _heartbeat(channel: McpChannel) -> Iterator[None]:
    channel.start_heartbeat()
    try:
        yield
    finally:
        channel.stop_heartbeat()


@contextmanager
def _ended_by_hang_up(context: Context) -> Iterator[None]:
    """Cancel what runs inside when its HTTP client goes away: nobody could be given the result.

    The sessionless era and stdio do so by themselves; in the handshake era the SDK only drops the answer.
    """
    request = context.request
    if not isinstance(request, Request) or is_modern(context):
        yield
        return
    hang_ups = HangUps.of(request.scope)
    with anyio.CancelScope() as scope:
        hang_ups.add(scope.cancel)
        try:
            yield
        finally:
            hang_ups.remove(scope.cancel)
    if scope.cancelled_caught:
        raise MCPError(types.CONNECTION_CLOSED, "the client went away")
