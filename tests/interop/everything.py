"""An MCP server of the official SDK with one of everything, for what stands between it and a client.

``python -m tests.interop.everything``: prints its url, serves both eras at ``/mcp`` until it is ended, and
tells at ``/seen`` what reached it: method, headers and ``_meta`` of each message, and what was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import warnings
from typing import Any

import anyio
import mcp_types as types
import orjson
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.shared.subscriptions import ResourceUpdated, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOOLS = ("echo", "hang", "chatter", "die", "fail", "flood", "touch", "count")
WATCHED = "test://watched"


class Seen:
    """What reached the server, in order."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.cancelled: list[str] = []

    def note(self, scope: Scope, body: bytes) -> None:
        headers = {key.decode(): value.decode("latin-1") for key, value in scope["headers"]}
        document = orjson.loads(body)
        params = document.get("params") or {}
        self.messages.append(
            {
                "method": document.get("method") or scope["method"],
                "id": document.get("id"),
                "headers": headers,
                "meta": params.get("_meta", {}),
            }
        )


class Noted:
    """An app, with every message that reaches it noted."""

    def __init__(self, seen: Seen, app: ASGIApp) -> None:
        self._seen = seen
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""

        async def read() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if body and not message.get("more_body"):
                self._seen.note(scope, body)
                body = b""
            return message

        if scope["method"] != "POST":
            self._seen.note(scope, b"{}")
        await self._app(scope, read, send)


def build(seen: Seen, bus: InMemorySubscriptionBus) -> Server[Any]:
    """The server: a tool for each way in which a call can go."""
    connections: list[Any] = []

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=name, description=f"The tool {name}", input_schema={"type": "object"})
                for name in TOOLS
            ]
        )

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        session = ctx.session
        match params.name:
            case "echo":
                return _text(str(arguments.get("text", "")))
            case "hang":
                try:
                    await session.report_progress(0, 1, "hanging")
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    seen.cancelled.append(str(arguments.get("as", "hang")))
                    raise
            case "chatter":
                for step in range(10_000):
                    await session.report_progress(step)
                    await asyncio.sleep(0.02)
            case "die":
                await session.report_progress(0, 1, "dying")
                await asyncio.sleep(0.05)
                os._exit(9)
            case "fail":
                return types.CallToolResult(
                    content=[types.TextContent(type="text", text="it broke")], is_error=True
                )
            case "flood":
                piece = "x" * 10_000
                for step in range(int(arguments["events"])):
                    await session.report_progress(step, None, piece)
                    seen.messages.append({"method": "flooded", "id": step, "headers": {}, "meta": {}})
                return _text("flooded")
            case "touch":
                await bus.publish(ResourceUpdated(uri=WATCHED))
                await bus.publish(ToolsListChanged())
                for connection in connections:
                    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await connection.notify("notifications/resources/updated", {"uri": WATCHED})
                        await connection.notify("notifications/tools/list_changed", None)
                return _text("touched")
            case "count":
                return types.CallToolResult(
                    content=[types.TextContent(type="text", text="3")], structured_content={"count": 3}
                )
        raise AssertionError(params.name)

    async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[types.Resource(uri="test://static", name="static")])

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        text = types.TextResourceContents(uri=params.uri, mime_type="text/plain", text="still here")
        return types.ReadResourceResult(contents=[text])

    async def list_templates(ctx: Any, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(uri_template="test://{id}", name="any")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def subscribe(ctx: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def list_prompts(ctx: Any, params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet", description="Greets")])

    async def get_prompt(ctx: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        content = types.TextContent(type="text", text=f"Hello {(params.arguments or {}).get('name')}")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])

    async def complete(ctx: Any, params: Any) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=["Paris", "Park"], total=2))

    async def set_level(ctx: Any, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        server: Server[Any] = Server(
            "everything",
            version="1.0.0",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_resources=list_resources,
            on_read_resource=read_resource,
            on_list_resource_templates=list_templates,
            on_subscribe_resource=subscribe,
            on_unsubscribe_resource=subscribe,
            on_subscriptions_listen=ListenHandler(bus),
            on_list_prompts=list_prompts,
            on_get_prompt=get_prompt,
            on_completion=complete,
            on_set_logging_level=set_level,
        )

    async def catch_connection(ctx: Any, call_next: Any) -> Any:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            connection = ctx.session._connection
            if all(connection is not known for known in connections):
                connections.append(connection)
        return await call_next(ctx)

    server.middleware.append(catch_connection)
    options = server.create_initialization_options(
        NotificationOptions(tools_changed=True, resources_changed=True)
    )
    server.create_initialization_options = lambda *_, **__: options  # type: ignore[method-assign]
    return server


def _text(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def serve() -> None:
    seen, bus = Seen(), InMemorySubscriptionBus()
    manager = StreamableHTTPSessionManager(build(seen, bus))

    async def tell(request: Request) -> Response:
        if request.method == "DELETE":
            seen.messages.clear()
            seen.cancelled.clear()
        return Response(orjson.dumps({"messages": seen.messages, "cancelled": seen.cancelled}))

    app = Starlette(
        lifespan=lambda _: manager.run(),
        routes=[
            Route("/mcp", Noted(seen, StreamableHTTPASGIApp(manager))),
            Route("/seen", tell, methods=["GET", "DELETE"]),
        ],
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve())
