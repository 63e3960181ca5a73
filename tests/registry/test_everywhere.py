"""One suite over every kind of registry: publish, list, find, call, forget, and what others pushed."""

from __future__ import annotations

import asyncio
import base64
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest

from retinue.core.errors import ReferenceNotFoundError, RegistryLoginError, RepositoryTakenError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.oci.codec.artifacts import MAX_INLINE_BYTES, NewArtifact
from retinue.oci.codec.flows import CHUNK_BYTES
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.registry import (
    CopyableRegistry,
    forget,
    list_published,
    open_registry,
    publish_card,
    publish_workflow,
)
from retinue.oci.source import RegistrySource
from retinue.runtime.commands.client import open_client
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.registry.places import TOKEN, Place
from tests.registry.token_server import PASSWORD, USER
from tests.requirements import requirement
from tests.seeds.seed_001 import PLAN, plan_agent
from tests.services import run_skopeo
from tests.system import open_system

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MESH = frozenset({"exposed", "mesh"})


@dataclass(frozen=True, slots=True)
class Shelf:
    """A registry, and names in it that no other test uses."""

    place: Place
    registry: CopyableRegistry
    name: str

    @property
    def repository(self) -> str:
        return f"agents/{self.name}"

    def card(self, url: str = "http://localhost:8001", note: str = "") -> bytes:
        skills = [{"id": f"skill_of_{self.name}", "description": note}]
        return orjson.dumps({"name": self.name, "url": url, "version": "1.0.0", "skills": skills})

    async def publish(self, card: bytes | None = None, tag: str = "v1") -> str:
        content = card if card is not None else self.card()
        published = await publish_card(
            self.registry, self.name, content, version="1.0.0", skills=["s"], created=NOON, tag=tag
        )
        return published.digest


@pytest.fixture
def shelf(place: Place, client: HttpClient, request: pytest.FixtureRequest) -> Shelf:
    name = f"a{zlib.crc32(request.node.nodeid.encode())}"
    return Shelf(place, open_registry(place.location, client), name)


@requirement("P-02")
@requirement("P-04")
@requirement("P-30")
async def test_an_agent_is_published_listed_found_and_forgotten(shelf: Shelf) -> None:
    digest = await shelf.publish()
    assert shelf.repository in await shelf.registry.list_repositories()
    assert await shelf.registry.list_tags(shelf.repository) == ["v1"]
    source = RegistrySource("under test", shelf.registry)
    directory = Directory(MemoryListings(), [source])
    (found,) = await directory.resolve_skill(f"skill_of_{shelf.name}", MESH)
    assert (found.key, found.digest) == (shelf.repository, digest)
    (again,) = await source.read_key(shelf.repository)
    for whole in (again, await directory.open(found)):
        assert whole is not None
        assert (whole.digest, whole.raw) == (digest, shelf.card())
    await forget(shelf.registry, shelf.name)
    assert await shelf.registry.list_tags(shelf.repository) == []
    assert await source.read_key(shelf.repository) == ()
    with pytest.raises(ReferenceNotFoundError):
        await shelf.registry.pull(Reference(shelf.repository))
    await directory.aclose()


@requirement("P-30")
async def test_an_agent_that_is_found_there_is_called(shelf: Shelf, retinue_home: Path) -> None:
    state = State(retinue_home)
    async with open_system(state, registries=(shelf.place.location,)) as system:
        served = await system.start_agent(plan_agent(), publish_to=shelf.registry)
        try:
            async with open_client(Settings(registries=(shelf.place.location,)), state) as mesh:
                result = await mesh.get("create_plan", {"requirements": "a test"})
                assert result == {"plan": PLAN}
                rows = (await mesh.get("list_agents", {"detailed": True}))["agents"]
            assert served.url in [row["url"] for row in rows]
            # The login is in the url of the registry and in nothing that anybody is shown.
            assert PASSWORD.encode() not in orjson.dumps(rows)
            assert TOKEN.encode() not in orjson.dumps(rows)
        finally:
            await forget(shelf.registry, "plan-agent")


async def test_a_new_version_is_read_and_an_unchanged_one_is_not(shelf: Shelf) -> None:
    digest = await shelf.publish()
    reference = Reference(shelf.repository, "v1")
    assert await shelf.registry.pull_if_changed(reference, digest) is None
    newer = await shelf.publish(shelf.card(note="newer"))
    artifact = await shelf.registry.pull_if_changed(reference, digest)
    assert artifact is not None
    assert (artifact.digest, artifact.content) == (newer, shelf.card(note="newer"))


@requirement("P-29")
async def test_a_workflow_is_stored_beside_the_agents(shelf: Shelf) -> None:
    published = await publish_workflow(shelf.registry, shelf.name, b"name: x\n", created=NOON)
    assert published.repository in await list_published(shelf.registry)
    artifact = await shelf.registry.pull(Reference(published.repository))
    assert (artifact.form, artifact.content) == ("workflow", b"name: x\n")


@pytest.mark.parametrize("size", [MAX_INLINE_BYTES + 1, 2 * CHUNK_BYTES + 4321])
async def test_content_of_any_size_arrives_whole_in_one_piece_or_in_chunks(shelf: Shelf, size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    new = NewArtifact(content, "application/json", "big_agent_card.json", "a/b")
    await shelf.registry.push(shelf.repository, "v1", new)
    artifact = await shelf.registry.pull(Reference(shelf.repository, "v1"))
    assert digest_of(artifact.content) == digest_of(content)


async def test_a_repository_belongs_to_the_first_name_in_it(shelf: Shelf) -> None:
    await shelf.publish()
    with pytest.raises(RepositoryTakenError):
        await publish_card(
            shelf.registry,
            "somebody-else",
            b'{"name": "somebody-else"}',
            version=None,
            skills=[],
            created=NOON,
            repository=shelf.repository,
        )


@requirement("P-30")
async def test_nobody_writes_without_a_login(shelf: Shelf, client: HttpClient) -> None:
    if shelf.place.kind in ("layout", "plain"):
        return
    for location in (shelf.place.url, shelf.place.url.replace("://", "://hub:wrong@")):
        with pytest.raises(RegistryLoginError) as caught:
            await open_registry(location, client).push("agents/x", "v1", NewArtifact(b"x", "a/b", "x", "a/b"))
        assert "docker login" in caught.value.remedy
        assert "wrong" not in str(caught.value).replace("wrong password", "")


def _login(place: Place, folder: Path) -> None:
    """Log in as the ``login`` command of any tool does: into the Docker configuration."""
    if place.location == place.url:
        return
    user, password = (USER, PASSWORD) if place.kind in ("basic", "token") else ("retinue", TOKEN)
    packed = base64.b64encode(f"{user}:{password}".encode()).decode()
    folder.mkdir()
    (folder / "config.json").write_bytes(orjson.dumps({"auths": {place.host: {"auth": packed}}}))


@requirement("P-04")
async def test_a_card_pushed_by_oras_is_found_like_one_of_ours(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shelf.place.kind == "layout":
        return
    title = f"{shelf.name}_agent_card.json"
    (tmp_path / title).write_bytes(shelf.card())
    monkeypatch.chdir(tmp_path)
    _login(shelf.place, tmp_path / "docker-config")
    config = str(tmp_path / "docker-config" / "config.json")
    # oras-py must be told which way in there is; where none is wanted any will do.
    pusher = oras.client.OrasClient(insecure=True, auth_backend="basic")
    if shelf.place.tokens is not None:
        # It fetches one token, for pulling, and keeps to it: to push it must be given a wider one.
        access = [{"type": "repository", "name": shelf.repository, "actions": ["pull", "push"]}]
        pusher = oras.client.OrasClient(insecure=True)
        pusher.auth.set_token_auth(shelf.place.tokens.sign(access, USER))
    options = {"config_path": config} if shelf.place.location != shelf.place.url else {}
    target = f"{shelf.place.host}/{shelf.repository}:v1"
    await asyncio.to_thread(pusher.push, target=target, files=[f"{title}:application/json"], **options)
    artifact = await shelf.registry.pull(Reference(shelf.repository, "v1"))
    assert artifact.manifest.artifact_type is None
    assert (artifact.form, artifact.title, artifact.content) == ("card", title, shelf.card())
    (listing,) = await RegistrySource("under test", shelf.registry).read_key(shelf.repository)
    assert listing.record.name == shelf.name
    out = tmp_path / "out"
    files = await asyncio.to_thread(pusher.pull, target=target, outdir=str(out), **options)
    assert files == [str(out / title)]
    assert (out / title).read_bytes() == shelf.card()


@requirement("P-17")
async def test_skopeo_carries_a_card_out_and_in_with_one_digest(shelf: Shelf, tmp_path: Path) -> None:
    if shelf.place.kind == "layout":
        return
    digest = await shelf.publish()
    there = f"docker://{shelf.place.host}/{shelf.repository}"
    user, password = (USER, PASSWORD) if shelf.place.kind in ("basic", "token") else ("retinue", TOKEN)
    login = [] if shelf.place.kind == "plain" else [f"{user}:{password}"]
    folder = tmp_path / "copy"
    await run_skopeo(
        "copy",
        "--src-tls-verify=false",
        *(f"--src-creds={one}" for one in login),
        f"{there}:v1",
        f"oci:{folder}:v1",
    )
    await run_skopeo(
        "copy",
        "--dest-tls-verify=false",
        *(f"--dest-creds={one}" for one in login),
        f"oci:{folder}:v1",
        f"{there}:back",
    )
    assert await shelf.registry.list_tags(shelf.repository) == ["back", "v1"]
    artifact = await shelf.registry.pull(Reference(shelf.repository, "back"))
    assert (artifact.digest, artifact.content) == (digest, shelf.card())
