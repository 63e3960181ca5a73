"""One imported MCP server as an agent: connects, reads its lists and follows their changes.

The task connects again with back-off. While there is no session, the server is listed as unreachable with
the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal, TypeVar

import orjson
import structlog

from retinue.cards.pallet_card import render_card
from retinue.core.errors import AgentUnreachableError, RetinueError
from retinue.core.foreign_text import cut_text
from retinue.core.record import AgentRecord, Health, Listing
from retinue.core.uri_template import names_place
from retinue.mcp.codec.foreign import ServerLists, parse_prompts, parse_resources, parse_tools
from retinue.mcp.upstream.open_calls import RequestLimit
from retinue.mcp.upstream.session import ServerSession
from retinue.mcp.upstream.traces import TraceMeta, own_trace
from retinue.mcp.upstream.transport import Transport
from retinue.mesh.directory.sources import LiveMember, MemberId, OnChange
from retinue.mesh.foreign_records import bound_tools, clean_record
from retinue.mesh.pins import Pins

IMPORTS = "imports"
"""The name of the source."""

FIRST_BACK_OFF_S = 0.5
LAST_BACK_OFF_S = 60.0
RELIST_S = 60.0
"""How often the lists of a server are read again that does not tell of changes."""

REOPEN_S = 1.0
"""How long after its end a stream of changes is opened again; one that ended sooner counts as none."""

REREAD_S = 1.0
"""The least time between two readings of the lists of a server that tells of changes."""

MAX_FOLLOWED = 1_000
"""Resources of one server whose changes are followed."""

OnResource = Callable[[str, str], None]
"""Called with the text of the id of a server and the URI of its resource that changed."""

MAX_DESCRIPTION = 1_000
"""Characters of a server's instructions that become the description of its agent."""

INSTRUCTIONS = "(instructions)"
"""The name under which the instructions of a server are accepted like a tool."""

T = TypeVar("T")

_ALL = frozenset({"mesh", "exposed"})

_log = structlog.get_logger("retinue.imports")


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """One import: how to connect, and who sees its tools."""

    name: str
    connect: Callable[[], Transport]
    place: str
    visibility: Literal["mesh", "exposed"] = "exposed"
    start_s: float = 60.0
    fingerprint: str = ""
    """Changes whenever the import is configured differently."""

    any_uri: bool = False
    """Whether a template of the server may match URIs of any scheme and authority."""

    problem: str = ""
    """Why the server cannot be connected to as it is configured; "" if it can."""

    team: str = ""
    tag: str = ""
    """The team and the tag of the digest that brings it; "" for those of the machine."""

    @property
    def id(self) -> MemberId:
        """Which member of its source it is."""
        return MemberId(self.name, self.team, self.tag)


class ImportedServer(LiveMember):
    """One imported server; a separate task connects it."""

    def __init__(
        self,
        spec: ImportSpec,
        client_version: str,
        pins: Pins,
        on_change: OnChange,
        on_resource: OnResource = lambda name, uri: None,
    ) -> None:
        self.spec = spec
        self.id = spec.id
        self.fingerprint = spec.fingerprint
        self.reason = f"it is starting, which may take {spec.start_s:g} s (imports.{spec.name}.start_s)"
        self._client_version = client_version
        self._pins = pins
        self._on_change = on_change
        self._tools = pins.accepted_tools(spec.id.pinned)
        self._has_lists = False
        self._instructions = ""
        self._record = self._shown_record = AgentRecord(spec.name)
        self._on_resource = on_resource
        self._limit = RequestLimit(spec.name)
        self._followed = frozenset[str]()
        self._follows_others = asyncio.Event()
        self._session: ServerSession | None = None
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._subscribes = False
        self._is_tried = False
        """Whether an attempt to connect has failed, or a session was lost."""
        self._is_opened = False
        """Whether the last attempt to connect succeeded."""
        self._settled = asyncio.Event()
        """Set at the end of an attempt to connect; cleared by a call that waits for one."""
        self._wake = asyncio.Event()
        self._renew = asyncio.Event()
        self.uncallable: tuple[str, ...] = ()
        """The tools that are left out, because the server runs them as tasks only and offers no tasks."""
        self._caused_by: TraceMeta | None = None
        """The trace of the call that waits for a session; None if the process connects for itself."""
        self._describe(self._tools)

    @property
    def listing(self) -> Listing:
        """The server as an agent, in its present state."""
        record = self._record
        shown = [render_card(record, scopes=_ALL), [resource.uri for resource in record.resources]]
        digest = sha256(orjson.dumps([*shown, [prompt.name for prompt in record.prompts]])).hexdigest()
        key, tag = self.id.key, self.id.tag or None
        return Listing(record=record, source=IMPORTS, key=key, tag=tag, digest=f"sha256:{digest}")

    @property
    def is_ready(self) -> bool:
        """Whether a session is open."""
        return self._session is not None

    @property
    def complaint(self) -> str:
        """The problem of a server that answers; "" if there is none."""
        return self._transport.flood.reason if self._session and self._transport else ""

    def start(self) -> None:
        """Connect in the background."""
        self._task = asyncio.create_task(self._run(), name=f"import {self.spec.name}")

    async def stop(self) -> None:
        """End the session, and the program behind it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.reason = "it is not imported any more"
        self._settled.set()

    def retry(self) -> None:
        """Connect now if there is no session, instead of after the back-off."""
        if not self.is_ready:
            self._wake.set()

    def review(self) -> None:
        """Compare the tools with the accepted ones again; nothing to do before the first session."""
        if self._has_lists:
            self._describe(self._pins.review(self.id.pinned, self._tools))
            self._changed()

    @property
    def record(self) -> AgentRecord:
        """The server's offer as an agent, as others may see it."""
        return self._shown_record

    def follow(self, uris: frozenset[str]) -> None:
        """Tell of changes of these resources, and no others, from now on."""
        self._followed = frozenset(sorted(uris)[:MAX_FOLLOWED])
        self._follows_others.set()

    async def open_session(self, trace_meta: TraceMeta | None = None) -> ServerSession:
        """The session; waits for one attempt to connect, as part of the trace of the call that needs it.

        Raises AgentUnreachableError.
        """
        if self._session is None and not self.spec.problem:
            self._settled.clear()
            self._caused_by = trace_meta
            self._wake.set()
            await self._settled.wait()
        if self._session is None:
            raise AgentUnreachableError(self.spec.name, self.spec.place, self.reason, sent=False)
        return self._session

    async def renew_session(self, lost: ServerSession, trace_meta: TraceMeta | None = None) -> ServerSession:
        """The session after ``lost``. Raises AgentUnreachableError."""
        if self._session is lost:
            self._session = None
            self._renew.set()
        return await self.open_session(trace_meta)

    async def with_session(self, trace_meta: TraceMeta, work: Callable[[ServerSession], Awaitable[T]]) -> T:
        """``work`` with the session; once more with a new one if the request was certainly not sent.

        ``trace_meta`` is the trace of the call, also of a session that it must open. Raises BusyError while
        `MAX_IN_FLIGHT` others run.
        """
        with self._limit.running():
            try:
                session = await self.open_session(trace_meta)
                try:
                    return await work(session)
                except AgentUnreachableError as error:
                    if error.sent:
                        raise
                    return await work(await self.renew_session(session, trace_meta))
            except AgentUnreachableError as error:
                error.remedy = "the hub connects to it again for the next call; its state: retinue imports"
                raise

    async def _run(self) -> None:
        if self.spec.problem:
            self._lose(self.spec.problem)
            return
        back_off_s = FIRST_BACK_OFF_S
        while True:
            self._wake.clear()
            self._renew.clear()
            self._is_opened = False
            began = time.monotonic()
            transport = self._transport = self.spec.connect()
            transport.flood.subscribe(self._changed)
            try:
                await self._serve(transport)
                self._lose("the connection ended")
            except TimeoutError:
                setting = f"imports.{self.spec.name}.start_s"
                limit = f"it did not start within {self.spec.start_s:g} s ({setting})"
                self._lose(f"{limit}; {transport.hint}" if transport.hint else limit)
            except AgentUnreachableError as error:
                self._lose(error.cause)
            except RetinueError as error:
                self._lose(f"{error.message}; {error.remedy}" if error.remedy else error.message)
            finally:
                self._session = None
                await _finish(transport.aclose())
            if time.monotonic() - began > LAST_BACK_OFF_S:
                back_off_s = FIRST_BACK_OFF_S
            try:
                async with asyncio.timeout(back_off_s):
                    await self._wake.wait()
            except TimeoutError:
                back_off_s = min(back_off_s * 2, LAST_BACK_OFF_S)

    async def _serve(self, transport: Transport) -> None:
        """Open a session, and return when it has ended."""
        session = ServerSession(self.spec.name, transport, self._client_version)
        trace, self._caused_by = self._caused_by or own_trace(), None
        async with asyncio.timeout(self.spec.start_s):
            await transport.open()
            facts = await session.start(trace)
            lists = await session.read_lists(trace)
        self._caused_by = None  # of a call that came meanwhile
        self._instructions = facts.instructions[:MAX_DESCRIPTION]
        self._subscribes = facts.subscribes
        self._record = replace(self._record, version=facts.server_version or None)
        self._take(lists)
        self._session, self.reason, self._is_opened = session, "", True
        self._settled.set()
        self._changed()

        has_news = asyncio.Event()

        async def keep_lists() -> None:
            while True:
                await has_news.wait()
                has_news.clear()
                self._take(await session.read_lists())
                self._changed()
                await asyncio.sleep(REREAD_S)

        def pass_on(uri: str) -> None:
            self._on_resource(str(self.id), uri)

        async def watch() -> None:
            while True:
                began = time.monotonic()
                try:
                    await session.watch(has_news.set, pass_on)
                except AgentUnreachableError:
                    if transport.ends_with_stream:
                        raise
                if transport.ends_with_stream:
                    return
                # changes between two streams are not sent again, so the lists are read again
                is_kept = time.monotonic() - began > REOPEN_S
                await asyncio.sleep(REOPEN_S if is_kept else RELIST_S)
                has_news.set()

        async def keep_following() -> None:
            while True:
                self._follows_others.clear()
                await session.follow(self._followed)
                await self._follows_others.wait()

        work = (watch(), keep_lists(), keep_following(), _until(self._renew))
        tasks = [asyncio.create_task(step) for step in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, lists: ServerLists) -> None:
        bounded, left_out = bound_tools(lists.tools)
        claims = [resource for resource in lists.resources if self._claims_others(resource)]
        if left_out or claims:
            templates = [cut_text(str(claim["uriTemplate"]), 100) for claim in claims]
            _log.warning(
                "import bounded", server=self.spec.name, tools_left_out=left_out, templates=templates
            )
        if lists.uncallable != self.uncallable:
            _log.warning("tools not callable", server=self.spec.name, tools=lists.uncallable)
        self._tools, self._has_lists, self.uncallable = bounded, True, lists.uncallable
        if self._instructions:
            self._tools = (*bounded, {"name": INSTRUCTIONS, "description": self._instructions})
        seen = self.spec.visibility
        live = self._subscribes
        self._record = replace(
            self._record,
            resources=tuple(
                parse_resources(
                    [resource for resource in lists.resources if resource not in claims], seen, live=live
                )
            ),
            prompts=tuple(parse_prompts(lists.prompts, seen)),
        )
        self._describe(self._pins.review(self.id.pinned, self._tools))

    def _claims_others(self, entry: Mapping[str, Any]) -> bool:
        """Whether a template would match URIs of other servers, and the owner has not allowed that."""
        template = entry.get("uriTemplate")
        return isinstance(template, str) and not self.spec.any_uri and not names_place(template)

    def _describe(self, listed: Iterable[Mapping[str, Any]]) -> None:
        tools = {str(tool.get("name")): tool for tool in listed}
        described = str(tools.pop(INSTRUCTIONS, {}).get("description", ""))
        skills = tuple(parse_tools(tools.values(), self.spec.visibility))
        self._record = replace(self._record, description=described, skills=skills)
        self._shown_record = clean_record(self._record)[0]

    def _lose(self, reason: str) -> None:
        if reason != self.reason:
            _log.warning("import unreachable", server=self.spec.name, reason=reason)
        self.reason, self._is_tried = reason, True
        self._session = None
        if not self._is_opened:
            self._settled.set()
        self._changed()

    def _changed(self) -> None:
        if not self.is_ready:
            health: Health = "unreachable" if self._is_tried else "unknown"
            self._on_change(self.listing, health, self.reason)
        elif self.complaint:
            self._on_change(self.listing, "degraded", self.complaint)
        else:
            self._on_change(self.listing, "healthy", "")


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _finish(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work`` to its end, even when cancelled meanwhile, because a program must not outlive its
    import.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
