"""Clients that exchange user and password for a token of a scope: oras-py as it is, and the bare requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import oras.client  # type: ignore[import-untyped]
import orjson
import pytest

from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.artifacts import NewArtifact
from retinue.oci.codec.auth import parse_challenges
from retinue.oci.codec.reference import digest_of
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import TokenFile
from tests.registry.places import with_login
from tests.requirements import requirement
from tests.system import WAIT_S, Hub, System, Wire, open_system, open_wire

CLOSED: dict[str, Any] = {"auth": {"anonymous": False}}
UPLOADS = "/v2/agents/pushed/blobs/uploads/"
MANIFEST = "/v2/agents/pushed/manifests/v1"


def card(name: str) -> bytes:
    skills = [{"id": "pushed"}]
    return orjson.dumps({"name": name, "url": "http://localhost:8001", "skills": skills, "version": "1.0.0"})


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"anybody:{password}".encode()).decode()


@pytest.fixture(params=[{}, CLOSED], ids=["open", "with tokens only"])
async def system(request: pytest.FixtureRequest, retinue_home: Path) -> AsyncIterator[System]:
    async with open_system(State(retinue_home), **request.param) as system:
        yield system


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with open_wire() as wire:
        yield wire


async def fetch(wire: Wire, hub: Hub, password: str, *scopes: str) -> str:
    """A token of these scopes, with the password or without any."""
    query = "&".join(["service=retinue", *(f"scope={scope}" for scope in scopes)])
    headers = {"authorization": basic(password)} if password else {}
    reply = await wire.get(f"{hub.url}/v2/token?{query}", **headers)
    assert reply.status == 200, reply.body
    assert reply.headers["cache-control"] == "no-store"
    assert (reply.json["token"], reply.json["expires_in"]) == (reply.json["access_token"], 300)
    return f"Bearer {reply.json['token']}"


@requirement("P-04")
async def test_oras_py_pushes_and_pulls_with_user_and_token_as_it_is(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = await system.start_hub()
    host = hub.url.removeprefix("http://")
    monkeypatch.chdir(tmp_path)
    client = oras.client.OrasClient(insecure=True)  # its own choice of an authentication: tokens
    client.auth.set_basic_auth("anybody", system.state.local_token())
    for name in ("pushed", "second"):
        (tmp_path / f"{name}_agent_card.json").write_bytes(card(f"{name}-agent"))
        files = [f"{name}_agent_card.json:application/json"]
        # with one client: the token of the first repository is not good for the second one
        await asyncio.to_thread(client.push, target=f"{host}/agents/{name}:v1", files=files)
    assert await system.home.list_repositories() == ["agents/pushed", "agents/second"]
    target = f"{host}/agents/pushed:v1"
    await asyncio.to_thread(client.pull, target=target, outdir=str(tmp_path / "pulled"))
    pulled = tmp_path / "pulled" / "pushed_agent_card.json"
    assert await asyncio.to_thread(pulled.read_bytes) == card("pushed-agent")


async def test_a_wrong_password_gets_no_token(system: System, wire: Wire) -> None:
    hub = await system.start_hub()
    refused = await wire.get(f"{hub.url}/v2/token?service=retinue", authorization=basic("wrong"))
    assert refused.status == 401
    assert "does not know this token" in refused.body.decode()


@requirement("P-30")
async def test_a_token_is_good_for_its_scope_at_the_registry_and_for_nothing_else(
    system: System, wire: Wire
) -> None:
    hub = await system.start_hub()
    local = system.state.local_token()
    blob = card("pushed-agent")
    push = await fetch(wire, hub, local, "repository:agents/pushed:pull,push")
    whole = f"{hub.url}{UPLOADS}?digest={digest_of(blob)}"
    assert (await wire.post(whole, blob, authorization=push)).status == 201
    pull = await fetch(wire, hub, local, "repository:agents/pushed:pull")
    place = f"{hub.url}/v2/agents/pushed/blobs/{digest_of(blob)}"
    assert (await wire.get(place, authorization=pull)).body == blob
    for path, sent, wanted in (
        (UPLOADS, pull, "repository:agents/pushed:pull,push"),
        ("/v2/agents/other/blobs/uploads/", push, "repository:agents/other:pull,push"),
    ):
        refused = await wire.post(f"{hub.url}{path}", b"", authorization=sent)
        assert (refused.status, refused.json["errors"][0]["code"]) == (403, "DENIED")
        _, bearer = parse_challenges(refused.headers["www-authenticate"])
        assert (bearer.parameters["scope"], bearer.parameters["error"]) == (wanted, "insufficient_scope")
    assert (await wire.get(f"{hub.url}/v2/_catalog", authorization=pull)).status == 403
    catalog = await fetch(wire, hub, local, "registry:catalog:*")
    assert (await wire.get(f"{hub.url}/v2/_catalog", authorization=catalog)).status == 200
    # neither a larger token nor another endpoint
    for path in ("/v2/token?scope=repository:agents/pushed:push", "/agent-card", "/tools/list"):
        assert (await wire.get(hub.url + path, authorization=pull)).status == 401


@requirement("P-30")
async def test_a_blob_is_mounted_only_from_a_repository_in_the_scope(system: System, wire: Wire) -> None:
    hub = await system.start_hub()
    blob = card("pushed-agent")
    own = "repository:agents/pushed:pull,push"
    token = await fetch(wire, hub, system.state.local_token(), own)
    assert (
        await wire.post(f"{hub.url}{UPLOADS}?digest={digest_of(blob)}", blob, authorization=token)
    ).status == 201
    there = f"{hub.url}/v2/agents/copy/blobs/uploads/?mount={digest_of(blob)}&from=agents/pushed"
    copy = "repository:agents/copy:pull,push"
    for scopes, status in (([copy], 403), ([copy, "repository:agents/pushed:pull"], 201)):
        token = await fetch(wire, hub, system.state.local_token(), *scopes)
        assert (await wire.post(there, b"", authorization=token)).status == status


@requirement("P-30")
async def test_nobody_gets_a_token_to_read_where_reading_is_open_and_none_elsewhere(
    system: System, wire: Wire
) -> None:
    hub = await system.start_hub()
    scope = "repository:agents/pushed:pull,push"
    if not system.settings.auth.anonymous:
        refused = await wire.get(f"{hub.url}/v2/token?scope={scope}")
        assert refused.status == 401
        _, bearer = parse_challenges(refused.headers["www-authenticate"])
        assert bearer.parameters["realm"] == f"{hub.url}/v2/token"
        return
    token = await fetch(wire, hub, "", scope)
    assert (await wire.get(f"{hub.url}{MANIFEST}", authorization=token)).status == 404
    refused = await wire.post(f"{hub.url}{UPLOADS}", b"", authorization=token)
    assert (refused.status, refused.json["errors"][0]["code"]) == (401, "UNAUTHORIZED")


async def test_a_token_ends_with_the_one_from_which_it_was_made(system: System, wire: Wire) -> None:
    hub = await system.start_hub()
    file = TokenFile(system.state.keys)
    issued, text = file.issue(("exposed", "mesh"), name="ci", kind="join")
    token = await fetch(wire, hub, text, "repository:agents/pushed:pull,push")
    assert (await wire.post(f"{hub.url}{UPLOADS}", b"", authorization=token)).status == 202
    file.revoke(issued.id)
    async with asyncio.timeout(WAIT_S):
        while (await wire.get(f"{hub.url}/v2/", authorization=token)).status != 401:
            await asyncio.sleep(0.05)
    refused = await wire.post(f"{hub.url}{UPLOADS}", b"", authorization=token)
    assert refused.status == 401
    _, bearer = parse_challenges(refused.headers["www-authenticate"])
    assert bearer.parameters["error"] == "invalid_token"


async def test_a_reader_is_granted_no_writing_and_a_restricted_token_nothing(
    system: System, wire: Wire
) -> None:
    hub = await system.start_hub()
    file = TokenFile(system.state.keys)
    _, reader = file.issue(("exposed", "mesh"), name="reader")
    token = await fetch(wire, hub, reader, "repository:agents/pushed:*")
    assert (await wire.get(f"{hub.url}{MANIFEST}", authorization=token)).status == 404
    assert (await wire.post(f"{hub.url}{UPLOADS}", b"", authorization=token)).status == 401
    _, restricted = file.issue(("exposed", "mesh"), agents=("plan-*",))
    refused = await wire.get(f"{hub.url}/v2/token", authorization=basic(restricted))
    assert (refused.status, refused.json["errors"][0]["code"]) == (403, "DENIED")


async def test_our_own_client_sends_the_password_itself_and_asks_for_no_token(system: System) -> None:
    hub = await system.start_hub()
    async with HttpClient() as client:
        registry = HttpRegistry(with_login(hub.url, "x", system.state.local_token()), client)
        assert await registry.list_repositories() == []
        await registry.push("agents/x", "v1", NewArtifact(b"x", "text/plain", "x", "a/b"))
    paths = [exchange.path for exchange in system.recording.exchanges]
    assert paths
    assert not [path for path in paths if path.startswith("/v2/token")]
