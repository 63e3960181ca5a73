"""What ``retinue doctor`` looks at: each check says what was found, and how to mend it.

No check changes anything but a file that it writes and removes again, and none ends the others.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from retinue.apps.parts import configured_registry
from retinue.apps.serving import bind, check_loopback
from retinue.core.errors import RetinueError
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.probes import answers
from retinue.drivers.registry import list_published
from retinue.drivers.state import HUB_VARIABLE, State
from retinue.protocols.oci.reference import Reference
from retinue.settings import Settings

Status = Literal["ok", "warn", "fail"]

LIBRARIES = ("aiohttp", "click", "pydantic", "starlette", "uvicorn", "hypothesis", "pytest")
OPTIONAL_PROGRAMS = ("docker-registry", "skopeo")
HUB_PORT = 9000
AGENT_PORT = 8001
OLDEST_PYTHON = (3, 11)
LITTLE_BYTES = 1024**3
TOO_LITTLE_BYTES = 50 * 1024**2
LOCAL_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``remedy`` is "" where nothing needs mending."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}


async def examine(
    load: Callable[[], Settings], state: State, environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Every check, in the order in which a person would ask."""
    checks = [_check_python(), _check_libraries()]
    try:
        settings = load()
        checks.append(Check("settings", "ok", "retinue.toml and RETINUE_* are well formed"))
    except RetinueError as error:
        checks.append(_failed("settings", error))
        # Without its sources: what is wrong in the environment would be refused here again.
        settings = Settings.model_construct()
    folder = _check_folder(state)
    checks += [folder, _check_space(state)]
    async with HttpClient() as http:
        given = environ.get(HUB_VARIABLE)
        if folder.status == "fail":
            unseen = ["local token", "database", "registry", *([] if given else ["hub"])]
            checks += [Check(name, "warn", "not looked at", "mend the state first") for name in unseen]
        else:
            home = LayoutRegistry(state.registry)
            checks += [_check_token(state), _check_database(state)]
            checks.append(await _guarded("registry", lambda: _check_layouts(home)))
        hub_url = None
        if given or folder.status != "fail":
            hub_check, hub_url = await _check_hub(state, given, settings, http)
            checks.append(hub_check)
        checks += [_check_own_network(), _check_hub_port(hub_url), _check_agent_port()]
        checks += [await _check_registry(url, settings, http) for url in settings.registries]
    return checks + [_check_program(name) for name in OPTIONAL_PROGRAMS]


def _check_python() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Check("python", "fail", found, "install Python 3.11 or newer")
    return Check("python", "ok", found)


def _check_libraries() -> Check:
    found, missing = [f"retinue {_find_version('retinue') or '(not installed)'}"], []
    for name in LIBRARIES:
        known = _find_version(name)
        found.append(f"{name} {known}") if known else missing.append(name)
    if missing:
        return Check("libraries", "fail", f"missing: {', '.join(missing)}", "install again: make env")
    return Check("libraries", "ok", ", ".join(found))


def _find_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_folder(state: State) -> Check:
    if not state.root.exists():
        place = _nearest_folder(state.root)
        below = next(path for path in (state.root, *state.root.parents) if path.parent == place)
        if below.exists():
            return Check(
                "state",
                "fail",
                f"{state.root} cannot be made: {below} is no folder",
                "move it away, or set RETINUE_HOME",
            )
        if os.access(place, os.W_OK | os.X_OK):
            return Check("state", "ok", f"{state.root} (made when it is needed)")
        return Check(
            "state", "fail", f"{state.root} cannot be made: {place} is not writable", "set RETINUE_HOME"
        )
    if not state.root.is_dir():
        return Check("state", "fail", f"{state.root} is no folder", "move it away, or set RETINUE_HOME")
    try:
        with tempfile.TemporaryFile(dir=state.root):
            return Check("state", "ok", f"{state.root} is writable")
    except OSError as error:
        return Check(
            "state",
            "fail",
            f"{state.root}: {error.strerror}",
            "give yourself the folder (chown, chmod u+rwx), or set RETINUE_HOME",
        )


def _check_space(state: State) -> Check:
    place = _nearest_folder(state.root)
    free = shutil.disk_usage(place).free
    found = f"{free / 1024**3:,.1f} GB free at {place}"
    if free < TOO_LITTLE_BYTES:
        return Check("disk", "fail", found, "free some space, or move the state: RETINUE_HOME")
    if free < LITTLE_BYTES:
        return Check("disk", "warn", found, "free some space soon")
    return Check("disk", "ok", found)


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _check_token(state: State) -> Check:
    path = state.keys / "local.token"
    if not path.exists():
        return Check("local token", "ok", "made when it is needed")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Check("local token", "fail", f"{path} is open to others ({mode:o})", f"chmod 600 {path}")
    try:
        state.local_token()
    except RetinueError as error:
        return _failed("local token", error)
    return Check("local token", "ok", f"{path} is yours alone ({mode:o})")


def _check_database(state: State) -> Check:
    path = state.database
    if not path.exists():
        return Check("database", "ok", "made by the first hub")
    remedy = f"stop the hub and move {path.name} away; the next hub reads the registries again"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as connection:
            answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return Check("database", "fail", f"{path}: {error}", remedy)
    if answer != "ok":
        return Check("database", "fail", f"{path}: {answer}", remedy)
    return Check("database", "ok", f"{path} is sound")


async def _guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await check()
    except (RetinueError, OSError) as error:
        return _failed(name, error)


async def _check_layouts(home: LayoutRegistry) -> Check:
    """Reads every artifact of the state's registry, which verifies its digests."""
    repositories = await home.list_repositories()
    problems: list[RetinueError] = []
    count = 0
    for repository in repositories:
        try:
            for tag in await home.list_tags(repository):
                await home.pull(Reference(repository, tag=tag))
                count += 1
        except RetinueError as error:
            problems.append(error)
    if problems:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Check("registry", "fail", first.message + more, first.remedy)
    return Check("registry", "ok", f"{home.name}: {len(repositories)} repositories, {count} tags, verified")


async def _check_hub(
    state: State, given: str | None, settings: Settings, http: HttpClient
) -> tuple[Check, str | None]:
    """The hub this mesh would use, and its url when it answers."""
    try:
        hub = state.read_hub()
    except RetinueError as error:
        return _failed("hub", error), None
    url = given or (hub.url if hub is not None else None)
    if url is None:
        return Check("hub", "ok", "none runs; commands work without one (start it: retinue hub)"), None
    problem = await answers(http, url, timeout_s=settings.timeouts.probe_s)
    if problem is None:
        return Check("hub", "ok", f"{url} answers" + (f" (pid {hub.pid})" if hub and not given else "")), url
    remedy = f"start it, or unset {HUB_VARIABLE}" if given else "stop it and start it again: retinue hub"
    return Check("hub", "fail", f"{url} does not answer: {problem}", remedy), None


def _check_own_network() -> Check:
    try:
        check_loopback()
    except RetinueError as error:
        return _failed("loopback", error)
    return Check("loopback", "ok", f"processes reach each other at {LOCAL_HOST}")


def _check_hub_port(hub_url: str | None) -> Check:
    name = f"port {HUB_PORT}"
    if _is_free(HUB_PORT):
        return Check(name, "ok", "free for the hub")
    if hub_url is not None and hub_url.endswith(f":{HUB_PORT}"):
        return Check(name, "ok", "used by the hub")
    return Check(name, "warn", "used by another program", "choose another: retinue hub --port N")


def _check_agent_port() -> Check:
    found = "free for the first agent" if _is_free(AGENT_PORT) else "in use; agents take the next free one"
    return Check(f"port {AGENT_PORT}", "ok", found)


def _is_free(port: int) -> bool:
    try:
        bind(LOCAL_HOST, port).close()
    except RetinueError:
        return False
    return True


async def _check_registry(url: str, settings: Settings, http: HttpClient) -> Check:
    name = url.rpartition("@")[2]
    try:
        registry = configured_registry(url, settings, http)
        name = registry.name
        count = len(await list_published(registry))
    except RetinueError as error:
        return _failed(name, error)
    return Check(name, "ok", f"answers, {count} repositories")


def _check_program(name: str) -> Check:
    place = shutil.which(name)
    return Check(name, "ok", place or "not installed (optional)")


def _failed(name: str, error: Exception) -> Check:
    if isinstance(error, RetinueError):
        return Check(name, "fail", error.message, error.remedy)
    return Check(name, "fail", str(error), "see the message")
