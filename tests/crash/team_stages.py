"""A team that is upgraded beside the digest that runs, held at each stage, where processes are killed.

A stage before the hub takes over is held by the registry or the index of packages, which do not answer; a
later one by a file that the programs of the new digest look for.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from scripts.environment import find_uv
from scripts.package_settings import read_settings
from tests.ports import reserved_port
from tests.processes.commands import retinue
from tests.processes.freezing import freeze, list_databases
from tests.processes.running import WAIT_S, Program, program, wait_until
from tests.processes.upgrades import Upgrades

BEFORE_THE_HUB = ("fetch", "unpack", "environment")
"""The stages in which the command alone works, and what it has done counts for nothing."""
WEIGHTS = ("5 %", "25 %", "100 %")
STAGES = (*BEFORE_THE_HUB, "start", "answers", "check", *WEIGHTS, "drain")
"""All stages of an upgrade that succeeds. In ``answers`` one of the two programs answers."""

MANY_FILES = 200
"""Files of a digest of which some are unpacked when half of its layer has come."""
LARGE_BYTES = 100_000
"""Only the layer of these files is larger."""
HOLD_S = 1.0

DEFINITION = """
name = "pair"
version = "{version}"
[[agents]]
target = "agents/first/agent.py"
env = {{ KEY = "${{KEY}}" }}
[[agents]]
target = "agents/second/agent.py"
[secrets]
KEY = "key of a service"
[check]
timeout_s = 90
[[check.calls]]
agent = "second-agent"
skill = "wait_for"
arguments = {{ gate = "check" }}
result = "{version}"
"""

FIRST = """
import os
from pathlib import Path

from retinue import Agent, Context

agent = Agent("first-agent", version="{version}")


@agent.skill(read_only=True)
async def ask_both(ctx: Context) -> list[str]:
    "Who answers, and who answers its call."
    if Path({gates!r}, "end-{version}").exists():
        os._exit(1)
    return ["{version}", await ctx.call("tell", agent="second-agent")]
"""

SECOND = """
import asyncio
import time
from pathlib import Path

from retinue import Agent

GATES = Path({gates!r})
while (GATES / "start-{version}").exists():
    time.sleep(0.02)
agent = Agent("second-agent", version="{version}")


@agent.skill(read_only=True)
async def tell() -> str:
    "Who answers."
    return "{version}"


@agent.skill(read_only=True)
async def wait_for(gate: str) -> str:
    "Who answers, when the gate is open."
    (GATES / ("at-" + gate + "-{version}")).touch()
    while (GATES / (gate + "-{version}")).exists():
        await asyncio.sleep(0.02)
    return "{version}"
"""

WORKFLOW = """
name: both
steps:
  - {id: first, skill: tell, agent: second-agent}
  - {id: held, skill: wait_for, agent: second-agent, with: {gate: run}}
  - {id: last, skill: tell, agent: second-agent}
output: ["${{ steps.first.output }}", "${{ steps.held.output }}", "${{ steps.last.output }}"]
"""

PROJECT = '[project]\nname = "first"\nversion = "1.0.0"\ndependencies = ["stage-part=={version}"]\n'


def build_wheel(version: str) -> bytes:
    """A wheel of the distribution ``stage-part`` without code."""
    information = f"stage_part-{version}.dist-info"
    files = {
        "stage_part.py": "",
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: stage-part\nVersion: {version}\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{information}/RECORD"))
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), text)
    return content.getvalue()


@dataclass
class Holder:
    """Lets requests for files wait: ``held`` is set when one does, ``going`` lets it go on."""

    held: threading.Event = field(default_factory=threading.Event)
    going: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.going.set()

    def close(self) -> None:
        self.held.clear()
        self.going.clear()

    def pass_by(self) -> None:
        if not self.going.is_set():
            self.held.set()
            self.going.wait(WAIT_S)


@dataclass
class Network:
    """A registry over the folder ``registry``, and an index of packages, which stop answering when told."""

    registry: Path
    blobs: Holder = field(default_factory=Holder)
    halves: Holder = field(default_factory=Holder)
    """Holds layers of which one half has been sent."""
    wheels: Holder = field(default_factory=Holder)
    url: str = ""

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type and content for a path."""
        parts = path.strip("/").split("/")
        if parts[0] == "simple":
            return 200, "text/html", self._render_index().encode()
        if parts[0] == "wheels":
            self.wheels.pass_by()
            return 200, "application/octet-stream", build_wheel(parts[1].split("-")[1])
        if parts == ["v2"]:
            return 200, "application/json", b"{}"
        repository, kind, name = "/".join(parts[1:-2]), parts[-2], parts[-1]
        folder = self.registry / repository
        index = orjson.loads((folder / "index.json").read_bytes()) if (folder / "index.json").exists() else {}
        if kind == "manifests" and not name.startswith("sha256:"):
            names = {
                row.get("annotations", {}).get("org.opencontainers.image.ref.name"): row
                for row in index.get("manifests", ())
            }
            if name not in names:
                return 404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
            name = names[name]["digest"]
        blob = folder / "blobs" / name.replace(":", "/")
        if kind not in ("manifests", "blobs") or not blob.exists():
            return 404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}'
        content = blob.read_bytes()
        if kind == "blobs" and not content.startswith(b"{"):
            self.blobs.pass_by()
        media_type = "application/octet-stream"
        if kind == "manifests":
            media_type = orjson.loads(content)["mediaType"]
        return 200, media_type, content

    def _render_index(self) -> str:
        rows = []
        for number in range(30):
            version = f"1.{number}.0"
            digest = hashlib.sha256(build_wheel(version)).hexdigest()
            name = f"stage_part-{version}-py3-none-any.whl"
            rows.append(f'<a href="{self.url}/wheels/{name}#sha256={digest}">{name}</a>')
        return f"<!DOCTYPE html><html><body>{''.join(rows)}</body></html>"


@contextmanager
def serving_network(registry: Path) -> Iterator[Network]:
    """A network that answers while inside."""
    network = Network(registry)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, media_type, content = network.answer(self.path.partition("?")[0])
            self.send_response(status)
            self.send_header("content-type", media_type)
            self.send_header("content-length", str(len(content)))
            if "/manifests/" in self.path and status == 200:
                digest = hashlib.sha256(content).hexdigest()
                self.send_header("docker-content-digest", f"sha256:{digest}")
            self.end_headers()
            if self.command == "GET":
                half = len(content) // 2
                self.wfile.write(content[:half])
                if len(content) > LARGE_BYTES and not content.startswith(b"{"):
                    network.halves.pass_by()
                self.wfile.write(content[half:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    network.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield network
    finally:
        for holder in (network.blobs, network.halves, network.wheels):
            holder.going.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Stages(Upgrades):
    """A hub with the team ``pair``, under load; processes are killed at stages of its upgrades.

    ``failures`` has each call that failed while the hub was there from its begin to its end.
    """

    network: Network = field(kw_only=True)
    hub: Program = field(init=False)
    serving: str = ""
    number: int = 0
    held_run: str = ""
    absences: int = 0
    """Odd while no hub answers, or its programs do not yet."""

    @property
    def home(self) -> Path:
        return Path(os.environ["RETINUE_HOME"])

    @property
    def teams(self) -> Path:
        return self.home / "teams"

    @property
    def gates(self) -> Path:
        folder = self.folder / "gates"
        folder.mkdir(exist_ok=True)
        return folder

    def pack_next(self, *, is_locked: bool = False) -> tuple[str, str]:
        """Pack the next version; gives it and its digest. ``is_locked`` gives its first agent a package."""
        self.number += 1
        version = f"1.{self.number}.0"
        team = self.folder / "pair"
        texts = {
            "team.toml": DEFINITION.format(version=version),
            "agents/first/agent.py": FIRST.format(version=version, gates=str(self.gates)),
            "agents/second/agent.py": SECOND.format(version=version, gates=str(self.gates)),
            "workflows/both.yaml": WORKFLOW,
            **{f"agents/second/part{number}.py": f"# {version}\n" for number in range(MANY_FILES)},
        }
        if is_locked:
            texts["agents/first/pyproject.toml"] = PROJECT.format(version=version)
        for path, text in texts.items():
            place = team / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        if not is_locked:
            (team / "agents/first/pyproject.toml").unlink(missing_ok=True)
        before = self._list_environments()
        retinue("lock", "pair", cwd=self.folder, environment=self._installing())
        for place in self._list_environments() - before:
            place.rename(self.folder / f"made by the lock of {version}")
        return version, retinue("pack", "pair", cwd=self.folder)

    def _list_environments(self) -> set[Path]:
        return {*(self.home / "team-environments").glob("venvs/*")}

    def _installing(self) -> dict[str, str]:
        """The variables with which uv installs from the index here, and has nothing in its cache."""
        uv = Path(find_uv(read_settings())).parent
        cache = self.folder / f"cache {self.number} {len(list(self.folder.glob('cache *')))}"
        cache.mkdir()
        return {
            "PATH": f"{uv}{os.pathsep}{os.environ['PATH']}",
            "UV_DEFAULT_INDEX": f"{self.network.url}/simple",
            "UV_CACHE_DIR": str(cache),
            "NO_PROXY": "127.0.0.1",
        }

    def begin(self, digest: str, *, steps: str = "5,25,100", hold_s: float = HOLD_S) -> Program:
        """``retinue up`` from the registry as a process."""
        host = self.network.url.removeprefix("http://")
        reference = f"oci://{host}/teams/pair@{digest}"
        options = ("--yes", "--steps", steps, "--hold", f"{hold_s:g}", "--drain", "60")
        return self.stack.enter_context(
            program(
                *("up", reference, *options),
                cwd=self.folder,
                environment={"KEY": f"value of {digest[7:19]}", **self._installing()},
            )
        )

    async def begin_at(self, stage: str) -> tuple[str, str, Program]:
        """Begin an upgrade to a next version, and wait until it is at a stage."""
        version, digest = await asyncio.to_thread(self.pack_next, is_locked=stage == "environment")
        self.close(stage, version)
        if stage == "drain":
            await self.hold_run()
        up = self.begin(digest)
        await self.wait_for(stage, digest)
        return version, digest, up

    async def begin_failing(self) -> tuple[str, str, Program, asyncio.Task[Any]]:
        """Begin an upgrade to a version of which a program ends, and wait until it goes back.

        The call in flight of that version ends when ``kept`` is opened.
        """
        version, digest = await asyncio.to_thread(self.pack_next)
        self._gate("kept", version).touch()
        up = self.begin(digest, steps="100", hold_s=60.0)
        await asyncio.to_thread(self.wait_for_stage, "serve", 0)
        kept = asyncio.create_task(self._call_kept())
        await asyncio.to_thread(wait_until, (self.gates / f"at-kept-{version}").exists, "the call")
        self._gate("end", version).touch()
        await self.wait_for("back", digest)
        return version, digest, up, kept

    async def _call_kept(self) -> Any:
        async with aiohttp.ClientSession() as session:
            try:
                return await self._execute(session, "wait_for", {"gate": "kept"})
            except aiohttp.ClientError as error:
                return {"error": repr(error)}

    async def try_again(self, version: str, digest: str) -> None:
        """The same ``up`` again, of a version whose program does not end any more."""
        self.open("end", version)
        up = self.begin(digest)
        assert await asyncio.to_thread(up.wait) == 0, up.output
        await self.check_end(version, digest)

    def close(self, stage: str, version: str) -> None:
        """Let an upgrade to a version wait at a stage; weights last for a moment without that."""
        if stage == "fetch":
            self.network.blobs.close()
        elif stage == "unpack":
            self.network.halves.close()
        elif stage == "environment":
            self.network.wheels.close()
        elif stage in ("start", "answers", "check", "drain"):
            self._gate(stage, version).touch()

    def open(self, stage: str, version: str) -> None:
        """Let it go on."""
        if stage == "fetch":
            self.network.blobs.going.set()
        elif stage == "unpack":
            self.network.halves.going.set()
        elif stage == "environment":
            self.network.wheels.going.set()
        else:
            self._gate(stage, version).unlink(missing_ok=True)

    def _gate(self, stage: str, version: str) -> Path:
        # the run that the digest before still has is one of that digest
        names = {"answers": f"start-{version}", "drain": f"run-{self.serving}"}
        return self.gates / names.get(stage, f"{stage}-{version}")

    def is_at(self, stage: str, digest: str) -> bool:
        """Whether an upgrade to a digest is at a stage."""
        if stage == "fetch":
            return self.network.blobs.held.is_set()
        if stage == "unpack":
            return self.network.halves.held.is_set() and any(self.teams.rglob(".incoming-*/**/*.py"))
        if stage == "environment":
            return self.network.wheels.held.is_set()
        rollout = self.read_row()["rollout"]
        if not rollout or rollout["new"] != digest:
            return False
        if stage in WEIGHTS:
            return (rollout["stage"], rollout["step"]) == ("serve", WEIGHTS.index(stage))
        if stage == "answers":
            return rollout["stage"] == "start" and self._count_answering(digest) == 1
        return bool(rollout["stage"] == stage)

    def _count_answering(self, digest: str) -> int:
        children = orjson.loads((self.teams / "children.json").read_bytes())
        beginning = f"pair@{digest[7:19]}/"
        return sum(bool(row.get("url")) for name, row in children.items() if name.startswith(beginning))

    async def wait_for(self, stage: str, digest: str) -> None:
        """Wait until an upgrade to a digest is at a stage."""
        await asyncio.to_thread(wait_until, lambda: self.is_at(stage, digest), f"the stage {stage}")

    async def wait_for_row(self, row: dict[str, Any]) -> None:
        """Wait until the hub has put a row back."""
        await asyncio.to_thread(wait_until, lambda: self.read_row() == row, f"the row {row}")

    async def freeze_hub(self) -> None:
        """Stop all threads of the hub while it holds no lock of a database."""
        self.absences += 1
        await asyncio.to_thread(freeze, self.hub.process.pid, list_databases(self.home))

    async def restart_hub(self) -> None:
        """Kill the hub, and wait until the digest that serves answers on another one."""
        self.absences += 1 - self.absences % 2
        await asyncio.to_thread(self.hub.end, signal.SIGKILL)
        self.hub = await asyncio.to_thread(self.start_hub)
        async with aiohttp.ClientSession() as session, asyncio.timeout(WAIT_S):
            while "result" not in await self._execute(session, "ask_both", {}):
                await asyncio.sleep(0.05)
        self.absences += 1

    async def _call_often(self, session: aiohttp.ClientSession, stop: asyncio.Event, pause_s: float) -> None:
        while not stop.is_set():
            absences, reply = self.absences, {}
            try:
                reply = await self._execute(session, "ask_both", {})
            except (aiohttp.ClientError, ConnectionError) as error:
                reply = {"error": repr(error)}
            if "error" not in reply:
                self.answers.append(reply["result"])
            elif absences == self.absences and not absences % 2:
                self.failures.append(reply["error"])
            await asyncio.sleep(pause_s)

    async def hold_run(self) -> None:
        """Start a run, which waits in the digest that serves for ``open`` of the stage ``drain``."""
        async with aiohttp.ClientSession() as session:
            started = await self._execute(session, "start_run", {"workflow": "both"})
        assert "result" in started, started
        self.held_run = started["result"]["run"]
        marker = self.gates / f"at-run-{self.serving}"
        await asyncio.to_thread(wait_until, marker.exists, "the run waits")

    async def read_run(self) -> Any:
        """The output of the run that was held."""
        async with aiohttp.ClientSession() as session, asyncio.timeout(WAIT_S):
            while True:
                row = (await self._execute(session, "show_run", {"run": self.held_run}))["result"]
                if row["status"] != "running":
                    return row.get("output", row)
                await asyncio.sleep(0.1)

    async def check_end(self, version: str, digest: str) -> None:
        """A digest alone serves and runs, no call has failed, and nothing else is in the state."""
        await asyncio.to_thread(wait_until, self._is_settled, "the end of the rollout")
        await self.wait_for_version(version)
        row = self.read_row()
        assert (row["active"], row["undo"], row["rollout"]) == (digest, None, {})
        await asyncio.to_thread(
            wait_until,
            lambda: self._list_running() == {digest},
            f"{digest} runs alone",
        )
        assert self.list_leftovers() == []
        assert self.failures == []
        assert self.list_mixed() == []
        self.serving = version

    def _is_settled(self) -> bool:
        row = self.read_row()
        return row["undo"] is None and not row["rollout"]

    def _list_running(self) -> set[str]:
        """The digests of which a program lives on this machine, by the folder in which it works."""
        folders = set()
        for link in Path("/proc").glob("[0-9]*/cwd"):
            try:
                place = link.readlink()
            except OSError:  # it has ended
                continue
            if place.is_relative_to(self.teams):
                folders.add(place.relative_to(self.teams).parts[1])
        return {f"sha256:{name}" for name in folders}

    def list_leftovers(self) -> list[str]:
        """What killed processes have left in the state that nothing names."""
        row = self.read_row()
        secrets = {f"secrets-{file}.json" for file in row["secrets"].values()}
        digests = {digest.removeprefix("sha256:") for digest in row["versions"]}
        known = {".lock", "data", *secrets, *digests}
        left = [place for place in (self.teams / "pair").iterdir() if place.name not in known]
        for pattern in ("teams/.*.tmp", "team-environments/*/.making-*", "registry/**/*.tmp"):
            left += self.home.glob(pattern)
        return sorted(str(place.relative_to(self.home)) for place in left)


@asynccontextmanager
async def opened_stages(folder: Path) -> AsyncIterator[Stages]:
    """A hub on which a first version serves, with calls that go on while inside."""
    with ExitStack() as stack:
        registry = Path(os.environ["RETINUE_HOME"]) / "registry"
        network = stack.enter_context(serving_network(registry))
        stages = Stages(folder, stack, stack.enter_context(reserved_port()), network=network)
        version, digest = await asyncio.to_thread(stages.pack_next)
        stages.hub = await asyncio.to_thread(stages.start_hub)
        up = stages.begin(digest)
        assert await asyncio.to_thread(up.wait) == 0, up.output
        stages.serving = version
        async with stages.loaded(workers=2, pause_s=0.02):
            yield stages
        assert "Traceback" not in stages.hub.output
