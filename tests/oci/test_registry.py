"""One suite over all registries: the folder, our own endpoint over it, and a real docker-registry."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from retinue.core.errors import (
    InvalidReferenceError,
    InvalidSettingError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
    RegistryUnreachableError,
    RepositoryTakenError,
)
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.artifacts import MAX_INLINE_BYTES, NewArtifact
from retinue.oci.codec.reference import Reference, parse_reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import Registry, forget, open_registry, publish_card, publish_workflow
from retinue.oci.server import pull as oci
from retinue.web.http_client import HttpClient
from tests.requirements import requirement
from tests.serving import serve_app

CARD = b'{"name": "plan-agent", "url": "http://localhost:8001", "skills": [{"id": "create_plan"}]}'
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@dataclass
class Place:
    """A registry through which one writes and one through which one reads the same things.

    ``keeps_untagged`` says that who deletes a tag deletes the tag alone.
    """

    writer: Registry
    reader: Registry
    repository: str
    keeps_untagged: bool = False

    def at(self, target: str) -> Reference:
        return Reference(self.repository).at(target)


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    async with HttpClient() as opened:
        yield opened


@pytest.fixture(params=["layout", "door", "docker-registry", "registry-3"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, client: HttpClient) -> AsyncIterator[Place]:
    # docker-registry lives as long as the session, and keeps emptied repositories in its catalog.
    repository = f"agents/{tmp_path.name.lower().strip('_').replace('__', '_')}"
    layout = LayoutRegistry(tmp_path / "registry")
    if request.param == "layout":
        yield Place(layout, layout, repository)
    elif request.param == "door":
        async with serve_app(Starlette(routes=oci.routes(layout))) as url:
            yield Place(layout, HttpRegistry(url, client), repository)
    else:
        url = request.getfixturevalue(f"{request.param.replace('-', '_')}_url")
        remote = HttpRegistry(url, client)
        yield Place(remote, remote, repository, keeps_untagged=request.param == "registry-3")


async def _publish(place: Place, card: bytes = CARD, name: str = "plan-agent", tag: str = "v1") -> str:
    published = await publish_card(
        place.writer,
        name,
        card,
        version="1.0.0",
        skills=["create_plan"],
        created=NOON,
        repository=place.repository,
        tag=tag,
    )
    assert str(published) == f"{place.repository}:{tag}"
    return published.digest


@requirement("P-04")
@requirement("P-05")
@requirement("P-17")
async def test_a_published_card_is_pulled_byte_for_byte(place: Place) -> None:
    digest = await _publish(place)
    for target in ("v1", digest):
        artifact = await place.reader.pull(place.at(target))
        assert artifact.content == CARD
        assert artifact.digest == digest
        assert (artifact.form, artifact.media_type) == ("card", "application/json")
        assert artifact.manifest.annotations["skills"] == "create_plan"
        assert artifact.published_at == NOON
        assert artifact.tag == (None if target == digest else "v1")


async def test_the_title_is_the_short_name_with_the_suffix_that_readers_look_for(place: Place) -> None:
    await _publish(place)
    assert (await place.reader.pull(place.at("v1"))).title == "plan_agent_card.json"


@requirement("P-02")
@requirement("P-03")
async def test_what_was_published_is_in_the_catalog(place: Place) -> None:
    await _publish(place)
    names = await place.reader.list_repositories()
    assert place.repository in names
    assert names == sorted(names)
    assert await place.reader.list_tags(place.repository) == ["v1"]


@requirement("P-17")
async def test_without_a_tag_the_highest_version_is_read(place: Place) -> None:
    for tag in ("v9", "v10", "latest"):
        await _publish(place, CARD + tag.encode().replace(b"v", b" ").replace(b"latest", b""), tag=tag)
    artifact = await place.reader.pull(Reference(place.repository))
    assert artifact.tag == "v10"
    assert await place.reader.find_digest(Reference(place.repository)) == artifact.digest


@requirement("P-17")
async def test_an_unchanged_card_is_not_read_again(place: Place) -> None:
    digest = await _publish(place)
    assert await place.reader.find_digest(place.at("v1")) == digest
    assert await place.reader.pull_if_changed(place.at("v1"), digest) is None
    changed = await _publish(place, CARD + b" ")
    artifact = await place.reader.pull_if_changed(place.at("v1"), digest)
    assert artifact is not None
    assert artifact.digest == changed
    assert (await place.reader.pull(place.at(digest))).content == CARD


async def test_large_content_is_read_from_its_blob(place: Place) -> None:
    content = b" " * (MAX_INLINE_BYTES + 1)
    await place.writer.push(place.repository, "v1", NewArtifact(content, "application/json", "t", "a/b"))
    assert (await place.reader.pull(place.at("v1"))).content == content


async def test_what_is_not_there_is_not_found(place: Place) -> None:
    assert await place.reader.list_tags(place.repository) == []
    assert await place.reader.find_digest(place.at("v1")) is None
    for reference in (place.at("v1"), Reference(place.repository), place.at("sha256:" + "0" * 64)):
        with pytest.raises(ReferenceNotFoundError) as caught:
            await place.reader.pull(reference)
        assert place.reader.name in str(caught.value)
    await _publish(place)
    with pytest.raises(ReferenceNotFoundError):
        await place.reader.pull(place.at("v2"))
    with pytest.raises(ReferenceNotFoundError):
        await place.writer.delete(place.repository, "sha256:" + "0" * 64)


@pytest.mark.parametrize("by_digest", [True, False])
async def test_what_was_deleted_is_gone(place: Place, by_digest: bool) -> None:
    digest = await _publish(place)
    await place.writer.delete(place.repository, digest if by_digest else "v1")
    assert await place.reader.list_tags(place.repository) == []
    for target in ("v1", digest):
        if target == digest and place.keeps_untagged and not by_digest:
            assert (await place.reader.pull(place.at(digest))).digest == digest
            continue
        with pytest.raises(ReferenceNotFoundError):
            await place.reader.pull(place.at(target))


@pytest.mark.parametrize("repository", ["UPPER", "a//b", "../x"])
async def test_a_name_outside_the_grammar_is_asked_of_nobody(place: Place, repository: str) -> None:
    with pytest.raises(InvalidReferenceError):
        await place.reader.list_tags(repository)
    with pytest.raises(InvalidReferenceError):
        await place.writer.push(repository, "v1", NewArtifact(b"", "a/b", "t", "a/b"))


async def test_a_repository_that_holds_a_card_of_another_name_is_refused(place: Place) -> None:
    digest = await _publish(place)
    for tag in ("v1", "v2"):
        with pytest.raises(RepositoryTakenError, match="holds the card of plan-agent, not of plan"):
            await _publish(place, b'{"name": "plan"}', name="plan", tag=tag)
    with pytest.raises(RepositoryTakenError):
        await forget(place.writer, "plan", repository=place.repository)
    with pytest.raises(RepositoryTakenError):
        await publish_workflow(place.writer, "plan", b"", created=NOON, repository=place.repository)
    assert await place.reader.find_digest(place.at("v1")) == digest
    assert await place.reader.list_tags(place.repository) == ["v1"]


async def test_a_card_that_cannot_be_read_may_be_published_over(place: Place) -> None:
    broken = NewArtifact(b"{", "application/json", "x_agent_card.json", "application/vnd.a2a.agent.card")
    await place.writer.push(place.repository, "v1", broken)
    await _publish(place)
    assert (await place.reader.pull(place.at("v1"))).content == CARD


async def test_forgetting_an_agent_takes_all_its_tags(place: Place) -> None:
    await _publish(place, tag="v1")
    await _publish(place, CARD + b" ", tag="v2")
    assert await forget(place.writer, "plan-agent", repository=place.repository) == ("v1", "v2")
    assert await place.reader.list_tags(place.repository) == []
    with pytest.raises(ReferenceNotFoundError):
        await forget(place.writer, "plan-agent", repository=place.repository)


async def test_one_card_under_two_tags_is_forgotten_whole(place: Place) -> None:
    await _publish(place, tag="v1")
    await _publish(place, tag="latest")
    assert await forget(place.writer, "plan-agent", repository=place.repository) == ("latest", "v1")
    assert await place.reader.list_tags(place.repository) == []


@requirement("P-29")
async def test_a_workflow_is_stored_beside_the_agents(place: Place) -> None:
    name = place.repository.replace("agents/", "")
    published = await publish_workflow(place.writer, name, b"name: x\n", created=NOON)
    assert published.repository == f"workflows/{name}"
    artifact = await place.reader.pull(Reference(published.repository, published.tag))
    assert (artifact.form, artifact.content, artifact.media_type) == (
        "workflow",
        b"name: x\n",
        "application/yaml",
    )


async def test_one_artifact_has_one_digest_in_every_registry(
    tmp_path: Path, client: HttpClient, docker_registry_url: str
) -> None:
    layout = LayoutRegistry(tmp_path)
    digests = {
        (await publish_card(r, "same-agent", CARD, version="1", skills=["a"], created=NOON)).digest
        for r in (layout, HttpRegistry(docker_registry_url, client))
    }
    async with serve_app(Starlette(routes=oci.routes(layout))) as url:
        found = await HttpRegistry(url, client).find_digest(Reference("agents/same", "v1"))
    assert digests == {found}


@requirement("P-04")
async def test_a_card_pushed_by_oras_is_read_like_one_of_ours(
    tmp_path: Path, client: HttpClient, docker_registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan_agent_card.json").write_bytes(CARD)
    monkeypatch.chdir(tmp_path)
    host = docker_registry_url.removeprefix("http://")
    pusher = oras.client.OrasClient(insecure=True)
    await asyncio.to_thread(
        pusher.push,
        target=f"{host}/agents/by-oras:v1",
        files=["plan_agent_card.json:application/json"],
    )
    artifact = await HttpRegistry(docker_registry_url, client).pull(parse_reference("agents/by-oras:v1"))
    assert artifact.manifest.artifact_type is None
    assert (artifact.form, artifact.title, artifact.content) == ("card", "plan_agent_card.json", CARD)


async def test_our_own_endpoint_takes_no_writes(tmp_path: Path, client: HttpClient) -> None:
    async with serve_app(Starlette(routes=oci.routes(LayoutRegistry(tmp_path)))) as url:
        registry = HttpRegistry(url, client)
        with pytest.raises(RegistryRefusedError, match="405: UNSUPPORTED"):
            await registry.push("agents/plan", "v1", NewArtifact(b"", "a/b", "t", "a/b"))
        with pytest.raises(RegistryRefusedError, match="405: it does not delete agents/plan"):
            await registry.delete("agents/plan", "sha256:" + "0" * 64)


async def test_a_catalog_of_many_pages_is_read_whole(tmp_path: Path, client: HttpClient) -> None:
    class Thousands(LayoutRegistry):
        async def list_repositories(self) -> list[str]:
            return [f"agents/a{number:05}" for number in range(2345)]

    registry = Thousands(tmp_path)
    async with serve_app(Starlette(routes=oci.routes(registry))) as url:
        assert await HttpRegistry(url, client).list_repositories() == await registry.list_repositories()


async def test_a_registry_that_is_down_is_unreachable(client: HttpClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RegistryUnreachableError, match=url):
            await HttpRegistry(url, client).list_repositories()


async def test_a_registry_that_is_silent_names_the_limit(client: HttpClient) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            continue
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent:
        url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        with pytest.raises(RegistryUnreachableError, match=r"within 0.05 s \(registry request\)"):
            await HttpRegistry(url, client, timeout_s=0.05).list_repositories()


async def test_a_registry_below_a_path_is_asked_there(tmp_path: Path, client: HttpClient) -> None:
    layout = LayoutRegistry(tmp_path)
    await publish_card(layout, "plan-agent", CARD, version=None, skills=[], created=NOON)
    async with serve_app(Starlette(routes=[Mount("/below", routes=oci.routes(layout))])) as url:
        registry = HttpRegistry(f"{url}/below/", client)
        assert (await registry.pull(Reference("agents/plan"))).content == CARD
        assert await registry.list_repositories() == ["agents/plan"]


async def test_a_registry_is_opened_by_url_or_folder(tmp_path: Path, client: HttpClient) -> None:
    assert open_registry("http://user:pw@127.0.0.1:5000/", client).name == "http://127.0.0.1:5000"
    assert open_registry(str(tmp_path), client).name == str(tmp_path)
    assert open_registry(tmp_path, client).name == str(tmp_path)
    for wrong in ("ftp://h", "http://", "oci://x"):
        with pytest.raises(InvalidSettingError):
            open_registry(wrong, client)


async def test_a_manifest_without_our_content_is_malformed(tmp_path: Path, client: HttpClient) -> None:
    registry = LayoutRegistry(tmp_path)
    digest = await registry.push("agents/x", "v1", NewArtifact(b"a", "text/plain", "a", "a/b"))
    index = tmp_path / "agents" / "x" / "index.json"
    content = orjson.loads(index.read_bytes())
    layer = next(
        path
        for path in (tmp_path / "agents" / "x" / "blobs" / "sha256").iterdir()
        if path.read_bytes() == b"a"
    )
    content["manifests"][0]["digest"] = f"sha256:{layer.name}"
    index.write_bytes(orjson.dumps(content))
    assert digest
    with pytest.raises(MalformedArtifactError):
        await registry.pull(Reference("agents/x", "v1"))
