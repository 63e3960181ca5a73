"""Each weather of real registries has a named error, and never takes the other agents away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.core.errors import (
    ContentMissingError,
    DigestMismatchError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryBusyError,
    RegistryLoginError,
    RegistryRefusedError,
    RegistryUnreachableError,
    RepositoryTakenError,
    RetinueError,
)
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.artifacts import CARD_ARTIFACT_TYPE, Guard, NewArtifact, Package
from retinue.oci.codec.manifest import EMPTY_CONFIG, EMPTY_JSON, Manifest, describe, render_manifest
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Published, forget, publish_card
from retinue.oci.server import pull as oci
from retinue.oci.source import RegistrySource
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpResponse, UrlRefusedError
from tests.registry.places import own_endpoint, with_login
from tests.registry.storm import Storm, Weather, answer, cut_off, never, trickle
from tests.requirements import requirement
from tests.services import docker_registry
from tests.serving import serve_app
from tests.time_bounds import Stopwatch

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MESH = frozenset({"exposed", "mesh"})
SKILL = "create_plan"
BAD = "/v2/agents/bad"
TAGS, MANIFEST, BLOBS = f"GET {BAD}/tags", f"GET {BAD}/manifests", f"GET {BAD}/blobs"


def card(name: str) -> bytes:
    skills = [{"id": SKILL, "description": "x" * 200}]
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": skills})


def package(content: bytes, *, said_size: int | None = None) -> Package:
    """A card as oras would push it, nothing inline; ``said_size`` is what its manifest claims."""
    layer = describe(content, "application/json", title="bad_agent_card.json")
    if said_size is not None:
        layer = type(layer)(layer.media_type, layer.digest, said_size, layer.annotations)
    manifest = Manifest(EMPTY_CONFIG, (layer,), artifact_type=CARD_ARTIFACT_TYPE)
    raw = render_manifest(manifest)
    blobs = {EMPTY_CONFIG.digest: EMPTY_JSON, layer.digest: content}
    return Package(manifest, raw, digest_of(raw), blobs)


async def publish(registry: Any, name: str, content: bytes | None = None) -> Published:
    raw = content if content is not None else card(name)
    return await publish_card(registry, name, raw, version="1.0.0", skills=[SKILL], created=NOON)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


@pytest.fixture
def storm(layout: LayoutRegistry) -> Storm:
    return Storm(_as_others(Starlette(routes=oci.routes(layout))))


def _as_others(app: ASGIApp) -> ASGIApp:
    """An endpoint that gives nobody our own form of the catalog, so that tags are asked for."""

    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/v2/_catalog":
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"accept"]
        await app(scope, receive, send)

    return plain


@pytest.fixture
async def url(storm: Storm) -> AsyncIterator[str]:
    async with serve_app(storm) as served:
        yield served


WEATHERS: dict[str, tuple[dict[str, Weather | list[Weather]], type[RetinueError], str]] = {
    "digest mismatch": ({BLOBS: answer(200, b"x" * 300)}, DigestMismatchError, "content has digest"),
    "truncated, honestly": ({BLOBS: answer(200, card("bad")[:100])}, DigestMismatchError, "content has"),
    "truncated by a hang-up": (
        {BLOBS: cut_off(card("bad")[:100])},
        RegistryUnreachableError,
        "is unreachable",
    ),
    "missing content": ({BLOBS: answer(404)}, ContentMissingError, "is missing"),
    "more than it said": ({BLOBS: answer(200, b"x" * 9999)}, MalformedArtifactError, "exceeds the limit"),
    "404 tag": ({MANIFEST: answer(404)}, ReferenceNotFoundError, "agents/bad:v1 is not in"),
    "manifest of 5 MB": ({MANIFEST: answer(200, b" " * 5_000_000)}, MalformedArtifactError, "limit"),
    "manifest no JSON": ({MANIFEST: answer(200, b"<html>")}, MalformedArtifactError, "not JSON"),
    "tags no JSON": ({TAGS: answer(200, b"<html>")}, RegistryRefusedError, "no JSON list of tags"),
    "silent": ({MANIFEST: never}, RegistryUnreachableError, r"within 2 s \(registry request\)"),
    "trickling": ({BLOBS: trickle}, RegistryUnreachableError, r"within 2 s \(registry request\)"),
    "429 for ever": ({MANIFEST: answer(429, headers={"retry-after": "70"})}, RegistryBusyError, "429"),
    "500 for ever": ({MANIFEST: answer(500, b"boom")}, RegistryRefusedError, "answered 500: boom"),
    "403": ({MANIFEST: answer(403)}, RegistryRefusedError, "answered 403"),
    "401": ({MANIFEST: answer(401)}, RegistryLoginError, "answered 401"),
    "manifest elsewhere": (
        {MANIFEST: answer(307, headers={"location": "http://other:1/"})},
        RegistryRefusedError,
        "it redirects to http://other:1; redirects are followed for content only",
    ),
    "content on a host that is down": (
        {BLOBS: answer(307, headers={"location": "http://127.0.0.1:1/x"})},
        RegistryUnreachableError,
        "redirecting to http://127.0.0.1:1",
    ),
}


SILENT = ("silent", "trickling")
"""The weathers whose answer never ends."""


@requirement("P-30")
@pytest.mark.parametrize("name", WEATHERS)
async def test_weather_over_one_agent_is_named_and_the_others_stay(
    name: str, layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    rules, kind, message = WEATHERS[name]
    for good in ("build", "plan"):
        await publish(layout, good)
    await layout.push_package("agents/bad", "v1", package(card("bad")))
    storm.rules = dict(rules)
    source = RegistrySource(
        "under test", HttpRegistry(url, client, timeout_s=2.0 if name in SILENT else 60.0)
    )
    directory = Directory(MemoryListings(), [source])
    found = await directory.resolve_skill(SKILL, MESH)
    assert [one.name for one in found] == ["build", "plan"]
    (problem,) = directory.problems()
    assert (problem.source, problem.key) == ("under test", "agents/bad")
    assert type(problem.error) is kind
    with pytest.raises(kind, match=message):
        raise problem.error
    # The weather passes, and the agent is there.
    storm.rules.clear()
    await directory.refresh()
    assert [one.record.name for one in directory.list_all()] == ["bad", "build", "plan"]
    assert directory.problems() == ()
    await directory.aclose()


@pytest.mark.parametrize(
    ("content", "said", "message"),
    [
        (b"{not json", None, "the card is not JSON"),
        (b"[]", None, "the card is a list"),
        (b'{"skills": []}', None, "name"),
        (card("bad"), 30_000_000, "30,000,000 bytes exceeds the limit"),
    ],
    ids=["no JSON", "no object", "no name", "30 MB"],
)
async def test_a_card_that_is_none_is_named_and_the_others_stay(
    layout: LayoutRegistry, url: str, client: HttpClient, content: bytes, said: int | None, message: str
) -> None:
    await publish(layout, "plan")
    await layout.push_package("agents/bad", "v1", package(content, said_size=said))
    reading = await RegistrySource("under test", HttpRegistry(url, client)).read_all()
    assert [listing.record.name for listing in reading.listings] == ["plan"]
    (problem,) = reading.problems
    assert isinstance(problem.error, MalformedArtifactError)
    assert message in problem.error.message


async def test_a_repository_whose_tags_are_null_is_simply_empty(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish(layout, "plan")
    await publish(layout, "bad")
    storm.rules = {TAGS: answer(200, b'{"name": "agents/bad", "tags": null}')}
    reading = await RegistrySource("under test", HttpRegistry(url, client)).read_all()
    assert [listing.record.name for listing in reading.listings] == ["plan"]
    assert reading.problems == ()


async def test_a_catalog_that_fails_keeps_what_was_known_and_says_so(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish(layout, "plan")
    directory = Directory(MemoryListings(), [RegistrySource("under test", HttpRegistry(url, client))])
    await directory.refresh()
    storm.rules = {"GET /v2/_catalog": answer(500)}
    await directory.refresh()
    assert [one.record.name for one in directory.list_all()] == ["plan"]
    (problem,) = directory.problems()
    assert isinstance(problem.error, RegistryRefusedError)
    await directory.aclose()


@requirement("P-30")
async def test_after_429_it_is_asked_again_when_it_said(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish(layout, "plan")
    storm.rules = {"GET": [answer(429, headers={"retry-after": "0"}), answer(503), answer(502)]}
    registry = HttpRegistry(url, client)
    assert await registry.list_repositories() == ["agents/plan"]
    assert storm.count("GET /v2/_catalog") == 4


async def test_longer_than_it_may_take_is_not_waited(storm: Storm, url: str, client: HttpClient) -> None:
    storm.rules = {"GET": answer(429, b'{"errors": []}', {"retry-after": "600"})}
    with pytest.raises(RegistryBusyError) as caught:
        await HttpRegistry(url, client).list_repositories()
    assert caught.value.retry_after_s == 600
    assert caught.value.remedy == "try again in 600 s"
    assert storm.count("GET") == 1


class _Scripted:
    """A registry that takes a push: everything is missing, everything is stored."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            continue
        statuses = {"HEAD": 404, "POST": 202, "PUT": 201, "GET": 404}
        headers = {"location": f"{scope['path']}x"} if scope["method"] == "POST" else {}
        await answer(statuses[scope["method"]], headers=headers)(scope, receive, send)


async def test_only_what_does_no_harm_twice_is_sent_twice(client: HttpClient) -> None:
    storm = Storm(_Scripted())
    async with serve_app(_no_lifespan(storm)) as url:
        registry = HttpRegistry(url, client)
        new = NewArtifact(b"x", "a/b", "t", "a/b")
        storm.rules = {"PUT /v2/agents/x/manifests": [answer(503), answer(500)], "HEAD": [answer(500)]}
        await registry.push("agents/x", "v1", new)
        assert storm.count("PUT /v2/agents/x/manifests") == 3
        storm.asked.clear()
        storm.rules = {"POST": answer(500)}
        with pytest.raises(RegistryRefusedError, match="500"):
            await registry.push("agents/x", "v1", new)
        assert storm.count("POST") == 1
        storm.rules = {"POST": [answer(429, headers={"retry-after": "0"})]}
        await registry.push("agents/x", "v1", new)


def _no_lifespan(app: Any) -> Any:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
        else:
            await app(scope, receive, send)

    return guarded


async def test_a_registry_that_is_down_is_waited_for_once_and_not_a_thousand_times(
    client: HttpClient,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        registry = HttpRegistry(f"http://127.0.0.1:{free.getsockname()[1]}", client)
        with pytest.raises(RegistryUnreachableError):
            await registry.list_tags("agents/a")
        stopwatch = Stopwatch()
        for _ in range(20):
            with pytest.raises(RegistryUnreachableError):
                await registry.list_tags("agents/a")
        stopwatch.check(1)


class _CountingClient(HttpClient):
    """Sets an event at the request of that number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.reached = asyncio.Event()

    async def request(self, *args: Any, **options: Any) -> HttpResponse:
        self.left -= 1
        if self.left == 0:
            self.reached.set()
        return await super().request(*args, **options)


@requirement("P-30")
async def test_a_registry_that_restarts_while_it_is_read_is_read_to_the_end(tmp_path: Path) -> None:
    first = docker_registry(tmp_path)
    url = await asyncio.to_thread(first.__enter__)
    try:
        async with HttpClient() as client:
            for number in range(40):
                await publish(HttpRegistry(url, client), f"agent{number:02}")
        counting = _CountingClient(20)
        async with counting:
            reading = asyncio.create_task(RegistrySource("r", HttpRegistry(url, counting)).read_all())
            await asyncio.wait_for(counting.reached.wait(), 60)
            await asyncio.to_thread(first.__exit__, None, None, None)
            port = int(url.rpartition(":")[2])
            second = docker_registry(tmp_path, port=port)
            await asyncio.to_thread(second.__enter__)
            try:
                read = await asyncio.wait_for(reading, 30)
            finally:
                await asyncio.to_thread(second.__exit__, None, None, None)
    except BaseException:
        first.__exit__(None, None, None)
        raise
    assert [problem.error.message for problem in read.problems] == []
    assert len(read.listings) == 40


async def test_content_kept_at_another_host_is_fetched_there_without_our_password(
    layout: LayoutRegistry, client: HttpClient
) -> None:
    content = card("bad")
    await layout.push_package("agents/bad", "v1", package(content))
    elsewhere = Storm(_no_lifespan(answer(200, content)))
    storm = Storm(Starlette(routes=oci.routes(layout)))
    async with serve_app(elsewhere) as other, serve_app(storm) as url:
        wanted = answer(401, headers={"www-authenticate": 'Basic realm="r"'})
        storm.rules = {
            TAGS: [wanted],
            BLOBS: answer(307, headers={"location": f"{other}/bucket/x?signature=a%2Fb"}),
        }
        registry = HttpRegistry(with_login(url, "hub", "s3cret"), client)
        assert (await registry.pull(Reference("agents/bad"))).content == content
    assert elsewhere.authorizations == [None]
    assert [given is not None for given in storm.authorizations] == [False, True, True, True]


async def test_a_redirect_into_a_private_network_is_refused_under_the_strict_policy(
    layout: LayoutRegistry, storm: Storm, url: str
) -> None:
    class Strict(HttpClient):
        """As if the registry had a public address: only what it sends us to is checked."""

        async def request(self, *args: Any, **options: Any) -> HttpResponse:
            if args[1].startswith(url):
                return await super().request(*args, **options)
            async with HttpClient(allow_private=False) as strict:
                return await strict.request(*args, **options)

    await layout.push_package("agents/bad", "v1", package(card("bad")))
    storm.rules = {BLOBS: answer(307, headers={"location": "http://10.1.2.3/latest/"})}
    async with Strict() as client:
        with pytest.raises(RegistryRefusedError, match=r"http://10.1.2.3: the address is not") as caught:
            await HttpRegistry(url, client).pull(Reference("agents/bad", "v1"))
    assert isinstance(caught.value.__cause__, UrlRefusedError)


class Interrupted(HttpRegistry):
    """Lets something happen right after this publisher's push, before it looks what stands there."""

    after_push: Callable[[], Any] | None = None

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        digest = await super().push(repository, tag, artifact, guard=guard)
        if self.after_push is not None:
            await self.after_push()
        return digest


@requirement("P-17")
async def test_two_publishers_of_one_tag_are_both_told_and_the_last_one_stands(
    empty_docker_registry: str, client: HttpClient
) -> None:
    registry = Interrupted(empty_docker_registry, client)
    other = HttpRegistry(empty_docker_registry, client)
    told: list[Published] = []

    async def publish_too() -> None:
        told.append(await publish(other, "twice-agent", card("twice-agent") + b" "))

    registry.after_push = publish_too
    mine = await publish(registry, "twice-agent")
    assert mine.superseded_by == told[0].digest
    assert (told[0].replaced, told[0].superseded_by) == (mine.digest, None)
    assert await other.find_digest(Reference("agents/twice", "v1")) == told[0].digest
    await forget(other, "twice-agent")


async def test_of_two_names_that_meet_in_one_repository_the_one_that_lost_it_is_told(
    empty_docker_registry: str, client: HttpClient
) -> None:
    registry = Interrupted(empty_docker_registry, client)
    other = HttpRegistry(empty_docker_registry, client)

    async def take_it() -> None:
        # Its own guard looked before our push, and saw nothing.
        await other.push(
            "agents/met", "v1", NewArtifact(card("met"), "application/json", "met_agent_card.json", "x")
        )

    registry.after_push = take_it
    with pytest.raises(RepositoryTakenError, match="holds the card of met, not of met-agent"):
        await publish(registry, "met-agent")
    await forget(other, "met")


@requirement("P-17")
async def test_many_publishers_of_one_tag_leave_one_card_and_know_who_was_before(
    layout: LayoutRegistry,
) -> None:
    cards = [card("plan-agent") + b" " * number for number in range(8)]
    published = await asyncio.gather(*(publish(layout, "plan-agent", content) for content in cards))
    standing = await layout.find_digest(Reference("agents/plan", "v1"))
    assert standing in {one.digest for one in published}
    # Each but the first replaced another's, and each was replaced but the one that stands.
    replaced = [one.replaced for one in published if one.replaced is not None]
    assert len(replaced) == len(set(replaced)) == 7
    assert {one.digest for one in published} - set(replaced) == {standing}


async def test_many_publishers_push_through_the_hubs_endpoint_at_once(
    tmp_path: Path, client: HttpClient
) -> None:
    """All share the empty config, whose upload one of them finds in the layout already."""
    async with own_endpoint(tmp_path) as endpoint:

        async def push(number: int) -> str:
            registry = HttpRegistry(endpoint.location, client)
            content = card("plan-agent") + b" " * number
            published = await publish_card(
                registry, "plan-agent", content, version="1", skills=[], created=NOON, tag=f"v{number}"
            )
            return published.digest

        digests = await asyncio.gather(*(push(number) for number in range(12)))
        reader = HttpRegistry(endpoint.url, client)
        for number, digest in enumerate(digests):
            artifact = await reader.pull(Reference("agents/plan", f"v{number}"))
            assert (artifact.digest, artifact.content) == (digest, card("plan-agent") + b" " * number)
