"""The A2A endpoints of an agent and of a hub: their service, their routes and their cards.

Nothing of ``retinue.a2a`` but a few types is loaded until the first request: many processes never get one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Scope

from retinue.a2a.server.agents import A2aAgent, AgentOf
from retinue.cards.pallet_card import encode_card
from retinue.cards.retinue_block import list_shown_skills
from retinue.core.call import Principal
from retinue.core.record import AgentRecord, Skill
from retinue.parts.lazy import Lazy, LazyApp
from retinue.parts.process import Process
from retinue.parts.shown_agents import ShownAgent
from retinue.parts.text_skills import TextSkills
from retinue.runtime.factories import card_signer
from retinue.runtime.serving import end_task
from retinue.settings_tables import A2aTable, SignatureTable
from retinue.storage.state import State
from retinue.web.http_client import HttpClient, check_written_url
from retinue.web.rejections import JWKS_PATH

if TYPE_CHECKING:
    from retinue.a2a.server.service import A2aService, Envelopes

FindShown = Callable[[Principal], Awaitable[ShownAgent]]
"""One agent as a caller may see it; raises RetinueError."""

CARD_PATH = "/.well-known/agent-card.json"

MAX_SIGNED = 500
"""Signed cards that are kept: each reader may see another one."""

SIGN_AGAIN = 0.75
"""Part of the life of a signature after which a card is signed again."""


def render_a2a_card(
    record: AgentRecord, url: str, scopes: frozenset[str], table: A2aTable, legacy: bool | None
) -> Mapping[str, Any]:
    """The card of what the endpoints here support, of 0.3 where ``legacy``; None = as the table says."""
    from retinue.cards.a2a_card import V03, V1, CardOptions, render_agent_card

    is_legacy = table.legacy_cards if legacy is None else legacy
    options = CardOptions(
        streaming=True,
        push_notifications=True,
        extended_card=True,
        legacy=is_legacy,
        versions=(V1, V03) if table.legacy_cards or is_legacy else (V1,),
    )
    return render_agent_card(record, url, scopes=scopes, options=options)


@dataclass(frozen=True, slots=True)
class A2aEndpoints:
    """The open endpoints of one process; made by `open_a2a`.

    ``end`` ends every running task and stream now, so that a server that waits for them can stop.
    """

    routes: tuple[Route, ...]
    end: Callable[[], None]


@dataclass(frozen=True, slots=True)
class SharedTasks:
    """A product: how several processes of a hub keep their tasks in one file.

    ``make_id`` makes the ids of this process's tasks, which ``owns`` knows again. The one that ``leads``
    holds the file.
    """

    make_id: Callable[[], str]
    owns: Callable[[str], bool]
    leads: bool


class CardSigning:
    """Signs the A2A cards of one process, each once, and again before its signature ends."""

    def __init__(self, signatures: SignatureTable, state: State, url: str) -> None:
        self._make_signer = partial(card_signer, signatures, state)
        self._jku = f"{url.rstrip('/')}{JWKS_PATH}"
        self._signed: LRUCache[bytes, tuple[float, Mapping[str, Any]]] = LRUCache(MAX_SIGNED)

    async def sign(self, card: Mapping[str, Any]) -> Mapping[str, Any]:
        """The card with its signature; as it is where the settings say that cards are not signed."""
        content = encode_card(card)
        until, signed = self._signed.get(content, (0.0, card))
        if until <= time.monotonic():
            until, signed = await asyncio.to_thread(self._sign, card)
            self._signed[content] = until, signed
        return signed

    def _sign(self, card: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        signer = self._make_signer()
        if signer is None:
            return inf, card
        valid_s = inf if signer.valid_s is None else signer.valid_s
        signed = signer.sign_agent_card(card, jku=self._jku)
        return time.monotonic() + valid_s * SIGN_AGAIN, signed


@asynccontextmanager
async def open_a2a(process: Process, envelopes: Envelopes | None = None) -> AsyncIterator[A2aEndpoints]:
    """Open the endpoints of a process; closed on leaving.

    They serve its own agent and, at a hub, every agent below ``/agents``. ``envelopes`` answers the data
    parts that are envelopes of seed 000.
    """
    shown, url, table = process.shown, process.url or "", process.tables.get(A2aTable)
    signing = CardSigning(process.tables.get(SignatureTable), process.state, url)

    def describe(name: str | None, find: FindShown, at: str) -> A2aAgent:
        async def list_skills(caller: Principal) -> tuple[Skill, ...]:
            agent = await find(caller)
            return list_shown_skills(agent.record, agent.scopes)

        async def render(caller: Principal, legacy: bool | None) -> Mapping[str, Any]:
            agent = await find(caller)
            card = render_a2a_card(agent.record, at, agent.scopes, table, legacy)
            return await signing.sign(card)

        is_named = shown.has_others and name is not None
        text_skills = process.find(TextSkills) if shown.has_others and name is None else None
        return A2aAgent(name, list_skills, render, is_named=is_named, text_skills=text_skills)

    async def find_own(caller: Principal) -> ShownAgent:
        await shown.decide(caller)
        return shown.own(caller)

    own = describe(None if shown.has_others else shown.agent.name, find_own, url)

    def own_agent(scope: Scope) -> A2aAgent:
        return own

    def named_agent(scope: Scope) -> A2aAgent:
        name = scope["path_params"]["agent"]
        return describe(name, partial(shown.find, name), f"{url}/agents/{name}")

    # a proxy may leave the path of an agent's url in its requests
    base = "" if shown.has_others else urlsplit(url).path.rstrip("/")
    async with _open_service(process, envelopes) as service:
        routes = _routes(service, own_agent, "/", *((base, f"{base}/") if base else ()))
        if shown.has_others:
            routes += _routes(service, named_agent, "/agents/{agent}", "/agents/{agent}/")
        routes += _card_routes(own_agent, CARD_PATH, *((base + CARD_PATH,) if base else ()))
        if shown.has_others:
            routes += _card_routes(named_agent, f"/agents/{{agent}}{CARD_PATH}")
        yield A2aEndpoints(tuple(routes), service.end)


def _routes(service: Lazy[A2aService], agent_of: AgentOf, *paths: str) -> list[Route]:
    """The endpoint at each of the paths."""

    async def make() -> ASGIApp:
        from retinue.a2a.server.endpoint import A2aEndpoint

        return A2aEndpoint(await service.open(), agent_of)

    app = LazyApp(make, lambda: service.is_ended)
    return [Route(path, app, methods=["POST"]) for path in paths]


def _card_routes(agent_of: AgentOf, *paths: str) -> list[Route]:
    """The card at each of the paths."""

    async def make() -> ASGIApp:
        from retinue.a2a.server.cards import CardEndpoint

        return request_response(CardEndpoint(agent_of).answer)

    app = LazyApp(make)
    return [Route(path, app, methods=["GET"]) for path in paths]


@asynccontextmanager
async def _open_service(process: Process, envelopes: Envelopes | None) -> AsyncIterator[Lazy[A2aService]]:
    """The service of one process, made with its first request."""
    state, name, shared = process.state, process.shown.agent.name, process.find(SharedTasks)

    @asynccontextmanager
    async def serve() -> AsyncIterator[A2aService]:
        from retinue.a2a.server.push import PushSender
        from retinue.a2a.server.service import A2aService
        from retinue.a2a.server.task_table import TaskTable
        from retinue.storage.task_store import TaskStore

        table = process.tables.get(A2aTable)
        allow_private = table.private_push_urls and process.http.allow_private

        def open_store() -> TaskStore:
            if shared is not None and not shared.leads:
                return TaskStore.share(state, name, keep=table.keep, keep_days=table.keep_days)
            return TaskStore.open(state, name, keep=table.keep, keep_days=table.keep_days)

        async with HttpClient(allow_private=allow_private) as http:
            check = partial(check_written_url, allow_private=allow_private)
            if shared is None:
                tasks = TaskTable(open_store, PushSender(http), check)
                opened = A2aService(process.dispatcher, tasks, envelopes=envelopes)
            else:
                tasks = TaskTable(open_store, PushSender(http), check, shared.owns)
                opened = A2aService(process.dispatcher, tasks, envelopes=envelopes, make_id=shared.make_id)
            try:
                yield opened
            finally:
                await opened.aclose()

    async def recover() -> None:
        await (await service.open()).tasks.recover()

    service = Lazy(serve, lambda opened: opened.end())
    recovering: asyncio.Task[None] | None = None
    if state.tasks_file(name, 1).exists():
        # a process before this one had tasks: those that it left unfinished are ended
        recovering = asyncio.create_task(recover())
    try:
        yield service
    finally:
        if recovering is not None:
            await end_task(recovering)
        await service.aclose()
