"""The endpoints themselves: bytes, orders, bodies of calls; agents and hubs have them in ``tests/doors``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from starlette.routing import Match, Route, Router

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.cards.personality_profile import ShownPersonality, node_rid_of_url, render_profile
from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError
from retinue.mesh.permissions import Access
from retinue.parts.shown_agents import OwnAgent
from retinue.rest.endpoints import read_arguments, registry_routes
from retinue.rest.routes import rest_route
from retinue.web.http_client import HttpClient
from retinue.web.security import SecurityMiddleware
from tests.serving import serve_app

URL = "http://127.0.0.1:8001"


def greeter() -> Agent:
    agent = Agent("greeter", version="1.2.0")

    @agent.skill(expose=True)
    def greet(name: str) -> str:
        """Greets somebody."""
        return f"Hello, {name}!"

    return agent


def shown(name: str) -> ShownPersonality:
    record = replace(greeter().record(URL), name=name)
    return ShownPersonality(name, render_profile(record, node_rid_of_url(name, URL), mcp_url=URL))


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient(allow_private=True) as client:
        yield client


async def read(http: HttpClient, url: str) -> Any:
    reply = await http.request("GET", url, timeout_s=60.0)
    assert reply.status == 200
    return orjson.loads(reply.body)


async def test_lists_are_sorted_by_name_and_keep_the_keys_and_order_of_the_seed(http: HttpClient) -> None:
    async def list_personalities(caller: Principal) -> list[ShownPersonality]:
        return [shown("b"), shown("a")]

    async with serve_app(SecurityMiddleware(Router(routes=registry_routes(list_personalities)))) as url:
        resources = (await read(http, f"{url}/resources/list"))["resources"]
        assert [list(resource.items()) for resource in resources] == [
            [
                ("id", f"agent:{name}"),
                ("type", "agent_profile"),
                ("description", f"Agent {name} personality profile"),
                ("url", URL),
            ]
            for name in ("a", "b")
        ]
        tool = (await read(http, f"{url}/koi-net/tools/list"))["tools"][1]
        assert list(tool) == ["name", "description", "input_schema", "url", "inputSchema"]
        assert (tool["name"], tool["input_schema"]) == ("b.greet", {"type": "string"})
        assert tool["url"] == f"{URL}/tools/call/greet"
        content = (await read(http, f"{url}/mcp/resources/read/agent:b"))["content"]
        assert list(content) == ["rid", "node_rid", "base_url", "mcp_url", "traits"]


async def test_a_new_revision_of_the_agent_is_shown(http: HttpClient) -> None:
    agent = greeter()
    routes = rest_route(local_dispatcher(agent), OwnAgent(agent, Access(), URL), URL)
    async with serve_app(SecurityMiddleware(Router(routes=[routes]))) as url:
        assert len((await read(http, f"{url}/tools/list"))["tools"]) == 1

        @agent.skill(expose=True)
        def count() -> int:
            return 1

        assert len((await read(http, f"{url}/tools/list"))["tools"]) == 2


def test_other_paths_are_no_matches() -> None:
    agent = greeter()
    routes = rest_route(local_dispatcher(agent), OwnAgent(agent, Access(), URL), URL)
    scope = {"type": "http", "root_path": "", "headers": []}

    def match(method: str, path: str) -> Match:
        return routes.matches({**scope, "method": method, "path": path})[0]

    assert match("POST", "/tools/call/greet") is Match.FULL
    assert match("GET", "/tools/call/greet") is Match.PARTIAL
    assert match("GET", "/tools/listing") is Match.NONE
    assert match("GET", "/execute") is Match.NONE
    assert all(isinstance(route, Route) for route in routes.routes)


@pytest.mark.parametrize(
    ("schema", "body", "arguments"),
    [
        (None, b"", {}),
        (None, b'"2 + 2"', {"input": "2 + 2"}),
        ({"type": "string"}, b'"2 + 2"', {"input": "2 + 2"}),
        ({"type": "object", "properties": {"name": {}}}, b'"Ada"', {"name": "Ada"}),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, b'"x"', {"b": "x"}),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, b'{"a": 1}', {"a": 1}),
    ],
)
def test_a_body_is_the_arguments_or_the_only_one(schema: Any, body: bytes, arguments: Any) -> None:
    trait = {} if schema is None else {"input_schema": schema}
    assert read_arguments(trait, body) == arguments


@pytest.mark.parametrize("body", [b"{", b"null", b"[1]", b"7"])
def test_another_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidParametersError):
        read_arguments({}, body)


def test_a_hub_and_an_agent_without_a_node_load_nothing_of_koi() -> None:
    code = (
        "import sys, retinue.runtime.hub_process, retinue.runtime.agent_process\n"
        "print(*[name for name in sys.modules if name.startswith(('retinue.koi', 'retinue.runtime.koi'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
