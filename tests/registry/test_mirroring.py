"""Mirroring between registries of every kind: bytes and digests stay, what is there is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.core.errors import (
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
    RepositoryTakenError,
)
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import Manifest, describe, parse_manifest
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.mirror import mirror
from retinue.oci.registry import CopyableRegistry, open_registry, publish_card, publish_workflow
from retinue.web.http_client import HttpClient
from tests.registry.places import own_endpoint
from tests.requirements import requirement
from tests.services import docker_registry

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
KINDS = ("layout", "door", "docker-registry")


def card(name: str, note: str = "") -> bytes:
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": [], "description": note})


async def publish(registry: CopyableRegistry, name: str, note: str = "", tag: str = "v1") -> str:
    content = card(name, note)
    return (await publish_card(registry, name, content, version="1", skills=[], created=NOON, tag=tag)).digest


@pytest.fixture(scope="module")
def registries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        docker_registry(tmp_path_factory.mktemp("from")) as one,
        docker_registry(tmp_path_factory.mktemp("to")) as two,
    ):
        yield {"from": one, "to": two}


async def _open(
    kind: str, side: str, folder: Path, client: HttpClient, urls: dict[str, str]
) -> AsyncIterator[CopyableRegistry]:
    if kind == "layout":
        yield LayoutRegistry(folder / side)
    elif kind == "door":
        async with own_endpoint(folder / side) as place:
            yield open_registry(place.location, client)
    else:
        yield open_registry(urls[side], client)


@pytest.fixture(params=KINDS)
async def source(
    request: pytest.FixtureRequest, tmp_path: Path, client: HttpClient, registries: dict[str, str]
) -> AsyncIterator[CopyableRegistry]:
    async for opened in _open(request.param, "from", tmp_path, client, registries):
        yield opened


@pytest.fixture(params=KINDS)
async def target(
    request: pytest.FixtureRequest, tmp_path: Path, client: HttpClient, registries: dict[str, str]
) -> AsyncIterator[CopyableRegistry]:
    async for opened in _open(request.param, "to", tmp_path, client, registries):
        yield opened


def _foreign(content: bytes) -> Package:
    """A manifest spelled as no renderer of ours would, with keys that we do not know."""
    config, layer = describe(b"{}", "application/x-config"), describe(content, "application/octet-stream")
    layers = [{"digest": layer.digest, "mediaType": layer.media_type, "size": layer.size_bytes, "x": [1]}]
    raw = orjson.dumps(
        {
            "layers": layers,
            "config": {"size": config.size_bytes, "mediaType": config.media_type, "digest": config.digest},
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "schemaVersion": 2,
        },
        option=orjson.OPT_INDENT_2,
    )
    manifest: Manifest = parse_manifest(raw, where="test")
    return Package(manifest, raw, digest_of(raw), {config.digest: b"{}", layer.digest: content})


@requirement("P-30")
@requirement("P-17")
async def test_everything_is_copied_once_with_its_digest(
    source: CopyableRegistry, target: CopyableRegistry
) -> None:
    wanted = {
        "agents/plan:v1": await publish(source, "plan-agent"),
        "agents/plan:v2": await publish(source, "plan-agent", "newer", "v2"),
        "agents/build:v1": await publish(source, "build-agent"),
        "agents/foreign:v1": await source.push_package("agents/foreign", "v1", _foreign(b"x" * 5000)),
        "workflows/both:v1": (await publish_workflow(source, "both", b"name: both\n", created=NOON)).digest,
    }
    await source.push_package("elsewhere/other", "v1", _foreign(b"y"))
    said: list[str] = []
    report = await mirror(source, target, echo=said.append)
    assert report.failed == {}
    copied = {str(one): one.digest for one in report.copied}
    assert sorted(said) == sorted(copied)
    # Registries that live longer than this test hold what an earlier one copied.
    assert copied.items() <= wanted.items()
    assert len(copied) + report.unchanged == len(wanted)
    for name, digest in wanted.items():
        repository, _, tag = name.partition(":")
        stored = await target.pull_manifest(Reference(repository, tag=tag))
        assert stored == await source.pull_manifest(Reference(repository, tag=tag))
        assert stored.digest == digest
    assert "elsewhere/other" not in await target.list_repositories()
    again = await mirror(source, target)
    assert (again.copied, again.unchanged) == ([], len(wanted))


async def test_only_the_named_repositories_are_copied_and_only_what_is_new(tmp_path: Path) -> None:
    source, target = LayoutRegistry(tmp_path / "from"), LayoutRegistry(tmp_path / "to")
    await publish(source, "plan-agent")
    await publish(source, "build-agent")
    report = await mirror(source, target, repositories=["agents/plan", "agents/none"])
    assert [str(one) for one in report.copied] == ["agents/plan:v1"]
    assert isinstance(report.failed["agents/none"], ReferenceNotFoundError)
    assert await target.list_repositories() == ["agents/plan"]
    newer = await publish(source, "plan-agent", "newer")
    report = await mirror(source, target, repositories=["agents/plan"])
    assert [one.digest for one in report.copied] == [newer]


async def test_one_that_cannot_be_copied_stops_nothing_else(tmp_path: Path) -> None:
    source, target = LayoutRegistry(tmp_path / "from"), LayoutRegistry(tmp_path / "to")
    for name in ("plan-agent", "build-agent", "test-agent"):
        await publish(source, name)
    await publish_card(
        target, "other", card("other"), version="1", skills=[], created=NOON, repository="agents/plan"
    )
    damaged = tmp_path / "from" / "agents" / "build" / "blobs" / "sha256"
    index = orjson.loads((damaged.parent.parent / "index.json").read_bytes())
    (damaged / index["manifests"][0]["digest"].removeprefix("sha256:")).write_bytes(b"{}")
    report = await mirror(source, target)
    assert [str(one) for one in report.copied] == ["agents/test:v1"]
    assert isinstance(report.failed["agents/plan:v1"], RepositoryTakenError)
    assert "does not match its digest" in report.failed["agents/build:v1"].message
    assert not isinstance(report.failed["agents/build:v1"], MalformedArtifactError)


async def test_a_registry_that_does_not_answer_ends_it(tmp_path: Path, client: HttpClient) -> None:
    source = LayoutRegistry(tmp_path / "from")
    await publish(source, "plan-agent")
    down = open_registry("http://127.0.0.1:1", client)
    for one, other in ((source, down), (down, source)):
        with pytest.raises(RegistryUnreachableError):
            await mirror(one, other)
