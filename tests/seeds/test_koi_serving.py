"""The nodes of seed 003 as the guide of KOI uses them: they serve at their start and leave at their stop."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from koi.network import is_joined, until
from koi_mcp.koi.node import CoordinatorAdapterNode, KoiAgentNode
from retinue.core.errors import InvalidSettingError
from tests.ports import reserve_port
from tests.requirements import requirement
from tests.seeds.koi_nodes import Net, contact, read
from tests.seeds.koi_nodes import net as net
from tests.serving import serve_app
from tests.system import Wire


def count_words(text: str) -> int:
    """Counts the words of a text."""
    return len(text.split())


def make_agent(folder: Path, *ports: int, **options: object) -> KoiAgentNode:
    """An agent whose KOI API and MCP server are at the last and the first of these ports."""
    return KoiAgentNode(
        "notes-agent",
        "1.0",
        {"mood": "calm", "count_words": count_words},
        f"http://127.0.0.1:{ports[-1]}/koi-net",
        ports[0],
        folder=folder / "notes-agent",
        **options,  # type: ignore[arg-type]
    )


@requirement("K-08")
@requirement("K-13")
async def test_nodes_serve_when_they_start_and_an_agent_that_stops_is_not_listed(
    tmp_path: Path, wire: Wire
) -> None:
    port = reserve_port()
    base = f"http://127.0.0.1:{port}"
    coordinator = CoordinatorAdapterNode("coordinator", f"{base}/koi-net", port, folder=tmp_path / "c")
    await coordinator.start()
    agent = make_agent(tmp_path, reserve_port(), first_contact=f"{base}/koi-net")
    await agent.start()
    await agent.start()
    try:
        await until(lambda: "notes-agent" in coordinator.mcp_adapter.agents)
        # before, the agent would not answer when the coordinator asks whether it has left
        await until(lambda: is_joined(coordinator.node, agent.node))
        [tool] = read(await wire.get(f"{base}/tools/list"))["tools"]
        assert read(await wire.post(tool["url"], {"text": "to be or not"})) == {"result": 4}
    finally:
        await agent.stop()
    await until(lambda: not coordinator.mcp_adapter.agents)
    assert read(await wire.get(f"{base}/resources/list")) == {"resources": []}
    await coordinator.stop()
    for url in (agent.profile.mcp_url, base):
        with pytest.raises(aiohttp.ClientConnectorError):
            await wire.get(f"{url}/health")


@requirement("K-08")
async def test_an_agent_serves_at_both_ports_of_its_urls(tmp_path: Path, wire: Wire) -> None:
    ports = reserve_port(), reserve_port()
    agent = make_agent(tmp_path, *ports)
    await agent.start()
    try:
        for port in ports:
            reply = await wire.post(f"http://127.0.0.1:{port}/koi-net/rids/fetch", {"rid_types": []})
            assert agent.node.rid in read(reply)["rids"]
    finally:
        await agent.stop()


@requirement("K-08")
async def test_an_agent_opens_no_port_where_an_app_is_handed_over(tmp_path: Path, wire: Wire) -> None:
    async def greet(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    app = Starlette(routes=[Route("/greet", greet)])
    async with serve_app(app) as url:
        # the port is taken by the app
        agent = make_agent(tmp_path, int(url.rpartition(":")[2]))
        await agent.start(app)
        try:
            assert (await wire.get(f"{url}/greet")).body == b"hello"
            [tool] = read(await wire.get(f"{url}/tools/list"))["tools"]
            assert read(await wire.post(f"{url}{tool['url']}", {"text": "one two"})) == {"result": 2}
        finally:
            await agent.stop()


@requirement("K-08")
async def test_an_agent_without_a_guard_does_not_listen_where_other_machines_reach_it(tmp_path: Path) -> None:
    agent = KoiAgentNode("far", "1.0", {}, "http://0.0.0.0:8117/koi-net", 8117, folder=tmp_path / "far")
    with pytest.raises(InvalidSettingError, match="reachable from other machines"):
        await agent.start()
    await agent.stop()


@requirement("K-19")
async def test_an_agent_that_keeps_its_personality_is_marked_and_evicted_by_the_coordinator(
    net: Net, wire: Wire
) -> None:
    now_s = 0.0
    coordinator = await net.coordinator(evict_after_s=60.0, look_every_s=0.01, clock=lambda: now_s)
    agent = await net.agent(first_contact=contact(coordinator), keep_on_stop=True)
    await until(lambda: agent.node.rid in coordinator.node.graph.get_neighbors("in"))
    await until(lambda: "helpful-agent" in coordinator.mcp_adapter.agents)
    [listed] = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
    await agent.stop()
    await until(lambda: coordinator.presence.is_silent(agent.node.rid))
    [marked] = read(await wire.get(f"{coordinator.url}/resources/list"))["resources"]
    assert marked == {**listed, "status": "unavailable"}
    [row] = coordinator.registry_server.directory.list_entries()
    assert (row.health, row.last_error) == ("unreachable", "the node does not answer")
    now_s = 60.0
    await until(lambda: not coordinator.mcp_adapter.agents)
