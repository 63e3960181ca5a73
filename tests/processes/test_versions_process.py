"""Versions of one agent side by side, as processes behind a hub."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import urllib3

from tests.mcp.clients import read_result, sessionless
from tests.processes.commands import run_command
from tests.processes.inside import inside
from tests.processes.running import Program, execute, get, program, wait_until, write_agent
from tests.requirements import requirement

_http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(90.0))


class Mesh:
    """A hub, and agents that are served one after the other."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.hub = stack.enter_context(inside("hub", "--bare", "--port", "0", cwd=folder))
        self.url = self.hub.url_in("hub at")

    def serve(self, version: str, *options: str, deprecated: str = "") -> None:
        file = write_agent(self.folder, "weather-agent", version, "get_forecast", version)
        if deprecated:
            named = f"version={version!r}"
            file.write_text(file.read_text().replace(named, f"{named}, deprecated={deprecated!r}"))
        running = self.stack.enter_context(inside("serve", str(file), *options, cwd=self.folder))
        running.wait_for("published")
        wait_until(lambda: version in self.list_versions(), "the hub knows it")

    def list_versions(self) -> list[str]:
        rows = execute(self.url, "list_agents", {"detailed": True})["result"]["agents"]
        return [row["version"] for row in rows]

    def serve_apart(self, version: str) -> Program:
        """Serve it in a process of its own, which can be killed."""
        file = write_agent(self.folder, "weather-agent", version, "get_forecast", version)
        running = self.stack.enter_context(program("serve", str(file), cwd=self.folder))
        running.wait_for("published")
        return running

    def forecast(self, version: str | None = None, path: str = "") -> Any:
        headers = {"content-type": "application/json"} | (
            {} if version is None else {"x-retinue-version": version}
        )
        body = orjson.dumps({"jsonrpc": "2.0", "method": "get_forecast", "params": {}, "id": "test"})
        reply = orjson.loads(
            _http.request("POST", f"{self.url}{path}/execute", body=body, headers=headers).data
        )
        return reply.get("result", reply.get("error"))

    def run(self, *arguments: str) -> str:
        """A command that succeeds; what it printed."""
        done = run_command(*arguments, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with ExitStack() as stack:
        yield Mesh(tmp_path, stack)


@requirement("P-30")
def test_two_major_versions_run_are_listed_and_called_at_once(mesh: Mesh) -> None:
    mesh.serve("1.4.0")
    newer = mesh.serve_apart("2.0.0")
    assert get(f"{mesh.url}/v2/agents/weather/tags/list")[1]["tags"] == ["v1", "v2"]
    rows = execute(mesh.url, "list_agents", {"detailed": True})["result"]["agents"]
    assert [(row["name"], row["version"]) for row in rows] == [
        ("weather-agent", "1.4.0"),
        ("weather-agent", "2.0.0"),
    ]
    offers = execute(mesh.url, "find_skills", {"skill": "get_forecast", "version": "<2"})["result"]["skills"]
    assert [row["version"] for row in offers] == ["1.4.0"]
    assert {mesh.forecast() for _ in range(6)} == {"2.0.0"}
    assert mesh.forecast("<2") == "1.4.0"
    assert mesh.forecast("<2", "/agents/weather-agent") == "1.4.0"
    assert mesh.forecast(None, "/agents/weather-agent@1") == "1.4.0"
    assert mesh.forecast(None, "/agents/weather-agent") == "2.0.0"
    assert "1.4.0" in mesh.run("call", "get_forecast", "--version", "<2")
    listed = mesh.run("agents")
    assert all(number in listed for number in ("1.4.0", "2.0.0"))
    offers = execute(mesh.url, "find_skills", {"query": "forecast"})["result"]["skills"]
    assert [row["version"] for row in offers] == ["2.0.0", "1.4.0"]
    newer.end(signal.SIGKILL)
    assert mesh.forecast("<2") == "1.4.0"
    wait_until(lambda: mesh.forecast() == "1.4.0", "the older version takes the calls")


def test_over_mcp_the_older_major_version_is_a_tool_of_its_own(mesh: Mesh, retinue_home: Path) -> None:
    mesh.serve("1.4.0")
    mesh.serve("2.0.0")
    token = (retinue_home / "keys" / "local.token").read_text()

    def ask(method: str, params: dict[str, Any]) -> Any:
        message, headers = sessionless(method, params)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"content-type": "application/json", "authorization": f"Bearer {token}"}
        reply = _http.request("POST", f"{mesh.url}/mcp", body=orjson.dumps(message), headers=headers)
        return read_result(reply.data)["result"]

    names = [tool["name"] for tool in ask("tools/list", {})["tools"]]
    assert [name for name in names if name.endswith("__get_forecast")] == [
        "weather-agent-v1__get_forecast",
        "weather-agent__get_forecast",
    ]
    for tool, version in (("weather-agent-v1", "1.4.0"), ("weather-agent", "2.0.0")):
        called = ask("tools/call", {"name": f"{tool}__get_forecast", "arguments": {}})
        assert called["content"][0]["text"] == version
    arguments = {"skill": "get_forecast", "version": "<2"}
    called = ask("tools/call", {"name": "call_skill", "arguments": arguments})
    assert called["content"][0]["text"] == "1.4.0"


def test_a_workflow_step_with_a_range_calls_that_version(mesh: Mesh) -> None:
    mesh.serve("1.4.0")
    mesh.serve("2.0.0")
    steps = [
        {"id": "old", "skill": "get_forecast", "version": "<2"},
        {"id": "new", "skill": "get_forecast"},
        {"id": "named", "skill": "get_forecast", "agent": "weather-agent@1"},
    ]
    output = {"old": "${{ steps.old }}", "new": "${{ steps.new }}", "named": "${{ steps.named }}"}
    workflow = {"name": "both", "steps": steps, "output": output}
    reply = execute(mesh.url, "orchestrate_workflow", {"workflow": workflow, "input": {}})
    assert "result" in reply, reply
    outputs = reply["result"]["output"]
    assert {name: (step["output"], step["agent"]) for name, step in outputs.items()} == {
        "old": ("1.4.0", "weather-agent@1"),
        "new": ("2.0.0", "weather-agent@2"),
        "named": ("1.4.0", "weather-agent@1"),
    }


def test_a_version_with_a_weight_shares_the_calls_with_the_older_one(mesh: Mesh) -> None:
    mesh.serve("1.4.0")
    mesh.serve("2.0.0", "--weight", "50")
    calls = [mesh.forecast() for _ in range(60)]
    # 60 calls that all fall on one side happen once in 10^18
    assert set(calls) == {"1.4.0", "2.0.0"}
    assert {mesh.forecast(">=2") for _ in range(5)} == {"2.0.0"}


def test_callers_of_a_deprecated_version_are_warned(mesh: Mesh) -> None:
    mesh.serve("1.4.0", deprecated="use 2.x")
    output = mesh.run("call", "get_forecast")
    assert output.count("warning: weather-agent 1.4.0 is deprecated: use 2.x") == 1
    body = {"jsonrpc": "2.0", "method": "call_skill", "params": {"skill": "get_forecast"}, "id": 1}
    reply = _http.request("POST", f"{mesh.url}/execute", json=body)
    assert reply.json()["result"] == "1.4.0"
    assert orjson.loads(reply.headers["x-retinue-warnings"]) == ["weather-agent 1.4.0 is deprecated: use 2.x"]
    (mesh.folder / "flow.yaml").write_text(
        "name: flow\nsteps:\n"
        "  - {id: old, skill: get_forecast, version: '<2'}\n"
        "  - {id: any, skill: get_forecast}\n"
    )
    output = mesh.run("run", "flow.yaml", "{}", "--id", "before")
    assert output.count("warning: weather-agent 1.4.0 is deprecated: use 2.x") == 2
    assert "warning: weather-agent 1.4.0 is deprecated: use 2.x" in mesh.run("runs", "before")
    mesh.serve("2.0.0")
    assert "deprecated" not in mesh.run("call", "get_forecast")
    assert mesh.run("run", "flow.yaml", "{}", "--id", "after").count("1.4.0 is deprecated") == 1
    assert "is deprecated: use 2.x" in mesh.run("agents")
    rows = [line for line in mesh.run("find", "forecast").splitlines() if line.startswith("get_forecast")]
    assert [("2.0.0" in row, "available, deprecated" in row) for row in rows] == [
        (True, False),
        (False, True),
    ]


def test_another_major_version_does_not_take_a_tag(mesh: Mesh) -> None:
    mesh.serve("1.4.0")
    file = write_agent(mesh.folder, "weather-agent", "2.0.0", "get_forecast", "2.0.0")
    refused = run_command("serve", str(file), "--tag", "v1", cwd=mesh.folder)
    assert refused.returncode != 0
    assert "agents/weather:v1 holds version 1.4.0" in refused.stderr
    assert "--tag v2" in refused.stderr
    assert mesh.forecast() == "1.4.0"
    mesh.serve("2.0.0")
    mesh.run("forget", "weather-agent@v2")
    assert get(f"{mesh.url}/v2/agents/weather/tags/list")[1]["tags"] == ["v1"]
