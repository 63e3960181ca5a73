"""The relay on the wire: sessions, traces, refusals, and what happens when one side goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from retinue.storage.state import State
from tests.interop.relay import Relay, modern, read_events, request, tool_call
from tests.interop.upstream import NAME, Everything, run_everything
from tests.mcp.clients import VERSION as MODERN
from tests.requirements import requirement
from tests.system import WAIT_S, Wire, open_system

SECRET = "a-token-of-the-callers-own"

QUIET_LOOKS = 8
"""Looks in a row at which nothing more was sent, before the sending counts as stopped."""


@pytest.fixture
def mortal() -> Iterator[Everything]:
    """An everything server that may die."""
    with run_everything() as everything:
        yield everything


def _call(era: str, name: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str]]:
    if era == MODERN:
        return modern("tools/call", {"name": name, "arguments": arguments})
    return request("tools/call", tool_call(name, **arguments)), {}


async def _headers(relay: Relay, era: str, **more: str) -> dict[str, str]:
    return more if era == MODERN else {"mcp_session_id": await relay.open_session(**more), **more}


both_eras = pytest.mark.parametrize("era", ["2025-11-25", MODERN])


@requirement("S-13")
async def test_every_message_carries_the_trace_in_header_and_meta(relay: Relay) -> None:
    """Requests and notifications alike, one id for both, the hub in ``via``."""
    session = await relay.open_session(x_openstarry_trace_id="from-outside", x_openstarry_trace_depth="2")
    listed = request("tools/list", {"_meta": {"x-openstarry-TRACE-id": "from-meta", "kept": 1}})
    reply = await relay.post(listed, mcp_session_id=session, x_openstarry_trace_id="from-header")
    assert reply.status == 200
    await relay.post(request("tools/call", tool_call("echo", text="x")), mcp_session_id=session)
    seen = (await relay.everything.seen())["messages"]
    assert [m["method"] for m in seen] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ]
    for message in seen:
        trace_id = message["meta"]["X-OpenStarry-Trace-ID"]
        assert message["headers"]["x-openstarry-trace-id"] == trace_id != ""
        assert message["meta"]["X-Retinue-Trace"]["via"] == ["hub-under-test"]
        assert orjson.loads(message["headers"]["x-retinue-trace"])["via"] == ["hub-under-test"]
        assert message["headers"]["x-openstarry-trace-depth"] == str(
            message["meta"]["X-OpenStarry-Trace-Depth"]
        )
    assert [m["meta"]["X-OpenStarry-Trace-ID"] for m in seen[:3]] == ["from-outside"] * 2 + ["from-meta"]
    assert seen[0]["meta"]["X-OpenStarry-Trace-Depth"] == 2
    assert seen[2]["meta"]["kept"] == 1
    assert "x-openstarry-TRACE-id" not in seen[2]["meta"]
    assert seen[3]["meta"]["progressToken"] == "p"


@requirement("S-14")
async def test_a_chain_that_is_too_deep_is_refused_at_the_hub(relay: Relay) -> None:
    """As a JSON-RPC error with the path drawn; the agent never hears of it."""
    depth = {"x_openstarry_trace_id": "deep", "x_openstarry_trace_depth": "6"}
    for message in (request("tools/call", tool_call("echo")), request("tools/list")):
        reply = await relay.post(message, **depth)
        assert (reply.status, reply.error["code"]) == (200, -33007)
        assert reply.error["data"]["depth"] == 6
        assert reply.json["id"] == 1
    assert (await relay.everything.seen())["messages"] == []


async def test_the_agent_hears_of_the_callers_rights_and_not_of_its_token(relay: Relay) -> None:
    """Authorization is the hub's own; who has shown no token has only what is exposed."""
    await relay.open_session()
    await relay.open_session(authorization=relay.system.token, x_retinue_rights="mesh")
    (first, second) = await relay.everything.messages("initialize")
    for seen, caller in ((first, "anonymous"), (second, "local")):
        assert seen["headers"]["authorization"].startswith("Bearer rtnm_"), "made for this agent alone"
        assert seen["headers"]["x-retinue-for"] == caller
    assert first["headers"]["x-retinue-rights"] == "exposed"
    assert second["headers"]["x-retinue-rights"] == "mesh"
    refused = await relay.post(request("initialize"), authorization=f"Bearer {SECRET}")
    assert refused.status == 401
    assert len(await relay.everything.messages("initialize")) == 2


async def test_a_session_works_for_the_principal_that_opened_it_and_for_nobody_else(relay: Relay) -> None:
    """A session of somebody else's answers as one that never was, byte for byte; DELETE ends one's own."""
    token = {"authorization": relay.system.token}
    own = await relay.open_session(**token)
    listed = request("tools/list")
    stolen = await relay.post(listed, mcp_session_id=own)
    unknown = await relay.post(listed, mcp_session_id="0" * 32)
    assert (stolen.status, stolen.body) == (unknown.status, unknown.body)
    assert stolen.status == 404
    assert (await relay.wire.get(relay.url, accept="text/event-stream", mcp_session_id=own)).status == 404
    assert (await relay.post(listed, mcp_session_id=own, **token)).status == 200
    async with aiohttp.ClientSession() as session:
        headers = {"mcp-session-id": own, "authorization": relay.system.token}
        async with session.delete(relay.url, headers=headers) as reply:
            assert reply.status == 200
    assert (await relay.post(listed, mcp_session_id=own, **token)).status == 404
    assert len(await relay.everything.messages("tools/list")) == 1


async def test_an_agent_that_forgot_a_session_makes_the_hub_forget_it(relay: Relay) -> None:
    """The agent's 404 passes, so that the client begins anew."""
    session = await relay.open_session()
    async with aiohttp.ClientSession() as client:
        headers = {"mcp-session-id": session, "authorization": relay.system.token}
        async with client.delete(f"{relay.everything.url}/mcp", headers=headers) as reply:
            assert reply.status == 200
    for _ in range(2):
        assert (await relay.post(request("tools/list"), mcp_session_id=session)).status == 404
    assert len(await relay.everything.messages("tools/list")) == 1


async def test_an_unknown_agent_is_an_error_of_the_protocol(relay: Relay) -> None:
    """404 with a JSON-RPC error under the request's id, whatever the message."""
    for message in (request("initialize"), request("tools/call", tool_call("echo"))):
        reply = await relay.wire.post(f"{relay.hub.url}/agents/nobody/mcp", message)
        assert (reply.status, reply.json["id"], reply.error["code"]) == (404, 1, -32602)
        assert reply.error["message"] == "Unknown agent: nobody"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
    ],
)
async def test_what_is_no_message_is_refused_before_an_agent_is_asked(
    relay: Relay, body: bytes, code: int
) -> None:
    """400 and a JSON-RPC error without an id."""
    reply = await relay.post(body)
    assert (reply.status, reply.json["id"], reply.error["code"]) == (400, None, code)
    assert (await relay.everything.seen())["messages"] == []


async def test_a_header_that_comes_twice_is_refused(relay: Relay) -> None:
    """Or the hub might believe the one and the agent the other."""
    message, headers = modern("tools/call", {"name": "echo", "arguments": {}})
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    pairs += [("mcp-name", "count"), ("content-type", "application/json"), ("accept", "*/*")]
    async with (
        aiohttp.ClientSession() as session,
        session.post(relay.url, data=orjson.dumps(message), headers=pairs) as reply,
    ):
        assert reply.status == 400
        assert "more than once" in (await reply.json())["detail"]


async def test_a_method_of_http_that_the_endpoint_does_not_know_is_refused(relay: Relay) -> None:
    """With the ones it knows."""
    async with aiohttp.ClientSession() as session, session.put(relay.url, json={}) as reply:
        assert (reply.status, reply.headers["allow"]) == (405, "POST, GET, DELETE")


@both_eras
async def test_a_client_that_goes_away_ends_the_call_at_the_agent(relay: Relay, era: str) -> None:
    """No message of the client's: its connection ends, and the skill is cancelled."""
    headers = await _headers(relay, era)
    message, more = _call(era, "hang", **{"as": f"gone-{era}"})
    async with asyncio.timeout(WAIT_S):
        async with aiohttp.ClientSession() as session:
            reply = await relay.begin(session, message, **headers, **more)
            await reply.content.readany()
            reply.close()
        await relay.everything.wait_for(f"gone-{era}", method=False)
    rows = [
        row for row in relay.hub.audit.recent(9) if row["type"] == "CALL:ENDED" and row["skill"] == "hang"
    ]
    assert [row["error"] for row in rows] == ["cancelled"]
    assert relay.hub.mesh.dispatcher.admission.limits.in_flight == 0


@both_eras
async def test_a_call_does_not_outlive_its_time_whatever_progress_it_makes(
    retinue_home: Path, wire: Wire, everything: Everything, era: str
) -> None:
    """The error stands at the end of the stream that had begun, and the agent is told to stop."""
    async with open_system(State(retinue_home), timeouts={"door_s": 1.5}) as system:
        await everything.publish(system)
        relay = Relay(system, await system.start_hub(), wire, everything)
        headers = await _headers(relay, era)
        name = "chatter" if era != MODERN else "hang"
        message, more = _call(era, name, **{"as": f"late-{era}"})
        reply = await relay.post(message, **headers, **more)
        events = read_events(reply.body)
        assert events[0]["method"] == "notifications/progress"
        result = events[-1]["result"]
        assert result["isError"] is True
        assert "did not answer within 1.5 s" in result["content"][0]["text"]
        if era == MODERN:
            assert result["resultType"] == "complete"
            await everything.wait_for(f"late-{era}", method=False)
        else:
            await everything.wait_for("notifications/cancelled")


async def test_streams_that_are_idle_outlive_the_time_of_a_call(
    retinue_home: Path, wire: Wire, everything: Everything
) -> None:
    """GET and ``subscriptions/listen`` wait for news; what waits is no call."""
    async with open_system(State(retinue_home), timeouts={"door_s": 1.5}) as system:
        await everything.publish(system)
        relay = Relay(system, await system.start_hub(), wire, everything)
        session_id = await relay.open_session()
        listen, more = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        async with aiohttp.ClientSession() as session, asyncio.timeout(WAIT_S):
            own = {"accept": "text/event-stream", "mcp-session-id": session_id}
            async with (
                session.get(relay.url, headers=own) as get,
                relay.begin(session, listen, **more) as listening,
            ):
                assert b"acknowledged" in await listening.content.readany()
                # a call that began later has passed its time limit
                over, over_headers = _call(MODERN, "hang", **{"as": "over"})
                await relay.post(over, **await _headers(relay, MODERN), **over_headers)
                await everything.wait_for("over", method=False)
                await relay.post(request("tools/call", tool_call("touch")), mcp_session_id=session_id)
                assert b"list_changed" in await listening.content.readany()
                assert b"notifications/" in await get.content.readany()


async def test_an_agent_that_dies_during_a_call_is_named_in_the_error(
    relay: Relay, mortal: Everything
) -> None:
    """At the end of the stream that had begun; the next call finds nobody, and says so as well."""
    await mortal.publish(relay.system, "mortal")
    await relay.hub.mesh.directory.refresh()
    url = f"{relay.hub.url}/agents/mortal/mcp"
    message, headers = modern("tools/call", {"name": "die", "arguments": {}})
    reply = await relay.wire.post(url, message, accept="application/json, text/event-stream", **headers)
    events = read_events(reply.body)
    assert events[0]["method"] == "notifications/progress"
    assert events[-1]["id"] == 1
    assert "agent mortal at" in events[-1]["result"]["content"][0]["text"]
    listing = modern("tools/list", {})
    gone = await relay.wire.post(url, listing[0], accept="application/json, text/event-stream", **listing[1])
    assert "agent mortal at" in gone.error["message"]
    assert (gone.error["code"], gone.error["data"]["type"]) == (-32603, "agent_unreachable")


async def test_a_client_that_reads_slowly_slows_the_agent_down(relay: Relay) -> None:
    """Nothing piles up in the hub: 50 MB of events wait at the agent until the client takes them."""
    message, headers = modern("tools/call", {"name": "flood", "arguments": {"events": 5000}})
    async with (
        aiohttp.ClientSession() as session,
        asyncio.timeout(4 * WAIT_S),
        relay.begin(session, message, **headers) as reply,
    ):
        assert reply.status == 200
        counts: list[int] = []
        while len(counts) < QUIET_LOOKS or len(set(counts[-QUIET_LOOKS:])) > 1:
            await asyncio.sleep(0.05)
            counts.append(len(await relay.everything.messages("flooded")))
        sent = counts[-1]
        assert sent < 4000, "what the kernels hold of two connections is about 2,000"
        body = await reply.read()
    assert read_events(body)[-1]["result"]["content"][0]["text"] == "flooded"
    assert len(read_events(body)) == 5001


async def test_an_agent_whose_card_moved_is_found_at_its_new_place(relay: Relay, mortal: Everything) -> None:
    """Nobody at the old url: the card is read again, and the call goes on there."""
    nowhere = Everything(mortal.process, "http://127.0.0.1:9")
    await nowhere.publish(relay.system, "moving")
    await relay.hub.mesh.directory.refresh()
    await mortal.publish(relay.system, "moving")
    message, headers = modern("tools/call", {"name": "echo", "arguments": {"text": "here"}})
    url = f"{relay.hub.url}/agents/moving/mcp"
    reply = await relay.wire.post(url, message, accept="application/json, text/event-stream", **headers)
    assert reply.result["content"][0]["text"] == "here"


async def test_two_hundred_clients_at_once_each_get_their_own_answer(relay: Relay) -> None:
    """Every one with a session of its own."""

    async def one(number: int) -> None:
        session = await relay.open_session()
        message = request("tools/call", tool_call("echo", text=f"number {number}"), id=number)
        reply = await relay.post(message, mcp_session_id=session)
        answer = reply.json
        assert reply.headers["content-type"] == "application/json", "one message needs no stream"
        assert (answer["id"], answer["result"]["content"][0]["text"]) == (number, f"number {number}")

    await asyncio.gather(*(one(number) for number in range(200)))
    sessions = {m["headers"].get("mcp-session-id") for m in await relay.everything.messages("tools/call")}
    assert len(sessions) == 200
    assert NAME in relay.url
