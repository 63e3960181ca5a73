"""A docker-registry that deletes nothing, as it is installed: what removes a card names the setting."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from retinue.cli.program import program
from retinue.core.errors import RegistryRefusedError
from retinue.core.record import AgentRecord, Endpoint
from retinue.oci.registry import open_registry, publish_card
from retinue.runtime.card_publication import CardPublication
from retinue.web.http_client import HttpClient
from tests.services import docker_registry

SETTINGS = ("storage.delete.enabled: true", "REGISTRY_STORAGE_DELETE_ENABLED=true")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with docker_registry(tmp_path_factory.mktemp("keeps"), deletes=False) as url:
        yield url


@pytest.mark.parametrize("by", ["tag", "digest"])
async def test_a_deletion_that_the_registry_does_not_allow_names_its_setting(
    url: str, client: HttpClient, by: str
) -> None:
    registry = open_registry(url, client)
    card = orjson.dumps({"name": f"{by}-agent", "url": "http://localhost:8001", "skills": []})
    made = datetime(2026, 11, 23, tzinfo=UTC)
    published = await publish_card(
        registry, f"{by}-agent", card, version="1.0.0", skills=[], created=made, tag="v1"
    )
    with pytest.raises(RegistryRefusedError, match=f"answered 405: it does not delete agents/{by}") as caught:
        await registry.delete(published.repository, "v1" if by == "tag" else published.digest)
    assert all(setting in caught.value.remedy for setting in SETTINGS)
    assert await registry.list_tags(published.repository) == ["v1"]


async def test_an_agent_that_stops_says_how_its_card_could_have_been_removed(
    url: str, client: HttpClient
) -> None:
    record = AgentRecord(
        name="stop-agent", version="1.0.0", endpoints=(Endpoint("execute", "http://[::1]:1"),)
    )
    said: list[str] = []
    publication = CardPublication(
        open_registry(url, client), lambda: record, "v1", client, said.append, probe_timeout_s=10.0
    )
    await publication.publish()
    await publication.withdraw()
    assert said[-1].startswith("could not remove agents/stop:v1")
    assert said[-1].count(url.partition("://")[2]) == 1, "the registry is named once"
    assert all(setting in said[-1] for setting in SETTINGS)


def test_forget_prints_one_line_with_the_setting(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    card = {"name": "forgotten-agent", "url": "http://localhost:8001", "skills": []}
    Path("forgotten_card.json").write_bytes(orjson.dumps(card))
    assert CliRunner().invoke(program, ["publish", "forgotten_card.json", "--registry", url]).exit_code == 0
    result = CliRunner().invoke(program, ["forget", "forgotten-agent", "--registry", url])
    assert result.exit_code != 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: registry")
    assert all(setting in line for setting in SETTINGS)
