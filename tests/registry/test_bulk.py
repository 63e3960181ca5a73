"""A hub's endpoint gives many manifests in one request; its reader trusts none of it unchecked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.errors import DigestMismatchError
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.bulk import (
    BULK_TYPE,
    MAX_RESPONSE_BYTES,
    MAX_WANTED,
    MAX_WANTED_BYTES,
    render_manifests,
    render_wanted,
)
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.oci.server import pull as oci
from retinue.oci.source import RegistrySource
from retinue.web.http_client import HttpClient
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from tests.registry.places import TOKEN
from tests.registry.storm import Storm, Weather, answer, cut_off, never, trickle
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import Reply, open_wire

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BULK, MANIFESTS = "POST /v2/_manifests", "GET /v2/agents"
NAMES = ("a", "b", "c")


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path)


@pytest.fixture
def storm(layout: LayoutRegistry) -> Storm:
    return Storm(Starlette(routes=oci.routes(layout)))


@pytest.fixture
async def url(storm: Storm) -> AsyncIterator[str]:
    async with serve_app(storm) as served:
        yield served


@asynccontextmanager
async def serve_small_answers(layout: LayoutRegistry) -> AsyncIterator[tuple[Storm, str]]:
    """A registry whose bulk answers hold at most 6,000 bytes, and its url."""
    storm = Storm(Starlette(routes=oci.routes(layout, max_manifests_bytes=6_000)))
    async with serve_app(storm) as served:
        yield storm, served


async def publish(layout: LayoutRegistry, name: str, *, filling: str = "", tag: str = "v1") -> str:
    card = orjson.dumps({"name": name, "url": "http://localhost:8001", "description": filling, "skills": []})
    published = await publish_card(layout, name, card, version=None, skills=[], created=NOON, tag=tag)
    return published.digest


async def publish_all(layout: LayoutRegistry, **options: Any) -> dict[str, str]:
    return {f"agents/{name}": await publish(layout, name, **options) for name in NAMES}


async def ask(url: str, body: Any) -> Reply:
    async with open_wire() as wire:
        return await wire.post(f"{url}/v2/_manifests", body)


def code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["errors"][0]["code"]


@requirement("P-04")
async def test_the_endpoint_gives_the_exact_manifests_in_the_order_asked(
    layout: LayoutRegistry, url: str
) -> None:
    digests = await publish_all(layout)
    wanted = dict(sorted(digests.items(), reverse=True))
    reply = await ask(url, {"manifests": wanted})
    assert (reply.status, reply.headers["content-type"]) == (200, BULK_TYPE)
    assert {name: digest_of(text.encode()) for name, text in reply.json["manifests"].items()} == digests
    assert list(reply.json["manifests"]) == list(wanted)


async def test_what_the_endpoint_cannot_give_is_null_and_the_others_come(
    layout: LayoutRegistry, url: str, tmp_path: Path
) -> None:
    digests = await publish_all(layout)
    (tmp_path / "agents" / "a" / "index.json").write_bytes(b"{half")
    # a manifest of one repository is not to be had by the name of another
    wanted = {
        **digests,
        "agents/b": digests["agents/c"],
        "agents/none": digests["agents/c"],
        "blobs": digest_of(b""),
    }
    manifests = (await ask(url, {"manifests": wanted})).json["manifests"]
    assert [name for name, text in manifests.items() if text is not None] == ["agents/c"]
    assert list(manifests) == ["agents/a", "agents/b", "agents/c", "agents/none", "blobs"]


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (b"{half", (400, "MANIFEST_INVALID")),
        ({"manifests": []}, (400, "MANIFEST_INVALID")),
        ({"manifests": {"agents/../x": digest_of(b"")}}, (400, "NAME_INVALID")),
        ({"manifests": {"agents/a": "v1"}}, (400, "NAME_INVALID")),
        ({"manifests": {f"a{n}": digest_of(b"") for n in range(MAX_WANTED + 1)}}, (413, "SIZE_INVALID")),
        (b" " * (MAX_WANTED_BYTES + 1), (413, "SIZE_INVALID")),
    ],
)
async def test_a_request_that_is_none_is_refused_in_the_form_of_a_registry(
    url: str, body: Any, refusal: tuple[int, str]
) -> None:
    assert code(await ask(url, body)) == refusal


async def test_other_methods_find_nothing_there(url: str) -> None:
    async with open_wire() as wire:
        assert code(await wire.get(f"{url}/v2/_manifests")) == (404, "NAME_UNKNOWN")


async def test_where_reading_wants_a_token_so_does_reading_many(
    layout: LayoutRegistry, client: HttpClient
) -> None:
    await publish_all(layout)
    guarded = SecurityMiddleware(
        Starlette(routes=oci.routes(layout)), SecuritySettings(anonymous=False), Tokens({TOKEN: LOCAL_TOKEN})
    )
    async with serve_app(guarded) as url:
        assert (await ask(url, {"manifests": {}})).status == 401
        known = url.replace("://", f"://retinue:{TOKEN}@")
        assert len((await RegistrySource("hub", HttpRegistry(known, client)).read_all()).listings) == len(
            NAMES
        )


@requirement("P-30")
async def test_what_an_answer_has_no_room_for_is_asked_again(
    layout: LayoutRegistry, client: HttpClient
) -> None:
    await publish_all(layout, filling="x" * 3000)
    async with serve_small_answers(layout) as (storm, url):
        reading = await RegistrySource("hub", HttpRegistry(url, client)).read_all()
    assert [one.key for one in reading.listings] == ["agents/a", "agents/b", "agents/c"]
    assert (storm.count(BULK), storm.count(MANIFESTS)) == (3, 0)


async def test_what_is_too_large_for_any_answer_is_read_by_itself(
    layout: LayoutRegistry, client: HttpClient
) -> None:
    await publish_all(layout)
    await publish(layout, "b", filling="x" * 9000)
    async with serve_small_answers(layout) as (storm, url):
        reading = await RegistrySource("hub", HttpRegistry(url, client)).read_all()
    assert [one.key for one in reading.listings] == ["agents/a", "agents/b", "agents/c"]
    assert storm.asked == {"GET /v2/_catalog": 1, BULK: 1, "GET /v2/agents/b/manifests/v1": 1}


async def test_a_later_reading_asks_only_for_what_is_new(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish_all(layout)
    source = RegistrySource("hub", HttpRegistry(url, client))
    await source.read_all()
    storm.asked.clear()
    newer = await publish(layout, "b", filling="newer")
    reading = await source.read_all(thorough=False)
    assert {one.key: one.digest for one in reading.listings}["agents/b"] == newer
    assert storm.asked == {"GET /v2/_catalog": 1, BULK: 1}


ANSWERS: dict[str, Weather] = {
    "unknown": answer(404),
    "not allowed": answer(405),
    "not now": answer(503),
    "elsewhere": answer(307, headers={"location": "http://127.0.0.1:1/"}),
    "another kind": answer(200, b"{}", {"content-type": "application/json"}),
    "no JSON": answer(200, b"<html>", {"content-type": BULK_TYPE}),
    "nothing of it": answer(200, render_manifests({"agents/x": b"{}"}), {"content-type": BULK_TYPE}),
    "more than it may be": answer(200, b" " * (MAX_RESPONSE_BYTES + 1), {"content-type": BULK_TYPE}),
    "cut off": cut_off(b'{"manifests": {}}'),
    "silent": never,
    "trickling": trickle,
}


@requirement("P-30")
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_bad_answer_takes_no_agent_away(
    name: str, layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish_all(layout)
    storm.rules = {BULK: ANSWERS[name]}
    timeout_s = 2.0 if name in ("silent", "trickling") else 60.0
    reading = await RegistrySource("hub", HttpRegistry(url, client, timeout_s=timeout_s)).read_all()
    assert [one.key for one in reading.listings] == ["agents/a", "agents/b", "agents/c"]
    assert reading.problems == ()
    assert storm.count(MANIFESTS) == len(NAMES)


async def test_a_wrong_manifest_is_the_problem_of_its_own_repository(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    digests = await publish_all(layout)
    raw = await layout.find_manifests(digests, 10**6)
    forged = {**raw, "agents/b": raw["agents/a"], "agents/evil": raw["agents/a"]}
    storm.rules = {BULK: answer(200, render_manifests(forged), {"content-type": BULK_TYPE})}
    source = RegistrySource("hub", HttpRegistry(url, client))
    reading = await source.read_all()
    assert [one.key for one in reading.listings] == ["agents/a", "agents/c"]
    (problem,) = reading.problems
    assert (problem.key, type(problem.error)) == ("agents/b", DigestMismatchError)
    assert "agents/b:v1: content has digest" in str(problem.error)
    # Nothing false is remembered: the next reading finds it.
    storm.rules.clear()
    again = await source.read_all()
    assert [one.key for one in again.listings] == ["agents/b"]
    assert again.unchanged.keys() == {("agents/a", "v1"), ("agents/c", "v1")}


async def test_a_server_that_gives_one_at_a_time_is_asked_once_for_each(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    digests = await publish_all(layout)
    raw = await layout.find_manifests(digests, 10**6)
    single: list[Weather] = [
        answer(200, render_manifests({name: raw[name]}), {"content-type": BULK_TYPE}) for name in raw
    ]
    storm.rules = {BULK: single}
    reading = await RegistrySource("hub", HttpRegistry(url, client)).read_all()
    assert (len(reading.listings), storm.count(BULK), storm.count(MANIFESTS)) == (3, 3, 0)


async def test_cards_whose_content_is_not_inline_are_read_as_ever(
    layout: LayoutRegistry, url: str, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a card over the limit would be refused for its size
    monkeypatch.setattr("retinue.oci.codec.artifacts.MAX_INLINE_BYTES", 0)
    await publish_all(layout)
    reading = await RegistrySource("hub", HttpRegistry(url, client)).read_all()
    assert (len(reading.listings), reading.problems) == (3, ())


async def test_reading_one_key_asks_for_that_one_alone(
    layout: LayoutRegistry, storm: Storm, url: str, client: HttpClient
) -> None:
    await publish_all(layout)
    (_,) = await RegistrySource("hub", HttpRegistry(url, client)).read_key("agents/b")
    assert storm.count(BULK) == 0


async def test_many_asked_for_of_a_layout_are_given_by_digest(layout: LayoutRegistry) -> None:
    digests = await publish_all(layout)
    stored = await layout.find_manifest("agents/a", digests["agents/a"])
    assert stored is not None
    assert await layout.find_manifests(digests, len(stored.content)) == {"agents/a": stored.content}
    assert render_wanted(digests).count(b"sha256:") == len(digests)
    assert await layout.find_digest(Reference("agents/a", tag="v1")) == digests["agents/a"]
