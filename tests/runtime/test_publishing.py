"""Publishing, pulling and forgetting, below the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import (
    InvalidReferenceError,
    InvalidSettingError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
)
from retinue.oci.codec.artifacts import Artifact
from retinue.oci.codec.manifest import EMPTY_CONFIG, Manifest
from retinue.runtime.commands.publishing import check_location, open_catalog, write_content
from retinue.runtime.loading.publishables import Card
from retinue.settings import Settings
from retinue.storage.state import State

DEAD = "http://127.0.0.1:1"
CARD = Card("plan-agent", b'{"name": "plan-agent", "url": "http://x:1", "skills": []}', None, ())


def _artifact(title: str) -> Artifact:
    return Artifact(Manifest(EMPTY_CONFIG, ()), b"", "sha256:0", b"content", title, "application/json")


@pytest.fixture
def state(retinue_home: Path) -> State:
    return State(retinue_home)


@pytest.mark.parametrize("title", ["../evil.json", "/etc/passwd", "", "..", "a/b.json", "."])
def test_a_title_never_chooses_another_folder(title: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidReferenceError, match="-o FILE"):
        write_content(_artifact(title), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_takes_the_file_under_its_title(tmp_path: Path) -> None:
    assert write_content(_artifact("plan.json"), str(tmp_path)) == tmp_path / "plan.json"
    with pytest.raises(InvalidSettingError, match="exists"):
        write_content(_artifact("plan.json"), str(tmp_path))


@pytest.mark.parametrize("text", ["http://x:1", "https://x", "/folder", "./folder", "../x", "folder", "a/b"])
def test_urls_and_folders_are_registries(text: str) -> None:
    assert check_location(text) == text


@pytest.mark.parametrize("text", ["localhost", "localhost:5000", "127.0.0.1:5000", "reg.example.org:443/x"])
def test_a_host_without_scheme_is_no_folder(text: str) -> None:
    with pytest.raises(InvalidSettingError) as refused:
        check_location(text)
    assert refused.value.remedy == f"write http://{text}"


async def test_a_reference_is_looked_for_in_every_registry(state: State) -> None:
    settings = Settings(registries=(DEAD,))
    async with open_catalog(settings, state, None) as catalog:
        published = await catalog.publish(CARD)
        pulled = await catalog.pull("agents/plan")
        assert (pulled.artifact.content, pulled.registry) == (CARD.content, published.registry)
        assert pulled.verdict.state == "valid"


async def test_a_registry_that_could_not_be_asked_is_the_reason_why_nothing_was_found(state: State) -> None:
    async with open_catalog(Settings(registries=(DEAD,)), state, None) as catalog:
        with pytest.raises(RegistryUnreachableError):
            await catalog.pull("agents/none")
    async with open_catalog(Settings(), state, None) as catalog:
        with pytest.raises(ReferenceNotFoundError):
            await catalog.pull("agents/none")
