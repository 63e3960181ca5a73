"""The checks of ``retinue doctor``; each returns a finding and, if it is not ok, a remedy.

No check changes anything except a temporary file, and a failing check does not stop the others. One check
estimates the tokens that the hub's tool list costs the model behind an MCP client.
"""

from __future__ import annotations

import asyncio
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

import orjson

from retinue.core.durations import render_duration
from retinue.core.errors import CallTimedOutError, CardSignatureError, RetinueError, StateError
from retinue.execute.probe import answers
from retinue.llm.spec import Available
from retinue.mcp.codec.tool_calls import VERSION, list_request
from retinue.mcp.codec.wire import Wire
from retinue.mcp.upstream.client import open_response
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import list_published
from retinue.oci.source import RegistrySource
from retinue.runtime.factories import card_verifier, configured_registry
from retinue.runtime.models import list_model_states
from retinue.runtime.serving import bind, check_loopback
from retinue.settings import Settings
from retinue.storage.mesh_key import joined_token
from retinue.storage.runs_file import RunsFile
from retinue.storage.state import HUB_VARIABLE, State
from retinue.web.addresses import is_loopback_url
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

Status = Literal["ok", "warn", "fail"]

LIBRARIES = ("aiohttp", "click", "pydantic", "starlette", "uvicorn")
OPTIONAL_PROGRAMS = ("docker-registry", "skopeo")
OLDEST_PYTHON = (3, 11)
LOCAL_HOST = "127.0.0.1"
AGENT_PORT = 8001
LOW_SPACE_BYTES = 1024**3
MIN_SPACE_BYTES = 50 * 1024**2

BYTES_PER_TOKEN = 4
"""The usual estimate for English and JSON; models differ by about a third either way."""

DATABASE_TIMEOUT_S = 3
"""Seconds to connect to the configured database; psycopg takes whole ones."""

READY_S = 3.0
LIST_TIMEOUT_S = 15.0
MANY_TOKENS = 20_000
"""A tenth of the context window of many models."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``remedy`` is "" if nothing needs to be fixed."""

    name: str
    status: Status
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {"check": self.name, "status": self.status, "found": self.found, "remedy": self.remedy}


async def examine(
    load: Callable[[], Settings], state: State, environ: Mapping[str, str] = os.environ
) -> list[Check]:
    """Run every check."""
    checks = [_check_python(), _check_libraries()]
    try:
        settings = load()
        checks.append(Check("settings", "ok", "retinue.toml and RETINUE_* are valid"))
    except RetinueError as error:
        checks.append(_failed("settings", error))
        # defaults, without reading the invalid sources again
        settings = Settings.model_construct()
    folder = _check_folder(state)
    checks += [folder, _check_space(state)]
    async with HttpClient() as http:
        given = environ.get(HUB_VARIABLE)
        if folder.status == "fail":
            skipped = [
                "local token",
                "database",
                "runs",
                "registry",
                "signatures",
                *([] if given else ["hub"]),
            ]
            checks += [Check(name, "warn", "not checked", "fix the state folder first") for name in skipped]
        else:
            home = LayoutRegistry(state.registry)
            checks += [_check_token(state), _check_database(state)]
            checks.append(await _check_runs(settings, state))
            checks.append(await _guarded("registry", lambda: _check_layouts(home)))
            checks.append(await _guarded("signatures", lambda: _check_signatures(settings, state, home)))
        hub_url = None
        if given or folder.status != "fail":
            hub_check, hub_url = await _check_hub(state, given, settings, http)
            checks.append(hub_check)
        if hub_url is not None:
            url = hub_url
            checks += await _check_ready(state, url, settings, http)
            checks.append(await _guarded("tool list", lambda: _check_list(state, url, settings, http)))
        checks += [_check_own_network(), *_check_hub_port(settings.hub.port, hub_url), _check_agent_port()]
        checks += [await _check_registry(url, settings, http) for url in settings.registries]
    checks += [_check_program(name) for name in OPTIONAL_PROGRAMS]
    return checks + _check_models(settings, state, environ)


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
        return Check(
            "libraries", "fail", f"missing: {', '.join(missing)}", "reinstall Retinue in this environment"
        )
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
                f"{state.root} cannot be created: {below} is not a folder",
                "move it away, or set RETINUE_HOME",
            )
        if os.access(place, os.W_OK | os.X_OK):
            return Check("state", "ok", f"{state.root} (created when needed)")
        return Check(
            "state", "fail", f"{state.root} cannot be created: {place} is not writable", "set RETINUE_HOME"
        )
    if not state.root.is_dir():
        return Check("state", "fail", f"{state.root} is not a folder", "move it away, or set RETINUE_HOME")
    try:
        with tempfile.TemporaryFile(dir=state.root):
            pass
        return _check_privacy(state)
    except OSError as error:
        return Check(
            "state",
            "fail",
            f"{state.root}: {error.strerror}",
            "change its owner or mode (chown, chmod u+rwx), or set RETINUE_HOME",
        )


def _check_privacy(state: State) -> Check:
    """Whether other users of this machine can read the state; earlier versions allowed it."""
    readable = list(state.list_open_to_others())
    if not readable:
        return Check("state", "ok", f"{state.root} is writable, and accessible to its owner only")
    found = f"{readable[0]} is accessible to other users ({readable[0].stat().st_mode & 0o777:o})"
    if len(readable) > 1:
        found += f" (and {len(readable) - 1:,} more)"
    return Check("state", "warn", found, f"restart the hub, or: chmod -R go= {state.root}")


def _check_space(state: State) -> Check:
    place = _nearest_folder(state.root)
    free = shutil.disk_usage(place).free
    found = f"{free / 1024**3:,.1f} GB free at {place}"
    if free < MIN_SPACE_BYTES:
        return Check("disk", "fail", found, "free some space, or move the state: RETINUE_HOME")
    if free < LOW_SPACE_BYTES:
        return Check("disk", "warn", found, "free some space soon")
    return Check("disk", "ok", found)


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _check_token(state: State) -> Check:
    path = state.keys / "local.token"
    if not path.exists():
        return Check("local token", "ok", "created when needed")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(
            "local token", "fail", f"{path} is accessible to other users ({mode:o})", f"chmod 600 {path}"
        )
    try:
        state.local_token()
    except RetinueError as error:
        return _failed("local token", error)
    return Check("local token", "ok", f"{path} is accessible to its owner only ({mode:o})")


def _check_database(state: State) -> Check:
    path = state.database
    if not path.exists():
        return Check("database", "ok", "created by the first hub")
    remedy = f"stop the hub and move {path.name} away; the next hub rebuilds it from the registries"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as connection:
            answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return Check("database", "fail", f"{path}: {error}", remedy)
    if answer != "ok":
        return Check("database", "fail", f"{path}: {answer}", remedy)
    return Check("database", "ok", f"{path} is intact")


async def _check_runs(settings: Settings, state: State) -> Check:
    if settings.database is not None and not settings.database.startswith("sqlite:"):
        return await _check_postgres(settings.database)
    file = RunsFile(state.runs)
    try:
        exists = file.check(thorough=True)
    except StateError as error:
        return _failed("runs", error)
    return Check("runs", "ok", f"{file.path} is intact" if exists else "created by the first run")


async def _check_postgres(url: str) -> Check:
    """Whether the configured database lets this process in, asked without the engine (slow to load)."""
    import psycopg

    place = url.rpartition("@")[2].partition("?")[0]

    def count_nodes() -> int | None:
        plain = url.replace("postgresql+psycopg:", "postgresql:", 1)
        with psycopg.connect(plain, connect_timeout=DATABASE_TIMEOUT_S) as connection:
            found = connection.execute("SELECT to_regclass('retinue.nodes')").fetchone()
            if found is None or found[0] is None:
                return None
            nodes = connection.execute(
                "SELECT count(*) FROM retinue.nodes WHERE expires > extract(epoch from clock_timestamp())"
            ).fetchone()
            return 0 if nodes is None else int(nodes[0])

    try:
        async with asyncio.timeout(2 * DATABASE_TIMEOUT_S):
            nodes = await asyncio.to_thread(count_nodes)
    except TimeoutError:
        problem = f"no answer within {2 * DATABASE_TIMEOUT_S} s"
    except psycopg.Error as error:
        problem = str(error).strip().splitlines()[0] or type(error).__name__
    else:
        if nodes is None:
            return Check("runs", "ok", f"the database {place} answers; the first run creates its tables")
        return Check("runs", "ok", f"the database {place} answers; {nodes} nodes")
    remedy = "start it, or correct the setting database"
    return Check("runs", "fail", f"the database {place} does not answer: {problem}", remedy)


async def _guarded(name: str, check: Callable[[], Awaitable[Check]]) -> Check:
    try:
        return await check()
    except (RetinueError, OSError) as error:
        return _failed(name, error)


async def _check_signatures(settings: Settings, state: State, home: LayoutRegistry) -> Check:
    """The cards in the state's registry that the policy refuses, and those that are badly signed."""
    policy = settings.signatures.policy
    reading = await RegistrySource("home", home, verifier=card_verifier(settings, state)).read_all()
    refused = [one.error for one in reading.problems if isinstance(one.error, CardSignatureError)]
    bad = [one for one in reading.listings if one.signature in ("invalid", "unknown_key")]
    if refused:
        return Check("signatures", "fail", "; ".join(one.message for one in refused), refused[0].remedy)
    if bad:
        named = ", ".join(f"{one.name} ({one.signature})" for one in bad)
        return Check("signatures", "warn", f"without a valid signature: {named}", "publish them again")
    signed = sum(one.signature == "valid" for one in reading.listings)
    return Check("signatures", "ok", f"policy {policy}; {signed} of {len(reading.listings)} cards are signed")


async def _check_layouts(home: LayoutRegistry) -> Check:
    """Pull every artifact of the state's registry, which verifies its digests."""
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
    """Check the hub of this state; also returns its URL if it answers."""
    try:
        hub = state.read_hub()
    except RetinueError as error:
        return _failed("hub", error), None
    url = given or (hub.url if hub is not None else None)
    if url is None:
        return Check("hub", "ok", "not running; commands work without a hub (start it: retinue hub)"), None
    problem = await answers(http, url, timeout_s=settings.timeouts.probe_s)
    if problem is None:
        return Check("hub", "ok", f"{url} answers" + (f" (pid {hub.pid})" if hub and not given else "")), url
    remedy = f"start it, or unset {HUB_VARIABLE}" if given else "restart it: retinue hub"
    return Check("hub", "fail", f"{url} does not answer: {problem}", remedy), None


async def _check_ready(state: State, url: str, settings: Settings, http: HttpClient) -> list[Check]:
    """What the hub itself misses; nothing for a hub without ``/ready``."""
    token = _token_for(state, url)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    # its own answer takes two seconds while the database hangs
    timeout_s = settings.timeouts.probe_s + READY_S
    try:
        reply = await http.request("GET", f"{url}/ready", headers=headers, timeout_s=timeout_s)
        shown = orjson.loads(reply.body) if reply.status in (200, 503) else {}
        status = str(shown.get("status", ""))
        problems = [
            f"{one['what']} {one.get('name', '')}".strip() + f": {one['reason']}"
            for one in shown.get("problems", ())
        ]
    except (TransportError, CallTimedOutError) as error:
        return [Check("ready", "fail", f"{url}/ready does not answer: {error}", "restart it: retinue hub")]
    except (ValueError, AttributeError, KeyError, TypeError):
        return [Check("ready", "warn", f"{url}/ready returns no status", "is it a hub?")]
    if not status:
        return []
    found = "; ".join([f"the hub is {status}", *problems])
    remedy = "see docs/operating.md" if problems or status != "ready" else ""
    return [
        Check(
            "ready",
            "fail" if reply.status == 503 else "warn" if status == "degraded" else "ok",
            found,
            remedy,
        )
    ]


def _token_for(state: State, url: str) -> str | None:
    """The token for a hub: that of joining it, or the state's for one on this machine."""
    return joined_token(state.keys, url) or (state.local_token() if is_loopback_url(url) else None)


def _check_own_network() -> Check:
    try:
        check_loopback()
    except RetinueError as error:
        return _failed("loopback", error)
    return Check("loopback", "ok", f"processes can connect to each other at {LOCAL_HOST}")


async def _check_list(state: State, url: str, settings: Settings, http: HttpClient) -> Check:
    """Estimate the tokens of the hub's tool list."""
    # the first MCP request of a hub loads the SDK
    timeout_s = max(settings.timeouts.probe_s, LIST_TIMEOUT_S)
    shown = await measure_list(http, url, None, timeout_s=timeout_s)
    token = _token_for(state, url)
    connected = None if token is None else await measure_list(http, url, token, timeout_s=timeout_s)
    if connected is None and token is not None:
        raise StateError(
            "the hub refuses the token of this state", remedy="restart the hub, or join it again: --join"
        )
    if connected is None:
        connected = shown
    if connected is None:
        return Check("tool list", "ok", "the hub requires a token, and this state has none for it")
    found = f"{shown or 'refused'} without a token; {connected} with it (JSON bytes / {BYTES_PER_TOKEN})"
    if connected.tokens > MANY_TOKENS:
        remedy = 'set hub.listing = "search" in retinue.toml, or expose fewer skills'
        return Check("tool list", "warn", found, remedy)
    return Check("tool list", "ok", found)


def _check_hub_port(port: int, hub_url: str | None) -> list[Check]:
    """The configured port of the hub; nothing for 0, which takes any free one."""
    if port == 0:
        return []
    name = f"port {port}"
    if hub_url is not None and hub_url.endswith(f":{port}"):
        return [Check(name, "ok", "used by the hub")]
    if _is_free(port):
        return [Check(name, "ok", "free for the hub")]
    if hub_url is not None:
        return [Check(name, "ok", f"used by another program; the hub is at {hub_url}")]
    return [Check(name, "warn", "used by another program", "choose another port: retinue hub --port N")]


def _check_agent_port() -> Check:
    found = "free for the first agent" if _is_free(AGENT_PORT) else "in use; agents use the next free port"
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


def _check_models(settings: Settings, state: State, environ: Mapping[str, str]) -> list[Check]:
    """Whether each language model can be started, and what it has spent today."""
    try:
        models = list_model_states(settings, state, environ)
    except RetinueError as error:
        return [_failed("models", error)]
    checks = []
    for one in models:
        name = f"model {one.name}"
        if isinstance(one.backend, Available):
            found = one.backend.found + (f"; {one.spending}" if one.spending else "")
            checks.append(Check(name, "fail" if one.problem else "ok", one.problem or found, one.remedy))
        else:
            # claude and gemini are there without anybody having asked for them
            status: Status = "warn" if one.is_configured else "ok"
            remedy = f"to use it: {one.backend.remedy}"
            checks.append(Check(name, status, f"not available: {one.backend.reason}", remedy))
    return checks


def _failed(name: str, error: Exception) -> Check:
    if isinstance(error, RetinueError):
        return Check(name, "fail", error.message, error.remedy)
    return Check(name, "fail", str(error), "see the message")


@dataclass(frozen=True, slots=True)
class ListCost:
    """The number of tools in a client's list, and the size of their names, descriptions and input schemas."""

    tools: int
    size_bytes: int

    @property
    def tokens(self) -> int:
        """Estimated number of tokens of the list."""
        return round(self.size_bytes / BYTES_PER_TOKEN)

    def __str__(self) -> str:
        return f"{self.tools} tools, about {self.tokens:,} tokens ({self.size_bytes / 1000:,.1f} kB)"


async def measure_list(http: HttpClient, url: str, token: str | None, *, timeout_s: float) -> ListCost | None:
    """Measure the tool list of the hub at ``url`` for a client with ``token``; None if it is refused.

    Raises StateError.
    """
    message = list_request("retinue", version("retinue"))
    headers = Wire().headers_of(message)
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    try:
        async with (
            asyncio.timeout(timeout_s),
            open_response(http, "POST", f"{url}/mcp", headers, message) as response,
        ):
            while response.reply is None and await response.next():
                pass
    except (TransportError, TimeoutError) as error:
        cause = str(error) or f"no answer within {render_duration(timeout_s)}"
        raise StateError(
            f"the hub returns no tool list: {cause}", remedy="restart it: retinue hub"
        ) from error
    if response.status in (401, 403):
        return None
    reply = response.reply
    tools = None if reply is None or reply.result is None else reply.result.get("tools")
    if not isinstance(tools, list):
        raise _no_list(response.status)
    return ListCost(len(tools), sum(len(orjson.dumps(_visible_to_model(tool))) for tool in tools))


def _visible_to_model(tool: object) -> object:
    """The fields of a tool that reach the model; ``_meta`` and annotations stay in the client."""
    if not isinstance(tool, dict):
        return tool
    return {key: tool[key] for key in ("name", "description", "inputSchema") if key in tool}


def _no_list(status: int) -> RetinueError:
    return StateError(
        f"the hub answers with status {status} and no tool list (version {VERSION})",
        remedy="restart it: retinue hub",
    )
