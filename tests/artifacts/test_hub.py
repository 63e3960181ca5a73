"""Artifacts of a hub: saved, read by range, listed and deleted over HTTP, with the rights of the caller."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from retinue.storage.artifacts.index import LEAST_BYTES
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.system import Reply, System, open_system

CONTENT = bytes(range(256)) * 10
DIGEST = f"sha256:{sha256(CONTENT).hexdigest()}"


class Client:
    """A client of any language, with a token."""

    def __init__(self, url: str, session: aiohttp.ClientSession, token: str | None) -> None:
        self._url, self._session = url, session
        self._own = {} if token is None else {"authorization": token}

    async def ask(self, method: str, path: str = "", content: Any = None, **headers: str) -> Reply:
        sent = self._own | {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self._url}/artifacts{path}"
        async with self._session.request(method, url, data=content, headers=sent) as answer:
            body = await answer.read()
            return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, body)

    async def save(self, content: bytes = CONTENT, **headers: str) -> Reply:
        return await self.ask("POST", "", content, **{"content_type": "image/png", **headers})


class Clients:
    def __init__(self, system: System, url: str, session: aiohttp.ClientSession) -> None:
        self._system, self._url, self._session = system, url, session

    @property
    def mesh(self) -> Client:
        """A client with the token of the state."""
        return Client(self._url, self._session, self._system.token)

    @property
    def anonymous(self) -> Client:
        return Client(self._url, self._session, None)

    def issue(self, name: str, **limits: Any) -> Client:
        """A client with an issued token."""
        _, token = TokenFile(self._system.state.keys).issue(["exposed"], name=name, **limits)
        return Client(self._url, self._session, f"Bearer {token}")


@pytest.fixture
async def clients(system: System) -> AsyncIterator[Clients]:
    hub = await system.start_hub()
    async with aiohttp.ClientSession() as session:
        yield Clients(system, hub.url, session)


async def test_a_file_is_saved_and_read_by_its_digest(clients: Clients) -> None:
    saved = await clients.mesh.save(x_retinue_name="plot%20%C3%A9.png")
    assert saved.status == 201
    assert saved.json == {"artifact": DIGEST, "size": 2560, "media_type": "image/png", "name": "plot é.png"}
    assert saved.headers["location"] == f"/artifacts/{DIGEST}"
    read = await clients.mesh.ask("GET", f"/{DIGEST}")
    assert (read.status, read.body) == (200, CONTENT)
    head = await clients.mesh.ask("HEAD", f"/{DIGEST}")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", "2560")
    assert head.headers["accept-ranges"] == "bytes"


async def test_parts_of_a_file_are_read_by_range(clients: Clients) -> None:
    await clients.mesh.save()
    part = await clients.mesh.ask("GET", f"/{DIGEST}", range="bytes=10-19")
    assert (part.status, part.body) == (206, CONTENT[10:20])
    assert part.headers["content-range"] == "bytes 10-19/2560"
    last = await clients.mesh.ask("GET", f"/{DIGEST}", range="bytes=-5")
    assert (last.status, last.body) == (206, CONTENT[-5:])
    beyond = await clients.mesh.ask("GET", f"/{DIGEST}", range="bytes=2560-")
    assert (beyond.status, beyond.headers["content-range"]) == (416, "bytes */2560")
    tag = part.headers["etag"]
    unchanged = await clients.mesh.ask("GET", f"/{DIGEST}", if_none_match=tag)
    assert (unchanged.status, unchanged.body) == (304, b"")
    assert (await clients.mesh.ask("GET", f"/{DIGEST}", range="bytes=0-0", if_range=tag)).status == 206
    assert (await clients.mesh.ask("GET", f"/{DIGEST}", range="bytes=0-0", if_range='"x"')).status == 200


async def test_a_file_is_foreign_to_a_browser(clients: Clients) -> None:
    await clients.mesh.save(b"<script>", content_type="text/html", x_retinue_name="%22%3E%3Cscript%3E.html")
    digest = f"sha256:{sha256(b'<script>').hexdigest()}"
    read = await clients.mesh.ask("GET", f"/{digest}")
    assert read.headers["content-disposition"].startswith("attachment;")
    assert read.headers["x-content-type-options"] == "nosniff"
    assert read.headers["content-security-policy"] == "default-src 'none'; sandbox"


async def test_an_unknown_digest_is_told_with_a_remedy(clients: Clients) -> None:
    unknown = await clients.mesh.ask("GET", f"/sha256:{'0' * 64}")
    assert unknown.status == 404
    assert unknown.json["data"]["type"] == "unknown_artifact"
    assert "keep_days" in unknown.json["data"]["remedy"]
    for path in ("/nonsense", "/sha256:..%2f..%2fetc", f"/{DIGEST.upper()}"):
        assert (await clients.mesh.ask("GET", path)).status in (400, 404)


async def test_content_is_refused_unless_it_has_the_announced_digest(clients: Clients) -> None:
    refused = await clients.mesh.save(b"other", x_retinue_digest=DIGEST)
    assert refused.status == 400
    assert "the content has the digest" in refused.json["detail"]
    assert (await clients.mesh.save(x_retinue_digest=DIGEST)).status == 201


async def test_saving_needs_a_token_and_reading_the_digest(clients: Clients) -> None:
    refused = await clients.anonymous.save()
    assert refused.status == 401
    await clients.mesh.save()
    # whoever was given the link may read it: by a skill, or in a result
    assert (await clients.anonymous.ask("GET", f"/{DIGEST}")).body == CONTENT
    limited = clients.issue("limited", agents=["one-agent"])
    assert (await limited.ask("GET", f"/{DIGEST}")).body == CONTENT


async def test_a_caller_lists_and_deletes_its_own_artifacts_only(clients: Clients) -> None:
    ann, bob = clients.issue("ann"), clients.issue("bob")
    assert (await ann.save(b"of ann")).status == 201
    assert (await bob.save(b"of bob")).status == 201
    listed = (await ann.ask("GET")).json
    assert [row["size"] for row in listed["artifacts"]] == [6]
    assert (listed["count"], listed["bytes"]) == (1, LEAST_BYTES)
    digest = listed["artifacts"][0]["artifact"]
    assert (await bob.ask("DELETE", f"/{digest}")).status == 403
    for path in ("?all=1", f"/{digest}?all=1"):
        assert (await bob.ask("GET" if path[0] == "?" else "DELETE", path)).status == 403
    assert (await bob.ask("POST", "/collect")).status == 403
    assert (await bob.ask("GET", f"/{digest}/holders")).json["callers"] == []
    assert len((await clients.mesh.ask("GET", "?all=1")).json["artifacts"]) == 2
    assert (await ann.ask("DELETE", f"/{digest}")).json == {"artifact": digest, "deleted": True}
    assert (await ann.ask("GET", f"/{digest}")).status == 404
    assert (await clients.mesh.ask("POST", "/collect")).json == {"count": 0, "bytes": 0}


async def test_lists_have_pages(clients: Clients) -> None:
    for number in range(5):
        await clients.mesh.save(str(number).encode())
    first = (await clients.mesh.ask("GET", "?limit=3")).json["artifacts"]
    rest = (await clients.mesh.ask("GET", f"?limit=3&after={first[-1]['stored_at']!r}")).json["artifacts"]
    assert len(first) == 3
    assert len({row["artifact"] for row in (*first, *rest)}) == 5
    assert (await clients.mesh.ask("GET", "?limit=0")).status == 400
    assert (await clients.mesh.ask("GET", "?after=x")).status == 400


async def test_a_form_is_refused_because_the_body_is_the_file(clients: Clients) -> None:
    form = aiohttp.FormData()
    form.add_field("file", b"x", filename="x.txt")
    assert (await clients.mesh.ask("POST", "", form)).status == 415


async def test_a_body_larger_than_that_of_other_endpoints_is_streamed(clients: Clients) -> None:
    large = bytes(6 * 1024 * 1024)
    saved = await clients.mesh.ask("POST", "", io.BytesIO(large), content_type="image/png")
    assert (saved.status, saved.json["size"]) == (201, len(large))

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(6):
            yield bytes(1024 * 1024)

    chunked = await clients.mesh.ask("POST", "", pieces(), content_type="image/png")
    assert chunked.json["artifact"] == saved.json["artifact"]


async def test_limits_are_settings(tmp_path: Path) -> None:
    limits = {"max_bytes": 256 * 1024, "quota_bytes": 1024 * 1024, "caller_bytes": 1024 * 1024}
    async with open_system(State(tmp_path / "state"), artifacts=limits) as system:
        hub = await system.start_hub()
        async with aiohttp.ClientSession() as session:
            client = Clients(system, hub.url, session).mesh
            refused = await client.save(bytes(256 * 1024 + 1))
            assert (refused.status, refused.json["data"]["type"]) == (413, "too_large")
            for number in range(4):
                assert (await client.save(bytes([number]) * 256 * 1024)).status == 201
            refused = await client.save(b"one more")
            assert (refused.status, refused.json["data"]["type"]) == (413, "quota_exceeded")


async def test_the_registry_shows_artifacts_to_the_mesh_alone(clients: Clients, system: System) -> None:
    await clients.mesh.save()
    hub_url = clients._url
    shard = f"retinue-artifacts/{DIGEST[7:9]}"
    async with aiohttp.ClientSession() as session:
        for path in (f"{shard}/tags/list", f"{shard}/blobs/{DIGEST}", f"{shard}/manifests/{DIGEST[7:]}"):
            async with session.get(f"{hub_url}/v2/{path}") as answer:
                assert answer.status == 404
            async with session.get(f"{hub_url}/v2/{path}", headers={"authorization": system.token}) as answer:
                assert answer.status == 200
        async with session.get(f"{hub_url}/v2/_catalog", headers={"authorization": system.token}) as answer:
            assert (await answer.json())["repositories"] == []
        refused = await session.post(
            f"{hub_url}/v2/{shard}/blobs/uploads/", headers={"authorization": system.token}
        )
        assert refused.status == 403
