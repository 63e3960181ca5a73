"""Stock koi-net 2.1.2 nodes in networks of ours: at a coordinator, at a hub, with an agent."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from koi.network import ALL, make_node, until
from retinue_koi.codec.profiles import EdgeStatus
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.peers import FirstContact
from tests.interop.koi.driving import ANSWER_WITHIN_S, StockNode, run_stock_node
from tests.mcp.clients import connect, texts
from tests.processes.running import program
from tests.requirements import requirement
from tests.seeds.koi_nodes import Net, contact, read
from tests.seeds.koi_nodes import net as net
from tests.system import Wire

pytestmark = pytest.mark.timeout(600)

STOCK_AGENT = "orn:agent.personality:stock-agent/1.0"
OWN_AGENT = "orn:agent.personality:helpful-agent/1.0"


def contents(url: str, mood: str, *callable_traits: str) -> dict[str, Any]:
    """A personality as the stock node's program publishes it; ``rid`` and ``node_rid`` are added there."""
    mood_trait = {"name": "mood", "description": "", "type": "str", "value": mood, "is_callable": False}
    tools = [
        {"name": name, "description": f"Does {name}", "type": "NoneType", "value": None, "is_callable": True}
        for name in callable_traits
    ]
    return {"base_url": None, "mcp_url": url, "traits": [mood_trait, *tools]}


async def see(wire: Wire, url: str, wanted: dict[str, list[str]], mood: str) -> None:
    """Wait until REST and real MCP list exactly these tools of the stock agent, and its mood."""

    async def list_all() -> tuple[list[str], list[str], str]:
        rest = [tool["name"] for tool in read(await wire.get(f"{url}/tools/list"))["tools"]]
        async with connect(f"{url}/mcp") as client:
            real = [tool.name for tool in (await client.list_tools()).tools if "__" in tool.name]
        shown = await wire.get(f"{url}/resources/read/agent:stock-agent")
        traits = json.loads(shown.body).get("content", {}).get("traits", [])
        return rest, real, next((one["value"] for one in traits if one["name"] == "mood"), "")

    found: Any = None
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while (found := await list_all()) != (wanted["rest"], wanted["mcp"], mood):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"listed are {found}, not {wanted} and {mood}") from None


def tools(*skills: str) -> dict[str, list[str]]:
    return {
        "rest": [f"stock-agent.{skill}" for skill in skills],
        "mcp": [f"stock-agent__{skill}" for skill in skills],
    }


async def publish_change_and_forget(stock: StockNode, wire: Wire, url: str, at: str) -> None:
    """A stock node's personality comes, changes and goes in the lists at ``url``."""
    await stock.do("publish", name="stock-agent", contents=contents(at, "glad", "greet"))
    await see(wire, url, tools("greet"), "glad")
    [resource] = read(await wire.get(f"{url}/resources/list"))["resources"]
    assert (resource["id"], resource["url"]) == ("agent:stock-agent", at)
    await stock.do("publish", name="stock-agent", contents=contents(at, "busy", "greet", "part"))
    await see(wire, url, tools("greet", "part"), "busy")
    await stock.do("forget", name="stock-agent")
    await see(wire, url, tools(), "")
    assert read(await wire.get(f"{url}/resources/list")) == {"resources": []}
    assert stock.runs


def double(x: int) -> int:
    """Doubles a number."""
    return 2 * x


@requirement("K-12")
@requirement("K-38")
async def test_a_coordinator_lists_what_a_stock_node_publishes_changes_and_forgets(
    net: Net, wire: Wire, tmp_path: Path
) -> None:
    coordinator = await net.coordinator()
    # what the stock node tells of is answered by an agent, which is not on the network
    answering = await net.agent("stock-agent", traits={"greet": lambda: "hello", "part": lambda: "bye"})
    at = answering.profile.mcp_url or ""
    joined = (coordinator.node.rid, contact(coordinator))
    async with run_stock_node("stock", tmp_path / "stock", *joined) as stock:
        await stock.do("publish", name="stock-agent", contents=contents(at, "calm", "greet"))
        await see(wire, coordinator.url, tools("greet"), "calm")
        assert str(coordinator.mcp_adapter.agents["stock-agent"].node_rid) == stock.rid
        async with connect(f"{coordinator.url}/mcp") as client:
            assert texts(await client.call_tool("stock-agent__greet", {})) == ["hello"]
        await publish_change_and_forget(stock, wire, coordinator.url, at)


@requirement("K-12")
async def test_a_hub_process_is_the_coordinator_of_a_stock_node(
    wire: Wire, tmp_path: Path, retinue_home: Path
) -> None:
    with program("hub", "--bare", "--koi", "--port", "0", cwd=tmp_path) as hub:
        told = await asyncio.to_thread(hub.wait_for, "KOI node at")
        found = re.search(r"KOI node at (\S+)/koi-net, .*RID (\S+)", told)
        assert found is not None, told
        url, rid = found.groups()
        async with run_stock_node("stock", tmp_path / "stock", rid, f"{url}/koi-net") as stock:
            await publish_change_and_forget(stock, wire, url, "http://127.0.0.1:9")


@requirement("K-06")
@requirement("K-33")
async def test_an_agent_with_a_callable_trait_joins_a_stock_node(
    net: Net, wire: Wire, tmp_path: Path
) -> None:
    async with run_stock_node("stock", tmp_path / "stock") as stock:
        await stock.do("publish", name="stock-agent", contents=contents("http://127.0.0.1:9", "glad"))
        traits = {"mood": "helpful", "double": double}
        agent = await net.agent(first_contact=FirstContact(stock.url, stock.rid), traits=traits)
        # handshake, then an edge each way
        state = await stock.until(lambda state: [e["status"] for e in state["edges"]] == ["APPROVED"] * 2)
        ways = {(edge["source"], edge["target"], edge["edge_type"]) for edge in state["edges"]}
        assert ways == {(stock.rid, agent.node.rid, "WEBHOOK"), (agent.node.rid, stock.rid, "WEBHOOK")}
        graph, approved = agent.node.graph, EdgeStatus.APPROVED
        await until(lambda: all(graph.get_neighbors(w, approved) == [stock.rid] for w in ("in", "out")))
        # the broadcast: what the stock node holds is the profile, and its tool answers where it says
        state = await stock.until(lambda state: OWN_AGENT in state["personalities"])
        assert state["personalities"][OWN_AGENT] == agent.profile.model_dump()
        await call_double(wire, state["personalities"][OWN_AGENT])
        await agent.update_traits({"mood": "busy"})
        state = await stock.until(lambda state: mood_of(state["personalities"][OWN_AGENT]) == "busy")
        # fetches, both ways
        fetched = await stock.do("fetch", **{"from": agent.node.rid})
        assert sorted(fetched["rids"]) == sorted([OWN_AGENT, STOCK_AGENT])
        assert {one["manifest"]["rid"] for one in fetched["bundles"]} == {OWN_AGENT, STOCK_AGENT}
        peers = agent.node.wire.peers
        assert sorted(await peers.fetch_rids(stock.rid, [PERSONALITY_TYPE])) == sorted(fetched["rids"])
        [bundle] = await peers.fetch_bundles(stock.rid, [STOCK_AGENT])
        held = agent.node.cache.read(STOCK_AGENT)
        assert held is not None
        assert held.contents == bundle.contents
        await agent.forget()
        await stock.until(lambda state: OWN_AGENT not in state["personalities"])
        assert stock.runs


AGENT = """
from retinue import Agent

agent = Agent("helpful-agent", version="1.0", description="Doubles")


@agent.skill(expose=True)
def double(x: int) -> int:
    \"\"\"Doubles a number.\"\"\"
    return 2 * x
"""


@requirement("K-33")
async def test_an_agent_of_the_mesh_joins_a_stock_node_by_its_url_and_rid(
    wire: Wire, tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "doubler.py").write_text(AGENT)
    async with run_stock_node("stock", tmp_path / "stock") as stock:
        serve = ("serve", "doubler.py", "--no-publish", "--koi-join", f"{stock.url}#{stock.rid}")
        with program(*serve, cwd=tmp_path) as agent:
            await asyncio.to_thread(agent.wait_for, "KOI node at")
            state = await stock.until(lambda state: OWN_AGENT in state["personalities"])
            await call_double(wire, state["personalities"][OWN_AGENT])
            assert await asyncio.to_thread(agent.end, signal.SIGINT) == 0
        await stock.until(lambda state: OWN_AGENT not in state["personalities"])


async def call_double(wire: Wire, profile: dict[str, Any]) -> None:
    reply = await wire.post(f"{profile['mcp_url']}/tools/call/double", {"x": 21})
    assert read(reply) == {"result": 42}


def mood_of(profile: dict[str, Any]) -> Any:
    return next((trait["value"] for trait in profile["traits"] if trait["name"] == "mood"), None)


@requirement("K-44")
async def test_a_stock_node_that_polls_gets_what_waits_for_it_at_an_agent(
    net: Net, wire: Wire, tmp_path: Path
) -> None:
    agent = await net.agent(traits={"mood": "helpful", "double": double})
    joined = (agent.node.rid, contact(agent))
    async with run_stock_node("poller", tmp_path / "poller", *joined, polls=True) as stock:
        assert stock.url == ""
        state = await stock.until(lambda state: OWN_AGENT in state["personalities"])
        await call_double(wire, state["personalities"][OWN_AGENT])
        await until(lambda: agent.node.graph.get_neighbors("out", EdgeStatus.APPROVED) == [stock.rid])
        [edge] = (await stock.until(lambda state: len(state["edges"]) == 1))["edges"]
        assert edge["edge_type"] == "POLL"
        # it has no server: an event reaches it by a poll only
        await agent.update_traits({"mood": "busy"})
        await stock.until(lambda state: mood_of(state["personalities"][OWN_AGENT]) == "busy")
        assert agent.node.wire.outbox.count(stock.rid) == 0
        await agent.forget()
        await stock.until(lambda state: OWN_AGENT not in state["personalities"])
        assert stock.runs


@requirement("K-44")
async def test_a_node_of_ours_that_polls_gets_what_waits_for_it_at_a_stock_node(tmp_path: Path) -> None:
    async with run_stock_node("stock", tmp_path / "stock") as stock:
        # it polls when the test says so
        options: dict[str, Any] = {**ALL, "poll_interval_s": 3600.0}
        joined = FirstContact(stock.url, stock.rid)
        ours = make_node("ours", folder=tmp_path / "ours", first_contact=joined, **options)
        await ours.start()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while ours.graph.get_neighbors("in", EdgeStatus.APPROVED) != [stock.rid]:
                    await ours.joining.poll_once()
                    await asyncio.sleep(0.05)
            await stock.do("publish", name="stock-agent", contents=contents("http://127.0.0.1:9", "glad"))
            await stock.do("forget", name="absent")
            waiting: list[Any] = []
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while not waiting:
                    waiting.extend(await ours.wire.peers.poll_events(stock.rid))
            assert [(event.rid, event.event_type.value) for event in waiting] == [(STOCK_AGENT, "NEW")]
            assert STOCK_AGENT not in ours.cache
            await stock.do("publish", name="stock-agent", contents=contents("http://127.0.0.1:9", "busy"))
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while STOCK_AGENT not in ours.cache:
                    await ours.joining.poll_once()
            held = ours.cache.read(STOCK_AGENT)
            assert held is not None
            assert mood_of(held.contents) == "busy"
        finally:
            await ours.stop()
