"""Composes the imports of a hub from their configuration, connects them and follows its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from errno import EFBIG, EINVAL
from functools import partial
from importlib.metadata import version
from operator import ne
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

import structlog

from retinue.a2a.client.imports import DEFAULT_LIMITS, AgentSpec, ImportedAgents, ImportLimits
from retinue.core.errors import (
    AgentUnreachableError,
    InvalidSettingError,
    PolicyDeniedError,
    RetinueError,
)
from retinue.core.record import Candidate, Health, Listing
from retinue.hub.imports import ImportState
from retinue.mcp.upstream.flood import FloodMeter
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mcp.upstream.imports.servers import ImportedServers
from retinue.mcp.upstream.transport import Transport
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.sources import MemberId, Source
from retinue.mesh.dispatch import Invoker
from retinue.mesh.health.agent_stats import HealthSink
from retinue.openapi.imports import ApiSpec, ImportedApis
from retinue.processes.environment import fill_variables, find_missing, with_home
from retinue.runtime.factories import card_verifier
from retinue.runtime.imports.files import (
    find_own_url,
    is_pin_used,
    name_members,
    open_pins,
    read_members,
    read_pins,
)
from retinue.runtime.imports.logins import ImportLogin, LoginFile, logins_folder
from retinue.settings import Settings, environment
from retinue.settings_tables import ImportTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError

CheckImport = Callable[[str, str, str], None]
"""Raises PolicyDeniedError for an import that policies forbid: its name, kind and place."""

_Seen = tuple[object, ...]

LOOK_S = 0.5
"""Seconds between two looks whether the imports of the state have changed."""

DOCUMENT_TIMEOUT_S = 30.0

TASKS_ONLY = "it runs as a task only (taskSupport: required), and the server does not run tools as tasks"
"""Why a tool is left out."""

_log = structlog.get_logger("retinue.imports")


def import_specs(
    tables: Mapping[MemberId, ImportTable],
    http: HttpClient,
    own: Mapping[str, str],
    state: State,
    own_url: str | None,
    new_meter: Callable[[], FloodMeter] = FloodMeter,
) -> dict[MemberId, ImportSpec]:
    """The imports as the servers of `ImportedServers`; ``${VAR}`` stands for variables of ``own``.

    ``own_url`` is that of this hub, which is not connected to itself. ``new_meter`` makes the meter of what
    a server sends unasked.
    """
    return {
        member: _spec_of(member, table, http, own, state, own_url, new_meter)
        for member, table in tables.items()
    }


def _spec_of(
    member: MemberId,
    table: ImportTable,
    http: HttpClient,
    own: Mapping[str, str],
    state: State,
    own_url: str | None,
    new_meter: Callable[[], FloodMeter],
) -> ImportSpec:
    # loaded with the first import: a hub without imports needs neither of these modules
    from retinue.mcp.client_configs.servers import is_own_hub
    from retinue.mcp.stdio.server_program import ServerProgram
    from retinue.mcp.upstream.http_transport import HttpTransport

    name, headers, environ = member.name, fill_variables(table.headers, own), fill_variables(table.env, own)
    command = (table.command, *table.args) if table.command else ()

    problem = _find_missing("headers", table.headers, own) or _find_missing("env", table.env, own)
    if is_own_hub(table.model_dump(), own_url):
        problem = f"its {'url' if table.url else 'command'} is that of this hub itself: remove it"

    def connect() -> Transport:
        if table.url is not None:
            login = ImportLogin(LoginFile(state, member.full_name, table.url), http)
            return HttpTransport(name, http, table.url, headers, login.authorize, flood=new_meter())
        return ServerProgram(name, command, environ, own=own, folder=table.folder, flood=new_meter())

    return ImportSpec(
        name,
        connect,
        place=table.url or " ".join(command)[:100],
        visibility=table.visibility,
        start_s=table.start_s,
        fingerprint=repr((table, headers, environ)),
        any_uri=table.any_uri,
        problem=problem,
        team=member.team,
        tag=member.tag,
    )


def _find_missing(key: str, texts: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The problem if a text names a variable as ``${NAME}`` that ``own`` lacks; "" if none does."""
    missing = find_missing(texts, own)
    if missing is None:
        return ""
    name, variable = missing
    return (
        f"the variable {variable} for its {key} {name} is not set in the hub's environment: "
        "set it and start the hub again"
    )


class Imports:
    """The imports of a hub: MCP servers, HTTP APIs and A2A agents.

    ``new_meter`` makes the meter of what a server sends unasked.
    """

    def __init__(
        self,
        settings: Settings,
        state: State,
        *,
        agent_limits: ImportLimits = DEFAULT_LIMITS,
        new_meter: Callable[[], FloodMeter] = FloodMeter,
    ) -> None:
        self._new_meter = new_meter
        self._names: Mapping[MemberId, str] = {}
        """The names that lists show; those of the digest that serves only."""
        self._settings = settings
        self._state = state
        pins = open_pins(settings, state)
        self._servers = ImportedServers(version("retinue"), pins)
        self._apis = ImportedApis(environment(), pins)
        self._agents = ImportedAgents(pins, card_verifier(settings.signatures, state), agent_limits)
        self._check: CheckImport = lambda name, kind, place: None
        self._read_revision: Callable[[], int] = lambda: 0
        self._catch_up: Callable[[], Awaitable[None]] | None = None

    @property
    def servers(self) -> ImportedServers:
        """The MCP servers."""
        return self._servers

    def follow_policies(
        self, check: CheckImport, read_revision: Callable[[], int], catch_up: Callable[[], Awaitable[None]]
    ) -> None:
        """Connect to what policies permit; ``read_revision`` gives another number when they have changed.

        ``catch_up`` puts the policies of a team in force before its imports are connected.
        """
        self._check, self._read_revision, self._catch_up = check, read_revision, catch_up

    def list_states(self) -> list[tuple[str, bool, str]]:
        """Each MCP server: its name, whether it is connected, and the reason if not."""
        return [
            (self._names[member.id], member.is_ready, member.reason)
            for member in self._servers.list_members()
            if member.id in self._names
        ]

    def list_imports(self) -> list[ImportState]:
        """Every import: whether it is connected, and its tools that wait to be accepted."""
        pins = self._servers.pins
        servers = [
            ImportState(
                self._names[member.id],
                "mcp",
                member.is_ready,
                member.reason,
                pins.list_changes(member.id.pinned),
                dict.fromkeys(member.uncallable, TASKS_ONLY),
                agent=member.id.name,
            )
            for member in self._servers.list_members()
            if member.id in self._names
        ]
        others = [
            ImportState(
                self._names[member.id],
                kind,
                member.client is not None,
                member.reason,
                pins.list_changes(member.id.pinned),
                agent=member.id.name,
            )
            for kind, members in (
                ("a2a", self._agents.list_members()),
                ("openapi", self._apis.list_members()),
            )
            for member in members
            if member.id in self._names
        ]
        return [*servers, *others]

    @property
    def sources(self) -> list[Source]:
        """The sources for the directory."""
        return [self._servers, self._apis, self._agents]

    @property
    def invokers(self) -> dict[str, Invoker]:
        """The invokers of skills, by source."""
        return {member.name: member for member in (self._servers, self._apis, self._agents)}

    def health_sink(self, sink: HealthSink) -> HealthSink:
        """``sink`` for the health that calls find; a server that floods stays degraded while it answers."""

        def record(listing: Candidate, health: Health, reason: str) -> None:
            server = self._servers.find_member(listing.id) if listing.source == self._servers.name else None
            if server is not None and server.complaint and health in ("healthy", "unknown"):
                health, reason = "degraded", server.complaint
            sink(listing, health, reason)

        return record

    @asynccontextmanager
    async def running(self, directory: Directory, http: HttpClient) -> AsyncIterator[None]:
        """Run the imports, and take up changes of the files in the state."""

        def on_change(listing: Listing, health: Health, reason: str) -> None:
            directory.upsert(listing)
            if health == "unknown":
                directory.mark_unknown(listing, reason)
            else:
                directory.record_health(listing, health, reason)

        self._servers.subscribe(on_change)
        self._apis.subscribe(on_change)
        self._agents.subscribe(on_change)
        seen = self._look()
        await self._configure(http)
        watching = asyncio.create_task(self._watch(directory, http, seen), name="imports")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await asyncio.gather(self._servers.aclose(), self._apis.aclose(), self._agents.aclose())

    async def _configure(self, http: HttpClient) -> None:
        tables = read_members(self._settings, self._state)
        self._names = {member: name for name, member in name_members(tables).items()}
        own = with_home(environment(), self._state.home)
        apis = {member: table for member, table in tables.items() if table.openapi is not None}
        agents = {member: _agent_of(member, table, own) for member, table in tables.items() if table.a2a}
        servers = {
            member: table for member, table in tables.items() if member not in apis and member not in agents
        }
        own_url = find_own_url(self._settings, self._state)
        specs = import_specs(servers, http, own, self._state, own_url, self._new_meter)
        api_specs = {member: _api_of(member, table, http) for member, table in apis.items()}
        for member, table in tables.items():
            problem = self._find_denial(member.name, table)
            if problem is None:
                continue
            if member in specs:
                specs[member] = _refuse(specs[member], problem)
            elif member in agents:
                agents[member] = _refuse(agents[member], problem)
            else:
                api_specs[member] = _refuse_api(api_specs[member], problem)
        await self._servers.configure({str(member): spec for member, spec in specs.items()})
        await self._apis.configure({str(member): spec for member, spec in api_specs.items()}, http)
        await self._agents.configure({str(member): spec for member, spec in agents.items()}, http)
        self._servers.pins.keep_only(partial(is_pin_used, self._state))

    def _find_denial(self, name: str, table: ImportTable) -> PolicyDeniedError | None:
        """Why policies forbid an import; None where they do not."""
        kind = "openapi" if table.openapi is not None else "a2a" if table.a2a else "mcp"
        command = " ".join((table.command or "", *table.args))
        try:
            self._check(name, kind, table.openapi or table.a2a or table.url or command)
        except PolicyDeniedError as error:
            return error
        return None

    def _look(self) -> _Seen:
        """What changes with the imports: revision of the policies, and stamps of the files of the state."""
        teams = self._state.root / "teams" / "teams.json"
        files = self._state.imports, self._state.pins, logins_folder(self._state), teams
        return self._read_revision(), *map(_stamp_of, files)

    async def _watch(self, directory: Directory, http: HttpClient, seen: _Seen) -> None:
        """Follow the changes since ``seen``; one that could not be followed is tried again."""
        problem = ""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._look()
            other_policies, configured, accepted, logged_in, started = map(ne, seen, now)
            try:
                if started and self._catch_up is not None:
                    await self._catch_up()
                if configured or started or other_policies:
                    await self._configure(http)
                    await directory.ensure_fresh()
                if accepted:
                    self._servers.accept(read_pins(self._state))
                    self._agents.review()
                    self._apis.review()
                if logged_in:
                    self._servers.retry()
            except RetinueError as error:
                if error.message != problem:
                    problem = error.message
                    _log.warning("imports not read; tried again", error=problem)
            else:
                seen, problem = now, ""


_Spec = TypeVar("_Spec", ImportSpec, AgentSpec)


def _refuse(spec: _Spec, error: PolicyDeniedError) -> _Spec:
    """The import as one that is not connected to."""
    return replace(spec, problem=error.message, fingerprint=f"{spec.fingerprint} {error.message}")


def _refuse_api(spec: ApiSpec, error: PolicyDeniedError) -> ApiSpec:
    async def refuse() -> bytes:
        raise error

    return replace(spec, load=refuse, fingerprint=f"{spec.fingerprint} {error.message}")


def _agent_of(member: MemberId, table: ImportTable, own: Mapping[str, str]) -> AgentSpec:
    headers = fill_variables(table.headers, own)
    return AgentSpec(
        member.name,
        table.a2a or "",
        headers,
        visibility=table.visibility,
        fingerprint=repr((table, headers)),
        problem=_find_missing("headers", table.headers, own),
        team=member.team,
        tag=member.tag,
    )


def _read_document(path: Path) -> bytes:
    """The document in a file. Raises OSError for a pipe, which might never end, and for a larger file."""
    from retinue.openapi.codec.reader import MAX_DOCUMENT_BYTES

    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise OSError(EINVAL, "it is not a file")
    if status.st_size > MAX_DOCUMENT_BYTES:
        raise OSError(EFBIG, f"it is over {MAX_DOCUMENT_BYTES:,} bytes")
    return path.read_bytes()


def _api_of(member: MemberId, table: ImportTable, http: HttpClient) -> ApiSpec:
    name, place = member.name, table.openapi or ""
    is_url = "://" in place

    async def load() -> bytes:
        if is_url:
            return await _fetch(name, place, http)
        try:
            return await asyncio.to_thread(_read_document, Path(place))
        except OSError as error:
            problem = f"{place}: {error.strerror or error}"
            raise InvalidSettingError(
                f"imports.{name}.openapi", problem, remedy="name another file"
            ) from error

    return ApiSpec(
        name,
        place,
        load,
        url=place if is_url else None,
        server=table.server,
        strict=table.strict,
        visibility=table.visibility,
        fingerprint=repr(table),
        key_origins=table.key_origins,
        # a document of a team chooses the names of variables, so it reads none of the hub
        environment=fill_variables(table.env, {}) if member.team else None,
        team=member.team,
        tag=member.tag,
    )


async def _fetch(name: str, url: str, http: HttpClient) -> bytes:
    """The document at a url. Raises AgentUnreachableError and CallTimedOutError."""
    try:
        reply = await http.request("GET", url, timeout_s=DOCUMENT_TIMEOUT_S, what=f"the document of {name}")
    except TransportError as error:
        raise AgentUnreachableError(name, url, error.cause, sent=False) from error
    if reply.status != 200:
        raise AgentUnreachableError(name, url, f"it answers with status {reply.status}")
    return reply.body


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
