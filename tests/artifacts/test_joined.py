"""Agents of another state save to the hub that they have joined, and read from it."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette

from retinue.artifacts.client import ArtifactServer, HubArtifacts
from retinue.artifacts.server import routes
from retinue.core.artifact_links import PATH
from retinue.core.errors import AgentUnreachableError, UnknownArtifactError
from retinue.runtime.factories import state_artifacts
from retinue.runtime.loading.artifacts import JoinedArtifacts
from retinue.settings import Settings
from retinue.storage.artifacts.index import ArtifactIndex
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.mesh_key import Join, accept_join
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import TokenFile
from retinue.web.security import LOCAL_TOKEN, SecurityMiddleware, SecuritySettings, Tokens
from tests.ports import reserved_port
from tests.serving import serve_app
from tests.system import Hub, System

MEGABYTE = 1024 * 1024


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


def join(system: System, url: str, folder: Path) -> State:
    """The state folder of another machine that has joined the hub."""
    _, token = TokenFile(system.state.keys).issue(["exposed", "mesh"], name="laptop", kind="join")
    other = State(folder)
    other.prepare()
    accept_join(other.keys, url, Join(token, system.state.mesh_key()))
    return other


def open_joined(state: State, url: str | None, http: HttpClient) -> tuple[JoinedArtifacts, StateArtifacts]:
    own = state_artifacts(Settings(), state, http)
    return JoinedArtifacts(own, state, url, http), own


@pytest.fixture
async def hub(system: System) -> Hub:
    return await system.start_hub()


async def test_an_agent_elsewhere_saves_to_its_hub_under_its_own_name(
    system: System, hub: Hub, http: HttpClient, tmp_path: Path
) -> None:
    joined, own = open_joined(join(system, hub.url, tmp_path / "other"), hub.url, http)
    artifact = await joined.save(b"content", "text/plain", caller="far-agent", name="a.txt", run="chain")
    assert not own.exists()
    (stored,) = await hub.process.get(StateArtifacts).store.list_all()
    assert (stored.digest, stored.callers) == (artifact.digest, ("far-agent",))
    assert await artifact.read() == b"content"
    assert (await joined.find(artifact.digest)).name == "a.txt"
    assert (await artifact.save(tmp_path)).read_bytes() == b"content"


async def test_what_the_state_folder_has_is_read_from_there(
    system: System, hub: Hub, http: HttpClient, tmp_path: Path
) -> None:
    state = join(system, hub.url, tmp_path / "other")
    joined, own = open_joined(state, hub.url, http)
    here = await own.save(b"here", caller="me")
    assert await (await joined.find(here.digest)).read() == b"here"
    with pytest.raises(UnknownArtifactError):
        await hub.process.get(StateArtifacts).store.find(here.digest)


async def test_an_agent_without_a_hub_has_its_own_state_folder(http: HttpClient, tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    joined, own = open_joined(state, None, http)
    artifact = await joined.save(b"content", caller="agent")
    assert own.exists()
    assert await artifact.read() == b"content"
    own.close()


async def test_what_neither_has_is_an_error_that_names_both_places(
    system: System, hub: Hub, http: HttpClient, tmp_path: Path
) -> None:
    unknown = f"sha256:{'0' * 64}"
    joined, _ = open_joined(join(system, hub.url, tmp_path / "other"), hub.url, http)
    with pytest.raises(UnknownArtifactError) as caught:
        _ = [piece async for piece in joined.open(unknown)]
    assert hub.url in caught.value.remedy
    assert "artifacts.registry" in caught.value.remedy
    alone, _ = open_joined(State(tmp_path / "alone"), None, http)
    with pytest.raises(UnknownArtifactError) as caught:
        await alone.find(unknown)
    assert str(tmp_path / "alone") in caught.value.remedy


async def test_a_hub_that_is_away_is_told(system: System, http: HttpClient, tmp_path: Path) -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        joined, _ = open_joined(join(system, url, tmp_path / "other"), url, http)
        with pytest.raises(AgentUnreachableError):
            await joined.save(b"content", caller="agent")


async def test_neither_side_holds_a_file_in_memory(http: HttpClient, tmp_path: Path) -> None:
    """In one process: the client, the server and its store together."""
    size_mb = 48
    state = State(tmp_path / "state")
    state.prepare()
    own = state_artifacts(Settings(), state, http)
    app = SecurityMiddleware(
        Starlette(routes=routes(lambda: own.store)),
        SecuritySettings(any_media_type=(PATH,)),
        Tokens({"token": LOCAL_TOKEN}),
    )

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(size_mb):
            yield bytes([number]) * MEGABYTE

    async def open_uploader() -> HttpClient:
        return http

    async with serve_app(app) as url:

        async def choose() -> ArtifactServer:
            return ArtifactServer(url, http, {"authorization": "Bearer token"}, open_uploader)

        client = HubArtifacts(choose)
        await client.save(b"warm up")
        tracemalloc.start()
        try:
            artifact = await client.save(pieces())
            await artifact.save(tmp_path / "fetched")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    own.close()
    assert (tmp_path / "fetched").stat().st_size == artifact.size == size_mb * MEGABYTE
    assert peak_bytes < 16 * MEGABYTE


def test_the_index_of_an_unused_state_is_no_file(tmp_path: Path) -> None:
    index = ArtifactIndex(tmp_path / "artifacts.db")
    assert (index.measure(), index.list_all(), index.find("x")) == ((0, 0), [], None)
    index.close()
    assert list(tmp_path.iterdir()) == []
