"""The reading endpoint of the registry over a real socket, as oras, skopeo and plain HTTP clients use it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.catalog import CATALOG_TYPE, Heads
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, publish_card
from retinue.oci.server import pull as oci
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpResponse
from tests.requirements import requirement
from tests.services import run_skopeo
from tests.serving import serve_app

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAMES = ("plan-agent", "build-agent", "test-agent")


def _card(name: str) -> bytes:
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": [{"id": "create_plan"}]})


async def _publish_three(registry: Registry) -> dict[str, str]:
    """Digests by card name."""
    return {
        name: (
            await publish_card(
                registry, name, _card(name), version="1.0.0", skills=["create_plan"], created=NOON
            )
        ).digest
        for name in NAMES
    }


@pytest.fixture
def registry(tmp_path: Path) -> LayoutRegistry:
    return LayoutRegistry(tmp_path / "registry")


class Endpoint:
    """Asks the endpoint and gives the answers."""

    def __init__(self, url: str, client: HttpClient) -> None:
        self.url = url
        self.host = url.removeprefix("http://")
        self._client = client

    async def ask(self, path: str, method: str = "GET", **headers: str) -> HttpResponse:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._client.request(method, self.url + path, headers=sent, timeout_s=60)

    async def names(self, path: str, key: str) -> list[str]:
        answer = await self.ask(path)
        assert answer.status == 200
        names: list[str] = orjson.loads(answer.body)[key]
        return names


@pytest.fixture
async def endpoint(registry: LayoutRegistry) -> AsyncIterator[Endpoint]:
    app = Starlette(routes=oci.routes(registry))
    async with serve_app(app) as url, HttpClient() as client:
        yield Endpoint(url, client)


def _error(answer: HttpResponse) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    return answer.status, orjson.loads(answer.body)["errors"][0]["code"]


@requirement("P-02")
@requirement("P-03")
async def test_golden_1_1_the_catalog_names_the_three_agents(
    endpoint: Endpoint, registry: LayoutRegistry, docker_registry_url: str
) -> None:
    await _publish_three(registry)
    answer = await endpoint.ask("/v2/_catalog")
    assert orjson.loads(answer.body) == {"repositories": ["agents/build", "agents/plan", "agents/test"]}
    async with HttpClient() as client:
        remote = HttpRegistry(docker_registry_url, client)
        await _publish_three(remote)
        assert {"agents/build", "agents/plan", "agents/test"} <= set(await remote.list_repositories())


@requirement("P-04")
@requirement("P-05")
@pytest.mark.parametrize("server", ["door", "docker-registry"])
async def test_golden_1_2_oras_pulls_the_card_as_a_file_with_the_exact_bytes(
    request: pytest.FixtureRequest, endpoint: Endpoint, registry: LayoutRegistry, tmp_path: Path, server: str
) -> None:
    await _publish_three(registry)
    host = endpoint.host
    if server == "docker-registry":
        url = request.getfixturevalue("docker_registry_url")
        host = url.removeprefix("http://")
        async with HttpClient() as client:
            await _publish_three(HttpRegistry(url, client))
    puller = oras.client.OrasClient(insecure=True)
    for short in ("plan", "build"):
        out = tmp_path / short
        files = await asyncio.to_thread(puller.pull, target=f"{host}/agents/{short}:v1", outdir=str(out))
        path = out / f"{short}_agent_card.json"
        assert files == [str(path)]
        assert path.read_bytes() == _card(f"{short}-agent")
        layer = (await registry.pull(Reference(f"agents/{short}", "v1"))).manifest.layers[0]
        assert layer.digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


async def test_oras_lists_the_tags(endpoint: Endpoint, registry: LayoutRegistry) -> None:
    await _publish_three(registry)
    lister = oras.client.OrasClient(insecure=True)
    assert await asyncio.to_thread(lister.get_tags, f"{endpoint.host}/agents/plan") == ["v1"]


@requirement("P-17")
async def test_skopeo_reads_the_manifest_as_it_was_pushed(
    endpoint: Endpoint, registry: LayoutRegistry
) -> None:
    digest = (await _publish_three(registry))["plan-agent"]
    raw = await run_skopeo(
        "inspect", "--raw", "--tls-verify=false", f"docker://{endpoint.host}/agents/plan:v1"
    )
    assert digest_of(raw) == digest


@requirement("P-17")
async def test_skopeo_carries_a_card_from_the_endpoint_to_another_registry_and_to_a_layout(
    endpoint: Endpoint, registry: LayoutRegistry, docker_registry_url: str, tmp_path: Path
) -> None:
    digest = (await _publish_three(registry))["plan-agent"]
    source = f"docker://{endpoint.host}/agents/plan:v1"
    host = docker_registry_url.removeprefix("http://")
    await run_skopeo(
        "copy",
        "--src-tls-verify=false",
        "--dest-tls-verify=false",
        source,
        f"docker://{host}/agents/copied:v1",
    )
    folder = tmp_path / "copies" / "agents" / "copied"
    folder.mkdir(parents=True)
    await run_skopeo("copy", "--src-tls-verify=false", source, f"oci:{folder}:v1")
    async with HttpClient() as client:
        for copy in (HttpRegistry(docker_registry_url, client), LayoutRegistry(tmp_path / "copies")):
            artifact = await copy.pull(Reference("agents/copied", "v1"))
            assert (artifact.digest, artifact.content) == (digest, _card("plan-agent"))


async def test_skopeo_reads_our_layouts_on_disk(registry: LayoutRegistry, tmp_path: Path) -> None:
    digest = (await _publish_three(registry))["plan-agent"]
    raw = await run_skopeo("inspect", "--raw", f"oci:{tmp_path / 'registry' / 'agents' / 'plan'}:v1")
    assert digest_of(raw) == digest


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
async def test_the_endpoint_says_that_it_is_a_registry(endpoint: Endpoint, path: str) -> None:
    answer = await endpoint.ask(path)
    assert (answer.status, answer.body) == (200, b"{}")
    assert answer.headers["docker-distribution-api-version"] == "registry/2.0"


@requirement("P-04")
async def test_manifests_and_blobs_come_with_digest_etag_and_type(
    endpoint: Endpoint, registry: LayoutRegistry
) -> None:
    digest = (await _publish_three(registry))["plan-agent"]
    card = digest_of(_card("plan-agent"))
    for path, kind, expected in (
        ("manifests/v1", MANIFEST, digest),
        (f"manifests/{digest}", MANIFEST, digest),
        (f"blobs/{card}", "application/octet-stream", card),
    ):
        whole = await endpoint.ask(f"/v2/agents/plan/{path}")
        head = await endpoint.ask(f"/v2/agents/plan/{path}", "HEAD")
        assert (whole.status, head.status, head.body) == (200, 200, b"")
        assert digest_of(whole.body) == expected
        for answer in (whole, head):
            assert answer.headers["docker-content-digest"] == expected
            assert answer.headers["etag"] == f'"{expected}"'
            assert answer.headers["content-type"] == kind
            assert answer.headers["content-length"] == str(len(whole.body))


async def test_what_the_caller_has_already_is_not_sent_again(
    endpoint: Endpoint, registry: LayoutRegistry
) -> None:
    digest = (await _publish_three(registry))["plan-agent"]
    for header in (f'"{digest}"', f'"x", W/"{digest}"'):
        answer = await endpoint.ask("/v2/agents/plan/manifests/v1", if_none_match=header)
        assert (answer.status, answer.body) == (304, b"")
    stale = await endpoint.ask("/v2/agents/plan/manifests/v1", if_none_match='"sha256:0"')
    assert stale.status == 200


async def test_a_page_of_the_catalog_reads_its_own_repositories_only(
    endpoint: Endpoint, registry: LayoutRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _publish_three(registry)
    read, walks = [], []
    read_heads, walk = LayoutRegistry.read_heads, LayoutRegistry.list_repositories

    async def note_heads(own: LayoutRegistry, repositories: Iterable[str]) -> dict[str, Heads]:
        read.append(list(repositories))
        return await read_heads(own, repositories)

    async def note_walk(own: LayoutRegistry) -> list[str]:
        walks.append(own)
        return await walk(own)

    monkeypatch.setattr(LayoutRegistry, "read_heads", note_heads)
    monkeypatch.setattr(LayoutRegistry, "list_repositories", note_walk)
    for path in ("/v2/_catalog?n=2", "/v2/_catalog?n=2&last=agents%2Fplan"):
        answer = await endpoint.ask(path, accept=CATALOG_TYPE)
        assert orjson.loads(answer.body)["heads"].keys() == set(read[-1])
    assert read == [["agents/build", "agents/plan"], ["agents/test"]]
    assert len(walks) == 1
    await publish_card(registry, "u", _card("u"), version="1.0.0", skills=["create_plan"], created=NOON)
    more = await endpoint.ask("/v2/_catalog?n=2&last=agents%2Fplan", accept=CATALOG_TYPE)
    assert orjson.loads(more.body)["repositories"] == ["agents/test", "agents/u"]
    assert len(walks) == 2


@requirement("P-02")
async def test_catalog_and_tags_page_by_n_and_last(endpoint: Endpoint, registry: LayoutRegistry) -> None:
    await _publish_three(registry)
    for tag in ("v2", "v3"):
        await publish_card(
            registry, "plan-agent", _card("plan-agent"), version="2", skills=[], created=NOON, tag=tag
        )
    for path, key, expected in (
        ("/v2/_catalog", "repositories", ["agents/build", "agents/plan", "agents/test"]),
        ("/v2/agents/plan/tags/list", "tags", ["v1", "v2", "v3"]),
    ):
        first = await endpoint.ask(f"{path}?n=2")
        assert orjson.loads(first.body)[key] == expected[:2]
        link = first.headers["link"]
        assert link.endswith('>; rel="next"')
        second = await endpoint.ask(link[1 : link.index(">")])
        assert orjson.loads(second.body)[key] == expected[2:]
        assert "link" not in second.headers
        assert "link" not in (await endpoint.ask(f"{path}?n=3")).headers
        assert await endpoint.names(f"{path}?n=0", key) == []
        assert await endpoint.names(f"{path}?last={expected[1]}", key) == expected[2:]


class Thousands(LayoutRegistry):
    async def list_repositories(self) -> list[str]:
        return [f"agents/a{number:05}" for number in range(1500)]


async def test_a_page_holds_a_thousand_names_at_most(tmp_path: Path) -> None:
    app = Starlette(routes=oci.routes(Thousands(tmp_path)))
    async with serve_app(app) as url, HttpClient() as client:
        endpoint = Endpoint(url, client)
        for query in ("", "?n=5000", "?n=1000"):
            assert len(await endpoint.names(f"/v2/_catalog{query}", "repositories")) == 1000
        assert len(await endpoint.names("/v2/_catalog?last=agents%2Fa00999", "repositories")) == 500


async def test_of_the_names_that_a_caller_may_not_see_a_page_asks_no_more_than_it_needs(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    async def keep_sevens(request: Request, repositories: Sequence[str]) -> Sequence[str]:
        asked.append(len(repositories))
        return [repository for repository in repositories if repository.endswith("7")]

    app = Starlette(routes=oci.routes(Thousands(tmp_path), keep_shown=keep_sevens))
    async with serve_app(app) as url, HttpClient() as client:
        endpoint = Endpoint(url, client)
        first = await endpoint.ask("/v2/_catalog?n=90")
        names = orjson.loads(first.body)["repositories"]
        assert len(asked) == 1
        link = first.headers["link"]
        second = await endpoint.ask(link[1 : link.index(">")])
        names += orjson.loads(second.body)["repositories"]
        assert names == [f"agents/a{number:05}" for number in range(7, 1500, 10)]
        assert "link" not in second.headers


@pytest.mark.parametrize("n", ["-1", "x", "1.5", "%D9%A3", "9999999999999999", ""])
async def test_a_page_size_that_is_no_number_is_refused(endpoint: Endpoint, n: str) -> None:
    assert _error(await endpoint.ask(f"/v2/_catalog?n={n}")) == (400, "PAGINATION_NUMBER_INVALID")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v2/agents/none/tags/list", 404, "NAME_UNKNOWN"),
        ("/v2/agents/none/manifests/v1", 404, "NAME_UNKNOWN"),
        ("/v2/agents/plan/manifests/v9", 404, "MANIFEST_UNKNOWN"),
        ("/v2/agents/plan/manifests/sha256:" + "0" * 64, 404, "MANIFEST_UNKNOWN"),
        ("/v2/agents/plan/manifests/sha256:0", 400, "DIGEST_INVALID"),
        ("/v2/agents/plan/manifests/-x", 400, "TAG_INVALID"),
        ("/v2/agents/plan/blobs/sha256:" + "0" * 64, 404, "BLOB_UNKNOWN"),
        ("/v2/agents/plan/blobs/..%2F..%2Findex.json", 404, "NAME_UNKNOWN"),
        ("/v2/agents/plan/blobs/x", 400, "DIGEST_INVALID"),
        ("/v2/Agents/plan/tags/list", 400, "NAME_INVALID"),
        ("/v2/%2e%2e/%2e%2e/etc/manifests/v1", 400, "NAME_INVALID"),
        ("/v2/agents/plan/blobs/manifests/v1", 400, "NAME_INVALID"),
        ("/v2/agents/plan", 404, "NAME_UNKNOWN"),
    ],
)
async def test_what_is_not_there_is_told_in_the_codes_of_the_spec(
    endpoint: Endpoint, registry: LayoutRegistry, path: str, status: int, code: str
) -> None:
    await _publish_three(registry)
    assert _error(await endpoint.ask(path)) == (status, code)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/agents/plan/blobs/uploads/"),
        ("PUT", "/v2/agents/plan/manifests/v1"),
        ("PATCH", "/v2/agents/plan/blobs/uploads/1"),
        ("DELETE", "/v2/agents/plan/manifests/v1"),
        ("POST", "/v2/_catalog"),
    ],
)
async def test_nothing_is_written_through_the_endpoint(
    endpoint: Endpoint, registry: LayoutRegistry, method: str, path: str
) -> None:
    await _publish_three(registry)
    answer = await endpoint.ask(path, method)
    assert _error(answer) == (405, "UNSUPPORTED")
    assert answer.headers["allow"] == "GET, HEAD"
    assert (await endpoint.ask("/v2/agents/plan/manifests/v1")).status == 200


async def test_a_damaged_repository_fails_alone_and_tells_no_path(
    endpoint: Endpoint, registry: LayoutRegistry, tmp_path: Path
) -> None:
    await _publish_three(registry)
    (tmp_path / "registry" / "agents" / "plan" / "index.json").write_bytes(b"{")
    answer = await endpoint.ask("/v2/agents/plan/manifests/v1")
    assert _error(answer) == (500, "UNKNOWN")
    assert str(tmp_path).encode() not in answer.body
    assert (await endpoint.ask("/v2/agents/build/manifests/v1")).status == 200
    assert len(await endpoint.names("/v2/_catalog", "repositories")) == 3
