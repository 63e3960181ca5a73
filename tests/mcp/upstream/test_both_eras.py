"""A server at a url that speaks both protocol eras is called in the era of its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import mcp_types as types
import pytest
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from starlette.types import Receive, Scope, Send

from retinue.core.errors import CannotAskError
from retinue.mcp.server.channel import DeafChannel
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mesh.channel import Capability, NullChannel, Root
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.test_imports import Imports, Person, is_ready, running
from tests.serving import serve_app

pytestmark = pytest.mark.timeout(60)

Context = ServerRequestContext[Any, Any]
SCHEMA = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
FORM = types.ElicitRequestFormParams(
    message="Who?", requested_schema={"type": "object", "properties": {"name": {"type": "string"}}}
)


async def list_tools(context: Context, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="greet", input_schema=SCHEMA)])


async def greet(
    context: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    """Asks two things at once in 2026-07-28; in a session it says what it could ask for."""
    declared = context.session.client_capabilities
    assert declared is not None
    if context.protocol_version != "2026-07-28":
        able = sorted(declared.model_dump(exclude_none=True))
        return types.CallToolResult(content=[types.TextContent(text=f"in a session: {', '.join(able)}")])
    if declared.elicitation is None:
        lacking: dict[str, Any] = {"requiredCapabilities": {"elicitation": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "asks a person", lacking)
    answers = params.input_responses
    if answers is None:
        asked = {"who": types.ElicitRequest(params=FORM), "where": types.ListRootsRequest()}
        return types.InputRequiredResult(input_requests=asked, request_state="halfway")
    assert params.request_state == "halfway"
    who, where = answers["who"], answers["where"]
    assert isinstance(who, types.ElicitResult)
    assert isinstance(where, types.ListRootsResult)
    said = f"{(who.content or {})['name']} from {where.roots[0].uri}"
    return types.CallToolResult(content=[types.TextContent(text=said)])


class Sessionless(NullChannel):
    """The channel of a client of 2026-07-28: its answers come when it has seen all questions."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self._saw_all = asyncio.Event()

    capabilities: frozenset[Capability] = frozenset({"elicitation", "roots"})
    is_sessionless = True

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        await self._see(key)
        return {"name": "Ada"}

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        await self._see(key)
        return (Root("file:///a"),)

    async def _see(self, key: str | None) -> None:
        self.asked.append(key)
        if len(self.asked) == 2:
            self._saw_all.set()
        await self._saw_all.wait()


@pytest.fixture
async def imports() -> AsyncIterator[Imports]:
    server: Server[Any] = Server(
        "both",
        version="1.0.0",
        on_list_tools=list_tools,
        on_call_tool=greet,
        get_tool_input_schema=lambda name: SCHEMA,
    )
    async with serve_app(server.streamable_http_app()) as url, HttpClient() as http:
        spec = ImportSpec("both", lambda: HttpTransport("both", http, f"{url}/mcp", {}), url)
        async with running(spec) as found:
            await found.until("both", is_ready)
            yield found


async def test_a_client_of_2026_07_28_gets_all_questions_of_a_result_at_once_by_their_keys(
    imports: Imports,
) -> None:
    client = Sessionless()
    outcome = await imports.call("greet", {"region": "eu-1"}, client)
    assert outcome.get() == "Ada from file:///a"
    assert client.asked == ["who", "where"]


async def test_an_argument_travels_in_the_header_that_the_tool_names(imports: Imports) -> None:
    # the server refuses a call of 2026-07-28 whose header is missing or says something else
    outcome = await imports.call("greet", {"region": "Zürich, eu-1"}, Sessionless())
    assert outcome.get() == "Ada from file:///a"


async def test_what_a_client_lacks_is_refused_as_the_server_refuses_it(imports: Imports) -> None:
    error = (await imports.call("greet", {"region": "eu-1"}, DeafChannel(is_sessionless=True))).error
    assert isinstance(error, CannotAskError)
    assert error.capability == "elicitation"


async def test_every_other_call_uses_the_session_in_which_no_server_asks_for_roots(imports: Imports) -> None:
    outcome = await imports.call("greet", {"region": "eu-1"}, Person())
    assert outcome.get() == "in a session: elicitation, sampling"


@pytest.mark.parametrize(
    ("status", "body"), [(400, b"no"), (404, b"no"), (500, b"no"), (202, b""), (200, b"no")]
)
async def test_a_server_that_does_not_understand_the_later_version_keeps_its_session(
    status: int, body: bytes
) -> None:
    app = Server(
        "earlier", version="1.0.0", on_list_tools=list_tools, on_call_tool=greet
    ).streamable_http_app()

    async def earlier(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or all(name != b"mcp-method" for name, _ in scope["headers"]):
            await app(scope, receive, send)
            return
        head = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async with serve_app(earlier) as url, HttpClient() as http:
        spec = ImportSpec("earlier", lambda: HttpTransport("earlier", http, f"{url}/mcp", {}), url)
        async with running(spec) as imports:
            await imports.until("earlier", is_ready)
            outcome = await imports.call("greet", {"region": "eu-1"}, Sessionless())
    assert outcome.get() == "in a session: elicitation, sampling"
