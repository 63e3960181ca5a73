"""Every command that writes, on a full disk: one line with the path and the remedy, and what was there stays.

Root mounts a file system of a few MiB and fills it. Others get a file size limit of zero, which every write
to a file meets in the same way.
"""

from __future__ import annotations

import asyncio
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from click.testing import CliRunner

from retinue.cards.signatures import SigningKey
from retinue.cli.program import TABLE, program
from retinue.runtime.imports.files import open_pins, write_import
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from retinue.testing.memory_caller import MemoryCaller
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.durable.runs import DurableOptions, DurableRuns
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from tests.cli.conftest import PLAN_CARD, Retinue
from tests.ports import reserve_port
from tests.support.small_disk import small_file_system

AGENT = """from retinue import Agent

agent = Agent("word-agent", version="2.0.0")


@agent.skill(read_only=True)
async def count(text: str) -> int:
    \"\"\"Counts.\"\"\"
    return len(text)
"""
FLOW = orjson.dumps({"name": "waits", "steps": [{"id": "go", "wait_for": {"topic": "go", "timeout": "10m"}}]})
TOOL = {"name": "shout", "description": "Shouts.", "inputSchema": {"type": "object"}}
JSON_SERVERS = '{"%s": {"files": {"command": "cat", "args": []}}}'
CONFIGURATIONS = {
    "claude": (".claude.json", JSON_SERVERS % "mcpServers"),
    "claude-desktop": (".config/Claude/claude_desktop_config.json", JSON_SERVERS % "mcpServers"),
    "codex": (".codex/config.toml", '[mcp_servers.files]\ncommand = "cat"\nargs = []\n'),
    "cursor": (".cursor/mcp.json", JSON_SERVERS % "mcpServers"),
    "gemini": (".gemini/settings.json", JSON_SERVERS % "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", JSON_SERVERS % "servers"),
    "zed": (".config/zed/settings.json", JSON_SERVERS % "context_servers"),
}
PLACES = ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")

READER = "---\nname: reader\ndescription: Reads.\n---\nRead.\n"

WRITES = {
    "backup": ("../copy",),
    "new": ("my-agent",),
    "publish": ("plan_card.json", "--tag", "v3"),
    "publish agent": ("agent.py", "--url", "http://127.0.0.1:1"),
    "publish workflow": ("flow.yaml", "--tag", "v3"),
    "pull": ("agents/plan", "--force", "-o", "kept.json"),
    "forget": ("plan-agent@v2",),
    "mirror": ("../home/registry", "../mirrored"),
    "connect": ("claude", "--name", "here", "--url", "http://127.0.0.1:1/mcp"),
    "connect replace": ("cursor", "--replace", "--yes"),
    "import mcp-server": ("another", "--", "cat"),
    "import openapi": ("http://127.0.0.1:1/api.json", "--name", "another"),
    "import a2a": ("http://127.0.0.1:1", "--name", "another"),
    **{f"import {client}": ("--all",) for client in CONFIGURATIONS},
    "import claude-agents": ("--all",),
    "imports accept": ("foreign",),
    "imports remove": ("foreign",),
    "stubs": ("stubs.py",),
    "artifacts put": ("flow.yaml",),
    "run": ("flow.yaml", "--id", "new"),
    "orchestrate": ("do it", "--workflow", "waits", "--id", "new"),
    "resume": ("cancelled",),
    "cancel": ("waiting",),
    "rerun": ("cancelled", "--from", "go"),
    "signal": ("waiting", "go", "1"),
    "token new": ("--name", "other"),
    "token revoke": ("TOKEN",),
    "policy add": ("read-only",),
    "policy mode": ("watch",),
    "keys trust": ("friend", "friend.jwks"),
    "keys forget": ("known",),
    "context add": ("there", "http://127.0.0.1:1"),
    "context use": ("team",),
    "context remove": ("team",),
}
"""Commands by what they are tried with; a word after the command's name tells two trials apart."""

SERVES = {
    "hub": ("--bare", "--port", "0"),
    "hub detached": ("--bare", "--port", "0", "--detach"),
    "serve": ("agent.py",),
    "worker": (),
    "mcp": (),
    "koi coordinator": ("--config", "coordinator.json"),
    "koi agent": ("--config", "agent.json"),
    "koi demo": (),
}
"""The same of commands that go on, each in a process of its own."""

AUXILIARY = re.compile(r"\.(db|db-wal|db-shm|db\.mark|lock|log|generation)$")
"""Databases, compared by the runs in them; and files whose content nobody reads."""

ELSEWHERE = {
    "restore": "tests/cli/managing/test_restore.py::"
    "test_what_is_no_backup_is_refused_and_a_failure_leaves_the_state",
    "demo": "packages/retinue-testwriter/tests/testwriter/test_demo.py::test_a_demo_without_room_is_one_line",
    "artifacts get": "tests/storage/test_artifacts.py::test_a_full_disk_leaves_no_part_of_a_fetched_file",
    **dict.fromkeys(
        ("lock", "pack", "up", "down"),
        "tests/team/test_team_interrupted.py::test_a_full_disk_leaves_what_runs_and_no_file",
    ),
    "record-team": "tests/team/test_team_replay.py::test_a_recording_on_a_full_disk_is_one_error",
    "imports login": "tests/runtime/test_import_logins.py::test_a_login_on_a_full_disk_keeps_the_old_one",
}
"""Commands that are tried by another test."""

READS = frozenset(
    {
        "doctor",
        "dashboard",
        "status",
        "stop",
        "top",
        "logs",
        "agents",
        "show",
        "find",
        "call",
        "ask",
        "chat",
        "team",
    }
    | {"capabilities", "workflows", "runs", "token list", "keys", "imports", "completion", "cache clear"}
    | {"team", "diff", "replay-team"}
    | {
        "policy check",
        "policy test",
        "policy explain",
        "policy replay",
        "policy suggest",
        "policy profiles",
        "policy remove",
    }
    | {"approvals", *(f"approvals {what}" for what in ("list", "show", "approve", "deny"))}
    | {"history", "wishes", "receipts"}
    | {"imports logout", "context list", "docs", "workflows check"}
    | {"artifacts", "artifacts show", "artifacts delete", "artifacts gc"}
    | {"schedules", *(f"schedules {change}" for change in ("add", "pause", "resume", "remove", "run-now"))}
)
"""Commands that write nothing, remove only, or whose hub writes for itself."""


def list_commands(command: click.Command, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        if path and command.invoke_without_command:
            yield path
        for name in TABLE if not path else command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None, name
            yield from list_commands(found, f"{path} {name}".strip())
    else:
        yield path


def name_of(trial: str) -> str:
    return trial if trial in COMMANDS else trial.rpartition(" ")[0]


COMMANDS = frozenset(list_commands(program))


def test_every_command_is_known_to_write_or_to_read_only() -> None:
    written = {name_of(trial) for trial in (*WRITES, *SERVES)} | ELSEWHERE.keys()
    assert not written & READS
    assert written | READS == COMMANDS


@pytest.mark.parametrize("test", ELSEWHERE.values())
def test_the_tests_of_the_other_commands_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[2] / file).read_text()


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder whose file system can be filled."""

    root: Path
    is_mounted: bool
    token: str

    @property
    def home(self) -> Path:
        return self.root / "home"

    @contextmanager
    def full(self) -> Iterator[None]:
        """No file takes another byte within."""
        if not self.is_mounted:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            return
        filling = self.root / "filling"
        with suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filling.unlink()

    def read(self) -> dict[str, bytes]:
        """The files by path, without databases and locks."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not AUXILIARY.search(path.name)
        }


async def store_runs(home: Path) -> None:
    """A run that waits and one that was cancelled."""
    runs = DurableRuns(
        Interpreter(MemoryCaller()).run,
        url=f"sqlite:///{home}/runs.db",
        nodes=home / "nodes",
        options=DurableOptions(),
    )
    for name in ("waiting", "cancelled"):
        await Orchestrator(runs).start(load_definition(orjson.loads(FLOW)), {}, run_id=name)
    await runs.cancel("cancelled")
    await runs.aclose()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A state with one of everything, written while there was room."""
    root = tmp_path_factory.mktemp("disk")
    with small_file_system(root, "8m") as is_mounted, pytest.MonkeyPatch.context() as patch:
        enter(root, patch)
        (root / "work" / "plan_card.json").write_bytes(orjson.dumps(PLAN_CARD))
        (root / "work" / "agent.py").write_text(AGENT)
        (root / "work" / "flow.yaml").write_bytes(FLOW)
        (root / "work" / "kept.json").write_text("old")
        (root / "work" / ".claude" / "agents").mkdir(parents=True)
        (root / "work" / ".claude" / "agents" / "reader.md").write_text(READER)
        for name, section in koi_sections().items():
            (root / "work" / f"{name}.json").write_bytes(orjson.dumps({name: section}))
        keys = {"keys": [SigningKey.create().public]}
        (root / "work" / "friend.jwks").write_bytes(orjson.dumps(keys))
        for file, text in CONFIGURATIONS.values():
            (root / "user" / file).parent.mkdir(parents=True, exist_ok=True)
            (root / "user" / file).write_text(text)
        run("publish", "plan_card.json")
        run("publish", "plan_card.json", "--tag", "v2")
        run("publish", "flow.yaml")
        run("keys", "trust", "known", "friend.jwks")
        run("context", "add", "team", "http://127.0.0.1:1")
        token = re.search(r'"id": "(\w+)"', run("token", "new", "--name", "ci", "--json"))
        assert token is not None
        state = State(root / "home")
        for name in ("kept", "foreign"):
            write_import(state, name, ImportTable(command="cat", args=["-u"]))
        pins = open_pins(Settings(), state)
        pins.review("foreign", [TOOL])
        pins.review("foreign", [{**TOOL, "description": "Sends it."}])
        asyncio.run(store_runs(root / "home"))
        yield Disk(root, is_mounted, token.group(1))


def koi_sections() -> dict[str, Any]:
    ports = [reserve_port(), reserve_port()]
    urls = [f"http://127.0.0.1:{port}/koi-net" for port in ports]
    return {
        "coordinator": {"name": "registry", "base_url": urls[0], "mcp_registry_port": ports[0]},
        "agent": {"name": "helpful", "version": "1.0", "base_url": urls[1], "mcp_port": ports[1]},
    }


def enter(root: Path, patch: pytest.MonkeyPatch) -> None:
    for name in PLACES:
        patch.delenv(name, raising=False)
    for folder in ("work", "user"):
        (root / folder).mkdir(exist_ok=True)
    patch.chdir(root / "work")
    patch.setenv("HOME", str(root / "user"))
    patch.setenv("RETINUE_HOME", str(root / "home"))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(program, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def disk(prepared: Disk, retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> Disk:
    enter(prepared.root, monkeypatch)
    return prepared


def check_line(disk: Disk, output: str) -> None:
    (line,) = output.splitlines()
    assert line.startswith("error: "), line
    found = re.search(r"no space left for (\S+); nothing was changed", line)
    assert found is not None, line
    assert (disk.root / "work" / found.group(1)).resolve().is_relative_to(disk.root.resolve()), line
    assert "free some space" in line


@pytest.mark.parametrize("trial", WRITES)
def test_a_command_that_finds_no_room_says_so_in_one_line_and_changes_nothing(
    disk: Disk, retinue: Retinue, trial: str
) -> None:
    arguments = [disk.token if one == "TOKEN" else one for one in WRITES[trial]]
    before = disk.read()
    with disk.full():
        result = retinue(*name_of(trial).split(), *arguments)
    assert result.exit_code == 8, result.output
    assert result.stdout == ""
    check_line(disk, result.stderr)
    assert disk.read() == before
    shown = orjson.loads(retinue("runs", "--json").stdout)["runs"]
    assert {one["run"]: one["status"] for one in shown} == {"waiting": "running", "cancelled": "cancelled"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("trial", SERVES)
def test_a_program_that_finds_no_room_ends_with_one_line_and_changes_nothing(disk: Disk, trial: str) -> None:
    before = disk.read()
    command = [sys.executable, "-m", "retinue", *name_of(trial).split(), *SERVES[trial]]
    with disk.full():
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
    assert ended.returncode == 8, ended.stderr
    check_line(disk, ended.stderr)
    assert disk.read() == before
