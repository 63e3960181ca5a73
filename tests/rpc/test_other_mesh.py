"""A process of another mesh at the port of an agent that has ended, under the same name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.core.call import TraceContext
from retinue.core.errors import AgentUnreachableError
from retinue.mesh.channel import NullChannel
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.rpc.client import PeerInvoker
from retinue.web.codec.peer_requests import check_not_refused
from retinue.web.http_client import HttpClient
from retinue.web.mesh_tokens import MeshBearer
from retinue.web.security import SecurityMiddleware, SecuritySettings
from tests.mesh.scripted import make_call, make_listing, make_skill
from tests.rpc.test_clocks import KEY
from tests.serving import serve_app

HOME = "home"
OWN = MeshBearer(b"fedcba9876543210" * 4, {HOME})


async def never_called(scope: object, receive: object, send: object) -> None:
    raise AssertionError("a token of another mesh was accepted")


async def test_it_counts_as_unreachable_so_that_the_agent_is_looked_for_again() -> None:
    stranger = SecurityMiddleware(never_called, SecuritySettings(anonymous=False), readers=[MeshBearer(KEY)])
    async with serve_app(stranger) as url, HttpClient() as http:
        call = make_call(trace=TraceContext("t", depth=1))
        listing = replace(make_listing("plan-agent", url=url), source=HOME)
        admitted = TraceGuard().enter(call, "plan-agent")
        with pytest.raises(AgentUnreachableError, match="a process of another mesh answers there") as caught:
            await PeerInvoker(http, token_for=OWN.token_for).invoke(
                listing, make_skill(), call, admitted, NullChannel()
            )
        assert not caught.value.sent
        assert caught.value.kind.retryable
        assert "retinue token new --join" in caught.value.remedy
        for path in ("/mcp", "/messages"):
            token = {"authorization": f"Bearer {OWN.make(url)}"}
            reply = await http.request("POST", url + path, headers=token, body=b"{}", timeout_s=30.0)
            assert reply.status == 401
            with pytest.raises(AgentUnreachableError):
                check_not_refused("plan-agent", url, reply.status, reply.headers)
