"""Calls to other processes over a real socket: what goes out, and what every kind of reply becomes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Call, Hop, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    BudgetSpentError,
    CallTimedOutError,
    CallTooDeepError,
    CircuitOpenError,
    GuardError,
    InvalidParametersError,
    NotAuthenticatedError,
    RemoteFaultError,
)
from retinue.core.record import AgentRecord, Endpoint, Listing
from retinue.mesh.channel import NullChannel
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.rpc.client import HubCalls, PeerInvoker
from retinue.web.addresses import is_loopback_url
from retinue.web.error_table import execute_fault
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import make_call, make_listing, make_skill
from tests.requirements import requirement
from tests.serving import serve_app

RESULT = {"plan": "1. read"}


class Peer:
    """An agent's ``/execute`` that keeps what it was sent and answers what it is told."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes | None = None
        self.card: bytes | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        self.received = b""

    def fail_with(self, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self.body = orjson.dumps({"jsonrpc": "2.0", "error": error, "id": "orch"})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        if scope["path"] == "/agent-card":
            await send({"type": "http.response.start", "status": 200 if self.card else 404, "headers": []})
            await send({"type": "http.response.body", "body": self.card or b""})
            return
        self.paths.append(scope["path"])
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        message = await receive()
        self.received = message["body"]
        while message.get("more_body"):
            message = await receive()
            self.received += message["body"]
        await self.answers.wait()
        reply = self.body
        if reply is None:
            request = orjson.loads(self.received)
            reply = orjson.dumps({"jsonrpc": "2.0", "result": RESULT, "id": request["id"]})
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": reply})


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
async def url(peer: Peer) -> AsyncIterator[str]:
    async with serve_app(peer) as url:
        yield url
        peer.answers.set()


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


def listing_at(url: str) -> Listing:
    return make_listing("plan-agent", url=url)


async def invoke(
    http: HttpClient,
    url: str,
    call: Call | None = None,
    *,
    guard: TraceGuard | None = None,
    token: str | None = None,
) -> Any:
    guard = guard or TraceGuard()
    call = call or make_call(trace=TraceContext("t", depth=1))
    admitted = guard.enter(call, "plan-agent")
    invoker = PeerInvoker(http, token_for=lambda _, __: token)
    answer = await invoker.invoke(listing_at(url), make_skill(), call, admitted, NullChannel())
    return answer.value


# what goes out


@requirement("P-07")
@requirement("P-08")
async def test_the_body_has_exactly_the_four_keys_of_the_seed(peer: Peer, url: str, http: HttpClient) -> None:
    assert await invoke(http, url) == RESULT
    assert peer.received == (
        b'{"jsonrpc":"2.0","method":"create_plan","params":{"requirements":"a parser"},"id":"orch"}'
    )
    assert peer.paths == ["/execute"]
    assert peer.headers["content-type"] == "application/json"


async def test_trace_depth_path_and_time_travel_as_headers(peer: Peer, url: str, http: HttpClient) -> None:
    now = asyncio.get_running_loop().time()
    trace = TraceContext("abc", depth=2, path=(Hop("a", "x"), Hop("b", "y")), calls_left=7)
    await invoke(
        http,
        url,
        make_call(trace=trace, deadline=now + 5, idempotency_key="run-1/plan", version_range=">=1"),
        guard=TraceGuard(hub_id="hub-1"),
    )
    assert peer.headers["x-openstarry-trace-id"] == "abc"
    assert peer.headers["x-openstarry-trace-depth"] == "2"
    detail = orjson.loads(peer.headers["x-retinue-trace"])
    assert 0 < detail.pop("seconds_left") <= 5
    assert detail == {"path": [["a", "x"], ["b", "y"]], "via": ["hub-1"], "calls_left": 7}
    assert peer.headers["idempotency-key"] == "run-1/plan"
    assert peer.headers["x-retinue-version"] == ">=1"
    assert "authorization" not in peer.headers


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8001", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8001/x", True),
        ("http://localhost:8001", True),
        ("http://LOCALHOST:8001", True),
        ("http://10.0.0.1:8001", False),
        ("http://agents.example.org", False),
        ("http://localhost.example.org", False),
        ("http://127.0.0.1.example.org", False),
        ("http://127.0.0.1@example.org", False),
        ("http://[::", False),
        ("", False),
    ],
)
def test_a_hub_on_another_machine_gets_no_token_of_this_state(url: str, here: bool) -> None:
    assert is_loopback_url(url) is here


@pytest.mark.parametrize("end", ["", "/", "/agents/plan", "/agents/plan/"])
async def test_execute_is_asked_below_the_url_of_the_card(
    peer: Peer, url: str, http: HttpClient, end: str
) -> None:
    await invoke(http, url + end)
    assert peer.paths == [end.rstrip("/") + "/execute"]


async def test_arguments_that_are_no_json_are_not_sent(peer: Peer, url: str, http: HttpClient) -> None:
    with pytest.raises(InvalidParametersError, match="not JSON"):
        await invoke(http, url, make_call(arguments={"requirements": object()}))
    assert peer.paths == []


# what comes back


@requirement("P-27")
@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32601, "Unknown skill: create_plan", None),
        (
            -32603,
            "Invalid parameters: missing required field 'requirements'",
            {"type": "validation_error", "jsonrpc_code": -32602, "errors": [{"path": "", "message": "m"}]},
        ),
        (418, "teapot", ["any", "data"]),
    ],
)
async def test_an_error_of_the_agent_comes_back_as_it_was_sent(
    peer: Peer, url: str, http: HttpClient, code: int, message: str, data: Any
) -> None:
    peer.fail_with(code, message, data)
    with pytest.raises(RemoteFaultError) as caught:
        await invoke(http, url)
    error = caught.value
    assert (error.agent, error.code, error.message, error.fault_data) == ("plan-agent", code, message, data)


@requirement("S-14")
@pytest.mark.parametrize(
    ("code", "kind"),
    [(-33007, CallTooDeepError), (-33008, BudgetSpentError), (-33009, CircuitOpenError)],
)
@pytest.mark.parametrize("data", [{"type": "x", "depth": 6, "remedy": "r"}, None, ["any"]])
async def test_a_refusal_of_the_guard_further_on_stays_that_refusal(
    peer: Peer, url: str, http: HttpClient, code: int, kind: type[GuardError], data: Any
) -> None:
    peer.fail_with(code, "Call chain too deep", data)
    with pytest.raises(kind) as caught:
        await invoke(http, url)
    assert execute_fault(caught.value) == (code, "Call chain too deep", data)


@pytest.mark.parametrize("body", [b"", b"<html>502</html>", b"[]", b"{}", b'"text"', b"[" * 5000])
@pytest.mark.parametrize("status", [200, 404, 500])
async def test_a_reply_that_is_no_json_rpc_is_an_error_of_the_agent(
    peer: Peer, url: str, http: HttpClient, status: int, body: bytes
) -> None:
    peer.status, peer.body = status, body
    with pytest.raises(RemoteFaultError) as caught:
        await invoke(http, url)
    assert str(status) in caught.value.message
    assert "plan-agent" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("status", [401, 403])
async def test_an_agent_that_does_not_let_us_in_is_alive(
    peer: Peer, url: str, http: HttpClient, status: int
) -> None:
    peer.status = status
    with pytest.raises(NotAuthenticatedError) as caught:
        await invoke(http, url)
    assert not caught.value.kind.counts_against_health
    assert "token" in caught.value.remedy


async def test_a_dead_peer_was_not_sent_anything(http: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(AgentUnreachableError) as caught:
        await invoke(http, url)
    assert not caught.value.sent
    assert caught.value.kind.counts_against_health
    assert url in caught.value.message


async def test_a_peer_that_hangs_up_may_have_run_the_call(http: HttpClient) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AgentUnreachableError) as caught:
            await invoke(http, f"http://127.0.0.1:{port}")
    assert caught.value.sent


async def test_a_card_without_a_url_leads_nowhere(http: HttpClient) -> None:
    guard = TraceGuard()
    call = make_call()
    listing = Listing(AgentRecord("a", endpoints=(Endpoint("a2a", "http://x"),)), "home", "agents/a")
    with pytest.raises(AgentUnreachableError, match="no url"):
        await PeerInvoker(http).invoke(listing, make_skill(), call, guard.enter(call, "a"), NullChannel())


async def test_a_peer_that_does_not_answer_in_time_is_named(peer: Peer, url: str, http: HttpClient) -> None:
    peer.answers.clear()
    deadline = asyncio.get_running_loop().time() + 0.05
    with pytest.raises(CallTimedOutError) as caught:
        await invoke(http, url, make_call(deadline=deadline))
    assert caught.value.message.startswith("create_plan did not answer within")


# the mesh behind a hub


async def test_a_hub_is_asked_for_a_skill_and_finds_the_agent(peer: Peer, url: str, http: HttpClient) -> None:
    outcome = await HubCalls(http, url + "/", token="s3cret").dispatch(
        make_call(trace=TraceContext("t", depth=1))
    )
    assert (outcome.status, outcome.value, outcome.agent) == ("done", RESULT, None)
    assert peer.paths == ["/execute"]
    assert peer.headers["authorization"] == "Bearer s3cret"
    assert "via" not in peer.headers.get("x-retinue-trace", "")


async def test_a_named_agent_is_asked_for_at_its_own_endpoint_of_the_hub(
    peer: Peer, url: str, http: HttpClient
) -> None:
    outcome = await HubCalls(http, url).dispatch(make_call(agent="plan agent/ä"))
    assert (outcome.status, outcome.agent) == ("done", "plan agent/ä")
    assert peer.paths == ["/agents/plan agent/ä/execute"]


async def test_a_failure_behind_the_hub_is_data(peer: Peer, url: str, http: HttpClient) -> None:
    peer.fail_with(-32603, "Execution failed: boom", {"type": "execution_error"})
    outcome = await HubCalls(http, url).dispatch(make_call(principal=LOCAL))
    assert outcome.status == "failed"
    assert isinstance(outcome.error, RemoteFaultError)
    assert outcome.error.message == "Execution failed: boom"


async def test_a_hub_that_is_gone_is_data_too(http: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    outcome = await HubCalls(http, url).dispatch(make_call())
    assert isinstance(outcome.error, AgentUnreachableError)
    assert outcome.error.agent == "hub"


async def test_a_call_for_somebody_without_the_right_to_run_code_says_so_beside_the_token(
    peer: Peer, url: str, http: HttpClient
) -> None:
    stranger = make_call(trace=TraceContext("t", depth=1), principal=ANONYMOUS)
    await invoke(http, url, stranger, token="s3cret")
    assert peer.headers["x-retinue-rights"] == "exposed mesh"
    await invoke(http, url, make_call(trace=TraceContext("t", depth=1), principal=LOCAL), token="s3cret")
    assert "x-retinue-rights" not in peer.headers


async def test_the_caller_is_named_beside_the_token_only(peer: Peer, url: str, http: HttpClient) -> None:
    stranger = make_call(trace=TraceContext("t", depth=1), principal=ANONYMOUS)
    await invoke(http, url, stranger, token="s3cret")
    assert peer.headers["authorization"] == "Bearer s3cret"
    assert peer.headers["x-retinue-for"] == "anonymous"
    await invoke(http, url, stranger)
    assert "x-retinue-for" not in peer.headers


@pytest.mark.parametrize("joined", [None, "rtn_join"])
async def test_a_hub_that_was_joined_gets_the_token_that_it_gave_out(
    peer: Peer, url: str, http: HttpClient, joined: str | None
) -> None:
    await HubCalls(http, url, token="s3cret", joined=joined).dispatch(make_call(principal=LOCAL))
    assert peer.headers["authorization"] == f"Bearer {joined or 's3cret'}"


# a port with a new owner


def _card(name: str) -> bytes:
    return orjson.dumps({"name": name, "url": "http://127.0.0.1:1", "version": "1", "skills": []})


async def test_an_agent_whose_port_another_one_took_is_unreachable(
    http: HttpClient, peer: Peer, url: str
) -> None:
    peer.fail_with(-32601, "Unknown skill: create_plan", {"type": "unknown_skill"})
    peer.card = _card("other-agent")
    with pytest.raises(AgentUnreachableError) as caught:
        await invoke(http, url)
    assert caught.value.message == (
        f"agent plan-agent at {url} is unreachable: another agent answers there: other-agent"
    )
    assert not caught.value.sent


async def test_who_refuses_the_caller_at_the_port_of_another_agent_is_not_that_agent(
    http: HttpClient, peer: Peer, url: str
) -> None:
    peer.status = 401
    peer.card = _card("other-agent")
    with pytest.raises(AgentUnreachableError, match="another agent answers there: other-agent"):
        await invoke(http, url)
    peer.card = _card("plan-agent")
    with pytest.raises(NotAuthenticatedError):
        await invoke(http, url)


@pytest.mark.parametrize("card", [_card("plan-agent"), None, b"no card"])
async def test_an_agent_that_lost_a_skill_says_so_itself(
    card: bytes | None, http: HttpClient, peer: Peer, url: str
) -> None:
    peer.fail_with(-32601, "Unknown skill: create_plan", {"type": "unknown_skill"})
    peer.card = card
    with pytest.raises(RemoteFaultError, match="Unknown skill"):
        await invoke(http, url)
