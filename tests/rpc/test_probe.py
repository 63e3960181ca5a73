"""Is an agent there? What its card endpoint answers, and what that makes of its health, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.rpc.probe import answers, find_trouble, probe
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import make_listing
from tests.requirements import requirement
from tests.serving import serve_app

Endpoint = Callable[[Request], Awaitable[Response]]


def card(name: str = "plan-agent") -> Response:
    return JSONResponse({"name": name, "url": "http://127.0.0.1:1", "version": "1", "skills": []})


@asynccontextmanager
async def agent_that(answer: Response, *, execute: Response | None = None) -> AsyncIterator[str]:
    async def show(request: Request) -> Response:
        return answer

    async def run(request: Request) -> Response:
        return execute or JSONResponse({}, 404)

    routes = [Route("/agent-card", show), Route("/execute", run, methods=["POST"])]
    async with serve_app(Starlette(routes=routes)) as url:
        yield url


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def trouble(http: HttpClient, url: str, timeout_s: float = 10.0) -> tuple[str, bool] | None:
    found = await find_trouble(http, url, timeout_s=timeout_s, name="plan-agent")
    return None if found is None else (found.reason, found.certain)


async def test_an_agent_that_shows_its_card_is_alive(http: HttpClient) -> None:
    async with agent_that(card()) as url:
        assert await trouble(http, url) is None
        assert await answers(http, f"{url}/", timeout_s=60) is None


@pytest.mark.parametrize("status", [401, 403, 405])
async def test_whoever_refuses_is_alive(http: HttpClient, status: int) -> None:
    async with agent_that(Response(status_code=status)) as url:
        assert await trouble(http, url) is None


async def test_another_agent_on_its_port_is_not_this_agent(http: HttpClient) -> None:
    async with agent_that(card("build-agent")) as url:
        assert await trouble(http, url) == ("another agent answers there: build-agent", True)
        assert await answers(http, url, timeout_s=60) is None


@pytest.mark.parametrize("status", [500, 502, 503, 302, 410])
async def test_a_front_that_lost_its_agent_is_in_doubt(http: HttpClient, status: int) -> None:
    async with agent_that(Response("gone", status_code=status)) as url:
        assert await trouble(http, url) == (f"its card endpoint answers with status {status}", False)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b""])
async def test_something_that_is_no_card_is_in_doubt(http: HttpClient, body: bytes) -> None:
    async with agent_that(Response(body)) as url:
        assert await trouble(http, url) == ("its card endpoint returns no agent card", False)


async def test_an_agent_without_a_card_endpoint_is_alive_when_it_speaks_json_rpc(http: HttpClient) -> None:
    error = {"jsonrpc": "2.0", "id": "orch", "error": {"code": -32601, "message": "Unknown skill"}}
    async with agent_that(Response(status_code=404), execute=JSONResponse(error)) as url:
        assert await trouble(http, url) is None


async def test_any_other_server_is_no_agent(http: HttpClient) -> None:
    async with agent_that(Response(status_code=404), execute=Response("hello")) as url:
        assert await trouble(http, url) == ("no agent answers there: neither a card nor JSON-RPC", False)


async def test_nobody_is_there_where_the_connection_is_refused(http: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = await trouble(http, f"http://127.0.0.1:{port}")
    assert found is not None
    assert found[1]


async def test_an_agent_that_hangs_is_in_doubt_and_the_setting_is_named(http: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert await trouble(http, url, 0.3) == ("no answer within 0.3 s (timeouts.probe_s)", False)


@requirement("P-30")
async def test_an_agent_goes_from_available_to_unreachable_and_back_as_its_card_endpoint_does(
    http: HttpClient,
) -> None:
    replies = [
        card(),
        Response(status_code=502),
        Response(status_code=502),
        Response(status_code=502),
        card(),
    ]

    async def show(request: Request) -> Response:
        return replies.pop(0)

    async with serve_app(Starlette(routes=[Route("/agent-card", show)])) as url:
        directory, agent_stats = Directory(MemoryListings()), AgentStatsTable()
        directory.upsert(make_listing("plan-agent", url=url))
        states, since = [], []
        while replies:
            await probe(directory, agent_stats, directory.list_all(), http, timeout_s=60)
            states.append(directory.get("plan-agent").health)
            since.append(directory.get("plan-agent").since)
    assert states == ["healthy", "degraded", "degraded", "unreachable", "healthy"]
    assert since[1] == since[2]
    assert directory.get("plan-agent").last_error is None


async def test_one_agent_that_hangs_holds_up_no_other_and_the_list_is_whole(http: HttpClient) -> None:
    directory, agent_stats = Directory(MemoryListings()), AgentStatsTable()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hanging = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with agent_that(card()) as url:
            directory.upsert(make_listing("plan-agent", url=url))
            directory.upsert(make_listing("dead-agent", url=hanging))
            probing = asyncio.create_task(
                probe(directory, agent_stats, directory.list_all(), http, timeout_s=1.5)
            )
            await probing
    assert {one.record.name: one.health for one in directory.list_all()} == {
        "plan-agent": "healthy",
        "dead-agent": "degraded",
    }
