"""A team of two agents on a hub that is upgraded under load: calls, runs, and what answered them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.processes.commands import retinue
from tests.processes.running import WAIT_S, Program, program, wait_until

IMPORT = """
[imports.told]
openapi = "documents/told.json"
"""

SCHEDULE = """
[[schedules]]
workflow = "both"
every = "{every}"
missed = "all"
overlap = "queue"
"""

DEFINITION = """
name = "pair"
version = "{version}"
[[agents]]
target = "agents/first/agent.py"
env = {{ KEY = "${{KEY}}" }}
[[agents]]
target = "agents/second/agent.py"
env = {{ KEY = "${{KEY}}" }}
[secrets]
KEY = "key of a service"
[[check.calls]]
agent = "second-agent"
skill = "tell"
result = "{checked}"
"""

FIRST = """
import asyncio
import os

from retinue import Agent, Context

agent = Agent("first-agent", version="{version}")
death = {death!r}


@agent.skill(read_only=True)
async def ask_both(ctx: Context) -> list[str]:
    "Who answers, and who answers its call."
    if death and os.path.exists(death):
        os._exit(1)
    await asyncio.sleep({pause_s})
    other = await ctx.call("tell", agent="second-agent")
    if not {has_import}:
        return ["{version}", other]
    told = await ctx.call("show", agent="told")
    return ["{version}", other, told["version"]]
"""

SECOND = """
import asyncio
import os

from retinue import Agent

agent = Agent("second-agent", version="{version}")


@agent.skill(read_only=True)
async def tell() -> str:
    "Who answers."
    return "{version}"


@agent.skill(read_only=True, timeout_s=600)
async def hold(gate: str) -> list[str]:
    "Who answers, and in which process, when the file is gone."
    while os.path.exists(gate):
        await asyncio.sleep(0.02)
    return ["{version}", str(os.getpid())]


@agent.skill(read_only=True)
async def tell_key() -> str:
    "The secret that this program has."
    return os.environ["KEY"]
"""

WORKFLOW = """
name: both
steps:
  - {{id: first, skill: tell, agent: second-agent}}
  - {{id: pause, wait: {pause}}}
  - {{id: second, skill: ask_both, agent: first-agent}}
output: ["{version}", "${{{{ steps.first.output }}}}", "${{{{ steps.second.output }}}}"]
"""


HELD = """
name: held
steps:
  - {{id: before, skill: hold, agent: second-agent, with: {{gate: /nowhere}}}}
  - {{id: during, skill: hold, agent: second-agent, with: {{gate: "{gate}"}}}}
  - {{id: after, skill: ask_both, agent: first-agent}}
output: ["${{{{ steps.before.output }}}}", "${{{{ steps.during.output }}}}", "${{{{ steps.after.output }}}}"]
"""


def render_document(url: str) -> str:
    """The OpenAPI document of an API at ``url``, whose operation ``show`` gives the end of that."""
    shown = {"description": "the version", "content": {"application/json": {"schema": {"type": "object"}}}}
    paths = {"/version": {"get": {"operationId": "show", "responses": {"200": shown}}}}
    info = {"title": "told", "version": "1.0.0"}
    document = {"openapi": "3.1.0", "info": info, "servers": [{"url": url}], "paths": paths}
    return orjson.dumps(document).decode()


class _Versions(BaseHTTPRequestHandler):
    """Answers ``/VERSION/version`` with the version."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = orjson.dumps({"version": self.path.split("/")[1]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving_versions() -> Iterator[str]:
    """The URL of an API for the imports of teams."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Versions)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


WORKERS = 4
"""How many calls are in flight at once."""


@dataclass
class Upgrades:
    """A hub with the team ``pair``; ``answers`` are what calls gave, ``failures`` their errors.

    With the URL ``api`` the team has an import, which its first agent calls, too. With ``every`` its workflow
    starts by itself.
    """

    folder: Path
    stack: ExitStack
    port: int
    api: str = ""
    every: str = ""
    secrets: int = 0
    answers: list[list[Any]] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)
    runs: list[Any] = field(default_factory=list)

    @property
    def gate(self) -> Path:
        """The file that holds the runs of the workflow ``held``."""
        return self.folder / "gate"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_hub(self, *options: str) -> Program:
        hub = self.stack.enter_context(
            program("hub", "--bare", "--port", str(self.port), *options, cwd=self.folder)
        )
        hub.wait_for("hub at")
        return hub

    def pack(self, version: str, *, checked: str = "", pause_s: float = 0.0, death: str = "") -> str:
        """Pack a version; its first agent ends when it is called while the file ``death`` is there."""
        files = {
            "team.toml": DEFINITION.format(version=version, checked=checked or version),
            "agents/first/agent.py": FIRST.format(
                version=version, pause_s=pause_s, death=death, has_import=bool(self.api)
            ),
            "agents/second/agent.py": SECOND.format(version=version),
            "workflows/both.yaml": WORKFLOW.format(version=version, pause="300ms"),
            "workflows/held.yaml": HELD.format(gate=self.gate),
        }
        if self.every:
            files["team.toml"] += SCHEDULE.format(every=self.every)
        if self.api:
            files["team.toml"] += IMPORT
            files["documents/told.json"] = render_document(f"{self.api}/{version}")
        for path, text in files.items():
            place = self.folder / "pair" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        retinue("lock", "pair", cwd=self.folder)
        return retinue("pack", "pair", cwd=self.folder)

    def begin_up(self, digest: str, *options: str, key: str = "") -> Program:
        """``retinue up`` as a process that goes on meanwhile; its secret is ``key`` or a new value."""
        self.secrets += 1
        environment = {"KEY": key or f"value {self.secrets}"}
        return self.stack.enter_context(
            program("up", digest, "--yes", *options, cwd=self.folder, environment=environment)
        )

    def read_row(self) -> dict[str, Any]:
        """The row of the team as its state has it."""
        path = Path(os.environ["RETINUE_HOME"]) / "teams" / "teams.json"
        rows: dict[str, dict[str, Any]] = orjson.loads(path.read_bytes())
        return rows["pair"]

    def wait_for_stage(self, stage: str, step: int = 0) -> None:
        def is_there() -> bool:
            rollout = self.read_row()["rollout"]
            return bool(rollout) and (rollout["stage"], rollout["step"]) == (stage, step)

        wait_until(is_there, f"the stage {stage} {step}")

    @asynccontextmanager
    async def loaded(self, *, workers: int = WORKERS, pause_s: float = 0.01) -> AsyncIterator[None]:
        """Calls go on while inside."""
        stop = asyncio.Event()
        limit = aiohttp.ClientTimeout(total=WAIT_S)
        async with aiohttp.ClientSession(timeout=limit) as session, asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._call_often(session, stop, pause_s))
            try:
                yield
            finally:
                stop.set()

    async def _call_often(self, session: aiohttp.ClientSession, stop: asyncio.Event, pause_s: float) -> None:
        while not stop.is_set():
            reply = await self._execute(session, "ask_both", {})
            if "error" in reply:
                self.failures.append(reply["error"])
            else:
                self.answers.append(reply["result"])
            await asyncio.sleep(pause_s)

    async def read_key(self) -> str:
        """The value of the secret in the program that answers."""
        async with aiohttp.ClientSession() as session:
            reply = await self._execute(session, "tell_key", {})
        assert "error" not in reply, reply
        return str(reply["result"])

    def begin_back(self, *options: str, key: str) -> Program:
        """``retinue up --back`` as a process that goes on meanwhile."""
        arguments = ("up", "--back", "pair", *options)
        return self.stack.enter_context(program(*arguments, cwd=self.folder, environment={"KEY": key}))

    async def run_both(self, session: aiohttp.ClientSession, workflow: str = "both") -> None:
        """One run of a workflow; its three parts say which version they are of."""
        started = await self._execute(session, "start_run", {"workflow": workflow})
        run = started["result"]["run"]
        for _ in range(600):
            row = (await self._execute(session, "show_run", {"run": run}))["result"]
            if row["status"] != "running":
                self.runs.append(row.get("output", row.get("error")))
                return
            await asyncio.sleep(0.1)
        self.runs.append("it did not end")

    @property
    def _own_headers(self) -> dict[str, str]:
        """Those of the owner of the state, whose schedules others do not see."""
        token = Path(os.environ["RETINUE_HOME"]) / "keys" / "local.token"
        return {"authorization": f"Bearer {token.read_text().strip()}"}

    async def read_schedule(self) -> dict[str, Any]:
        """The schedule of the team."""
        async with aiohttp.ClientSession(headers=self._own_headers) as session:
            (row,) = (await self._execute(session, "list_schedules", {}))["result"]["schedules"]
        return dict(row)

    async def list_outputs(self) -> dict[str, Any]:
        """What each run of the schedule gave, by its time; the status of one that is not done."""
        async with aiohttp.ClientSession(headers=self._own_headers) as session:
            listed = await self._execute(session, "list_runs", {"limit": 1000})
            rows = {}
            for row in listed["result"]["runs"]:
                shown = (await self._execute(session, "show_run", {"run": row["run"]}))["result"]
                rows[row["run"].partition(":")[2]] = shown.get("output", shown["status"])
        return rows

    async def _execute(self, session: aiohttp.ClientSession, method: str, params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "method": method, "params": params, "id": "1"}
        async with session.post(f"{self.url}/execute", json=body) as reply:
            answer: dict[str, Any] = await reply.json()
            return answer

    def count(self, version: str) -> int:
        """The calls that a version answered."""
        return sum(answer[0] == version for answer in self.answers)

    async def wait_for_version(self, version: str) -> None:
        """Wait until a version answers each call; those in flight now may still have another answer."""
        first = len(self.answers)

        def answers_all() -> bool:
            latest = self.answers[first:][-10 * WORKERS :]
            return len(latest) == 10 * WORKERS and all({*answer} == {version} for answer in latest)

        await asyncio.to_thread(wait_until, answers_all, f"each answer is of {version}")

    def list_mixed(self) -> list[list[Any]]:
        """The chains of calls that two versions answered."""
        return [answer for answer in self.answers if len({*answer}) > 1]
