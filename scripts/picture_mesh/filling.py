"""Starts the mesh of the pictures, and fills it with calls, runs and schedules through its hub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retinue.runtime.imports.files import write_import
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from scripts.npm_packages import NODE, install
from scripts.picture_mesh.agents import AGENT, AGENTS, DEAD, WORKFLOWS
from scripts.picture_mesh.servers import SERVERS

ROOT = Path(__file__).resolve().parents[2]
NPM_FOLDER = ROOT / ".tools" / "imported_servers"
START_S = 60.0
CALLERS = ("claude-desktop", "ci-nightly", "ada")
RUNS = 300
ENDLESS = "reindex-documents"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Mesh:
    """The hub of the pictures; ``tokens`` are those of its callers by name."""

    url: str
    token: str
    tokens: Mapping[str, str]
    state: State

    def call(self, skill: str, arguments: Mapping[str, Any], caller: str = "") -> Any:
        """The result of a call, or its error."""
        body = json.dumps({"jsonrpc": "2.0", "method": skill, "params": arguments, "id": "1"}).encode()
        token = self.tokens.get(caller, self.token)
        headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self.url}/execute", body, headers)
        with urllib.request.urlopen(request) as reply:
            document = json.load(reply)
        return document.get("result", document.get("error"))

    def start_run(self, workflow: str, run_input: Json, caller: str = "") -> str:
        """Start a run; returns its id."""
        return str(self.call("start_run", {"workflow": workflow, "input": run_input}, caller)["run"])

    def is_waiting(self, run: str) -> bool:
        return any(step.get("status") == "waiting" for step in self.call("show_run", {"run": run})["steps"])

    def is_ended(self, run: str) -> bool:
        return bool(self.call("show_run", {"run": run})["status"] != "running")


@contextmanager
def open_mesh(folder: Path) -> Iterator[Mesh]:
    """A hub with nine imports and five agents, one of each unavailable, while inside."""
    state = State(folder / "state")
    _write_workflows(state)
    for name, table in _make_imports(folder).items():
        write_import(state, name, table)
    with ExitStack() as stack:
        line = stack.enter_context(start("hub", "--bare", "--port", "0", folder=folder, says="hub at"))
        url = re.findall(r"http://[0-9.]+:\d+", line)[0]
        for name, (version, description, skills) in AGENTS.items():
            file = folder / f"{name}.py"
            file.write_text(AGENT.format(name=name, version=version, description=description, skills=skills))
            serve = start("serve", str(file), folder=folder, says="published", is_killed=True)
            if name == DEAD:
                with serve:
                    pass
            else:
                stack.enter_context(serve)
        issued = {name: TokenFile(state.keys).issue(("mesh",), name=name)[1] for name in CALLERS}
        mesh = Mesh(url, state.local_token(), issued, state)
        names = {"everything", "files", "memory", "thinking", *SERVERS}
        wait_for(lambda: {*_list_available(mesh)} >= names, "its imports run")
        yield mesh


def _list_available(mesh: Mesh) -> list[str]:
    rows = mesh.call("list_agents", {"limit": 100, "detailed": True})["agents"]
    return [row["name"] for row in rows if row["health"] == "available"]


def _write_workflows(state: State, change: tuple[str, str] = ("", "")) -> None:
    folder = state.root / "workflows"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in WORKFLOWS.items():
        (folder / f"{name}.yaml").write_text(text.replace(*change) if change[0] else text)


def _make_imports(folder: Path) -> dict[str, ImportTable]:
    """Four servers of others from npm, four of the official SDK, and one without the key that it needs."""
    install(ROOT / "tests" / "interop" / "npm", NPM_FOLDER)
    (folder / "notes").mkdir()
    memory = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    tables = {
        "everything": _import_table(_npm_server("everything", "stdio")),
        "files": _import_table(_npm_server("filesystem", str(folder / "notes"))),
        "memory": _import_table(_npm_server("memory"), env=memory),
        "thinking": _import_table(_npm_server("sequential-thinking")),
        "sentry": _import_table(_npm_server("everything", "stdio"), env={"TOKEN": "${SENTRY_ACCESS_TOKEN}"}),
    }
    for name in SERVERS:
        tables[name] = _import_table(
            (sys.executable, "-m", "scripts.picture_mesh.servers", name), folder=ROOT
        )
    # tells of other tools once the file exists
    changing = (str(ROOT / "tests" / "interop" / "faulty.py"), "change", str(folder / "changed"), "--")
    tables["thinking"] = _import_table((sys.executable, *changing, *_npm_server("sequential-thinking")))
    return tables


def _npm_server(name: str, *arguments: str) -> tuple[str, ...]:
    path = NPM_FOLDER / "node_modules" / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    return (str(NODE / "node"), str(path), *arguments)


def _import_table(command: Sequence[str], **more: Any) -> ImportTable:
    return ImportTable.model_validate({"command": command[0], "args": command[1:], **more})


@contextmanager
def start(*arguments: str, folder: Path, says: str, is_killed: bool = False) -> Iterator[str]:
    """A ``retinue`` command that runs while inside; gives the line with ``says``.

    One that ``is_killed`` cannot withdraw its card, and does not wait for its calls.
    """
    log = folder / f"{'-'.join(Path(word).name for word in arguments[:2])}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=folder,
            env={**os.environ, "RETINUE_HOME": str(folder / "state"), "NO_COLOR": "1"},
            stdout=output,
            stderr=output,
        )
    try:
        wait_for(lambda: says in log.read_text() or process.poll() is not None, f"{arguments}")
        text = log.read_text()
        if says not in text:
            raise SystemExit(text)
        yield next(line for line in text.splitlines() if says in line)
    finally:
        process.kill() if is_killed else process.terminate()
        process.wait(timeout=START_S)


@dataclass(frozen=True, slots=True)
class Shown:
    """The runs that have pictures of their own, by what they show."""

    waiting: str
    done: str
    failed: str
    wide: str
    image: str


def fill(mesh: Mesh, folder: Path) -> Shown:
    """Make calls, `RUNS` runs and four schedules; one import changes a tool."""
    _add_schedules(mesh)
    shown = _make_runs(mesh)
    _make_calls(mesh)
    (folder / "changed").touch()
    _write_workflows(mesh.state, ("description: Convert one price", "description: Convert two prices"))
    wait_for(
        lambda: any(row.get("waiting") for row in mesh.call("list_imports", {})["imports"]), "a tool changes"
    )
    return shown


def _add_schedules(mesh: Mesh) -> None:
    for workflow in ("nightly-report", "release-notes", ENDLESS):
        mesh.call("add_schedule", {"workflow": workflow})
    hourly = {"cron": "5 * * * *", "input": {"amount": 3, "to": "EUR"}}
    mesh.call(
        "add_schedule",
        {"workflow": "convert-prices", "name": "hourly-prices-of-the-shop", "schedule": hourly},
    )
    mesh.call("change_schedule", {"schedule": ENDLESS, "change": "pause"})


def _make_runs(mesh: Mesh) -> Shown:
    prices = [{"amount": number, "to": "XXX" if number % 17 == 5 else "EUR"} for number in range(60)]
    plan: list[tuple[str, Json]] = [("convert-catalogue", {"prices": prices})]
    plan += [("convert-prices", {"amount": 12.5, "to": "XXX"})] * 18
    plan += [("convert-prices", {"amount": number, "to": "EUR"}) for number in range(RUNS - 50)]
    plan += [("nightly-report", {})] * 12
    with ThreadPoolExecutor(4) as pool:
        begun = list(
            pool.map(lambda row: mesh.start_run(row[1][0], row[1][1], CALLERS[row[0] % 3]), enumerate(plan))
        )
        wait_for(lambda: all(pool.map(mesh.is_ended, begun[:40] + begun[-40:])), "its runs end", limit_s=300)
    purposes = (
        "Train to Bern",
        "A chair",
        "A course",
        "Two monitors",
        "A dinner",
        "Books",
        "Taxi",
        "Hotel",
        "Phone",
    )
    expenses = [
        mesh.start_run("expense", {"amount": 40.0 * number + 80, "purpose": purpose}, "ada")
        for number, purpose in enumerate((*purposes, "A table", "A lamp", "Paper"))
    ]
    notes = [mesh.start_run("release-notes", {}, "ci-nightly") for _ in range(4)]
    for _ in range(3):
        mesh.start_run(ENDLESS, {}, "ci-nightly")
    wait_for(lambda: all(map(mesh.is_waiting, expenses + notes)), "its runs wait", limit_s=300)
    for run in expenses[:3]:
        mesh.call("signal_run", {"run": run, "topic": "approval", "value": True}, "ada")
    for run in expenses[3:6]:
        mesh.call("cancel_run", {"run": run}, "ada")
    wait_for(lambda: all(map(mesh.is_ended, expenses[:6])), "its runs end")
    return Shown(waiting=notes[-1], done=expenses[0], failed=begun[1], wide=begun[0], image=begun[-1])


def _make_calls(mesh: Mesh) -> None:
    shop = {"owner": "acme", "repo": "shop-frontend"}
    for number in range(30):
        caller = CALLERS[number % 3]
        mesh.call("check_budget", {"amount": 40.0 * number}, caller)
        mesh.call("convert_amount", {"amount": 12.5, "to": "XXX" if number % 9 == 4 else "EUR"}, caller)
        mesh.call("list_pull_requests", shop, "claude-desktop")
        mesh.call("execute_sql", {"sql": "syntax" if number % 7 == 3 else "SELECT 1"}, caller)
        mesh.call("conversations_history", {"channel_id": "C024BE91L"}, "claude-desktop")
        mesh.call("notify_person", {"name": "Ada", "text": "Your expense waits"}, caller)
        if number % 5 == 2:
            mesh.call("pull_request_review_write", {**shop, "pull_number": 71, "body": "forbidden"}, caller)
            mesh.call("get_file_contents", {**shop, "path": "missing"}, caller)
    mesh.call("keep_receipt", {"number": "R-1"}, "ada")
    mesh.call("issue_read", {"owner": "acme"}, "claude-desktop")


def wait_for(condition: Callable[[], bool], text: str, limit_s: float = START_S) -> None:
    """Return when the condition holds; raises SystemExit after ``limit_s`` seconds."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"the mesh did not come to what the pictures show: {text}")
        time.sleep(0.1)
