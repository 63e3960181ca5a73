"""Writes at the registry endpoint, request by request; whole programs use it in ``tests/registry``."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from starlette.applications import Starlette

from retinue.core.call import Principal
from retinue.oci.codec.artifacts import card_artifact, render_artifact
from retinue.oci.codec.manifest import EMPTY_CONFIG, INDEX_TYPE, describe
from retinue.oci.codec.reference import Reference, digest_of, referrers_tag
from retinue.oci.codec.referrers import SUBJECT, render_referrers
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.layout.uploads import KEPT_S, MAX_UPLOADS, Uploads
from retinue.oci.registry import publish_card
from retinue.oci.server import pull as oci
from retinue.oci.server.push import CheckPublish, permit_all
from retinue.policies.decision import Engine
from retinue.policies.gate import Gate
from retinue.policies.policy_set import load_policies
from retinue.runtime.checks.state import check_layouts
from retinue.web.http_client import HttpClient
from retinue.web.rejections import REGISTRY_PATH
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from retinue.web.transport import HttpResponse
from tests.mesh.scripted import FakeClock
from tests.requirements import requirement
from tests.serving import serve_app

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TOKEN = "the-local-token"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CARD = b'{"name": "plan-agent", "url": "http://localhost:8001", "skills": []}'
PACKAGE = render_artifact(card_artifact("plan-agent", CARD, version="1", skills=[], created=NOON))
CARD_DIGEST = digest_of(CARD)
UPLOADS = "/v2/agents/plan/blobs/uploads/"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Endpoint:
    """Asks the endpoint with the token, unless told otherwise."""

    def __init__(self, url: str, client: HttpClient) -> None:
        self.url = url
        self._client = client

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        login: str | None = basic("x", TOKEN),
        **headers: str,
    ) -> HttpResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if login is not None:
            sent["authorization"] = login
        return await self._client.request(method, self.url + path, headers=sent, body=body, timeout_s=60)

    async def upload(self, content: bytes, repository: str = "agents/plan") -> None:
        place = f"/v2/{repository}/blobs/uploads/?digest={digest_of(content)}"
        assert (await self.ask("POST", place, content)).status == 201

    async def put(
        self, target: str = "v1", raw: bytes = PACKAGE.manifest_bytes, **headers: str
    ) -> HttpResponse:
        headers = {"content_type": MANIFEST, **headers}
        return await self.ask("PUT", f"/v2/agents/plan/manifests/{target}", raw, **headers)


@pytest.fixture
def layout(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


@pytest.fixture
async def endpoint(layout: LayoutRegistry) -> AsyncIterator[Endpoint]:
    async with open_endpoint(layout) as opened:
        yield opened


@asynccontextmanager
async def open_endpoint(
    layout: LayoutRegistry,
    sender: Principal = LOCAL_TOKEN,
    members: Collection[str] = (),
    check_publish: CheckPublish = permit_all,
) -> AsyncIterator[Endpoint]:
    """The endpoint for a sender with the token; ``members`` are the callers whose tokens are still valid."""
    app = SecurityMiddleware(
        Starlette(
            routes=oci.routes(layout, layout, is_member=members.__contains__, check_publish=check_publish)
        ),
        SecuritySettings(any_media_type=(REGISTRY_PATH,)),
        Tokens({TOKEN: sender}),
    )
    async with serve_app(app) as url, HttpClient() as client:
        yield Endpoint(url, client)


def _error(answer: HttpResponse) -> tuple[int, str]:
    return answer.status, orjson.loads(answer.body)["errors"][0]["code"]


@requirement("P-04")
async def test_a_card_is_pushed_in_one_request_for_each_part(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    assert (await endpoint.ask("HEAD", f"/v2/agents/plan/blobs/{CARD_DIGEST}")).status == 200
    assert await layout.list_repositories() == []
    stored = await endpoint.put()
    assert (stored.status, stored.headers["docker-content-digest"]) == (201, PACKAGE.digest)
    assert stored.headers["location"] == f"/v2/agents/plan/manifests/{PACKAGE.digest}"
    artifact = await layout.pull(Reference("agents/plan", "v1"))
    assert (artifact.manifest_bytes, artifact.content) == (PACKAGE.manifest_bytes, CARD)
    assert not list((Path(layout.name) / ".uploads").rglob("*.part"))


async def test_what_a_machine_published_goes_with_its_token(layout: LayoutRegistry) -> None:
    laptop = Principal("join:laptop", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
    await publish_card(layout, "other-agent", CARD, version="1", skills=[], created=NOON)
    async with open_endpoint(layout) as endpoint:
        await push(endpoint)
        assert layout.remove_published_by("join:laptop") == []
    async with open_endpoint(layout, laptop, ["join:laptop"]) as endpoint:
        await push(endpoint, "v1")
        await push(endpoint, "v2")
        generation = layout.generation()
        assert await layout.find_digest(Reference("agents/plan", "v1")) == PACKAGE.digest
    assert layout.remove_published_by("join:desktop") == []
    removed = layout.remove_published_by("join:laptop")
    assert list(map(str, removed)) == ["agents/plan:v1", "agents/plan:v2"]
    assert await layout.list_repositories() == ["agents/other"]
    assert layout.generation() != generation


async def test_the_card_that_another_publisher_replaced_stays(layout: LayoutRegistry) -> None:
    laptop = Principal("join:laptop", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
    async with open_endpoint(layout, laptop, ["join:laptop"]) as endpoint:
        await push(endpoint, "v1")
        await push(endpoint, "v2")
    async with open_endpoint(layout) as endpoint:
        await push(endpoint, "v1")
    assert list(map(str, layout.remove_published_by("join:laptop"))) == ["agents/plan:v2"]
    assert await layout.list_tags("agents/plan") == ["v1"]
    assert (await layout.pull(Reference("agents/plan", "v1"))).content == CARD


async def test_a_card_that_arrives_while_its_token_is_revoked_does_not_stay(layout: LayoutRegistry) -> None:
    laptop = Principal("join:laptop", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
    async with open_endpoint(layout, laptop, []) as endpoint:
        for content in PACKAGE.blobs.values():
            await endpoint.upload(content)
        assert _error(await endpoint.put()) == (401, "UNAUTHORIZED")
    assert await layout.list_repositories() == []


async def test_a_push_or_a_deletion_that_a_policy_forbids_is_denied_with_its_id_and_reason(
    layout: LayoutRegistry,
) -> None:
    text = (
        '@id("calm") @reason("no releases today") forbid(principal == Retinue::Caller::"local", '
        'action == Retinue::Action::"publish", resource == Retinue::Artifact::"agents/plan");'
    )
    gate = Gate(Engine(load_policies({"p.cedar": text})))
    async with open_endpoint(layout, check_publish=gate.check_publish) as endpoint:
        for content in PACKAGE.blobs.values():
            await endpoint.upload(content)
        answer = await endpoint.put()
    assert _error(answer) == (403, "DENIED")
    message = orjson.loads(answer.body)["errors"][0]["message"]
    assert "no releases today (calm)" in message
    assert await layout.list_repositories() == []
    async with open_endpoint(layout) as endpoint:
        await push(endpoint)
    async with open_endpoint(layout, check_publish=gate.check_publish) as endpoint:
        refused = await endpoint.ask("DELETE", "/v2/agents/plan/manifests/v1")
    assert _error(refused) == (403, "DENIED")
    assert await layout.list_repositories() == ["agents/plan"]


async def push(endpoint: Endpoint, tag: str = "v1") -> None:
    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    assert (await endpoint.put(tag)).status == 201


async def test_content_comes_in_chunks_and_is_asked_after_meanwhile(endpoint: Endpoint) -> None:
    begun = await endpoint.ask("POST", UPLOADS, b"")
    assert (begun.status, begun.headers["range"]) == (202, "0-0")
    upload = begun.headers["location"]
    first = await endpoint.ask("PATCH", upload, CARD[:20], content_range="0-19")
    assert (first.status, first.headers["range"], first.headers["location"]) == (202, "0-19", upload)
    asked = await endpoint.ask("GET", upload)
    assert (asked.status, asked.headers["range"]) == (204, "0-19")
    for wrong in ("0-19", "21-30", "nonsense"):
        refused = await endpoint.ask("PATCH", upload, CARD[20:], content_range=wrong)
        assert _error(refused) == (416, "BLOB_UPLOAD_INVALID")
        assert refused.headers["range"] == "0-19"
    assert (await endpoint.ask("PATCH", upload, CARD[20:40])).status == 202
    ended = await endpoint.ask(
        "PUT", f"{upload}?digest={CARD_DIGEST}", CARD[40:], content_range=f"40-{len(CARD) - 1}"
    )
    assert (ended.status, ended.headers["docker-content-digest"]) == (201, CARD_DIGEST)
    assert ended.headers["location"] == f"/v2/agents/plan/blobs/{CARD_DIGEST}"
    assert (await endpoint.ask("GET", ended.headers["location"])).body == CARD
    assert _error(await endpoint.ask("GET", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_content_that_is_not_what_was_said_is_thrown_away(endpoint: Endpoint) -> None:
    upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
    assert _error(await endpoint.ask("PUT", f"{upload}?digest={CARD_DIGEST}", b"other")) == (
        400,
        "DIGEST_INVALID",
    )
    assert _error(await endpoint.ask("GET", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")
    upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
    assert _error(await endpoint.ask("PUT", f"{upload}?digest=md5:1", CARD)) == (400, "DIGEST_INVALID")
    assert (await endpoint.ask("DELETE", upload)).status == 204
    assert _error(await endpoint.ask("DELETE", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_an_upload_belongs_to_its_repository(endpoint: Endpoint) -> None:
    upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
    elsewhere = upload.replace("agents/plan", "agents/build")
    assert _error(await endpoint.ask("PATCH", elsewhere, b"x")) == (404, "BLOB_UPLOAD_UNKNOWN")
    await endpoint.upload(CARD)
    assert (await endpoint.ask("HEAD", f"/v2/agents/build/blobs/{CARD_DIGEST}")).status == 404
    for odd in ("..", "%2e%2e%2fx", "x" * 40):
        assert (await endpoint.ask("PATCH", f"{UPLOADS}{odd}", b"x")).status in (404, 405)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_an_upload_that_is_cancelled_while_its_content_arrives_is_unknown_then(
    endpoint: Endpoint, tmp_path: Path, method: str
) -> None:
    upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]

    async def cancel_then_send() -> AsyncIterator[bytes]:
        # begun only when the server has found the upload and asks for the content
        assert (await endpoint.ask("DELETE", upload)).status == 204
        yield CARD

    async with aiohttp.ClientSession(headers={"authorization": basic("x", TOKEN)}) as session:
        url = f"{endpoint.url}{upload}?digest={CARD_DIGEST}"
        async with session.request(method, url, data=cancel_then_send(), expect100=True) as reply:
            assert (reply.status, (await reply.json())["errors"][0]["code"]) == (404, "BLOB_UPLOAD_UNKNOWN")
    assert (await endpoint.ask("HEAD", f"/v2/agents/plan/blobs/{CARD_DIGEST}")).status == 404
    assert not list((tmp_path / "registry" / ".uploads").rglob("*.part"))


async def test_of_two_requests_that_end_one_upload_the_second_does_not_find_it(endpoint: Endpoint) -> None:
    for _ in range(20):
        upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
        wrong = f"{upload}?digest=sha256:{'0' * 64}"
        requests = [
            ("PUT", wrong, b"x"),
            ("PUT", wrong, b"x"),
            ("DELETE", upload, None),
            ("GET", upload, None),
        ]
        replies = await asyncio.gather(*(endpoint.ask(*request) for request in requests))
        assert {reply.status for reply in replies} <= {204, 400, 404, 429}


async def test_content_of_another_repository_is_mounted_without_an_upload(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    there = f"/v2/agents/copy/blobs/uploads/?mount={CARD_DIGEST}&from="
    mounted = await endpoint.ask("POST", there + "agents/plan", b"")
    assert (mounted.status, mounted.headers["location"]) == (201, f"/v2/agents/copy/blobs/{CARD_DIGEST}")
    assert (await endpoint.ask("GET", mounted.headers["location"])).body == CARD
    for source in ("agents/none", "", "../x"):
        answer = await endpoint.ask("POST", there.replace(CARD_DIGEST, "sha256:" + "0" * 64) + source, b"")
        assert answer.status == 202
    # What was only uploaded for another repository counts as well.
    await endpoint.upload(b"staged", "agents/plan")
    again = await endpoint.ask("POST", there.replace(CARD_DIGEST, digest_of(b"staged")) + "agents/plan", b"")
    assert again.status == 201


async def test_a_manifest_wants_its_content_first(endpoint: Endpoint, layout: LayoutRegistry) -> None:
    missing = await endpoint.put()
    assert _error(missing) == (404, "MANIFEST_BLOB_UNKNOWN")
    assert EMPTY_CONFIG.digest in orjson.loads(missing.body)["errors"][0]["message"]
    assert await layout.list_repositories() == []


@pytest.mark.parametrize(
    ("raw", "target", "media_type", "expected"),
    [
        (b"{", "v1", MANIFEST, (400, "MANIFEST_INVALID")),
        (b"[]", "v1", MANIFEST, (400, "MANIFEST_INVALID")),
        (b'{"manifests": []}', "v1", "application/vnd.oci.image.index.v1+json", (400, "MANIFEST_INVALID")),
        (PACKAGE.manifest_bytes, "sha256:" + "0" * 64, MANIFEST, (400, "DIGEST_INVALID")),
        (PACKAGE.manifest_bytes, "sha256:0", MANIFEST, (400, "DIGEST_INVALID")),
        (PACKAGE.manifest_bytes, "-x", MANIFEST, (400, "TAG_INVALID")),
    ],
)
async def test_a_manifest_that_is_none_is_refused(
    endpoint: Endpoint, raw: bytes, target: str, media_type: str, expected: tuple[int, str]
) -> None:
    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    assert _error(await endpoint.put(target, raw, content_type=media_type)) == expected


async def test_an_index_of_referrers_is_kept_under_the_tag_of_its_subject_beside_the_card(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    (tag,) = await layout.list_tags("agents/plan")
    card = await layout.find_digest(Reference("agents/plan", tag=tag))
    assert card is not None
    place = f"/v2/agents/plan/manifests/{referrers_tag(card)}"
    old = describe(PACKAGE.manifest_bytes, MANIFEST)
    for rows in ([old], [old, describe(b"{}", MANIFEST)]):
        index = render_referrers(rows)
        put = await endpoint.put(referrers_tag(card), index, content_type=INDEX_TYPE)
        assert (put.status, put.headers["docker-content-digest"]) == (201, digest_of(index))
        assert SUBJECT not in put.headers, "so its client goes on to keep the index"
        held = await endpoint.ask("GET", place)
        assert (held.body, held.headers["content-type"]) == (index, INDEX_TYPE)
    assert (
        await layout.find_digest(Reference("agents/plan", digest=digest_of(render_referrers([old])))) is None
    )
    assert (await layout.pull(Reference("agents/plan", tag=tag))).content == CARD
    assert (await check_layouts(layout)).status == "ok"
    for target, body in ((referrers_tag(card), b'{"manifests": {}}'), ("v2", index)):
        assert _error(await endpoint.put(target, body, content_type=INDEX_TYPE)) == (400, "MANIFEST_INVALID")
    strange = await endpoint.put("sha256-" + "0" * 64, index, content_type=INDEX_TYPE)
    assert strange.status == 403, "the repository belongs to the card"
    assert (await endpoint.ask("DELETE", f"/v2/agents/plan/manifests/{tag}")).status == 202
    assert await layout.list_repositories() == []


async def test_a_manifest_is_put_under_its_digest_and_gets_its_tag_later(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    assert (await endpoint.put(PACKAGE.digest)).status == 201
    assert (
        await endpoint.ask("GET", f"/v2/agents/plan/manifests/{PACKAGE.digest}")
    ).body == PACKAGE.manifest_bytes
    assert await layout.list_tags("agents/plan") == []
    assert (await endpoint.put("v1")).status == 201
    assert await layout.list_tags("agents/plan") == ["v1"]


async def test_a_repository_belongs_to_the_first_name_in_it(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    await publish_card(
        layout, "other", b'{"name": "other"}', version="1", skills=[], created=NOON, repository="agents/plan"
    )
    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    refused = await endpoint.put("v2")
    assert _error(refused) == (403, "DENIED")
    assert "holds the card of other, not of plan-agent" in orjson.loads(refused.body)["errors"][0]["message"]
    assert await layout.list_tags("agents/plan") == ["v1"]


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"url": "http://me:secret@example.org"}, "user information"),
        ({"description": "says \u202eno"}, "U+202E"),
        ({"skills": [{"id": f"s{n}"} for n in range(1001)]}, "at most 1,000"),
    ],
)
async def test_a_card_that_no_source_would_take_is_refused_at_once(
    endpoint: Endpoint, layout: LayoutRegistry, facts: dict[str, Any], problem: str
) -> None:
    card = orjson.dumps({**orjson.loads(CARD), **facts})
    package = render_artifact(card_artifact("plan-agent", card, version="1", skills=[], created=NOON))
    for content in package.blobs.values():
        await endpoint.upload(content)
    refused = await endpoint.put("v1", package.manifest_bytes)
    assert _error(refused) == (400, "MANIFEST_INVALID")
    assert problem in orjson.loads(refused.body)["errors"][0]["message"]
    assert b"secret" not in refused.body
    assert await layout.list_tags("agents/plan") == []


@pytest.mark.parametrize("by_digest", [True, False])
async def test_what_is_deleted_by_tag_or_digest_is_gone(
    endpoint: Endpoint, layout: LayoutRegistry, by_digest: bool
) -> None:
    published = await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    path = f"/v2/agents/plan/manifests/{published.digest if by_digest else 'v1'}"
    assert (await endpoint.ask("DELETE", path)).status == 202
    assert _error(await endpoint.ask("DELETE", path)) == (404, "MANIFEST_UNKNOWN")
    assert await layout.list_repositories() == []
    assert _error(await endpoint.ask("DELETE", f"/v2/agents/plan/blobs/{CARD_DIGEST}")) == (
        405,
        "UNSUPPORTED",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", UPLOADS),
        ("PUT", "/v2/agents/plan/manifests/v1"),
        ("PATCH", UPLOADS + "0" * 32),
        ("PUT", UPLOADS + "0" * 32),
        ("DELETE", "/v2/agents/plan/manifests/v1"),
    ],
)
async def test_whoever_is_unknown_reads_and_is_told_how_to_log_in_to_write(
    endpoint: Endpoint, layout: LayoutRegistry, method: str, path: str
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    # skopeo without a login answers a challenge with nothing, twice.
    for login in (None, basic("", "")):
        refused = await endpoint.ask(method, path, b"", login=login)
        assert _error(refused) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"] == 'Basic realm="retinue"'
        assert (await endpoint.ask("GET", "/v2/agents/plan/manifests/v1", login=login)).status == 200
    assert await layout.list_tags("agents/plan") == ["v1"]
    for wrong in (basic("x", "wrong"), "Bearer wrong"):
        refused = await endpoint.ask(method, path, b"", login=wrong)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == 'Basic realm="retinue"'


async def test_the_first_question_of_docker_and_skopeo_is_answered_by_a_challenge(endpoint: Endpoint) -> None:
    for path in ("/v2/", "/v2"):
        unknown = await endpoint.ask("GET", path, login=None)
        assert (unknown.status, unknown.headers["www-authenticate"]) == (401, 'Basic realm="retinue"')
        assert (await endpoint.ask("GET", path)).status == 200
        assert (await endpoint.ask("GET", path, login=f"Bearer {TOKEN}")).status == 200


async def test_a_password_counts_at_the_registry_and_at_no_other_endpoint() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["retinue.identity"].principal.id)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def nothing(*_: Any) -> Any:
        return None

    keeper = SecurityMiddleware(app, tokens=Tokens({TOKEN: LOCAL_TOKEN}))
    headers = [(b"host", b"127.0.0.1"), (b"authorization", basic("x", TOKEN).encode())]
    for path in ("/v2/x", "/agent-card"):
        await keeper({"type": "http", "method": "GET", "path": path, "headers": headers}, nothing, nothing)
    assert seen == ["local", "anonymous"]


async def test_content_may_be_large_and_no_other_body_may(layout: LayoutRegistry) -> None:
    settings = SecuritySettings(any_media_type=(REGISTRY_PATH,), max_body_bytes=1000, max_upload_bytes=50_000)
    app = SecurityMiddleware(
        Starlette(routes=oci.routes(layout, layout)), settings, Tokens({TOKEN: LOCAL_TOKEN})
    )
    async with serve_app(app) as url, HttpClient() as client:
        endpoint = Endpoint(url, client)
        await endpoint.upload(b"x" * 50_000)
        too_large = await endpoint.ask("POST", UPLOADS, b"x" * 50_001)
        assert too_large.status == 413
        assert (await endpoint.put("v1", b" " * 1001)).status == 413


async def test_a_part_of_content_is_given_on_demand(endpoint: Endpoint, layout: LayoutRegistry) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    path, size = f"/v2/agents/plan/blobs/{CARD_DIGEST}", len(CARD)
    for asked, first, last in (
        ("0-4", 0, 4),
        ("5-", 5, size - 1),
        ("-3", size - 3, size - 1),
        ("2-999", 2, size - 1),
    ):
        part = await endpoint.ask("GET", path, range=f"bytes={asked}")
        assert (part.status, part.body) == (206, CARD[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{last}/{size}"
    beyond = await endpoint.ask("GET", path, range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    for ignored in ("bytes=-", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4"):
        assert (await endpoint.ask("GET", path, range=ignored)).body == CARD


async def test_lists_that_have_not_changed_are_not_sent_again(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    for path in ("/v2/_catalog", "/v2/agents/plan/tags/list"):
        etag = (await endpoint.ask("GET", path)).headers["etag"]
        assert (await endpoint.ask("GET", path, if_none_match=etag)).status == 304
    await publish_card(layout, "build-agent", CARD, version="1", skills=[], created=NOON)
    assert (await endpoint.ask("GET", "/v2/_catalog", if_none_match=etag)).status == 200


async def test_uploads_nobody_came_back_for_are_removed_and_there_is_an_end_to_their_number(
    endpoint: Endpoint, layout: LayoutRegistry
) -> None:
    old = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
    (part,) = (Path(layout.name) / ".uploads").rglob("*.part")
    aged = part.stat().st_mtime - 24 * KEPT_S - 1
    os.utime(part, (aged, aged))
    assert (await endpoint.ask("POST", UPLOADS, b"")).status == 202
    assert _error(await endpoint.ask("GET", old)) == (404, "BLOB_UPLOAD_UNKNOWN")
    for number in range(MAX_UPLOADS):
        part.with_name(f"{number:032x}.part").touch()
    refused = await endpoint.ask("POST", UPLOADS, b"")
    assert _error(refused) == (429, "TOOMANYREQUESTS")
    assert refused.headers["retry-after"]


async def test_the_age_of_an_upload_is_measured_by_the_monotonic_clock(tmp_path: Path) -> None:
    """A clock that is set an hour ahead does not remove an upload in progress."""
    wall, monotonic = FakeClock(time.time()), FakeClock()
    root = tmp_path / "registry"
    layout = LayoutRegistry(root, uploads=Uploads(root, clock=wall, monotonic=monotonic))
    async with open_endpoint(layout) as endpoint:
        upload = (await endpoint.ask("POST", UPLOADS, b"")).headers["location"]
        wall.pass_time(KEPT_S + 60)
        assert (await endpoint.ask("POST", UPLOADS, b"")).status == 202
        assert (await endpoint.ask("GET", upload)).status == 204
        monotonic.pass_time(KEPT_S + 60)
        assert (await endpoint.ask("POST", UPLOADS, b"")).status == 202
        assert _error(await endpoint.ask("GET", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_a_full_disk_is_told_without_naming_files(
    endpoint: Endpoint, layout: LayoutRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for content in PACKAGE.blobs.values():
        await endpoint.upload(content)
    monkeypatch.setattr("retinue.oci.layout.image_layout.replace_file", no_room)
    refused = await endpoint.put()
    assert _error(refused) == (500, "UNKNOWN")
    assert layout.name.encode() not in refused.body
    assert await layout.list_repositories() == []
