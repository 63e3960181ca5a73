"""Who we are at a registry: from the url, the Docker configuration and its helpers; TLS; mirrors."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from starlette.applications import Starlette

from retinue.core.errors import InvalidSettingError, RegistryLoginError, RegistryUnreachableError
from retinue.oci.client.credentials import DockerCredentials
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.artifacts import NewArtifact
from retinue.oci.codec.auth import RegistryCredentials
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import list_published, open_registry, publish_card
from retinue.oci.server import pull as oci
from retinue.runtime.factories import named_registries
from retinue.settings import Settings
from retinue.settings_tables import RegistryTable
from retinue.web.http_client import HttpClient, trust_authorities
from tests.registry.certificates import Authority, make_authority
from tests.registry.places import Place
from tests.registry.storm import Storm, answer
from tests.registry.token_server import IDENTITY_TOKEN, PASSWORD, USER
from tests.requirements import requirement
from tests.services import docker_registry
from tests.serving import serve_app

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CARD = b'{"name": "plan-agent", "url": "http://localhost:8001", "skills": []}'
SMALL = NewArtifact(b"x", "text/plain", "x", "a/b")


def _configure(folder: Path, **content: Any) -> DockerCredentials:
    """A Docker configuration with this content, and the source that reads it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(orjson.dumps(content))
    return DockerCredentials({"DOCKER_CONFIG": str(folder)}, folder)


def _install_helper(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def _auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@requirement("P-30")
@pytest.mark.parametrize("kind", ["place_with_password", "place_with_tokens"])
async def test_a_login_of_docker_serves_us_too(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, client: HttpClient
) -> None:
    place: Place = request.getfixturevalue(kind)
    logins = _configure(tmp_path / "docker", auths={place.host: _auth(USER, PASSWORD)})
    registry = open_registry(place.url, client, credentials=logins)
    await registry.push("agents/by-docker-login", "v1", SMALL)
    assert "agents/by-docker-login" in await registry.list_repositories()


@requirement("P-30")
async def test_a_helper_of_docker_is_asked_for_that_host(
    place_with_password: Place, tmp_path: Path, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = orjson.dumps({"ServerURL": "x", "Username": USER, "Secret": PASSWORD}).decode()
    _install_helper(tmp_path, monkeypatch, "test", f"test $1 = get && cat >$HOME/asked && echo '{said}'")
    logins = _configure(tmp_path / "docker", credHelpers={place_with_password.host: "test"})
    registry = open_registry(place_with_password.url, client, credentials=logins)
    await registry.push("agents/by-helper", "v1", SMALL)
    assert (tmp_path / "docker" / "asked").read_text() == place_with_password.host


@requirement("P-30")
async def test_an_identity_token_is_changed_for_tokens(
    place_with_tokens: Place, tmp_path: Path, client: HttpClient
) -> None:
    assert place_with_tokens.tokens is not None
    entry = {**_auth(USER, ""), "identitytoken": IDENTITY_TOKEN}
    logins = _configure(tmp_path / "docker", auths={place_with_tokens.host: entry})
    registry = open_registry(place_with_tokens.url, client, credentials=logins)
    asked = len(place_with_tokens.tokens.asked)
    await registry.push("agents/by-identity", "v1", SMALL)
    (first, *_) = place_with_tokens.tokens.asked[asked:]
    assert (first["grant_type"], first["client_id"], first["known"]) == ("refresh_token", "retinue", "True")


async def test_anybody_reads_where_anybody_may_and_one_token_serves_many_requests(
    place_with_tokens: Place, client: HttpClient
) -> None:
    server = place_with_tokens.tokens
    assert server is not None
    writer = open_registry(place_with_tokens.location, client)
    await publish_card(
        writer, "open-agent", CARD.replace(b"plan", b"open"), version="1", skills=[], created=NOON
    )
    asked = len(server.asked)
    reader = open_registry(place_with_tokens.url, client)
    for _ in range(3):
        await reader.pull(Reference("agents/open"))
    assert [one["scope"] for one in server.asked[asked:]] == ["repository:agents/open:pull"]
    with pytest.raises(RegistryLoginError):
        await reader.list_repositories()


async def test_a_token_that_ran_out_is_fetched_again(place_with_tokens: Place, client: HttpClient) -> None:
    server = place_with_tokens.tokens
    assert server is not None
    registry = open_registry(place_with_tokens.location, client)
    await registry.push("agents/short-lived", "v1", SMALL)
    server.expires_in_s = -60  # what is signed from now on is old already, though its server says otherwise
    try:
        fresh = open_registry(place_with_tokens.location, client)
        with pytest.raises(RegistryLoginError):
            await fresh.list_tags("agents/short-lived")
    finally:
        server.expires_in_s = 300
    assert await fresh.list_tags("agents/short-lived") == ["v1"]


async def test_a_wrong_password_is_told_by_the_token_server(
    place_with_tokens: Place, client: HttpClient
) -> None:
    wrong = open_registry(place_with_tokens.url.replace("://", "://hub:no@"), client)
    with pytest.raises(RegistryLoginError, match=r"token server .* answered 401: wrong password"):
        await wrong.list_repositories()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


async def test_secrets_stand_in_no_error_no_log_and_no_name(
    client: HttpClient, log: list[Any], tmp_path: Path
) -> None:
    storm = Storm(Starlette(routes=oci.routes(LayoutRegistry(tmp_path))))
    storm.rules = {"GET": answer(500), "PUT": answer(401)}
    async with serve_app(storm) as url:
        location = url.replace("://", "://hub:s3%40cret@")
        registry = HttpRegistry(location, client, mirrors=[location])
        said = [registry.name, repr(registry)]
        for _ in range(2):
            with pytest.raises(Exception) as caught:
                await registry.list_repositories()
            said.append(repr(caught.value) + str(caught.value) + repr(caught.value.__cause__))
    said += [repr(log), repr(RegistryCredentials("hub", "s3@cret", "s3@cret"))]
    assert not [text for text in said if "s3%40cret" in text or "s3@cret" in text]


async def test_helpers_that_know_nothing_fail_or_hang_have_nothing_to_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_helper(tmp_path, monkeypatch, "empty", "echo 'credentials not found in native keychain'; exit 1")
    _install_helper(tmp_path, monkeypatch, "odd", "echo '{\"Username\": 1}'")
    for store in ("empty", "odd", "missing", "../programs/docker-credential-odd"):
        logins = _configure(tmp_path / "docker", credsStore=store, auths={"h:1": _auth("u", "p")})
        assert await logins.find("h:2") is None
        assert await logins.find("h:1") == RegistryCredentials("u", "p")


async def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    assert await DockerCredentials({}, tmp_path).find("h:1") is None
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_bytes(b"{")
    with pytest.raises(InvalidSettingError, match=r"config.json: it is not JSON"):
        await DockerCredentials({}, tmp_path).find("h:1")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority("127.0.0.1")


@requirement("P-30")
async def test_an_authority_of_ones_own_is_trusted_when_named(
    tmp_path: Path, authority: Authority, client: HttpClient
) -> None:
    certificate, key = authority.write(tmp_path)
    with docker_registry(tmp_path, tls=(certificate, key)) as url:
        assert url.startswith("https:")
        registry = open_registry(url, client, ca_file=certificate)
        await registry.push("agents/x", "v1", SMALL)
        assert await registry.list_repositories() == ["agents/x"]
        with pytest.raises(RegistryUnreachableError, match=r"(?i)certificate"):
            await open_registry(url, client).list_repositories()


def test_a_file_that_holds_no_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("hello")
    for name in ("no.pem", "missing.pem"):
        with pytest.raises(InvalidSettingError, match=name):
            trust_authorities(tmp_path / name)


@requirement("P-30")
async def test_a_mirror_is_read_while_the_registry_is_down_and_never_written(
    tmp_path: Path, client: HttpClient
) -> None:
    layout = LayoutRegistry(tmp_path)
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    down, mirror = Storm(Starlette()), Storm(Starlette(routes=oci.routes(layout)))
    down.rules = {"": answer(503, headers={"retry-after": "60"})}
    async with serve_app(down) as url, serve_app(mirror) as second:
        registry = HttpRegistry(url, client, mirrors=["http://127.0.0.1:1", second])
        assert await registry.list_repositories() == ["agents/plan"]
        assert (await registry.pull(Reference("agents/plan"))).content == CARD
        asked = mirror.asked.copy()
        with pytest.raises(Exception, match="503"):
            await registry.push("agents/plan", "v2", SMALL)
        assert mirror.asked == asked
        # What the registry itself answers is believed, also that there is nothing.
        down.rules = {"": answer(404)}
        assert await registry.list_tags("agents/plan") == []
        assert registry.name == url


async def test_a_registry_is_asked_as_its_table_in_the_settings_says(tmp_path: Path) -> None:
    layout = LayoutRegistry(tmp_path / "layouts")
    await publish_card(layout, "plan-agent", CARD, version="1", skills=[], created=NOON)
    storm = Storm(Starlette(routes=oci.routes(layout)))
    async with serve_app(storm) as url, HttpClient() as client:
        down = "http://user:s3cret@127.0.0.1:1/"
        table = {"url": "http://127.0.0.1:1", "mirrors": [url], "repositories": ["agents/plan"]}
        settings = Settings(registries=(down,), registry={"work": RegistryTable.model_validate(table)})
        named = named_registries(settings, layout, client)
        assert list(named) == ["home", "http://127.0.0.1:1"]
        assert await named["http://127.0.0.1:1"].list_repositories() == ["agents/plan"]
        storm.rules = {"GET /v2/_catalog": answer(404)}
        assert await list_published(named["http://127.0.0.1:1"]) == ["agents/plan"]
