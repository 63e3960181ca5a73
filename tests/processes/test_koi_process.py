"""Exchange 3-14: the programs of seed 003 as processes, from their start to Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from retinue_koi.programs.config import CONFIGS
from retinue_koi.programs.processes import listen_together
from tests.mcp.clients import connect, texts
from tests.processes.commands import retinue, run_command
from tests.processes.inside import inside
from tests.processes.running import WAIT_S, Program, descendants, is_running, program, wait_until
from tests.requirements import requirement

_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))
_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def get(url: str) -> Any:
    reply = _http.request("GET", url)
    assert reply.status == 200, reply.data
    return json.loads(reply.data)


@requirement("K-28")
@requirement("K-29")
@requirement("K-30")
async def test_the_demo_lists_both_agents_calls_them_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    state = {"RETINUE_HOME": str(tmp_path / "state")}
    demo = Program(script="koi-mcp-demo", cwd=tmp_path, environment=state)
    try:
        base = await asyncio.to_thread(demo.url_in, "coordinator at ")
        await asyncio.to_thread(demo.wait_for, "Ctrl-C ends the demo")
        listed = get(f"{base}/resources/list")["resources"]
        assert {one["id"] for one in listed} == {"agent:helpful-agent", "agent:creative-agent"}
        async with connect(f"{base}/mcp") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert names == {"helpful-agent__calculate", "creative-agent__make_acrostic"}
            through = await client.call_tool("helpful-agent__calculate", {"input": "6 * 7"})
            assert texts(through) == ["42.0"]
        helpful = next(one["url"] for one in listed if one["id"] == "agent:helpful-agent")
        async with connect(f"{helpful}/mcp") as client:
            called = await client.call_tool("calculate", {"input": "1 / 4"})
            assert texts(called) == ["0.25"]
        children = descendants(demo.process.pid)
        assert len(children) >= 2
        demo.send(signal.SIGINT)
        assert await asyncio.to_thread(demo.process.wait, WAIT_S) == 0, demo.output
        # not the ports: a demo of a test beside this one may have taken them
        await asyncio.to_thread(wait_until, lambda: not any(map(is_running, children)), "its agents end")
        assert {path.name for path in (tmp_path / ".koi").iterdir()} == {
            "koi-mcp-coordinator",
            "helpful-agent",
            "creative-agent",
        }
    finally:
        demo.close()


@requirement("K-29")
async def test_two_demos_started_at_once_both_run_and_one_folder_holds_one(tmp_path: Path) -> None:
    demos = []
    try:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            demos.append(Program("koi", "demo", cwd=folder, environment={"RETINUE_HOME": str(folder / "s")}))
        for demo in demos:
            await asyncio.to_thread(demo.wait_for, "Ctrl-C ends the demo")
        third = Program(
            "koi", "demo", cwd=tmp_path / "one", environment={"RETINUE_HOME": str(tmp_path / "one" / "s")}
        )
        demos.append(third)
        assert await asyncio.to_thread(third.process.wait, WAIT_S) == 8, third.output
        await asyncio.to_thread(third.wait_for, "error: ")
        told = third.output[third.output.index("error: ") :]
        assert "koi-mcp-coordinator did not start" in told
        assert "in use by another node" in told
        assert "another folder" in told
    finally:
        for demo in demos:
            demo.close()


@requirement("K-29")
def test_the_ports_of_the_demo_move_together() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        first = [port - 1, port, port + 1]
        with ExitStack() as stack:
            # two at once: neither takes a port of the other
            rounds = [[stack.enter_context(one) for one in listen_together(first)] for _ in range(2)]
            moved = [[one.getsockname()[1] for one in listeners] for listeners in rounds]
    shifts = [ports[0] - first[0] for ports in moved]
    assert 0 < shifts[0] < shifts[1]
    assert moved == [[one + shift for one in first] for shift in shifts]


AGENT = """
from retinue import Agent

agent = Agent("greeter", version="1.0.0", description="Greets")


@agent.skill(expose=True)
def greet(name: str) -> str:
    \"\"\"Greets somebody.\"\"\"
    return f"Hello, {name}!"
"""


@requirement("K-12")
@requirement("K-33")
async def test_an_agent_joins_a_hub_that_is_a_coordinator_and_leaves_when_it_ends(
    tmp_path: Path, port: int
) -> None:
    (tmp_path / "greeter.py").write_text(AGENT)
    state, own = {"RETINUE_HOME": str(tmp_path / "hub")}, {"RETINUE_HOME": str(tmp_path / "agent")}

    async def list_tools(url: str, wanted: list[str]) -> None:
        async with asyncio.timeout(WAIT_S):
            while [tool["name"] for tool in get(f"{url}/tools/list")["tools"]] != wanted:
                await asyncio.sleep(0.1)

    with inside("hub", "--bare", "--koi", "--port", str(port), cwd=tmp_path, environment=state) as hub:
        url = await asyncio.to_thread(hub.url_in, "hub at")
        await asyncio.to_thread(hub.wait_for, "exposed to MCP clients")
        join = f"{url}/koi-net"
        serve = ("serve", "greeter.py", "--no-publish", "--koi-join", join)
        with inside(*serve, cwd=tmp_path, environment=own) as agent:
            await asyncio.to_thread(agent.wait_for, "KOI node at")
            await list_tools(url, ["greeter.greet"])
            async with connect(f"{url}/mcp") as client:
                assert texts(await client.call_tool("greeter__greet", {"name": "Ada"})) == ["Hello, Ada!"]
            assert await asyncio.to_thread(agent.end, signal.SIGINT) == 0
        await list_tools(url, [])
        assert await asyncio.to_thread(hub.end, signal.SIGINT) == 0


@requirement("K-24")
async def test_where_tokens_are_required_rest_and_mcp_ask_for_them_and_nodes_still_join(
    tmp_path: Path, port: int
) -> None:
    (tmp_path / "greeter.py").write_text(AGENT)
    state = {
        "RETINUE_HOME": str(tmp_path / "hub"),
        "RETINUE_AUTH__ANONYMOUS": "false",
        "RETINUE_KOI__TRUST": "known",
        "RETINUE_KOI__KNOWN": '["greeter"]',
    }
    own = {"RETINUE_HOME": str(tmp_path / "agent")}
    _, token = TokenFile(State(tmp_path / "hub").keys).issue(("mesh",))
    told = {"authorization": f"Bearer {token}"}
    with inside("hub", "--bare", "--koi", "--port", str(port), cwd=tmp_path, environment=state) as hub:
        url = await asyncio.to_thread(hub.url_in, "hub at")
        serve = ("serve", "greeter.py", "--no-publish", "--koi-join", f"{url}/koi-net")
        with inside(*serve, cwd=tmp_path, environment=own) as agent:
            await asyncio.to_thread(agent.wait_for, "KOI node at")
            await asyncio.to_thread(hub.wait_for, "personality registered")
            for path in ("/tools/list", "/resources/list", "/koi-net/tools/list", "/mcp/tools/list"):
                assert _http.request("GET", url + path).status == 401, path
                listed = _http.request("GET", url + path, headers=told)
                assert listed.status == 200, path
                assert b"greeter" in listed.data
            asked = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
            kind = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
            assert _http.request("POST", f"{url}/mcp", body=asked, headers=kind).status == 401
            async with connect(f"{url}/mcp", authorization=told["authorization"]) as client:
                assert "greeter__greet" in {tool.name for tool in (await client.list_tools()).tools}


async def test_forget_releases_the_name_of_an_agent_that_no_registry_has(tmp_path: Path, port: int) -> None:
    (tmp_path / "greeter.py").write_text(AGENT)
    state, own = {"RETINUE_HOME": str(tmp_path / "hub")}, {"RETINUE_HOME": str(tmp_path / "agent")}
    with inside("hub", "--bare", "--koi", "--port", str(port), cwd=tmp_path, environment=state) as hub:
        url = await asyncio.to_thread(hub.url_in, "hub at")
        serve = ("serve", "greeter.py", "--no-publish", "--koi-join", f"{url}/koi-net")
        with inside(*serve, cwd=tmp_path, environment=own) as agent:
            await asyncio.to_thread(agent.wait_for, "KOI node at")
            await asyncio.to_thread(hub.wait_for, "personality registered")
            listed = retinue("agents", cwd=tmp_path, environment=state)
            assert re.search(r"greeter\t.*koi: greeter\+[0-9a-f]{8}$", listed, re.MULTILINE)
            for code, told in (
                (0, "greeter: name released on the KOI network"),
                (3, "agents/greeter is not in"),
            ):
                forget = run_command("forget", "greeter", cwd=tmp_path, environment=state)
                assert forget.returncode == code, forget.stderr
                assert told in forget.stdout + forget.stderr


@requirement("K-28")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("agent", "--config", "nowhere.json"), "nowhere.json"),
        (("agent", "--config", str(CONFIGS / "coordinator.json")), "it has no section agent"),
        (("coordinator", "--config", str(CONFIGS / "agent1.json")), "it has no section coordinator"),
    ],
)
def test_a_wrong_configuration_is_one_line_with_the_remedy(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-c", f"from retinue.cli.koi_programs import {command}; {command}()", *rest],
        cwd=tmp_path,
        env={"RETINUE_HOME": str(tmp_path / "state"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2, done.stderr


@requirement("K-28")
def test_a_taken_port_is_told_with_the_field_that_holds_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with program(
            "koi",
            "coordinator",
            cwd=tmp_path,
            environment={
                "RETINUE_HOME": str(tmp_path / "state"),
                "KOI_MCP_COORDINATOR_MCP_REGISTRY_PORT": str(port),
            },
        ) as coordinator:
            assert coordinator.wait() == 8
            told = coordinator.wait_for("error: ")
    assert f"127.0.0.1:{port} is in use" in told
    assert "coordinator.mcp_registry_port" in told
    assert "KOI_MCP_COORDINATOR_MCP_REGISTRY_PORT" in told


@requirement("K-28")
def test_the_programs_of_the_seed_are_installed() -> None:
    scripts = tomllib.loads(_PYPROJECT.read_text("utf-8"))["project"]["scripts"]
    assert scripts.keys() >= {"koi-mcp-coordinator", "koi-mcp-agent", "koi-mcp-demo"}
    for name in ("coordinator", "agent", "demo"):
        assert scripts[f"koi-mcp-{name}"] == f"retinue.cli.koi_programs:{name}"
