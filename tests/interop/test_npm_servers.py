"""Servers of others from npm behind one hub, over their standard streams and over HTTP, with every fault.

All run at the same time in one hub; the official client calls them through it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp import Client
from mcp_types import ElicitResult

from retinue.runtime.imports.files import write_import
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from scripts.npm_packages import NODE, InstallFailedError, install
from tests.ports import reserve_port
from tests.processes.freezing import freeze
from tests.processes.running import Program, descendants, program, wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".tools" / "imported_servers"
FAULTY = (str(ROOT / "tests" / "interop" / "faulty.py"),)
DOOR_S = 15
LATE_S = 20
STARTED_WITHIN_S = 120.0


def _server(name: str, *arguments: str) -> tuple[str, ...]:
    path = FOLDER / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return (str(NODE / "node"), str(path), *arguments)


def _table(command: tuple[str, ...], **more: Any) -> ImportTable:
    return ImportTable.model_validate({"command": command[0], "args": command[1:], **more})


def _with_fault(fault: str, value: str, **more: Any) -> ImportTable:
    return _table((sys.executable, *FAULTY, fault, value, "--", *_server("everything", "stdio")), **more)


class Web:
    """The server at a url, which can be ended and started again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            _server("everything", "streamableHttp"),
            env={**os.environ, "PORT": str(self._port)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Hub:
    """The hub with its imports."""

    def __init__(self, process: Program, url: str, home: Path, folder: Path, web: Web) -> None:
        self.process = process
        self.web = web
        self.url = url
        self.state = State(home)
        self.folder = folder

    async def call(self, tool: str, arguments: dict[str, Any], **options: Any) -> str:
        """The text of the result, or of the error, by a client of its own."""
        async with Client(f"{self.url}/mcp") as client:
            result = await client.call_tool(tool, arguments, **options)
            return "".join(getattr(block, "text", "") for block in result.content)

    def statuses(self) -> dict[str, tuple[str, str]]:
        """Status and last error of every agent."""
        rows = orjson.loads(self.run("agents", "--json"))["agents"]
        return {row["name"]: (row["status"], row.get("last_error") or "") for row in rows}

    def list_missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are not available."""
        found = self.statuses()
        return sorted(name for name in names if found.get(name, ("", ""))[0] != "available")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=self.folder,
            env={**os.environ, "RETINUE_HOME": str(self.state.root)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def find_server(self, mark: str) -> int:
        """The process of the server whose command has this argument."""
        for pid in descendants(self.process.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if mark.encode() in words:
                return pid
        raise AssertionError(f"no server {mark} runs")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    try:
        install(ROOT / "tests" / "interop" / "npm", FOLDER)
    except InstallFailedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"npm could not install the servers: {error}")
    folder = tmp_path_factory.mktemp("npm")
    home, notes = folder / "home", folder / "notes"
    notes.mkdir()
    state = State(home)
    port = reserve_port()
    tables = {
        "everything": _table(_server("everything", "stdio")),
        "over-http": ImportTable(url=f"http://127.0.0.1:{port}/mcp"),
        "files": _table(_server("filesystem", str(notes))),
        "memory": _table(_server("memory"), env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}),
        "thinking": _table(_server("sequential-thinking")),
        "killed": _table(_server("everything", "stdio", "killed")),
        "hung": _table(_server("everything", "stdio", "hung")),
        "flooding": _with_fault("flood", "5000"),
        "talking": _with_fault("junk", "Server running on stdio, have fun!"),
        "changing": _with_fault("change", str(folder / "changed")),
        "late": _with_fault("late", str(LATE_S)),
        "needy": _with_fault("need", "NEEDY_KEY"),
    }
    for name, table in tables.items():
        write_import(state, name, table)
    environment = {
        "RETINUE_HOME": str(home),
        "RETINUE_HUB__LISTING": "all",
        "RETINUE_TIMEOUTS__DOOR_S": str(DOOR_S),
    }
    with ExitStack() as stack:
        web = Web(port)
        stack.callback(web.kill)
        running = stack.enter_context(
            program("hub", "--bare", "--port", "0", cwd=folder, environment=environment)
        )
        hub = Hub(running, running.url_in("hub at"), home, folder, web)
        slow = {"late", "needy"}
        try:
            wait_until(lambda: hub.list_missing(tables.keys() - slow) == [], "the servers run")
        except AssertionError as error:
            raise AssertionError(f"{hub.statuses()}\n{running.output}") from error
        yield hub


async def test_every_server_answers_through_the_hub_over_its_streams_and_over_http(hub: Hub) -> None:
    assert await hub.call("everything__echo", {"message": "hi"}) == "Echo: hi"
    assert await hub.call("over-http__echo", {"message": "hi"}) == "Echo: hi"
    note = {"path": str(hub.folder / "notes" / "one.txt"), "content": "remember"}
    assert "Successfully wrote" in await hub.call("files__write_file", note)
    async with Client(f"{hub.url}/mcp") as client:
        read = await client.call_tool("files__read_text_file", {"path": note["path"]})
    assert [getattr(block, "text", "") for block in read.content] == ["remember"]
    assert read.structured_content == {"content": "remember"}
    outside = await hub.call("files__read_text_file", {"path": "/etc/passwd"})
    assert "Access denied" in outside
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes"]}
    await hub.call("memory__create_entities", {"entities": [entity]})
    assert "writes" in await hub.call("memory__read_graph", {})
    thought = {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    assert '"thoughtHistoryLength": 1' in await hub.call("thinking__sequentialthinking", thought)


@pytest.mark.parametrize("name", ["everything", "over-http"])
async def test_a_tool_that_runs_as_a_task_only_reports_its_stages_and_asks_its_caller(
    hub: Hub, name: str
) -> None:
    """The SDK for TypeScript refuses a call of this tool that is no task."""
    stages: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        stages.append(message)

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"interpretation": "snake"})

    async with Client(f"{hub.url}/mcp", elicitation_callback=answer) as client:
        arguments = {"topic": "python", "ambiguous": True}
        tool = f"{name}__simulate-research-query"
        result = await client.call_tool(tool, arguments, progress_callback=on_progress)
    (report,) = [getattr(block, "text", "") for block in result.content]
    assert not result.is_error, report
    assert "# Research Report: python (snake)" in report
    assert stages[:1] == ["Gathering sources..."]
    assert 'Found multiple interpretations for "python". Requesting clarification...' in stages


async def test_a_server_that_is_killed_in_a_call_says_so_and_answers_the_next(hub: Hub) -> None:
    began = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    tool, arguments = "killed__trigger-long-running-operation", {"duration": 5, "steps": 50}
    call = asyncio.create_task(hub.call(tool, arguments, progress_callback=on_progress))
    async with asyncio.timeout(STARTED_WITHIN_S):
        await began.wait()
    os.kill(hub.find_server("killed"), signal.SIGKILL)
    text = await call
    assert "agent killed" in text
    assert "it was ended by SIGKILL" in text
    assert await hub.call("killed__echo", {"message": "again"}) == "Echo: again"


async def test_a_server_over_http_that_is_killed_in_a_call_says_so_and_answers_when_it_is_back(
    hub: Hub,
) -> None:
    began = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    tool, arguments = "over-http__trigger-long-running-operation", {"duration": 5, "steps": 50}
    call = asyncio.create_task(hub.call(tool, arguments, progress_callback=on_progress))
    async with asyncio.timeout(STARTED_WITHIN_S):
        await began.wait()
    hub.web.kill()
    text = await call
    assert "agent over-http" in text
    assert "unreachable" in text
    away = await hub.call("over-http__echo", {"message": "hi"})
    assert "agent over-http" in away
    hub.web.start()
    wait_until(lambda: hub.list_missing(["over-http"]) == [], "it is back")
    assert await hub.call("over-http__echo", {"message": "back"}) == "Echo: back"


async def test_a_server_that_hangs_costs_its_deadline_which_names_layer_and_setting(hub: Hub) -> None:
    pid = hub.find_server("hung")
    freeze(pid)
    try:
        text = await hub.call("hung__echo", {"message": "hi"})
        assert f"{DOOR_S} s" in text
        assert "timeouts.door_s" in text
        assert await hub.call("everything__echo", {"message": "meanwhile"}) == "Echo: meanwhile"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await hub.call("hung__echo", {"message": "awake"}) == "Echo: awake"


async def test_what_a_server_prints_beside_its_messages_harms_no_call(hub: Hub) -> None:
    for name in ("flooding", "talking"):
        found = [await hub.call(f"{name}__echo", {"message": str(number)}) for number in range(20)]
        assert found == [f"Echo: {number}" for number in range(20)]
    line = next(line for line in hub.process.lines if "not a message on standard output" in line)
    assert "have fun" in line
    assert hub.process.output.count("not a message on standard output") == 1


async def test_a_tool_that_changes_waits_until_it_is_accepted(hub: Hub) -> None:
    assert await hub.call("changing__echo", {"message": "hi"}) == "Echo: hi"
    (hub.folder / "changed").touch()
    wait_until(lambda: "echo" in hub.run("imports"), "the change is seen")
    text = await hub.call("changing__echo", {"message": "hi"})
    assert "retinue imports accept changing" in text
    assert "And tell nobody." not in text, "a model reads it, and nobody has accepted that text"
    assert "And tell nobody." in hub.run("imports", "accept", "changing", "--show"), "its owner reads it"
    async with Client(f"{hub.url}/mcp") as client:
        listed = {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}
    assert "And tell nobody." not in listed["changing__echo"]
    hub.run("imports", "accept", "changing")
    async with asyncio.timeout(STARTED_WITHIN_S):
        while await hub.call("changing__echo", {"message": "hi"}) != "Echo: hi":
            await asyncio.sleep(0.05)


async def test_a_server_without_its_variable_says_which_and_runs_with_it(hub: Hub) -> None:
    wait_until(lambda: hub.statuses()["needy"][0] == "unavailable", "needy has ended")
    assert "NEEDY_KEY is not set" in hub.statuses()["needy"][1]
    write_import(hub.state, "needy", _with_fault("need", "NEEDY_KEY", env={"NEEDY_KEY": "1"}))
    wait_until(lambda: hub.statuses()["needy"][0] == "available", "needy runs")
    assert await hub.call("needy__echo", {"message": "hi"}) == "Echo: hi"


async def test_a_server_that_takes_twenty_seconds_to_start_appears_then(hub: Hub) -> None:
    wait_until(lambda: hub.statuses()["late"][0] == "available", "late runs")
    assert await hub.call("late__echo", {"message": "hi"}) == "Echo: hi"
