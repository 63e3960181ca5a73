"""Checks this machine: libraries, programs, ports. Also the result of a check of ``retinue doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from retinue.core.errors import ExecutionFailedError, RetinueError
from retinue.parts.part import Check
from retinue.processes.bounds import BOUNDS
from retinue.processes.limited import ALLOWING_VARIABLE, ProgramLimits, run_command
from retinue.runtime.machine.port_holder import find_port_holder
from retinue.runtime.serving import FIRST_AGENT_PORT, bind, check_loopback

LIBRARIES = ("aiohttp", "click", "pydantic", "starlette", "uvicorn")
OLDEST_PYTHON = (3, 11)
LOCAL_HOST = "127.0.0.1"


def failed(name: str, error: Exception) -> Check:
    """The check of this name, failed with the error."""
    if isinstance(error, RetinueError):
        return Check(name, "fail", error.message, error.remedy)
    return Check(name, "fail", str(error), "see the message")


async def guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    """The result of a check; failed where it raises."""
    try:
        return await check()
    except (RetinueError, OSError) as error:
        return failed(name, error)


def check_python() -> Check:
    """Whether the interpreter is new enough."""
    interpreter = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("python", "fail", interpreter, "install Python 3.11 or newer")
    return Check("python", "ok", interpreter)


def check_libraries() -> Check:
    """Whether the libraries are installed."""
    versions, missing = [f"retinue {_find_version('retinue') or '(not installed)'}"], []
    for name in LIBRARIES:
        known = _find_version(name)
        versions.append(f"{name} {known}") if known else missing.append(name)
    if missing:
        return Check(
            "libraries", "fail", f"missing: {', '.join(missing)}", "reinstall Retinue in this environment"
        )
    versions.append(f"SQLite {sqlite3.sqlite_version}")
    return Check("libraries", "ok", ", ".join(versions))


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_BOUNDS = {
    "group": "a control group",
    "user": "RLIMIT_NPROC of this user",
    "uid": "a user id of its own for each program",
}


async def check_programs(bounds: Sequence[str] = BOUNDS) -> Check:
    """What limits the number of processes that a program may start, such as a reviewed test file."""
    command = [sys.executable, "-I", "-S", "-c", ""]
    with tempfile.TemporaryDirectory(prefix="retinue-doctor-") as folder:
        try:
            result = await run_command(
                command, folder=Path(folder), limits=ProgramLimits(must_bind=True), bounds=bounds
            )
        except ExecutionFailedError as error:
            return Check("programs", "warn", f"{error.message}; review_code is refused", error.remedy)
    if result.bound:
        return Check("programs", "ok", f"{_BOUNDS[result.bound]} limits their processes")
    if os.environ.get(ALLOWING_VARIABLE) == "1":
        problem = f"nothing limits their processes, and {ALLOWING_VARIABLE} allows that"
    else:
        problem = "nothing limits their processes on this system"
    return Check("programs", "warn", problem, "review no code of others on this machine")


def check_own_network() -> Check:
    """Whether processes of this machine reach each other."""
    try:
        check_loopback()
    except RetinueError as error:
        return failed("loopback", error)
    return Check("loopback", "ok", f"processes can connect to each other at {LOCAL_HOST}")


def check_hub_port(port: int, hub_url: str | None) -> list[Check]:
    """The configured port of the hub; nothing for 0, which takes any free one."""
    if port == 0:
        return []
    name = f"port {port}"
    if hub_url is not None and hub_url.endswith(f":{port}"):
        return [Check(name, "ok", "used by the hub")]
    if _is_free(port):
        return [Check(name, "ok", "free for the hub")]
    holder = find_port_holder(port) or "another program"
    if hub_url is not None:
        return [Check(name, "ok", f"used by {holder}; the hub is at {hub_url}")]
    return [Check(name, "warn", f"used by {holder}", "choose another port: retinue hub --port N")]


def check_agent_port() -> Check:
    """The port of the first agent."""
    state = (
        "free for the first agent" if _is_free(FIRST_AGENT_PORT) else "in use; agents use the next free port"
    )
    return Check(f"port {FIRST_AGENT_PORT}", "ok", state)


def _is_free(port: int) -> bool:
    try:
        bind(LOCAL_HOST, port).close()
    except RetinueError:
        return False
    return True


def check_program(name: str) -> Check:
    """Where an optional program is."""
    place = shutil.which(name)
    return Check(name, "ok", place or "not installed (optional)")


def check_starter(name: str, package: str) -> Check:
    """Where a program is that starts imported servers; ``package`` installs it."""
    if place := shutil.which(name):
        return Check(name, "ok", place)
    return Check(
        name, "ok", f"not installed; imported servers that start with {name} need it", f"install {package}"
    )
