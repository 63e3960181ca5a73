"""The guard where a chain begins over stdio: the claims of the client in ``_meta`` count as anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doors.guard_doors import ENDPOINTS, ExecuteGuard, GuardEndpoint
from tests.doors.test_guard_matrix import MAX_DEPTH, Ring
from tests.mcp.clients import Pipe, connect_stdio, sessionless
from tests.mcp.test_calling import initialize
from tests.requirements import requirement
from tests.system import System, Wire

ENTRY = """
from typing import Any

from retinue import Agent, Context

agent = Agent("entry-agent")


@agent.skill(expose=True)
async def enter(ctx: Context) -> Any:
    return await ctx.call("ask_a")


@agent.skill(expose=True)
async def where(ctx: Context) -> str:
    return f"{ctx.trace.id} {ctx.trace.depth}"
"""
ERAS = pytest.mark.parametrize("era", ["handshake", "sessionless"])


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    file = tmp_path / "entry_agent.py"
    file.write_text(ENTRY)
    return file


async def shake_hands(pipe: Pipe, era: str) -> None:
    if era == "handshake":
        await pipe.ask(initialize())
        await pipe.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})


async def call(pipe: Pipe, era: str, tool: str, **trace: Any) -> Any:
    """The reply to one tool call; ``id`` and ``depth`` are what its ``_meta`` says of the trace."""
    keys = {"id": "X-OpenStarry-Trace-ID", "depth": "X-OpenStarry-Trace-Depth"}
    meta = {keys[name]: value for name, value in trace.items()}
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    if era == "sessionless":
        message, _ = sessionless("tools/call", params, **meta)
    else:
        message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {**params, "_meta": meta}}
    return await pipe.ask(message)


def text_in(reply: Any) -> str:
    assert "result" in reply, reply
    return str(reply["result"]["content"][0]["text"])


@requirement("S-14")
@requirement("S-15")
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=[endpoint.name for endpoint in ENDPOINTS])
async def test_a_loop_that_is_entered_over_stdio_is_refused_at_hop_six(
    system: System, wire: Wire, entry: Path, endpoint: GuardEndpoint
) -> None:
    """Entry → A → B → C → A …, through every endpoint; the client reads the path."""
    ring = Ring(system, wire, (endpoint,))
    await ring.start("abc", closed=True)
    async with connect_stdio(entry) as pipe:
        await shake_hands(pipe, "handshake")
        reply = await call(pipe, "handshake", "enter", id="loop", depth=0)
    assert ring.depths == list(range(1, MAX_DEPTH + 1, endpoint.hops))
    assert reply["error"]["code"] == -33007, reply
    data = reply["error"]["data"]
    assert (data["trace_id"], data["depth"], data["max_depth"]) == ("loop", 6, 5)
    assert data["path"] in reply["error"]["message"]
    if endpoint.name == "execute":
        ran = ["entry-agent:enter", *(f"agent-{name}:ask_{name}" for name in "abcab")]
        # the hub refuses, and names the agent to which it would have passed the call on
        assert data["path"] == " → ".join([*ran, "agent-c:ask_c"])
        assert data["cycle"] == "agent-c → agent-a → agent-b → agent-c"


@requirement("S-13")
@requirement("S-14")
@ERAS
async def test_the_chain_counts_on_from_what_the_client_claims(
    system: System, wire: Wire, entry: Path, era: str
) -> None:
    ring = Ring(system, wire, (ExecuteGuard(),))
    await ring.start("abc", closed=True)
    async with connect_stdio(entry) as pipe:
        await shake_hands(pipe, era)
        assert text_in(await call(pipe, era, "where", id="claimed", depth=3)) == "claimed 3"
        system.recording.clear()
        data = (await call(pipe, era, "enter", id="claimed", depth=3))["error"]["data"]
    assert ring.depths == [4, 5]
    assert (data["trace_id"], data["depth"], data["max_depth"]) == ("claimed", 6, 5)
    assert "entry-agent:enter → agent-a:ask_a → agent-b:ask_b" in data["path"]
    sent = [one for one in system.recording.exchanges if one.method == "POST"]
    assert {one.headers.get("x-openstarry-trace-id") for one in sent} == {"claimed"}


@requirement("S-14")
@ERAS
async def test_depth_six_is_refused_and_the_next_message_starts_anew(
    system: System, wire: Wire, entry: Path, era: str
) -> None:
    """A trace belongs to its message, not to the connection."""
    ring = Ring(system, wire, (ExecuteGuard(),))
    await ring.start("a", closed=False)
    async with connect_stdio(entry) as pipe:
        await shake_hands(pipe, era)
        assert text_in(await call(pipe, era, "where", id="deep", depth=5)) == "deep 5"
        refused = (await call(pipe, era, "enter", id="deep", depth=6))["error"]
        assert refused["code"] == -33007
        data = refused["data"]
        assert (data["trace_id"], data["depth"], data["max_depth"]) == ("deep", 6, 5)
        assert data["path"] in refused["message"]
        assert data["path"].endswith("entry-agent:enter")
        assert ring.depths == []
        trace_id, depth = text_in(await call(pipe, era, "where")).split()
        assert (trace_id != "deep", depth) == (True, "0")
        assert text_in(await call(pipe, era, "enter")) == "the end"
    assert ring.depths == [1]


@requirement("S-14")
async def test_five_agents_in_a_line_pass_with_the_first_on_stdio(
    system: System, wire: Wire, entry: Path
) -> None:
    ring = Ring(system, wire, (ExecuteGuard(),))
    await ring.start("abcd", closed=False)
    async with connect_stdio(entry) as pipe:
        await shake_hands(pipe, "handshake")
        assert text_in(await call(pipe, "handshake", "enter")) == "the end"
    assert ring.depths == [1, 2, 3, 4]
