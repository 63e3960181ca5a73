"""The demo: a hub and three agents in processes of their own, and a real job through all of them.

Everything lives in a state folder of its own, so that neither a running hub nor the user's state is
touched, and everything that was started is stopped again, however the demo ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from retinue.apps.agent import Say
from retinue.apps.children import ChildSpec, Ready, Supervisor
from retinue.apps.client import Client, open_client
from retinue.apps.following import Follower
from retinue.apps.hub import SHIPPED_AGENTS
from retinue.apps.serving import Stop, check_loopback
from retinue.core.errors import ChildFailedError, ExecutionFailedError
from retinue.drivers.files import replace_file, storage_errors
from retinue.drivers.http import HttpClient
from retinue.drivers.probes import answers
from retinue.drivers.state import HUB_VARIABLE, State
from retinue.settings import load_settings

_PREFIX = "retinue-demo-"
_LOCK = "demo.lock"
_YOUNG_S = 60.0

WORKFLOW = "plan-build-test"
HUB_PORT = 9000


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the demo works on; ``module`` is an importable name or a path, ``folder`` takes the tests."""

    module: str = "textwrap"
    python: str | None = None
    keep: bool = False
    folder: Path = Path("retinue-demo")


async def run_demo(options: DemoOptions, say: Say) -> int:
    """Run the job and stop everything; returns the exit code (130 after Ctrl-C)."""
    stop = Stop()
    stop.on_signals()
    job = asyncio.create_task(_run_job(options, stop, say))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({job, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not job.done():
        say("stopping what was started …")
        job.cancel()
    stopping.cancel()
    outcome, _ = await asyncio.gather(job, stopping, return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        return 130
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _run_job(options: DemoOptions, stop: Stop, say: Say) -> int:
    async with AsyncExitStack() as stack:
        check_loopback()
        home = stack.enter_context(_own_folder(Path(tempfile.gettempdir())))
        client = await stack.enter_async_context(_team(home, say))
        say("")
        say(f"Writing tests for {options.module}: plan, then rounds of build and test, each found by skill")
        given = {"requirements": options.module}
        if options.python is not None:
            given["python"] = options.python
        output = await Follower(client, say).run(WORKFLOW, given)
        say("")
        for line in str(output["review"]).splitlines():
            say(f"  {line}")
        file = _save(options.folder, output)
        say("")
        say(f"The tests: {file}")
        _say_next(options, file, say)
        if options.keep:
            say("")
            say(
                f"The hub stays at {client.hub_url} until Ctrl-C; use it with {HUB_VARIABLE}={client.hub_url}"
            )
            await stop.wait()
    return 0


@contextmanager
def _own_folder(place: Path) -> Iterator[Path]:
    """A state folder for this demo alone, gone afterwards; takes those of killed demos away first.

    Whoever holds the lock in such a folder lives. Young ones are spared: theirs may not be locked yet.
    """
    for leftover in place.glob(f"{_PREFIX}*"):
        with suppress(OSError, Timeout):
            found = leftover.lstat()
            young = time.time() - found.st_mtime < _YOUNG_S
            if young or found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                continue
            if (leftover / _LOCK).is_file():
                with FileLock(leftover / _LOCK, timeout=0):
                    shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with FileLock(home / _LOCK):
            yield home


@asynccontextmanager
async def _team(home: Path, say: Say) -> AsyncIterator[Client]:
    """A hub with the shipped agents, as child processes; a client of it."""
    state = State(home)
    settings = load_settings()
    async with HttpClient() as http:

        async def probe(ready: Ready) -> bool:
            return await answers(http, str(ready["url"]), timeout_s=settings.timeouts.probe_s) is None

        supervisor = Supervisor(probe)
        arguments = ("hub", "--port", str(HUB_PORT), "--port-may-move")
        hub = ChildSpec("hub", arguments, {"RETINUE_HOME": str(home), HUB_VARIABLE: ""}, ready_within_s=60.0)
        try:
            say("Starting the hub and its agents …")
            (ready,) = await supervisor.start([hub], insist=True)
            url = str(ready["url"])
            async with open_client(settings, state, hub_url=url) as client:
                await _introduce(client, url, say)
                yield client
        finally:
            await supervisor.stop()
            say("Everything that was started has been stopped.")


async def _introduce(client: Client, url: str, say: Say) -> None:
    say(f"  {'hub':<12} {url}{_moved(url, HUB_PORT)}")
    rows: list[Mapping[str, Any]] = (await client.get("list_agents"))["agents"]
    ports = {name: port for name, _, port in SHIPPED_AGENTS}
    if missing := ports.keys() - {str(row["name"]) for row in rows}:
        raise ChildFailedError(", ".join(sorted(missing)), "it is not among the agents of the hub")
    for row in rows:
        name, at = str(row["name"]), str(row["url"])
        say(f"  {name:<12} {at}{_moved(at, ports.get(name))}  {', '.join(row['skills'])}")


def _moved(url: str, wanted: int | None) -> str:
    taken = wanted is not None and urlsplit(url).port != wanted
    return f" (port {wanted} is taken)" if taken else ""


def _save(folder: Path, output: Mapping[str, Any]) -> Path:
    """Keep the generated tests beside the user's work."""
    code = output.get("code")
    if not isinstance(code, str) or not code.strip():
        raise ExecutionFailedError("the build agent gave no tests")
    path = folder / Path(str(output["file_name"])).name
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, code.encode())
    return path


def _say_next(options: DemoOptions, file: Path, say: Say) -> None:
    command = _command()
    other = "shlex" if options.module != "shlex" else "textwrap"
    say("Try next:")
    say(f"  {_pytest()} {file}")
    say(f"  {command} demo {other}")
    say(f"  {command} new my-agent")


def _command() -> str:
    """How this program was called, as it can be typed again here."""
    called = Path(sys.argv[0])
    found = shutil.which("retinue")
    if found is not None and Path(found).resolve() == called.resolve():
        return "retinue"
    if called.name == "retinue":
        return os.path.relpath(called)
    return f"{os.path.relpath(sys.executable)} -m retinue"


def _pytest() -> str:
    beside = Path(sys.executable).with_name("pytest")
    return os.path.relpath(beside) if beside.exists() else f"{os.path.relpath(sys.executable)} -m pytest"
