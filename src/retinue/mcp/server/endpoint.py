"""One MCP server: the SDK's low-level server with Retinue's handlers, over HTTP (``/mcp``) and stdio.

The SDK keeps sessions, protocol versions and framing. Each request asks the offer for the items that its
caller may see, so that one server serves every caller. A session works only for the principal that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retinue.core.call import Principal
from retinue.core.uri_template import is_template
from retinue.mcp.server.change_notifier import ChangeNotifier, Connections, find_resource
from retinue.mcp.server.channel import STDIO, Context, current_principal, is_modern, principal_of, stamp
from retinue.mcp.server.fast.fast_path import FastPath
from retinue.mcp.server.interactions import Interactions, SuspendedCall
from retinue.mcp.server.long_results import LongResults
from retinue.mcp.server.offer import McpOptions, Offer
from retinue.mcp.server.reopening import Reopening
from retinue.mcp.server.resources import ReadHandlers
from retinue.mcp.server.sdk_internals import Hold, SdkSessions, Sessions, find_open_session
from retinue.mcp.server.suspended_calls import SuspendedCalls
from retinue.mcp.server.tools import ToolHandlers, fill_in
from retinue.mesh.dispatch import Calls
from retinue.mesh.permissions import as_mcp_client, principal_key
from retinue.mesh.reading import Reader
from retinue.web.disconnect import watch
from retinue.web.security import Headers, identity_of

if TYPE_CHECKING:
    from retinue.mcp.server.shared_sessions import LedSessions, SharedSessions
    from retinue.mcp.session_records import SessionRecords

UNDECLARED = {
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}
"""Method → the capability without which it is answered like an unknown method."""


_LONE_SURROGATE = (
    "Parse error: the request is no JSON: a text holds a lone surrogate (\\ud800 to \\udfff); send whole "
    "characters"
)


def capabilities_of(offer: Offer, principal: Principal) -> dict[str, Any]:
    """The capabilities that the server declares to ``principal`` (S-04; specification 7.5).

    Hidden items are not declared: a hidden prompt declares nothing.
    """
    resources = offer.resources(principal)
    prompts = offer.prompts(principal)
    declared: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {"listChanged": True}}
    if any(resource.live for resource in resources):
        declared["resources"] = {"subscribe": True, "listChanged": True}
    if prompts:
        declared["prompts"] = {"listChanged": True}
    if prompts or any(is_template(resource.uri) for resource in resources):
        declared["completions"] = {}
    if offer.facts.logs:
        declared["logging"] = {}
    return declared


_VERSION = b"mcp-protocol-version"
_NAME = b"mcp-name"
_RESUMED = b"last-event-id"

_SESSIONLESS = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)


class McpEndpoint:
    """The endpoint as an ASGI app, behind a SecurityMiddleware.

    ``ensure_fresh`` is awaited before each request, so that the offer is current, and then `Offer.prepare`.
    ``led`` are the sessions of another process, which answers what the fast path leaves of them and calls of
    tools that are not here. ``reopening`` opens sessions again that another process had.
    """

    def __init__(
        self,
        manager: StreamableHTTPSessionManager,
        is_running: Callable[[], bool],
        fast_path: FastPath,
        offer: Offer,
        ensure_fresh: Callable[[], Awaitable[None]] | None = None,
        led: LedSessions | None = None,
        reopening: Reopening | None = None,
    ) -> None:
        self._manager = manager
        self._reopening = reopening
        self._fast_path = fast_path
        self._is_running = is_running
        self._ensure_fresh = ensure_fresh
        self._led = led
        self._offer = offer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_running():
            await Response("this server is stopping", 503)(scope, receive, send)
            return
        if self._ensure_fresh is not None:
            await self._ensure_fresh()
        visitor = identity_of(scope)
        principal = as_mcp_client(visitor.principal)
        await self._offer.prepare(principal)
        unanswered = await self._fast_path.answer(scope, receive, send, visitor, principal)
        if unanswered is None:
            return
        receive = unanswered
        if self._led is not None and not self._is_here(visitor.headers, principal):
            await self._led.leader(scope, receive, send)
            return
        # no events are kept, and the SDK leaves a request to resume a stream unanswered, so it starts again
        scope["headers"] = [_trimmed(*header) for header in scope["headers"] if header[0] != _RESUMED]
        # the SDK compares this with the opener of the session, and answers another caller with 404
        scope["user"] = AuthenticatedUser(
            AccessToken(token="", client_id=principal_key(principal), scopes=sorted(principal.scopes))
        )
        if visitor.headers.get(_VERSION) not in _SESSIONLESS:
            receive = watch(scope, receive)
        marked = current_principal.set(principal)
        try:
            if self._reopening is not None:
                await self._reopening.prepare(scope, visitor.headers, principal_key(principal))
            await self._manager.handle_request(scope, receive, fill_in(scope, send))
        finally:
            current_principal.reset(marked)

    def _is_here(self, headers: Headers, principal: Principal) -> bool:
        """Whether a request without a session calls a tool that this process has."""
        name = headers.get(_NAME, b"").decode("latin-1")
        is_sessionless = headers.get(_VERSION) in _SESSIONLESS
        return is_sessionless and self._offer.tools(principal).find(name) is not None


def _trimmed(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Without white space around the value (RFC 9110, 5.5); uvicorn leaves what trails it."""
    return (name, value.strip(b" \t")) if name.startswith(b"mcp-") else (name, value)


Handler = Callable[[Context, Any], Awaitable[dict[str, Any]]]


class McpServer:
    """The MCP server of one offer. Enter ``running()`` once to serve.

    Servers that share ``long_results`` give each other's links; without it the server keeps its own.
    ``shared`` tells other processes of a hub of the sessions; in such a process they are ``led``. ``records``
    are those of the sessions, from which another process goes on with them; by default those of ``shared``.
    """

    def __init__(
        self,
        offer: Offer,
        calls: Calls,
        reads: Reader,
        options: McpOptions | None = None,
        long_results: LongResults | None = None,
        *,
        shared: SharedSessions | None = None,
        led: LedSessions | None = None,
        records: SessionRecords | None = None,
    ) -> None:
        options = options or McpOptions()
        self._offer = offer
        self._led = led
        self._records = records if shared is None else shared.records
        self._connections = Connections(
            offer.visibility_key_of, reads.source.follow, shared, records if shared is None else None
        )
        self._notifier = ChangeNotifier(offer, self._connections)
        self._suspended: SuspendedCalls[SuspendedCall] = SuspendedCalls(make_state=options.make_state)
        self._listening = ListenHandler(self._notifier)
        interactions = Interactions(self._connections, self._suspended, options.heartbeat_s)
        long_results = long_results or LongResults(options.result_chars)
        self._tools = ToolHandlers(
            offer, calls, interactions, long_results, options.guard_as_tool_error, options.metadata_key
        )
        self._reading = ReadHandlers(offer, reads, self._connections, interactions, long_results)
        facts = offer.facts
        self._server: Server[Any] = Server(
            facts.name,
            version=facts.version,
            title=facts.title,
            instructions=facts.instructions,
            get_tool_input_schema=self._tools.find_input_schema,
        )
        self._register()
        # the two most frequent requests: their results are well-formed, and the SDK would validate and
        # copy each of them again (50 ms for a thousand tools)
        self._direct: dict[str, tuple[type[BaseModel], Handler]] = {
            "tools/list": (types.PaginatedRequestParams, self._tools.list_tools),
            "tools/call": (types.CallToolRequestParams, self._tools.call_tool),
        }
        # the SDK's own tracing costs a sixth of a call; ours observes the event bus
        self._server.middleware[:] = [self._answer]
        self._running = False
        self._ended = asyncio.Event()
        self._manager = StreamableHTTPSessionManager(
            self._server,
            max_sessions=options.max_sessions,
            session_idle_timeout=options.session_idle_s,
            max_request_body_size=options.max_body_bytes,
        )
        sessions: Sessions = (
            SdkSessions(self._manager, self._connections, self._notifier, options.session_idle_s)
            if led is None
            else led.sessions
        )
        self._fast_path = FastPath(offer, self._tools, sessions, self._server.server_info_stamp, options)
        self._reopening = None if self._records is None else Reopening(self._manager, self._records)
        if shared is not None:
            shared.begin(partial(_touch, self._manager, options.session_idle_s))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve while inside; leaving ends every session."""
        ready = asyncio.Event()
        # in a task of its own: the SDK's task group must be left by the task that entered it
        holder = asyncio.create_task(self._hold(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({holder, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        self._notifier.open()
        try:
            yield
        finally:
            self.end()
            await holder

    def end(self) -> None:
        """End every session and stream now, so that a server that waits for them can stop."""
        self._notifier.close()
        self._listening.close()
        self._suspended.end()
        self._ended.set()

    def endpoint(self, ensure_fresh: Callable[[], Awaitable[None]] | None = None) -> McpEndpoint:
        """The Streamable HTTP endpoint, for use behind SecurityMiddleware."""
        return McpEndpoint(
            self._manager,
            self._is_running,
            self._fast_path,
            self._offer,
            ensure_fresh,
            self._led,
            self._reopening,
        )

    async def serve_streams(self, reading: Any, writing: Any) -> None:
        """Serve one client over a pair of the SDK's streams, such as stdio's, until it closes them."""
        changes = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        current_principal.set(STDIO)
        await self._server.run(reading, writing, self._server.create_initialization_options(changes))

    def _is_running(self) -> bool:
        return self._running and not self._ended.is_set()

    async def _hold(self, ready: asyncio.Event) -> None:
        async with self._manager.run():
            self._running = True
            ready.set()
            await self._ended.wait()

    def _register(self) -> None:
        add = self._server.add_request_handler
        tools, reading = self._tools, self._reading
        add("tools/list", types.PaginatedRequestParams, tools.list_tools)
        add("tools/call", types.CallToolRequestParams, tools.call_tool)
        add("resources/list", types.PaginatedRequestParams, reading.list_resources)
        add("resources/templates/list", types.PaginatedRequestParams, reading.list_templates)
        add("resources/read", types.ReadResourceRequestParams, reading.read_resource)
        add("resources/subscribe", types.SubscribeRequestParams, reading.subscribe)
        add("resources/unsubscribe", types.UnsubscribeRequestParams, reading.unsubscribe)
        add("prompts/list", types.PaginatedRequestParams, reading.list_prompts)
        add("prompts/get", types.GetPromptRequestParams, reading.get_prompt)
        add("completion/complete", types.CompleteRequestParams, reading.complete_argument)
        add("logging/setLevel", types.SetLevelRequestParams, reading.set_level)
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, self._listen)

    async def _listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """A stream of changes; hidden items are not followed."""
        asked, principal = params.notifications.resource_subscriptions or (), principal_of(context)
        seen = frozenset(uri for uri in asked if find_resource(self._offer, uri, principal) is not None)
        with self._connections.streaming(seen):
            return await self._listening(context, params)

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware around every message: declares, and answers, only what the caller may see."""
        principal = principal_of(ctx)
        live = None if is_modern(ctx) else self._connections.note(ctx)
        if live is not None:
            self._notifier.attend(principal)
            if live.connection.session_id is None and ctx.request_id is not None:
                with live.running(ctx.request_id):
                    return await self._answer_one(ctx, call_next, principal)
        result = await self._answer_one(ctx, call_next, principal)
        if live is not None and self._records is not None and live.connection.session_id is not None:
            self._records.add(live.connection.session_id, live.owner, ctx.method, ctx.params)
        return result

    async def _answer_one(self, ctx: Context, call_next: CallNext, principal: Principal) -> HandlerResult:
        if ctx.method == "notifications/cancelled" and not is_modern(ctx):
            self._connections.cancel(ctx)
        required = UNDECLARED.get(ctx.method)
        if required is not None and required not in capabilities_of(self._offer, principal):
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
        direct = None if ctx.request_id is None else self._direct.get(ctx.method)
        try:
            if direct is not None and ctx.session.client_capabilities is not None:
                kind, handler = direct
                return stamp(ctx, await handler(ctx, kind.model_validate(ctx.params or {})), self._server)
            result = await call_next(ctx)
        except (TypeError, UnicodeEncodeError):
            if _is_unicode(ctx.params):
                raise
            raise MCPError(types.PARSE_ERROR, _LONE_SURROGATE) from None
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            result["capabilities"] = capabilities_of(self._offer, principal)
        return result


def _touch(manager: StreamableHTTPSessionManager, idle_s: float, session_id: str) -> None:
    """Restart the idle clock of a session in which another process has answered a call."""
    if (session := find_open_session(manager, session_id)) is not None:
        with Hold(session, idle_s):
            pass


def _is_unicode(params: Any) -> bool:
    """Whether every text can be encoded. The SDK's parser takes lone surrogates, which no encoder writes."""
    try:
        orjson.dumps(params)
    except TypeError:
        return False
    return True
