"""Hubs on one Postgres share the probes of agents, what they find, changes of cards, and tokens."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.errors import StateError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.runtime.many_hubs.exchange import MeshExchange
from retinue.runtime.many_hubs.registries import RegistryChanges
from retinue.runtime.many_hubs.tokens import SharedTokens
from retinue.runtime.many_hubs.verdicts import Findings, HealthChanges
from retinue.runtime.parts.upkeep import BackgroundTasks
from retinue.storage.mesh_news import MeshNews, News
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import KnownTokens, TokenFile
from tests.crash.postgres import Postgres
from tests.mesh.scripted import make_listing
from tests.serving import serve_app
from tests.support.memory_source import MemorySource
from tests.time_bounds import Stopwatch

HUBS = ("one", "two", "three", "four")
AGENTS = 60
REFRESH_S = 1.5
DEAD_S = 3.0
WITHIN_S = 2.0
"""What one hub knows the others know after this time."""

LATE_S = 20.0
ENDLESS_S = 60.0


class Agents:
    """The cards of many agents, and how often each was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.dead: set[str] = set()
        self.app = Starlette(routes=[Route("/{name}/agent-card", self._show)])

    async def _show(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.asked[name] += 1
        card = {"name": name, "url": "http://127.0.0.1:1", "version": "1", "skills": []}
        return JSONResponse(card, 500 if name in self.dead else 200)


@dataclass(slots=True)
class Member:
    """One hub, as far as it shares."""

    directory: Directory
    sharing: ProbeSharing
    tokens: SharedTokens
    keys: Path
    shared: MemorySource
    tasks: list[asyncio.Task[None]]

    async def kill(self) -> None:
        """End it without a word to the others."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def member(
    database: str,
    name: str,
    folder: Path,
    http: HttpClient,
    shared: MemorySource,
    *,
    refresh_s: float = REFRESH_S,
    says_goodbye: bool = True,
) -> AsyncIterator[Member]:
    directory = Directory(MemoryListings(), [shared])
    agent_stats, sharing = AgentStatsTable(), ProbeSharing("here")
    upkeep = BackgroundTasks(
        directory, agent_stats, http, refresh_s=refresh_s, probe_timeout_s=5, sharing=sharing
    )
    news = MeshNews(database, name, "hub", None, dead_s=DEAD_S)
    if not says_goodbye:
        news.leave = _say_nothing  # type: ignore[method-assign]
    keys = folder / name
    tokens = SharedTokens(news, keys, b"key of the mesh")
    cards = RegistryChanges(directory, [shared.name])
    topics = [
        Findings(sharing, agent_stats),
        HealthChanges(directory, agent_stats, sharing, "here"),
        cards,
        tokens,
    ]
    exchange = MeshExchange(name, news, sharing, topics)
    works = (upkeep.run(), exchange.run(), tokens.watch(), cards.read_pending())
    tasks = [asyncio.create_task(work) for work in works]
    one = Member(directory, sharing, tokens, keys, shared, tasks)
    try:
        yield one
    finally:
        await one.kill()
        await directory.aclose()


async def _say_nothing() -> None:
    return


async def wait_until(holds: Callable[[], bool], within_s: float) -> None:
    stopwatch = Stopwatch()
    async with asyncio.timeout(ENDLESS_S):
        while not holds():
            await asyncio.sleep(0.05)
    stopwatch.check(within_s)


async def test_an_agent_is_asked_once_per_interval_and_a_dead_hub_gives_its_share_away(
    postgres: Postgres, tmp_path: Path
) -> None:
    database, agents, names = postgres.create_database(), Agents(), [f"a{n}" for n in range(AGENTS)]
    async with serve_app(agents.app) as url, HttpClient() as http:
        listings = [
            replace(make_listing(name, url=f"{url}/{name}", digest="sha256:1"), source="x://reg")
            for name in names
        ]
        first = member(database, "one", tmp_path, http, MemorySource("x://reg", listings), says_goodbye=False)
        second = member(database, "two", tmp_path, http, MemorySource("x://reg", listings))
        async with first as one, second as two:
            await wait_until(lambda: one.sharing.is_shared and two.sharing.is_shared, LATE_S)
            await wait_until(lambda: one.directory.count_healths().get("healthy") == AGENTS, LATE_S)
            await wait_until(lambda: two.directory.count_healths().get("healthy") == AGENTS, LATE_S)
            agents.asked.clear()
            rounds = 4
            await asyncio.sleep(rounds * REFRESH_S)
            # two hubs that do not share would ask twice as often
            assert agents.asked.total() <= 1.3 * AGENTS * (rounds + 1), agents.asked.total()
            assert set(agents.asked) == set(names)
            agents.dead = set(names[:10])
            await wait_until(lambda: len(one.directory.list_failing(AGENTS)) == 10, LATE_S)
            await wait_until(lambda: len(two.directory.list_failing(AGENTS)) == 10, WITHIN_S)
            await one.kill()
            await wait_until(lambda: not two.sharing.is_shared, DEAD_S + 4)
            agents.asked.clear()
            await wait_until(lambda: set(agents.asked) >= set(names[10:]), LATE_S)


async def test_what_one_of_four_hubs_finds_new_dead_or_gone_the_others_know_within_two_seconds(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.create_database()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient())
        sources = [MemorySource("x://reg") for _ in HUBS]
        hubs = [
            await stack.enter_async_context(member(database, name, tmp_path, http, source, refresh_s=3600.0))
            for name, source in zip(HUBS, sources, strict=True)
        ]
        one, *others = hubs
        await wait_until(lambda: all(hub.sharing.is_shared for hub in hubs), LATE_S)
        listing = replace(make_listing("late", url="http://127.0.0.1:9", digest="sha256:1"), source="x://reg")
        for source in sources:
            source.put(listing)
        await one.directory.reread_key("x://reg", listing.key)
        await wait_until(lambda: all(hub.directory.find_named("late") for hub in others), WITHIN_S)
        one.directory.mark_unreachable(listing, "nobody listens there")
        await wait_until(
            lambda: all(hub.directory.count_healths().get("unreachable") for hub in others), WITHIN_S
        )
        for source in sources:
            source.remove(listing.key)
        await one.directory.reread_key("x://reg", listing.key)
        await wait_until(lambda: not any(hub.directory.find_named("late") for hub in others), WITHIN_S)


async def test_tokens_hold_at_all_hubs_and_revoked_ones_at_none(postgres: Postgres, tmp_path: Path) -> None:
    database = postgres.create_database()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient())
        hubs = [
            await stack.enter_async_context(member(database, name, tmp_path, http, MemorySource("x://reg")))
            for name in HUBS
        ]
        one, two, *others = hubs
        await wait_until(lambda: all(hub.sharing.is_shared for hub in hubs), LATE_S)
        issued, text = TokenFile(one.keys).issue(["mesh"], name="ci")
        known = KnownTokens(two.keys)
        await wait_until(
            lambda: all(TokenFile(hub.keys).identifies("token:ci") for hub in (two, *others)), WITHIN_S
        )
        principal = await known.read(text.encode(), "here")
        assert principal is not None
        assert principal.id == "token:ci"
        TokenFile(two.keys).revoke(issued.id)
        await wait_until(lambda: not any(TokenFile(hub.keys).list_all() for hub in (one, *others)), WITHIN_S)
        for hub in hubs:
            assert await KnownTokens(hub.keys).read(text.encode(), "here") is None
        # a hub that was restored from a backup has it again, and drops it
        TokenFile(one.keys).merge([issued], ())
        await wait_until(lambda: not TokenFile(one.keys).list_all(), WITHIN_S)
        assert await KnownTokens(one.keys).read(text.encode(), "here") is None


async def test_news_after_a_crash_of_the_database_are_heard(postgres: Postgres) -> None:
    database = postgres.create_database()
    one, two = (MeshNews(database, name, "hub", None) for name in ("one", "two"))
    for member_news in (one, two):
        await member_news.exchange([])
    for number in range(5):
        await one.exchange([News("t", b"%d" % number)])
    heard, _ = await two.exchange([])
    assert len(heard) == 5
    # Postgres starts all over when one of its processes is killed
    async with one._transaction() as connection:
        backend = connection.info.backend_pid
    os.kill(backend, signal.SIGKILL)
    bodies = [b"after %d" % number for number in range(3)]
    for body in bodies:
        await _exchange_when_it_answers(one, [News("t", body)])
    heard, _ = await _exchange_when_it_answers(two, [])
    assert [news.body for news in heard] == bodies
    for member_news in (one, two):
        await member_news.aclose()


async def _exchange_when_it_answers(
    news: MeshNews, sent: Sequence[News]
) -> tuple[Sequence[News], Sequence[str]]:
    async with asyncio.timeout(LATE_S):
        while True:
            try:
                return await news.exchange(sent)
            except StateError:
                await asyncio.sleep(0.05)


async def test_a_database_that_does_not_answer_is_a_typed_error() -> None:
    news = MeshNews("postgresql://nobody@127.0.0.1:1/none", "one", "hub", None)
    with pytest.raises(StateError, match="news of other hubs"):
        await news.exchange([])
