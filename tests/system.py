"""The running system for tests: hubs and agents composed as their processes do, each on a real port."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import orjson
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.authoring.signatures import Signature, read_signature
from retinue.cards.pallet_card import encode_card, parse_card, render_card
from retinue.hub.mesh_map import MeshParts
from retinue.mesh.observing.events import EventBus, Observer
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, publish_card
from retinue.parts.network_links import NetworkLinks
from retinue.parts.opening import open_parts
from retinue.parts.part import Part
from retinue.parts.process import Process
from retinue.runtime.access import behind_proxies
from retinue.runtime.agent_core import open_agent
from retinue.runtime.agent_process import ServeOptions, agent_parts
from retinue.runtime.endpoints.mcp import SharedMcp
from retinue.runtime.hub_process import HubOptions, hub_parts
from retinue.runtime.imports.connections import Imports
from retinue.runtime.launch import Start
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.loading.publishables import PUBLISHED_SCOPES
from retinue.runtime.loading.targets import Target
from retinue.runtime.mesh import Chains, Mesh, open_mesh
from retinue.runtime.parts.audit import RecordedEvents
from retinue.runtime.parts.imports import ImportsPart
from retinue.runtime.run_process import make_checks
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.settings_tables import EndpointTable
from retinue.storage.audit_store import SqliteAudit
from retinue.storage.listing_store import SqliteListings
from retinue.storage.state import State
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRequest
from retinue_koi.membership import KoiHub
from retinue_koi.part import KoiPart
from retinue_koi.table import KoiTable
from tests.recording import Recording
from tests.serving import serve_app

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WAIT_S = 60.0
"""Longer than anything takes; a test that waits this long has failed."""

NOT_OPENED = frozenset(
    {
        "hub-file",
        "models",
        "first-reading",
        "upkeep",
        "folder-watch",
        "logs",
        "agents",
        "runs",
        "list-watch",
        "exam",
        "calls",
    }
)
"""The parts that start processes, and those that do in the background what a test does when it wants it."""


def _read_once(read: Callable[..., Signature]) -> Callable[..., Signature]:
    """Keep the signatures of Retinue's own skills, which each hub of a test would derive again.

    A signature follows from what the key holds, because all annotations are texts that are resolved in the
    module of the function.
    """
    signatures: dict[Any, Signature] = {}

    def read_kept(function: Callable[..., Any], where: str, **options: Any) -> Signature:
        plain = inspect.unwrap(function)
        is_own = inspect.isfunction(plain) and (plain.__module__ or "").startswith("retinue.")
        if not is_own or not all(isinstance(text, str) for text in plain.__annotations__.values()):
            return read(function, where, **options)
        defaults = [repr(default) for default in (plain.__defaults__, plain.__kwdefaults__)]
        key = (plain.__code__, *defaults, *plain.__annotations__.items(), where, *options.items())
        if key not in signatures:
            signatures[key] = read(function, where, **options)
        signature = signatures[key]
        return replace(
            signature,
            input_schema=copy.deepcopy(signature.input_schema),
            output_schema=copy.deepcopy(signature.output_schema),
        )

    return read_kept


pytest.MonkeyPatch().setattr("retinue.authoring.agent.read_signature", _read_once(read_signature))


async def _run_nothing(context: RunContext, request: RunRequest) -> None:
    """The body of no run."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def result(self) -> Any:
        reply = self.json
        assert "result" in reply, reply
        return reply["result"]


class Wire:
    """A client of any language: sends bytes, reads bytes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(self, url: str, **headers: str) -> Reply:
        async with self._session.get(url, headers=_wire_names(headers)) as answer:
            return await _read(answer)

    async def post(self, url: str, body: Any, **headers: str) -> Reply:
        """Send ``body`` (bytes as they are, else as JSON); ``_`` in a header's name stands for ``-``."""
        sent = {"content-type": "application/json", **_wire_names(headers)}
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        # a file-like body, because aiohttp warns of large bytes
        async with self._session.post(url, data=io.BytesIO(content), headers=sent) as answer:
            return await _read(answer)

    async def call(
        self,
        base: str,
        skill: str,
        params: Any = None,
        id: Any = "orch",  # noqa: A002 - JSON-RPC's name for it
        **headers: str,
    ) -> Reply:
        """One JSON-RPC request to ``{base}/execute``."""
        request = {"jsonrpc": "2.0", "method": skill, "params": params or {}, "id": id}
        return await self.post(f"{base}/execute", request, **headers)


@asynccontextmanager
async def open_wire() -> AsyncIterator[Wire]:
    async with aiohttp.ClientSession() as session:
        yield Wire(session)


def _wire_names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-").lower(): value for name, value in headers.items()}


async def _read(answer: aiohttp.ClientResponse) -> Reply:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return Reply(answer.status, headers, await answer.read())


class _Later:
    """An app that is known only once its own address is."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass(slots=True)
class System:
    """One state folder with its settings, and what of it runs; made by `open_system`."""

    state: State
    settings: Settings
    recording: Recording
    stack: AsyncExitStack

    @property
    def home(self) -> LayoutRegistry:
        return LayoutRegistry(self.state.registry)

    @property
    def token(self) -> str:
        """The ``Authorization`` of whoever belongs to this state."""
        return f"Bearer {self.state.local_token()}"

    async def start_hub(
        self,
        *,
        port: int = 0,
        hub_id: str = "hub-under-test",
        koi: KoiHub | None = None,
        koi_join: str | None = None,
        dashboard: bool = False,
        durable: bool = False,
        make_imports: Callable[[Settings, State], Imports] = Imports,
        shared_mcp: SharedMcp | None = None,
    ) -> Hub:
        """A hub as ``retinue hub`` composes it, found through the state folder; with ``koi`` on a network.

        With ``dashboard`` it has the pages for browsers. Runs are in memory, with ``durable`` in the state
        folder, as schedules and approvals are. ``shared_mcp`` is what the leader of several processes has.
        """
        later = _Later()
        url = await self.stack.enter_async_context(serve_app(later, port=port))
        listings = SqliteListings(self.state.database)
        self.stack.callback(listings.close)
        audit = SqliteAudit(self.state.database)
        self.stack.callback(audit.close)
        settings = self.settings
        if koi is not None:
            settings = settings.model_copy(update={"koi": KoiTable(enabled=True, join=koi_join)})
        stored = LazyRuns(settings, self.state)
        open_runs = stored.open if durable else MemoryRuns
        mesh = await self.stack.enter_async_context(
            open_mesh(settings, self.state, listings, open_runs=open_runs, url=url, chains=Chains(hub_id))
        )
        process = mesh.as_process("hub", self._start(settings, url))
        map_of_mesh = MeshParts(url, tuple(mesh.registries.by_name))
        process.add(MeshParts, map_of_mesh)
        if shared_mcp is not None:
            process.add(SharedMcp, shared_mcp)
        process.add(NetworkLinks, map_of_mesh.links)
        process.add(SqliteAudit, audit)
        if not durable:
            await self.stack.enter_async_context(stored.open(_run_nothing))
        process.add(LazyRuns, stored)
        own = {"koi": KoiPart(koi, hub_id), "imports": ImportsPart(make_imports)}
        parts = [own.get(part.name, part) for part in hub_parts(HubOptions(), settings)]
        left_out = NOT_OPENED if dashboard else NOT_OPENED | {"dashboard"}
        await self._open(process, [part for part in parts if part.name not in left_out], later, self.stack)
        self.state.write_hub(url)
        self.stack.callback(self.state.forget_hub)
        return Hub(url, mesh, audit, process)

    async def start_agent(
        self,
        agent: Agent,
        *,
        publish_to: Registry | None = None,
        shown_url: str | None = None,
        observers: Iterable[Observer] = (),
        has_runs: bool = False,
    ) -> Served:
        """Serve an agent as ``retinue serve`` composes it, and publish its card.

        ``publish_to`` None = the registry of the state folder; ``shown_url`` is what the card says;
        ``observers`` see the events of its bus; ``has_runs`` = as an agent in Markdown.
        """
        stack = await self.stack.enter_async_context(AsyncExitStack())
        later = _Later()
        url = await stack.enter_async_context(serve_app(later))
        shown = shown_url or url
        target = Target(agent, (), has_runs=has_runs)
        core = open_agent("agent", target, None, self._start(self.settings, shown))
        process = await stack.enter_async_context(core)
        for observer in observers:
            process.dispatcher.admission.events.subscribe(observer)
        parts = agent_parts(target, ServeOptions(publish=False), self.settings)
        await self._open(process, [part for part in parts if part.name not in NOT_OPENED], later, stack)
        card = encode_card(render_card(agent.record(shown), scopes=PUBLISHED_SCOPES))
        await publish(publish_to or self.home, card)
        return Served(url, stack.aclose, process.dispatcher.admission.events)

    def _start(self, settings: Settings, url: str) -> Start:
        return Start(settings, self.state, lambda line: None, Stop(), url, url)

    async def _open(
        self, process: Process, parts: Sequence[Part], later: _Later, stack: AsyncExitStack
    ) -> None:
        """Open the parts behind the security checks, record requests, and let the parts run."""
        opened = await stack.enter_async_context(open_parts(process, parts))
        checks = make_checks(process, opened, "127.0.0.1")
        app = behind_proxies(checks, process.tables.get(EndpointTable), process.url or "")
        later.app = self.recording.before("hub" if process.kind == "hub" else process.agent.name, app)
        await stack.enter_async_context(opened.running())


@dataclass(frozen=True, slots=True)
class Served:
    """An agent that runs; ``stop`` ends it and leaves its card published, as a crash would."""

    url: str
    stop: Callable[[], Awaitable[None]]
    events: EventBus


@dataclass(slots=True)
class Hub:
    """A hub that runs in this process."""

    url: str
    mesh: Mesh
    written: SqliteAudit
    process: Process

    @property
    def parts(self) -> MeshParts:
        """What ``show_mesh`` shows of others."""
        return self.process.get(MeshParts)

    @property
    def audit(self) -> SqliteAudit:
        """The audit log, with the events that still waited for their batch."""
        self.mesh.events.flush()
        self.process.get(RecordedEvents).flush()
        return self.written

    async def wait_until_healthy(self, agent: str) -> None:
        """Wait until the directory lists the agent as healthy, `WAIT_S` seconds at most."""
        changed = asyncio.Event()
        unsubscribe = self.mesh.directory.subscribe(lambda change: changed.set())
        try:
            async with asyncio.timeout(WAIT_S):
                while (found := self.mesh.directory.find(agent)) is None or found.health != "healthy":
                    await changed.wait()
                    changed.clear()
        finally:
            unsubscribe()


async def publish(registry: Registry, card: bytes, *, tag: str = "v1") -> str:
    """Publish a card byte for byte; gives the digest of its manifest."""
    record = parse_card(card, reference="test")
    skills = [skill.id for skill in record.skills]
    published = await publish_card(
        registry, record.name, card, version=record.version, skills=skills, created=NOON, tag=tag
    )
    return published.digest


@asynccontextmanager
async def open_system(state: State, **settings: Any) -> AsyncIterator[System]:
    """A system without processes of its own yet; everything it starts ends with the block."""
    state.prepare()
    async with AsyncExitStack() as stack:
        yield System(state, Settings(**settings), Recording(), stack)
