"""A program publishes workflows and cards in the registry of its hub."""

from __future__ import annotations

from pathlib import Path

import pytest

import retinue
from retinue.core.errors import (
    DefinitionError,
    InvalidParametersError,
    InvalidSettingError,
    MalformedArtifactError,
    RegistryLoginError,
)
from retinue.testing import connect_agents
from retinue.web.issued_tokens import TokenFile
from tests.client.test_runs import word_agent
from tests.system import System

FLOW = """\
name: count
steps:
  - id: count
    skill: count_words
    with: {text: "${{ input.text }}"}
"""
CARD = {
    "name": "far-agent",
    "url": "http://127.0.0.1:1",
    "version": "2.1.0",
    "skills": [{"id": "fly", "description": "Flies far"}],
}


async def test_a_workflow_is_published_and_started_by_its_name(system: System) -> None:
    await system.start_agent(word_agent())
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.publish(FLOW) == "workflows/count:v1"
        assert "count" in [row["name"] for row in await mesh.workflows()]
        assert await (await mesh.start("count", {"text": "one two"})).result() == 2
        definition = {"name": "again", "steps": [{"id": "count", "skill": "count_words"}]}
        assert await mesh.publish(definition) == "workflows/again:v1"
        with pytest.raises(DefinitionError, match="workflow:3"):
            await mesh.publish("name: wrong\nsteps:\n  - {id: a, skil: b}\n")


async def test_a_card_is_published_and_its_skills_are_found(system: System) -> None:
    await system.start_hub()
    async with retinue.connect() as mesh:
        assert await mesh.publish(CARD) == "agents/far:v2"
        assert (await mesh.find("fly far"))[0].agent == "far-agent"
        with pytest.raises(MalformedArtifactError):
            await mesh.publish({"url": "http://127.0.0.1:1"})


async def test_the_hub_refuses_a_program_that_may_not_write(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = await system.start_hub()
    _, token = TokenFile(system.state.keys).issue(["mesh", "exposed"])
    monkeypatch.setenv("RETINUE_HOME", str(tmp_path / "elsewhere"))
    async with retinue.connect(hub.url, token=token) as mesh:
        with pytest.raises(RegistryLoginError, match="writing requires a login"):
            await mesh.publish(CARD)


async def test_agents_in_memory_have_no_registry() -> None:
    async with connect_agents() as mesh:
        with pytest.raises(InvalidSettingError, match="no registry"):
            await mesh.publish(CARD)


@pytest.mark.parametrize("name", ["count.yaml", "flows/night count.yml ", "card.json"])
async def test_the_name_of_a_file_in_place_of_its_text_is_named(name: str) -> None:
    async with connect_agents() as mesh:
        with pytest.raises(InvalidParametersError, match="the name of a file, and not its text"):
            await mesh.publish(name)
