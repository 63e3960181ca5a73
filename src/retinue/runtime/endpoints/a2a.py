"""The A2A endpoints of an agent and of a hub: their service, their routes and their cards.

Nothing of ``retinue.a2a`` but a few types is loaded until the first request: many processes never get one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cachetools import LRUCache
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Scope

from retinue.a2a.server.agents import A2aAgent, AgentOf
from retinue.authoring.agent import Agent
from retinue.cards.pallet_card import encode_card
from retinue.cards.retinue_block import list_shown_skills
from retinue.core.call import Principal
from retinue.core.errors import UnknownAgentError
from retinue.core.record import AgentRecord
from retinue.mesh.dispatch import Calls, Dispatcher
from retinue.mesh.permissions import is_seen
from retinue.parts.lazy import Lazy, LazyApp
from retinue.runtime.factories import card_signer
from retinue.runtime.serving import end_task
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient, check_written_url
from retinue.web.rejections import JWKS_PATH

if TYPE_CHECKING:  # an agent's process has no hub in it
    from retinue.a2a.server.service import A2aService, Envelopes
    from retinue.runtime.mesh import Mesh

CARD_PATH = "/.well-known/agent-card.json"

MAX_SIGNED = 500
"""Signed cards that are kept: each reader may see another one."""

SIGN_AGAIN = 0.75
"""Part of the life of a signature after which a card is signed again."""


def render_a2a_card(
    record: AgentRecord, url: str, scopes: frozenset[str], settings: Settings, legacy: bool | None
) -> Mapping[str, Any]:
    """The card of what the endpoints here support; ``legacy`` None = as the settings say."""
    from retinue.cards.a2a_card import CardOptions, render_agent_card

    shown = settings.a2a.legacy_cards if legacy is None else legacy
    options = CardOptions(streaming=True, push_notifications=True, extended_card=True, legacy=shown)
    return render_agent_card(record, url, scopes=scopes, options=options)


@dataclass(frozen=True, slots=True)
class A2aEndpoints:
    """The open endpoints of one process; made by `open_agent_a2a` and `open_hub_a2a`."""

    service: Lazy[A2aService]
    routes: tuple[Route, ...]

    def end(self) -> None:
        """End every running task and stream now, so that a server that waits for them can stop."""
        self.service.end()


class CardSigning:
    """Signs the A2A cards of one process, each once, and again before its signature ends."""

    def __init__(self, settings: Settings, state: State, url: str) -> None:
        self._make_signer = partial(card_signer, settings, state)
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
async def open_agent_a2a(
    agent: Agent,
    dispatcher: Dispatcher,
    settings: Settings,
    state: State,
    url: str,
    envelopes: Envelopes | None = None,
) -> AsyncIterator[A2aEndpoints]:
    """Open the endpoints of one agent, which is reached at ``url``; closed on leaving.

    ``envelopes`` answers the data parts that are envelopes of seed 000.
    """

    @lru_cache(maxsize=8)
    def shown(scopes: frozenset[str], revision: int) -> AgentRecord:
        record = agent.record(url)
        return replace(record, skills=list_shown_skills(record, scopes))

    def record_for(caller: Principal) -> AgentRecord:
        # a caller that the agent does not hear gets a card without skills
        is_heard = is_seen(dispatcher.access.view_of(caller), agent.name)
        return shown(caller.scopes if is_heard else frozenset(), agent.revision)

    async def find_record(caller: Principal) -> AgentRecord:
        return record_for(caller)

    signing = CardSigning(settings, state, url)

    async def render(caller: Principal, legacy: bool | None) -> Mapping[str, Any]:
        card = render_a2a_card(record_for(caller), url, caller.scopes, settings, legacy)
        return await signing.sign(card)

    served = A2aAgent(agent.name, find_record, render)

    def agent_of(scope: Scope) -> A2aAgent:
        return served

    base = urlsplit(url).path.rstrip("/")
    bases = ("", base) if base else ("",)
    async with _open_service(dispatcher, settings, state, agent.name, envelopes) as service:
        yield A2aEndpoints(
            service,
            (
                *_routes(service, agent_of, "/", *((base, f"{base}/") if base else ())),
                *_card_routes(agent_of, *(one + CARD_PATH for one in bases)),
            ),
        )


@asynccontextmanager
async def open_hub_a2a(mesh: Mesh, settings: Settings, state: State, url: str) -> AsyncIterator[A2aEndpoints]:
    """Open the endpoints of a hub, for itself and for every agent; closed on leaving."""

    async def find_own(caller: Principal) -> AgentRecord:
        record = mesh.agent.record(url)
        is_shown = is_seen(mesh.access.view_of(caller), mesh.agent.name)
        return replace(record, skills=list_shown_skills(record, caller.scopes) if is_shown else ())

    async def find_agent(name: str, caller: Principal) -> AgentRecord:
        view = mesh.access.view_of(caller)
        if name == mesh.agent.name and is_seen(view, name):
            return await find_own(caller)
        await mesh.directory.ensure_fresh()
        try:
            listing = await mesh.directory.open_named(name, view=view)
        except UnknownAgentError:
            # no suggestions: similar names may be hidden from the caller
            raise UnknownAgentError(name) from None
        return replace(listing.record, skills=list_shown_skills(listing.record, caller.scopes))

    signing = CardSigning(settings, state, url)

    def describe(name: str | None, find: Callable[[Principal], Any], at: str) -> A2aAgent:
        async def render(caller: Principal, legacy: bool | None) -> Mapping[str, Any]:
            return await signing.sign(
                render_a2a_card(await find(caller), at, caller.scopes, settings, legacy)
            )

        return A2aAgent(name, find, render, is_named=name is not None)

    own = describe(None, find_own, url)

    def own_agent(scope: Scope) -> A2aAgent:
        return own

    def named_agent(scope: Scope) -> A2aAgent:
        name = scope["path_params"]["agent"]
        return describe(name, partial(find_agent, name), f"{url}/agents/{name}")

    async with _open_service(
        mesh.dispatcher, settings, state, mesh.agent.name, mesh.messages.answer_envelope
    ) as service:
        yield A2aEndpoints(
            service,
            (
                *_routes(service, own_agent, "/"),
                *_routes(service, named_agent, "/agents/{agent}", "/agents/{agent}/"),
                *_card_routes(own_agent, CARD_PATH),
                *_card_routes(named_agent, f"/agents/{{agent}}{CARD_PATH}"),
            ),
        )


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
async def _open_service(
    calls: Calls, settings: Settings, state: State, name: str, envelopes: Envelopes | None
) -> AsyncIterator[Lazy[A2aService]]:
    """The service of one process, made with its first request."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[A2aService]:
        from retinue.a2a.server.push import PushSender
        from retinue.a2a.server.service import A2aService
        from retinue.a2a.server.task_table import TaskTable
        from retinue.storage.task_store import TaskStore

        table = settings.a2a
        allow_private = table.private_push_urls and settings.allow_private_urls

        def open_store() -> TaskStore:
            return TaskStore.open(state, name, keep=table.keep, keep_days=table.keep_days)

        async with HttpClient(allow_private=allow_private) as http:
            check = partial(check_written_url, allow_private=allow_private)
            opened = A2aService(calls, TaskTable(open_store, PushSender(http), check), envelopes=envelopes)
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
