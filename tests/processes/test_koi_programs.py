"""The installed programs of seed 003, alone and with each other: ready, joined, ended with Ctrl-C, failed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from pathlib import Path

from tests.mcp.clients import connect, texts
from tests.ports import reserve_port
from tests.processes.running import Program, descendants, get, is_free, is_running, program, wait_until
from tests.requirements import requirement


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@requirement("K-28")
async def test_the_programs_of_coordinator_and_agent_join_and_end_with_ctrl_c(tmp_path: Path) -> None:
    ports = [reserve_port(), reserve_port()]
    coordinator_url, agent_url = (f"http://127.0.0.1:{port}" for port in ports)
    home = {"RETINUE_HOME": str(tmp_path / "state")}
    place = {
        "KOI_MCP_COORDINATOR_BASE_URL": f"{coordinator_url}/koi-net",
        "KOI_MCP_COORDINATOR_MCP_REGISTRY_PORT": str(ports[0]),
    }
    joining = {
        "KOI_MCP_AGENT_BASE_URL": f"{agent_url}/koi-net",
        "KOI_MCP_AGENT_MCP_PORT": str(ports[1]),
        "KOI_MCP_NETWORK_FIRST_CONTACT": f"{coordinator_url}/koi-net",
    }
    with program(script="koi-mcp-coordinator", cwd=tmp_path, environment=home | place) as coordinator:
        line = await asyncio.to_thread(coordinator.wait_for, "(0 agents known)")
        assert f"coordinator koi-mcp-coordinator at {coordinator_url}" in line
        assert get(f"{coordinator_url}/health")[0] == 200
        with program(script="koi-mcp-agent", cwd=tmp_path, environment=home | joining) as agent:
            line = await asyncio.to_thread(agent.wait_for, "tools: calculate")
            assert f"helpful-agent 1.0 at {agent_url}" in line
            # it has told its first contact before it says that it is ready
            assert [tool["name"] for tool in get(f"{coordinator_url}/tools/list")[1]["tools"]] == [
                "helpful-agent.calculate"
            ]
            async with connect(f"{coordinator_url}/mcp") as client:
                called = await client.call_tool("helpful-agent__calculate", {"input": "2 + 3"})
                assert texts(called) == ["5.0"]
            assert await asyncio.to_thread(agent.end, signal.SIGINT) == 0
            assert "stopping: SIGINT" in agent.output
        assert get(f"{coordinator_url}/tools/list")[1] == {"tools": []}
        kept = home | joining | {"RETINUE_KOI__KEEP_ON_STOP": "true"}
        with program(script="koi-mcp-agent", cwd=tmp_path, environment=kept) as agent:
            await asyncio.to_thread(agent.wait_for, "tools: calculate")
            assert await asyncio.to_thread(agent.end, signal.SIGINT) == 0
        assert len(get(f"{coordinator_url}/tools/list")[1]["tools"]) == 1
        assert await asyncio.to_thread(coordinator.end, signal.SIGINT) == 0
    assert all(map(is_free, ports))


@requirement("K-29")
@requirement("K-30")
async def test_the_demo_moves_all_its_ports_if_one_is_taken(tmp_path: Path) -> None:
    state = {"RETINUE_HOME": str(tmp_path / "state")}
    with socket.socket() as taken:
        # a connection of an earlier test may be ending there, which would keep this socket away, not the demo
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # taken by another program: just as well
            taken.bind(("127.0.0.1", 8101))
            taken.listen()
        demo = Program(script="koi-mcp-demo", cwd=tmp_path, environment=state)
        try:
            line = await asyncio.to_thread(demo.wait_for, "a port of 9000, 8101, 8102 is taken; using ")
            ports = [int(port) for port in re.findall(r"\d+", line.partition("using ")[2])]
            shift = ports[0] - 9000
            assert shift > 0
            assert ports == [9000 + shift, 8101 + shift, 8102 + shift]
            await asyncio.to_thread(demo.wait_for, "Ctrl-C ends the demo")
            base = f"http://127.0.0.1:{ports[0]}"
            listed = get(f"{base}/resources/list")[1]["resources"]
            assert sorted(port_of(one["url"]) for one in listed) == ports[1:]
            children = descendants(demo.process.pid)
            assert len(children) >= 2
            assert await asyncio.to_thread(demo.end, signal.SIGINT) == 0, demo.output
            # not the ports: a demo of a test beside this one may have taken them
            await asyncio.to_thread(wait_until, lambda: not any(map(is_running, children)), "its agents end")
        finally:
            demo.close()


@requirement("K-29")
async def test_ctrl_c_ends_a_demo_that_is_still_starting(tmp_path: Path) -> None:
    state = {"RETINUE_HOME": str(tmp_path / "state")}
    with program(script="koi-mcp-demo", cwd=tmp_path, environment=state) as demo:
        await asyncio.to_thread(demo.wait_for, "coordinator at ")
        assert await asyncio.to_thread(demo.end, signal.SIGINT) == 0, demo.output


@requirement("K-34")
async def test_an_agent_whose_coordinator_is_away_says_what_to_do_and_serves(tmp_path: Path) -> None:
    contact, port = "http://127.0.0.1:9/koi-net", reserve_port()
    environment = {
        "RETINUE_HOME": str(tmp_path / "state"),
        "KOI_MCP_AGENT_BASE_URL": f"http://127.0.0.1:{port}/koi-net",
        "KOI_MCP_AGENT_MCP_PORT": str(port),
        "KOI_MCP_NETWORK_FIRST_CONTACT": contact,
    }
    with program(script="koi-mcp-agent", cwd=tmp_path, environment=environment) as agent:
        line = await asyncio.to_thread(agent.wait_for, "the first contact was not told")
        assert contact in line
        assert "connection refused" in line
        assert "start the node there, or correct its URL" in line
        await asyncio.to_thread(agent.wait_for, f"helpful-agent 1.0 at http://127.0.0.1:{port}")
        assert get(f"http://127.0.0.1:{port}/health")[0] == 200
        assert await asyncio.to_thread(agent.end, signal.SIGINT) == 0
