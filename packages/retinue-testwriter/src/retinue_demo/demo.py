"""``retinue demo``: starts a hub and three agents as processes and runs a job through all of them.

The demo has its own state folder, so it affects neither a running hub nor the user's state. All processes are
stopped when the demo ends, for whatever reason.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from filelock import FileLock, Timeout

from retinue.cli.output import command_line, module_command
from retinue.cli.session import open_session
from retinue.client.mesh_client import MeshClient
from retinue.core.errors import ChildFailedError, ExecutionFailedError, InvalidSettingError, StateError
from retinue.parts.process import Echo
from retinue.plugins import AGENTS, list_plugins
from retinue.rpc.probe import answers
from retinue.runtime.commands.client import RunFollower, open_client
from retinue.runtime.serving import Stop, check_loopback, run_loop
from retinue.runtime.supervisor import ChildSpec, Ready, Supervisor
from retinue.settings import load_settings
from retinue.storage.files import check_room, replace_file, storage_errors
from retinue.storage.state import HUB_VARIABLE, State
from retinue.web.http_client import HttpClient
from retinue_testwriter.inspection import inspect_text

_PREFIX = "retinue-demo-"
_LOCK = "demo.lock"
_YOUNG_S = 60.0

WORKFLOW = "plan-build-test"
_STEPS = {
    "plan": ("create_plan", "planning"),
    "build": ("generate_code", "execution"),
    "check": ("review_code", "review"),
}
"""The steps of the workflow, each with its skill and the score that counts for it."""

HUB_PORT = 9000


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """``module`` is an importable name or a path; the tests are written to ``folder``."""

    module: str = "textwrap"
    python: str | None = None
    model: str | None = None
    keep: bool = False
    folder: Path = Path("retinue-demo")


@click.command()
@click.argument("module", default="textwrap")
@click.option(
    "--python",
    metavar="EXE",
    help="Python interpreter that has the module and runs its tests; default: this one.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="Language model that takes part: claude, gemini, or one of retinue.toml. It takes the steps "
    "for which it has the highest score.",
)
@click.option("--keep", is_flag=True, help="Keep the hub and its agents running until Ctrl-C.")
@click.option(
    "--team",
    "team_folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Write the three agents as the folder of a team instead, for retinue lock and pack.",
)
def demo(module: str, python: str | None, model: str | None, keep: bool, team_folder: Path | None) -> int:
    """Let three agents write tests for a Python module.

    MODULE is an importable name or a path. Starts a hub and three agents (plan, build, test) as processes,
    which write and review tests in rounds, and stops them at the end. Nothing leaves this machine
    unless a model takes part.
    """
    open_session()
    if team_folder is not None:
        return _create_team(team_folder)
    options = DemoOptions(module=module, python=python, model=model, keep=keep)
    return run_loop(lambda: run_demo(options, click.echo))


def _create_team(folder: Path) -> int:
    from retinue_demo.team_folder import WORKFLOW, write_team_folder

    count = len(write_team_folder(folder))
    click.echo(f"Created {folder}/ with team.toml, three agents and a workflow, {count} files. Try:")
    program = command_line()
    for line in (f"lock {folder}", f"pack {folder}", "up testwriter"):
        click.echo(f"  {program} {line}")
    click.echo(f"""  {program} run {WORKFLOW} '{{"requirements": "textwrap"}}'""")
    return 0


async def run_demo(options: DemoOptions, echo: Echo) -> int:
    """Run the job and stop everything; returns the exit code (130 after Ctrl-C)."""
    stop = Stop()
    stop.on_signals()
    job = asyncio.create_task(_run_job(options, stop, echo))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({job, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not job.done():
        echo("stopping the hub and its agents …")
        job.cancel()
    stopping.cancel()
    outcome, _ = await asyncio.gather(job, stopping, return_exceptions=True)
    if isinstance(outcome, asyncio.CancelledError):
        return 130
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _temporary_folder() -> Path:
    """Where temporary files go. Raises StateError if they can go nowhere."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        folder = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - named in the error only
        with storage_errors(folder):
            check_room(folder)
        raise StateError(str(error), remedy="set TMPDIR to a folder that can be written") from error


async def _run_job(options: DemoOptions, stop: Stop, echo: Echo) -> int:
    async with AsyncExitStack() as stack:
        check_loopback()
        temporary = _temporary_folder()
        await _check_module(options)
        home = stack.enter_context(own_folder(temporary))
        client = await stack.enter_async_context(_team(home, options.model, echo))
        echo("")
        echo(f"Writing tests for {options.module}: plan, then rounds of build and test, each found by skill")
        run_input = {"requirements": options.module}
        if options.python is not None:
            run_input["python"] = options.python
        overrides = None if options.model is None else {"agents": await _model_steps(client, options.model)}
        output = await RunFollower(client, echo).run(WORKFLOW, run_input, overrides=overrides)
        echo("")
        for line in str(output["review"]).splitlines():
            echo(f"  {line}")
        file = _save(options, output)
        echo("")
        echo(f"The tests: {file}")
        _echo_next(options, file, echo)
        if options.keep:
            echo("")
            echo(
                f"The hub stays at {client.hub_url} until Ctrl-C; use it with {HUB_VARIABLE}={client.hub_url}"
            )
            await stop.wait()
    return 0


async def _check_module(options: DemoOptions) -> None:
    """Find the module before anything is started; raises InvalidSettingError."""
    try:
        await inspect_text(options.module, options.python or "")
    except ExecutionFailedError as error:
        raise InvalidSettingError(
            "MODULE",
            error.message,
            remedy="name an importable module or a .py file; another interpreter: --python EXE",
        ) from error


@contextmanager
def own_folder(place: Path) -> Iterator[Path]:
    """Create a temporary state folder; first remove those of demos that were killed.

    A demo that still runs holds the lock in its folder. Folders younger than a minute are kept, because they
    may not be locked yet.
    """
    for leftover in place.glob(f"{_PREFIX}*"):
        with suppress(OSError, Timeout):
            entry = leftover.lstat()
            young = time.time() - entry.st_mtime < _YOUNG_S
            if young or entry.st_uid != os.getuid() or not stat.S_ISDIR(entry.st_mode):
                continue
            if (leftover / _LOCK).is_file():
                with FileLock(leftover / _LOCK, timeout=0):
                    shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        with FileLock(home / _LOCK):
            yield home


@asynccontextmanager
async def _team(home: Path, model: str | None, echo: Echo) -> AsyncIterator[MeshClient]:
    """Start a hub with its agents as child processes; yields a client of the hub."""
    state = State(home)
    settings = load_settings()
    async with HttpClient() as http:

        async def probe(ready: Ready) -> bool:
            return await answers(http, str(ready["url"]), timeout_s=settings.timeouts.probe_s) is None

        supervisor = Supervisor(probe)
        arguments = ("hub", "--port", str(HUB_PORT), "--port-may-move")
        environment = {
            **os.environ,
            "RETINUE_HOME": str(home),
            HUB_VARIABLE: "",
            "RETINUE_HUB__MODELS": json.dumps([model] if model else []),
        }
        hub = ChildSpec("hub", arguments, environment)
        try:
            echo("Starting the hub and its agents …")
            (ready,) = await supervisor.start([hub], insist=True)
            url = str(ready["url"])
            async with open_client(settings, state, hub_url=url) as client:
                await _introduce(client, url, model, echo)
                yield client
        finally:
            await supervisor.stop()
            echo("The hub and its agents have stopped.")


async def _introduce(client: MeshClient, url: str, model: str | None, echo: Echo) -> None:
    echo(f"  {'hub':<12} {url}{_moved(url, HUB_PORT)}")
    rows = await _list_agents(client)
    ours = [plugin for plugin in list_plugins(AGENTS) if plugin.target.startswith(f"{__package__}.")]
    ports = {plugin.name: int(plugin.qualifier) for plugin in ours}
    if missing := ports.keys() - {str(row["name"]) for row in rows}:
        raise ChildFailedError(", ".join(sorted(missing)), "it is not among the agents of the hub")
    for row in rows:
        if row["name"] == model and row["status"] == "unavailable":
            raise ChildFailedError(str(model), str(row.get("reason", "it did not start")))
    for row in rows:
        name, at = str(row["name"]), str(row["url"])
        echo(f"  {name:<12} {at}{_moved(at, ports.get(name))}  {', '.join(row['skills'])}")


async def _list_agents(client: MeshClient) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = (await client.get("list_agents", {"detailed": True}))["agents"]
    return rows


async def _model_steps(client: MeshClient, model: str) -> dict[str, str]:
    """The steps for which the model has the highest score, each with its name.

    They name it, because a call that names no agent prefers agents that were made for the skill.
    """
    rows = await _list_agents(client)

    def score(row: Mapping[str, Any], capability: str) -> float:
        return float(row.get("capabilities", {}).get(capability) or 0.0)

    steps: dict[str, str] = {}
    for step, (skill, capability) in _STEPS.items():
        scores = {str(row["name"]): score(row, capability) for row in rows if skill in row["skills"]}
        own = scores.pop(model, 0.0)
        if own > max(scores.values(), default=0.0):
            steps[step] = model
    return steps


def _moved(url: str, wanted: int | None) -> str:
    taken = wanted is not None and urlsplit(url).port != wanted
    return f" (port {wanted} is taken)" if taken else ""


def _save(options: DemoOptions, output: Mapping[str, Any]) -> Path:
    """Write the generated tests to the output folder."""
    code = output.get("code")
    if not isinstance(code, str) or not code.strip():
        raise ExecutionFailedError("the build agent returned no tests")
    module = options.module
    stem = Path(module).stem if module.endswith(".py") else module.rpartition(".")[2]
    name = output.get("file_name") or f"test_{stem}.py"  # a model gives its code no name
    folder, path = options.folder, options.folder / Path(str(name)).name
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(path, code.encode())
        settings = folder / "pytest.ini"
        if not settings.exists():
            # those of a surrounding project may name plugins that are not installed here
            replace_file(settings, b"[pytest]\n")
    return path


def _echo_next(options: DemoOptions, file: Path, echo: Echo) -> None:
    command = command_line()
    other = "shlex" if options.module != "shlex" else "textwrap"
    echo("Try next:")
    echo(f"  {module_command('pytest')} {file}")
    echo(f"  {command} demo {other}")
    echo(f"  {command} new my-agent")
