"""The catalog and the search of a hub over HTTP, and hubs that ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.ard.codec.catalog import CatalogEntry, Publisher
from retinue.ard.codec.search import INCOMPLETE_HEADER, VISITED_HEADER
from retinue.ard.federation import Upstreams, rank_entries
from retinue.ard.server import DiscoveryEndpoint
from retinue.core.record import AgentRecord, Endpoint, Example, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.permissions import Access
from retinue.mesh.search.ranking import LIKELY_FROM, SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex
from retinue.runtime.access import security_settings
from retinue.settings import Settings
from retinue.web.http_client import HttpClient
from retinue.web.security import PathExceptions, SecurityMiddleware, Tokens
from retinue.web.transport import HttpResponse
from tests.serving import serve_app
from tests.support.memory_source import MemorySource

WEATHER = ("weather", Skill("rain", "Forecasts rain and wind", visibility="exposed"))
MONEY = ("money", Skill("convert", "Converts currencies", examples=(Example("euros to yen"),)))
HIDDEN = ("hidden", Skill("spy", "Forecasts secret rain", visibility="private"))


class Hub:
    """A hub's discovery endpoints over a directory in memory."""

    def __init__(self, http: HttpClient, name: str, *agents: tuple[str, Skill], **options: Any) -> None:
        self.name = name
        listings = [
            Listing(
                AgentRecord(
                    agent, endpoints=(Endpoint("execute", f"http://127.0.0.1:1/{agent}"),), skills=(skill,)
                ),
                "home",
                f"agents/{agent}",
                tag="v1",
                digest=f"sha256:{agent}",
            )
            for agent, skill in agents
        ]
        self.directory = Directory(MemoryListings(), [MemorySource("home", listings)])
        self.search = SkillSearch(MemoryTextIndex(), self.directory.find_listing)
        self.directory.subscribe(lambda change: self.search.note(change.entry.id))
        self.http = http
        self.options = {"timeout_s": 2.0, "max_hops": 3, **options}
        self.upstreams: list[str] = []
        self.seen: list[str | None] = []

    @property
    def app(self) -> Any:
        publisher = Publisher(f"{self.name}.example", self.name, f"http://{self.name}.example")
        upstreams = Upstreams(self.http, self.upstreams, f"id-{self.name}", **self.options)
        endpoint = DiscoveryEndpoint(self.directory, self.search, Access({}), publisher, upstreams)
        settings = security_settings(Settings(), "127.0.0.1", PathExceptions())
        secured = SecurityMiddleware(Starlette(routes=endpoint.routes()), settings, Tokens({}))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.seen.append(Request(scope).headers.get(VISITED_HEADER))
            await secured(scope, receive, send)

        return app


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def post(http: HttpClient, url: str, text: str, **more: Any) -> HttpResponse:
    query = {"text": text, **({"filter": more.pop("filter")} if "filter" in more else {})}
    body = orjson.dumps({"query": query, **more})
    headers = {"content-type": "application/json"}
    return await http.request("POST", f"{url}/search", headers=headers, body=body, timeout_s=10)


def names_in(reply: HttpResponse) -> list[str]:
    assert reply.status == 200, reply.body
    return [one["displayName"] for one in orjson.loads(reply.body)["results"]]


def missing_in(reply: HttpResponse) -> dict[str, str]:
    return {one["source"]: one["error"] for one in orjson.loads(reply.headers.get(INCOMPLETE_HEADER, "[]"))}


async def test_the_catalog_lists_the_hub_and_what_the_caller_sees(http: HttpClient) -> None:
    async with serve_app(Hub(http, "a", WEATHER, MONEY, HIDDEN).app) as url:
        reply = await http.request("GET", f"{url}/.well-known/ai-catalog.json", timeout_s=5)
    catalog = orjson.loads(reply.body)
    assert catalog["specVersion"] == "1.0"
    assert [(one["displayName"], one["type"].split("/")[1].split("+")[0]) for one in catalog["entries"]] == [
        ("a", "ai-registry"),
        ("money", "a2a-agent-card"),
        ("weather", "a2a-agent-card"),
        ("weather", "mcp-server-card"),
    ]


async def test_a_search_finds_what_fits_with_scores_and_nothing_hidden(http: HttpClient) -> None:
    async with serve_app(Hub(http, "a", WEATHER, MONEY, HIDDEN).app) as url:
        reply = await post(http, url, "forecast of rain", federation="none")
        assert names_in(reply) == ["weather"]
        (found,) = orjson.loads(reply.body)["results"]
        assert (0 < found["score"] <= 100, found["source"]) == (True, "http://a.example/")
        mcp = await post(http, url, "rain", filter={"type": ["application/mcp-server-card+json"]})
        assert [one["identifier"] for one in orjson.loads(mcp.body)["results"]] == [
            "urn:air:a.example:mcp:weather"
        ]
        assert names_in(await post(http, url, "rain", filter={"publisher": "other.example"})) == []


async def test_a_malformed_search_is_refused_as_the_specification_says(http: HttpClient) -> None:
    async with serve_app(Hub(http, "a").app) as url:
        reply = await post(http, url, "")
    assert reply.status == 400
    assert orjson.loads(reply.body)["error"]["code"] == "INVALID_ARGUMENT"


async def test_a_search_goes_on_to_other_hubs_and_tells_them_where_it_has_been(http: HttpClient) -> None:
    first, second, third = Hub(http, "a", MONEY), Hub(http, "b"), Hub(http, "c", WEATHER)
    async with serve_app(third.app) as last:
        second.upstreams = [last]
        async with serve_app(second.app) as middle:
            first.upstreams = [middle]
            async with serve_app(first.app) as url:
                reply = await post(http, url, "rain")
                assert names_in(reply) == ["weather"]
                assert orjson.loads(reply.body)["results"][0]["source"] == "http://c.example/"
                assert names_in(await post(http, url, "rain", federation="none")) == []
    assert (first.seen[0], second.seen, third.seen) == (None, ["id-a"], ["id-a,id-b"])


async def test_hubs_that_name_each_other_are_asked_once(http: HttpClient) -> None:
    first, second = Hub(http, "a", MONEY), Hub(http, "b", WEATHER)
    async with serve_app(_Late(lambda: first.app)) as one, serve_app(_Late(lambda: second.app)) as two:
        first.upstreams, second.upstreams = [two], [one]
        reply = await post(http, one, "rain or currencies")
        assert sorted(names_in(reply)) == ["money", "weather"]
    assert (first.seen, second.seen) == ([None, "id-a,id-b"], ["id-a"])


async def test_a_search_that_comes_back_without_its_way_ends(http: HttpClient) -> None:
    hub = Hub(http, "a", MONEY)
    asked = 0

    async def forget(request: Request) -> Response:
        """A registry that passes a search on, and not where it has been."""
        nonlocal asked
        asked += 1
        headers = {"content-type": "application/json"}
        body = await request.body()
        reply = await http.request("POST", f"{home}/search", headers=headers, body=body, timeout_s=5)
        return JSONResponse(orjson.loads(reply.body))

    async with serve_app(Starlette(routes=[Route("/search", forget, methods=["POST"])])) as other:
        hub.upstreams = [other]
        async with serve_app(hub.app) as home:
            assert names_in(await post(http, home, "currencies")) == ["money"]
    assert asked == 1


async def test_the_number_of_hops_is_limited(http: HttpClient) -> None:
    first, second, third = (Hub(http, name, max_hops=1) for name in "abc")
    async with serve_app(third.app) as last:
        second.upstreams = [last]
        async with serve_app(second.app) as middle:
            first.upstreams = [middle]
            async with serve_app(first.app) as url:
                await post(http, url, "rain")
    assert (second.seen, third.seen) == (["id-a"], [])


async def test_those_that_fail_or_are_late_are_named_and_the_rest_is_answered(http: HttpClient) -> None:
    forever = asyncio.Event()

    async def hang(request: Request) -> Response:
        await forever.wait()
        return Response(b"")

    async def refuse(request: Request) -> Response:
        return Response(b"", 500)

    async def babble(request: Request) -> Response:
        return Response(b"[]")

    routes = [Route(f"/{one.__name__}/search", one, methods=["POST"]) for one in (hang, refuse, babble)]
    hub = Hub(http, "a", WEATHER, timeout_s=1.5)
    async with serve_app(Starlette(routes=routes)) as other:
        gone = "http://127.0.0.1:1"
        hub.upstreams = [*(f"{other}/{one}" for one in ("hang", "refuse", "babble")), gone]
        async with serve_app(hub.app) as url:
            reply = await post(http, url, "rain")
            forever.set()
    assert names_in(reply) == ["weather"]
    found = missing_in(reply)
    assert set(found) == set(hub.upstreams)
    assert found[f"{other}/refuse"] == "it answers with status 500"
    assert found[f"{other}/babble"] == "its reply has no results"


async def test_catalogs_are_searched_here_with_those_that_they_name(http: HttpClient) -> None:
    def entry(name: str, kind: str = "application/a2a-agent-card+json", **more: Any) -> dict[str, Any]:
        return {"identifier": f"urn:air:c.example:x:{name}", "displayName": name, "type": kind, **more}

    async def catalog(request: Request) -> Response:
        base = str(request.base_url)
        listed = [
            entry("umbrella", url="http://x/", representativeQueries=["will it rain", "is it wet"]),
            entry("bank", url="http://y/", description="Keeps money"),
            entry("more", "application/ai-catalog+json", url=f"{base}more.json"),
        ]
        return JSONResponse({"specVersion": "1.0", "entries": listed})

    async def more(request: Request) -> Response:
        # it names the first one again
        base = str(request.base_url)
        again = entry("again", "application/ai-catalog+json", url=f"{base}ai-catalog.json")
        return JSONResponse({"entries": [entry("boots", url="http://z/", tags=["rain"]), again]})

    routes = [Route("/ai-catalog.json", catalog), Route("/more.json", more)]
    hub = Hub(http, "a", WEATHER)
    async with serve_app(Starlette(routes=routes)) as other:
        hub.upstreams = [f"{other}/ai-catalog.json"]
        async with serve_app(hub.app) as url:
            reply = await post(http, url, "rain")
            assert sorted(names_in(reply)) == ["boots", "umbrella", "weather"]
            only = await post(http, url, "rain", filter={"tags": ["rain"]})
            assert names_in(only) == ["boots"]


def test_an_entry_that_lacks_the_action_of_a_request_scores_below_every_likely_one() -> None:
    entries = [
        CatalogEntry(
            identifier=f"urn:air:c.example:x:{name}",
            displayName=name,
            type="application/a2a-agent-card+json",
            url="http://x/",
            description=text,
        )
        for name, text in (("weather", "Tells the weather of a city"), ("bank", "Keeps money"))
    ]
    ((_, score),) = rank_entries("the weather of a city", entries)
    ((entry, unlikely),) = rank_entries("delete the weather of a city", entries)
    assert entry["displayName"] == "weather"
    assert unlikely < round(100 * LIKELY_FROM) < score


async def test_referrals_name_the_others_and_ask_none(http: HttpClient) -> None:
    hub = Hub(http, "a", WEATHER)
    hub.upstreams = ["https://finder.example/api"]
    async with serve_app(hub.app) as url:
        reply = await post(http, url, "rain", federation="referrals")
    assert names_in(reply) == ["weather"]
    (referral,) = orjson.loads(reply.body)["referrals"]
    assert (referral["url"], referral["type"]) == (
        "https://finder.example/api",
        "application/ai-registry+json",
    )


async def test_facets_are_said_not_to_exist(http: HttpClient) -> None:
    async with serve_app(Hub(http, "a", WEATHER).app) as url:
        reply = await http.request("POST", f"{url}/explore", body=b"{}", timeout_s=5.0)
    assert reply.status == 501
    assert "POST /search" in orjson.loads(reply.body)["error"]["message"]


class _Late:
    """An app that is made with the first request."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None and scope["type"] == "http":
            self._app = self._make()
        if self._app is not None:
            await self._app(scope, receive, send)
