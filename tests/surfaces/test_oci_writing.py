"""The writing side of the registry door, request by request; whole programs use it in ``tests/registry``."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette

from retinue.drivers.http import HttpClient, HttpResponse
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.registry import publish_card
from retinue.drivers.uploads import KEPT_S, MAX_UPLOADS
from retinue.protocols.oci.artifacts import card_artifact, render_artifact
from retinue.protocols.oci.manifest import EMPTY_CONFIG
from retinue.protocols.oci.reference import Reference, digest_of
from retinue.surfaces import oci
from retinue.surfaces.security import LOCAL_TOKEN, Doorkeeper, DoorSettings, Tokens
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


class Door:
    """Asks the door with the token, unless told otherwise."""

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
        return await self._client.request(method, self.url + path, headers=sent, body=body, timeout_s=10)

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
async def door(layout: LayoutRegistry) -> AsyncIterator[Door]:
    app = Doorkeeper(Starlette(routes=oci.routes(layout, layout)), tokens=Tokens({TOKEN: LOCAL_TOKEN}))
    async with serve_app(app) as url, HttpClient() as client:
        yield Door(url, client)


def _error(answer: HttpResponse) -> tuple[int, str]:
    return answer.status, orjson.loads(answer.body)["errors"][0]["code"]


@requirement("P-04")
async def test_a_card_is_pushed_in_one_request_for_each_part(door: Door, layout: LayoutRegistry) -> None:
    for content in PACKAGE.blobs.values():
        await door.upload(content)
    assert (await door.ask("HEAD", f"/v2/agents/plan/blobs/{CARD_DIGEST}")).status == 200
    assert await layout.list_repositories() == []
    stored = await door.put()
    assert (stored.status, stored.headers["docker-content-digest"]) == (201, PACKAGE.digest)
    assert stored.headers["location"] == f"/v2/agents/plan/manifests/{PACKAGE.digest}"
    artifact = await layout.pull(Reference("agents/plan", "v1"))
    assert (artifact.manifest_bytes, artifact.content) == (PACKAGE.manifest_bytes, CARD)
    assert not list((Path(layout.name) / ".uploads").rglob("*.part"))


async def test_content_comes_in_chunks_and_is_asked_after_meanwhile(door: Door) -> None:
    begun = await door.ask("POST", UPLOADS, b"")
    assert (begun.status, begun.headers["range"]) == (202, "0-0")
    upload = begun.headers["location"]
    first = await door.ask("PATCH", upload, CARD[:20], content_range="0-19")
    assert (first.status, first.headers["range"], first.headers["location"]) == (202, "0-19", upload)
    asked = await door.ask("GET", upload)
    assert (asked.status, asked.headers["range"]) == (204, "0-19")
    for wrong in ("0-19", "21-30", "nonsense"):
        refused = await door.ask("PATCH", upload, CARD[20:], content_range=wrong)
        assert _error(refused) == (416, "BLOB_UPLOAD_INVALID")
        assert refused.headers["range"] == "0-19"
    assert (await door.ask("PATCH", upload, CARD[20:40])).status == 202
    ended = await door.ask(
        "PUT", f"{upload}?digest={CARD_DIGEST}", CARD[40:], content_range=f"40-{len(CARD) - 1}"
    )
    assert (ended.status, ended.headers["docker-content-digest"]) == (201, CARD_DIGEST)
    assert ended.headers["location"] == f"/v2/agents/plan/blobs/{CARD_DIGEST}"
    assert (await door.ask("GET", ended.headers["location"])).body == CARD
    assert _error(await door.ask("GET", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_content_that_is_not_what_was_said_is_thrown_away(door: Door) -> None:
    upload = (await door.ask("POST", UPLOADS, b"")).headers["location"]
    assert _error(await door.ask("PUT", f"{upload}?digest={CARD_DIGEST}", b"other")) == (
        400,
        "DIGEST_INVALID",
    )
    assert _error(await door.ask("GET", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")
    upload = (await door.ask("POST", UPLOADS, b"")).headers["location"]
    assert _error(await door.ask("PUT", f"{upload}?digest=md5:1", CARD)) == (400, "DIGEST_INVALID")
    assert (await door.ask("DELETE", upload)).status == 204
    assert _error(await door.ask("DELETE", upload)) == (404, "BLOB_UPLOAD_UNKNOWN")


async def test_an_upload_belongs_to_its_repository(door: Door) -> None:
    upload = (await door.ask("POST", UPLOADS, b"")).headers["location"]
    elsewhere = upload.replace("agents/plan", "agents/build")
    assert _error(await door.ask("PATCH", elsewhere, b"x")) == (404, "BLOB_UPLOAD_UNKNOWN")
    await door.upload(CARD)
    assert (await door.ask("HEAD", f"/v2/agents/build/blobs/{CARD_DIGEST}")).status == 404
    for odd in ("..", "%2e%2e%2fx", "x" * 40):
        assert (await door.ask("PATCH", f"{UPLOADS}{odd}", b"x")).status in (404, 405)


async def test_content_of_another_repository_is_mounted_without_an_upload(
    door: Door, layout: LayoutRegistry
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    there = f"/v2/agents/copy/blobs/uploads/?mount={CARD_DIGEST}&from="
    mounted = await door.ask("POST", there + "agents/plan", b"")
    assert (mounted.status, mounted.headers["location"]) == (201, f"/v2/agents/copy/blobs/{CARD_DIGEST}")
    assert (await door.ask("GET", mounted.headers["location"])).body == CARD
    for source in ("agents/none", "", "../x"):
        answer = await door.ask("POST", there.replace(CARD_DIGEST, "sha256:" + "0" * 64) + source, b"")
        assert answer.status == 202
    # What was only uploaded for another repository counts as well.
    await door.upload(b"staged", "agents/plan")
    again = await door.ask("POST", there.replace(CARD_DIGEST, digest_of(b"staged")) + "agents/plan", b"")
    assert again.status == 201


async def test_a_manifest_wants_its_content_first(door: Door, layout: LayoutRegistry) -> None:
    missing = await door.put()
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
    door: Door, raw: bytes, target: str, media_type: str, expected: tuple[int, str]
) -> None:
    for content in PACKAGE.blobs.values():
        await door.upload(content)
    assert _error(await door.put(target, raw, content_type=media_type)) == expected


async def test_a_manifest_is_put_under_its_digest_and_gets_its_tag_later(
    door: Door, layout: LayoutRegistry
) -> None:
    for content in PACKAGE.blobs.values():
        await door.upload(content)
    assert (await door.put(PACKAGE.digest)).status == 201
    assert (
        await door.ask("GET", f"/v2/agents/plan/manifests/{PACKAGE.digest}")
    ).body == PACKAGE.manifest_bytes
    assert await layout.list_tags("agents/plan") == []
    assert (await door.put("v1")).status == 201
    assert await layout.list_tags("agents/plan") == ["v1"]


async def test_a_repository_belongs_to_the_first_name_in_it(door: Door, layout: LayoutRegistry) -> None:
    await publish_card(
        layout, "other", b'{"name": "other"}', version="1", skills=[], created=NOON, repository="agents/plan"
    )
    for content in PACKAGE.blobs.values():
        await door.upload(content)
    refused = await door.put("v2")
    assert _error(refused) == (403, "DENIED")
    assert "holds the card of other, not of plan-agent" in orjson.loads(refused.body)["errors"][0]["message"]
    assert await layout.list_tags("agents/plan") == ["v1"]


@pytest.mark.parametrize("by_digest", [True, False])
async def test_what_is_deleted_by_tag_or_digest_is_gone(
    door: Door, layout: LayoutRegistry, by_digest: bool
) -> None:
    published = await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    path = f"/v2/agents/plan/manifests/{published.digest if by_digest else 'v1'}"
    assert (await door.ask("DELETE", path)).status == 202
    assert _error(await door.ask("DELETE", path)) == (404, "MANIFEST_UNKNOWN")
    assert await layout.list_repositories() == []
    assert _error(await door.ask("DELETE", f"/v2/agents/plan/blobs/{CARD_DIGEST}")) == (405, "UNSUPPORTED")


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
    door: Door, layout: LayoutRegistry, method: str, path: str
) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    # skopeo without a login answers a challenge with nothing, twice.
    for login in (None, basic("", "")):
        refused = await door.ask(method, path, b"", login=login)
        assert _error(refused) == (401, "UNAUTHORIZED")
        assert refused.headers["www-authenticate"] == 'Basic realm="retinue"'
        assert (await door.ask("GET", "/v2/agents/plan/manifests/v1", login=login)).status == 200
    assert await layout.list_tags("agents/plan") == ["v1"]
    for wrong in (basic("x", "wrong"), "Bearer wrong"):
        refused = await door.ask(method, path, b"", login=wrong)
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == 'Basic realm="retinue"'


async def test_the_first_question_of_docker_and_skopeo_is_answered_by_a_challenge(door: Door) -> None:
    for path in ("/v2/", "/v2"):
        unknown = await door.ask("GET", path, login=None)
        assert (unknown.status, unknown.headers["www-authenticate"]) == (401, 'Basic realm="retinue"')
        assert (await door.ask("GET", path)).status == 200
        assert (await door.ask("GET", path, login=f"Bearer {TOKEN}")).status == 200


async def test_a_password_counts_at_the_registry_and_at_no_other_door() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["retinue.visitor"].principal.id)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def nothing(*_: Any) -> Any:
        return None

    keeper = Doorkeeper(app, tokens=Tokens({TOKEN: LOCAL_TOKEN}))
    headers = [(b"host", b"127.0.0.1"), (b"authorization", basic("x", TOKEN).encode())]
    for path in ("/v2/x", "/agent-card"):
        await keeper({"type": "http", "method": "GET", "path": path, "headers": headers}, nothing, nothing)
    assert seen == ["local", "anonymous"]


async def test_content_may_be_large_and_no_other_body_may(layout: LayoutRegistry) -> None:
    settings = DoorSettings(max_body_bytes=1000, max_upload_bytes=50_000)
    app = Doorkeeper(Starlette(routes=oci.routes(layout, layout)), settings, Tokens({TOKEN: LOCAL_TOKEN}))
    async with serve_app(app) as url, HttpClient() as client:
        door = Door(url, client)
        await door.upload(b"x" * 50_000)
        too_large = await door.ask("POST", UPLOADS, b"x" * 50_001)
        assert too_large.status == 413
        assert (await door.put("v1", b" " * 1001)).status == 413


async def test_a_part_of_content_is_given_on_demand(door: Door, layout: LayoutRegistry) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    path, size = f"/v2/agents/plan/blobs/{CARD_DIGEST}", len(CARD)
    for asked, first, last in (
        ("0-4", 0, 4),
        ("5-", 5, size - 1),
        ("-3", size - 3, size - 1),
        ("2-999", 2, size - 1),
    ):
        part = await door.ask("GET", path, range=f"bytes={asked}")
        assert (part.status, part.body) == (206, CARD[first : last + 1])
        assert part.headers["content-range"] == f"bytes {first}-{last}/{size}"
    beyond = await door.ask("GET", path, range=f"bytes={size}-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, f"bytes */{size}")
    for ignored in ("bytes=-", "bytes=5-2", "lines=1-2", "bytes=0-1,3-4"):
        assert (await door.ask("GET", path, range=ignored)).body == CARD


async def test_lists_that_have_not_changed_are_not_sent_again(door: Door, layout: LayoutRegistry) -> None:
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    for path in ("/v2/_catalog", "/v2/agents/plan/tags/list"):
        etag = (await door.ask("GET", path)).headers["etag"]
        assert (await door.ask("GET", path, if_none_match=etag)).status == 304
    await publish_card(layout, "build-agent", CARD, version="1", skills=[], created=NOON)
    assert (await door.ask("GET", "/v2/_catalog", if_none_match=etag)).status == 200


async def test_uploads_nobody_came_back_for_are_removed_and_there_is_an_end_to_their_number(
    door: Door, layout: LayoutRegistry
) -> None:
    old = (await door.ask("POST", UPLOADS, b"")).headers["location"]
    (part,) = (Path(layout.name) / ".uploads").rglob("*.part")
    aged = part.stat().st_mtime - KEPT_S - 1
    os.utime(part, (aged, aged))
    assert (await door.ask("POST", UPLOADS, b"")).status == 202
    assert _error(await door.ask("GET", old)) == (404, "BLOB_UPLOAD_UNKNOWN")
    for number in range(MAX_UPLOADS):
        part.with_name(f"{number:032x}.part").touch()
    refused = await door.ask("POST", UPLOADS, b"")
    assert _error(refused) == (429, "TOOMANYREQUESTS")
    assert refused.headers["retry-after"]


async def test_a_full_disk_is_told_without_naming_files(
    door: Door, layout: LayoutRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for content in PACKAGE.blobs.values():
        await door.upload(content)
    monkeypatch.setattr("retinue.drivers.image_layout.replace_file", no_room)
    refused = await door.put()
    assert _error(refused) == (500, "UNKNOWN")
    assert layout.name.encode() not in refused.body
    assert await layout.list_repositories() == []
