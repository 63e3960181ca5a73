"""A foreign MCP server with resources, a template, prompts and completion, made with the SDK's low level."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import orjson
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.serving import serve_app

Context = ServerRequestContext[Any, Any]
LISTED = "demo://static"
LINKED = "demo://only-linked"


class Library:
    """The server, and what a test does to it; ``sessions`` are those that subscribed."""

    def __init__(self, name: str = "library") -> None:
        self.texts = {LISTED: "as it was", LINKED: "found by a link"}
        self.listed = [LISTED]
        self.bus = InMemorySubscriptionBus()
        self.followed: set[str] = set()
        self.metas: list[dict[str, Any]] = []
        self._session: Any = None
        self.server: Server[Any] = Server(
            name,
            version="1.0.0",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
            on_subscriptions_listen=ListenHandler(self.bus),
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_completion=self._complete,
        )

    async def change(self, uri: str, text: str) -> None:
        """Give a resource another text, and tell so in both eras."""
        self.texts[uri] = text
        await self.bus.publish(ResourceUpdated(uri))
        if self._session is not None and uri in self.followed:
            await self._session.send_resource_updated(uri)

    async def add(self, uri: str, text: str) -> None:
        """List another resource, and tell so in both eras."""
        self.texts[uri] = text
        self.listed.append(uri)
        await self.bus.publish(ResourcesListChanged())
        if self._session is not None:
            await self._session.send_resource_list_changed()

    async def _list_tools(self, context: Context, params: Any) -> types.ListToolsResult:
        self._session = context.session
        tool = types.Tool(name="link", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool])

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        link = types.ResourceLink(uri=LINKED, name="a link", title="Linked", mime_type="text/plain")
        return types.CallToolResult(content=[types.TextContent(text="see"), link])

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[types.Resource(uri=uri, name=uri, mime_type="text/plain") for uri in self.listed]
        )

    async def _list_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(uri_template="item://{+id}{?page}", name="item")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        self.metas.append(dict(context.meta or {}))
        uri = str(params.uri)
        if uri.startswith("item://"):
            blob = types.BlobResourceContents(uri=uri, mime_type="image/png", blob="cG5n")
            return types.ReadResourceResult(contents=[blob])
        if uri not in self.texts:
            raise MCPError(-32002, "Resource not found", {"uri": uri})
        text = types.TextResourceContents(uri=uri, mime_type="text/plain", text=self.texts[uri])
        return types.ReadResourceResult(contents=[text])

    async def _subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._session = context.session
        self.followed.add(params.uri)
        return types.EmptyResult()

    async def _unsubscribe(
        self, context: Context, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        self.followed.discard(params.uri)
        return types.EmptyResult()

    async def _list_prompts(self, context: Context, params: Any) -> types.ListPromptsResult:
        argument = types.PromptArgument(name="book", description="Which one", required=True)
        return types.ListPromptsResult(prompts=[types.Prompt(name="re:view", arguments=[argument])])

    async def _get_prompt(
        self, context: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        text = types.TextContent(text=f"Review {(params.arguments or {}).get('book')}.")
        said = types.TextContent(text="Gladly.")
        return types.GetPromptResult(
            description="A review",
            messages=[
                types.PromptMessage(role="user", content=text),
                types.PromptMessage(role="assistant", content=said),
            ],
        )

    async def _complete(self, context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        named = params.ref.uri if isinstance(params.ref, types.ResourceTemplateReference) else params.ref.name
        values = [f"{named} {params.argument.name} {params.argument.value}…"]
        return types.CompleteResult(completion=types.Completion(values=values, total=1, has_more=False))


class SessionlessOnly:
    """Refuses ``initialize``, as a server does that speaks 2026-07-28 alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        message = await receive()
        document = orjson.loads(message["body"] or b"{}")
        if document.get("method") == "initialize":
            error = {"code": -32601, "message": "Method not found"}
            body = orjson.dumps({"jsonrpc": "2.0", "id": document["id"], "error": error})
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 404, "headers": head})
            await send({"type": "http.response.body", "body": body})
            return
        is_given = False

        async def again() -> Message:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return message

        await self._app(scope, again, send)


@asynccontextmanager
async def serve_library(library: Library, era: str = "handshake") -> AsyncIterator[str]:
    """The library at a url, in one era alone."""
    app: Any = library.server.streamable_http_app()
    async with serve_app(app if era == "handshake" else SessionlessOnly(app)) as url:
        yield f"{url}/mcp"
