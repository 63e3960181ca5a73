"""Two machines of one mesh whose clocks differ: tokens are rejected, and the caller learns by how much."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.call import TraceContext
from retinue.core.errors import AgentUnreachableError, NotAuthenticatedError
from retinue.mesh.channel import NullChannel
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.rpc.client import PeerInvoker
from retinue.web.codec.peer_requests import CLOCK_HEADER, check_not_refused
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import MeshBearer
from retinue.web.security import SecurityMiddleware, SecuritySettings
from tests.mesh.scripted import make_call, make_listing, make_skill
from tests.serving import serve_app

KEY = b"0123456789abcdef" * 4
HOME = "home"


class AgentClock:
    """The clock of the agent's machine, which is ``ahead_s`` ahead of this one."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def agent_clock() -> AgentClock:
    return AgentClock()


@pytest.fixture
async def url(agent_clock: AgentClock) -> AsyncIterator[str]:
    async def answer(request: Request) -> Response:
        return JSONResponse({"jsonrpc": "2.0", "result": 1, "id": (await request.json())["id"]})

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
    guarded = SecurityMiddleware(
        app, SecuritySettings(anonymous=False), readers=[MeshBearer(KEY, clock=agent_clock)]
    )
    async with serve_app(guarded) as url:
        yield url


async def test_a_call_whose_token_was_made_before_the_clock_was_set_goes_through(url: str) -> None:
    """The clock of this machine is wrong while the token is made, and right when the agent rejects it."""
    readings = iter((time.time() - 3600,))
    bearer = MeshBearer(KEY, {HOME}, clock=lambda: next(readings, time.time()))
    async with HttpClient() as http:
        assert await _call(http, url, bearer) == 1
    assert next(readings, None) is None


async def _call(http: HttpClient, url: str, bearer: MeshBearer | None = None) -> Any:
    call = make_call(trace=TraceContext("t", depth=1))
    invoker = PeerInvoker(http, token_for=(bearer or MeshBearer(KEY, {HOME})).token_for)
    listing = replace(make_listing("plan-agent", url=url), source=HOME)
    admitted = TraceGuard().enter(call, "plan-agent")
    return (await invoker.invoke(listing, make_skill(), call, admitted, NullChannel())).value


@pytest.mark.parametrize(
    ("ahead_s", "difference"),
    [(120.5, "2 min (1 s )?ahead of"), (-120.5, "2 min (1 s )?behind"), (3600.5, "1 h ahead of")],
)
async def test_the_difference_of_the_clocks_is_named_and_the_call_goes_through_when_it_is_gone(
    agent_clock: AgentClock, url: str, ahead_s: float, difference: str
) -> None:
    agent_clock.ahead_s = ahead_s
    async with HttpClient() as http:
        with pytest.raises(
            AgentUnreachableError, match=f"its clock is {difference} this machine's"
        ) as caught:
            await _call(http, url)
        assert not caught.value.sent
        assert caught.value.kind.retryable
        assert "synchronise the clocks" in caught.value.remedy
        agent_clock.ahead_s = 0.0
        assert await _call(http, url) == 1


@pytest.mark.parametrize("path", ["/execute", "/mcp", "/messages"])
async def test_a_rejection_for_the_time_of_a_token_tells_the_time_at_every_endpoint(
    agent_clock: AgentClock, url: str, path: str
) -> None:
    agent_clock.ahead_s = 120.0
    token = MeshBearer(KEY).make(url)
    async with HttpClient() as http:
        reply = await http.request(
            "POST",
            url + path,
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
            body=b"{}",
            timeout_s=30.0,
        )
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert abs(float(reply.headers[CLOCK_HEADER]) - time.time() - 120.0) < 60.0


@pytest.mark.parametrize("agent_time", ["", "soon", "1e300", "-5", "nan", "9" * 40])
def test_a_rejection_without_a_time_is_one_of_the_token(agent_time: str) -> None:
    with pytest.raises(NotAuthenticatedError, match="rejected the token"):
        check_not_refused("a", "http://127.0.0.1:1", 401, {CLOCK_HEADER: agent_time})


def test_a_difference_of_seconds_is_named_as_well() -> None:
    with pytest.raises(AgentUnreachableError, match=r"its clock is 45 s behind this machine's"):
        check_not_refused("a", "http://127.0.0.1:1", 401, {CLOCK_HEADER: "1000.000"}, clock=lambda: 1045.0)
