"""Two processes that serve one name: what the later says, and what the earlier does when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.errors import RegistryUnreachableError
from retinue.core.record import AgentRecord, Endpoint
from retinue.oci.codec.artifacts import Guard, NewArtifact
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.card_publication import CardPublication
from retinue.web.http_client import HttpClient
from tests.serving import serve_app

REFERENCE = Reference("agents/twin", tag="v1")


async def show_card(request: Request) -> Response:
    return JSONResponse({"name": "twin-agent", "url": "http://127.0.0.1:1", "skills": []})


class Place:
    """A registry in which twins stand."""

    def __init__(self, folder: Path, http: HttpClient) -> None:
        self.registry = LayoutRegistry(folder)
        self.http = http
        self.said: list[str] = []

    def standing(self, url: str) -> CardPublication:
        record = AgentRecord(name="twin-agent", version="1.0.0", endpoints=(Endpoint("execute", url),))
        return CardPublication(
            self.registry, lambda: record, "v1", self.http, self.said.append, probe_timeout_s=10.0
        )

    async def url(self) -> str | None:
        """Whose card stands there."""
        if await self.registry.find_digest(REFERENCE) is None:
            return None
        return str(orjson.loads((await self.registry.pull(REFERENCE)).content)["url"])


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with HttpClient() as http:
        yield Place(tmp_path, http)


@pytest.fixture
async def twins() -> AsyncIterator[tuple[str, str, AsyncExitStack]]:
    """The urls of two living agents of one name, and what ends the second."""
    app = Starlette(routes=[Route("/agent-card", show_card)])
    async with serve_app(app) as one, AsyncExitStack() as stack:
        yield one, await stack.enter_async_context(serve_app(app)), stack


async def test_the_first_of_a_name_has_nothing_to_say(place: Place) -> None:
    await place.standing("http://127.0.0.1:1").publish()
    assert [line.partition(" in ")[0] for line in place.said] == ["published agents/twin:v1"]


class HeldRegistry(LayoutRegistry):
    """A registry whose answer to a push can be held back."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.stored, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        digest = await super().push(repository, tag, artifact, guard=guard)
        self.stored.set()
        await self.answers.wait()
        return digest


async def test_a_card_whose_renewal_is_cancelled_half_way_is_withdrawn(tmp_path: Path) -> None:
    registry = HeldRegistry(tmp_path)
    urls = iter(f"http://127.0.0.1:{port}" for port in range(1, 9))

    def read_record() -> AgentRecord:
        return AgentRecord(name="twin-agent", version="1.0.0", endpoints=(Endpoint("execute", next(urls)),))

    async with HttpClient() as http:
        publication = CardPublication(registry, read_record, "v1", http, print, probe_timeout_s=10.0)
        await publication.publish()
        registry.stored.clear()
        registry.answers.clear()
        renewal = asyncio.create_task(publication.renew())
        await registry.stored.wait()
        renewal.cancel()
        await asyncio.wait((renewal,))
        withdrawal = asyncio.create_task(publication.withdraw())
        registry.answers.set()
        await withdrawal
    assert await registry.find_digest(REFERENCE) is None


async def test_who_replaces_a_living_agent_says_so(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    one, two, _ = twins
    await place.standing(one).publish()
    await place.standing(two).publish()
    assert place.said[1] == f"another twin-agent answers at {one}; this card replaces that one's"
    assert await place.url() == two


async def test_whose_card_was_replaced_says_so_once(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    one, two, _ = twins
    first = place.standing(one)
    await first.publish()
    await place.standing(two).publish()
    for _ in range(3):
        assert not await first.check()
    replaced = [line for line in place.said if "has replaced this card" in line]
    assert replaced == [f"another twin-agent at {two} has replaced this card: give one another name"]


async def test_who_replaces_a_dead_agent_or_itself_says_nothing(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    await place.standing("http://127.0.0.1:1").publish()
    await place.standing(twins[0]).publish()
    await place.standing(twins[0]).publish()
    assert not [line for line in place.said if "another" in line]


async def test_the_survivor_publishes_again_when_its_successor_withdraws(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    one, two, _ = twins
    first, second = place.standing(one), place.standing(two)
    await first.publish()
    await second.publish()
    assert not await first.check()
    assert not await second.check()
    await second.withdraw()
    assert await place.url() is None
    assert await first.check()
    assert await place.url() == one
    assert place.said[-1] == "published agents/twin:v1 again: the agent that replaced it is gone"
    assert not await first.check()
    await first.withdraw()
    assert await place.url() is None


async def test_the_survivor_publishes_again_when_its_successor_is_killed(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    one, two, second_server = twins
    first = place.standing(one)
    await first.publish()
    await place.standing(two).publish()
    for _ in range(3):
        assert not await first.check()
    await second_server.aclose()
    assert [await first.check() for _ in range(3)] == [False, True, False]
    assert await place.url() == one


async def test_what_a_person_takes_out_stays_out(place: Place) -> None:
    first = place.standing("http://127.0.0.1:1")
    await first.publish()
    await place.registry.delete("agents/twin", "v1")
    assert not await first.check()
    assert await place.url() is None
    await first.withdraw()


async def test_the_card_of_a_successor_is_not_taken_away(
    place: Place, twins: tuple[str, str, AsyncExitStack]
) -> None:
    first = place.standing(twins[0])
    await first.publish()
    await place.standing(twins[1]).publish()
    await first.withdraw()
    assert await place.url() == twins[1]


async def test_a_registry_that_is_away_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = place.standing("http://127.0.0.1:1")
    checks = iter([RegistryUnreachableError("r", "gone"), True, KeyboardInterrupt()])
    returned: list[bool] = []

    async def check() -> bool:
        found = next(checks)
        if isinstance(found, BaseException):
            raise found
        return found is True

    async def on_return() -> None:
        returned.append(True)

    monkeypatch.setattr(first, "check", check)
    with pytest.raises(KeyboardInterrupt):
        await first.keep(0, on_return)
    assert returned == [True]
