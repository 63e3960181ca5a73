"""From settings to parts: which registries list agents of the mesh."""

from __future__ import annotations

from pathlib import Path

from retinue.runtime.factories import mesh_sources
from retinue.settings import Settings
from retinue.settings_tables import RegistryTable
from retinue.storage.mesh_key import Join, accept_join
from retinue.storage.state import State
from tests.requirements import requirement

HUB, TEAM, WORLD = "http://hub.example:9000", "https://team.example", "https://world.example"
NAMES = ("home", HUB, TEAM, WORLD)


@requirement("S-17")
def test_of_the_mesh_are_the_own_registry_and_those_that_a_person_named(tmp_path: Path) -> None:
    tables = {
        "team": RegistryTable(url="https://u:p@team.example/", mesh=True),
        "world": RegistryTable(url=WORLD),
    }
    state = State(tmp_path)
    assert mesh_sources(Settings(), state, NAMES) == {"home"}
    assert mesh_sources(Settings(registry=tables), state, NAMES) == {"home", TEAM}


@requirement("S-17")
def test_of_the_mesh_is_the_registry_of_a_hub_that_was_joined(tmp_path: Path) -> None:
    state = State(tmp_path)
    accept_join(state.keys, HUB + "/", Join("rtn_1_secret", b"0123456789abcdef" * 4))
    assert mesh_sources(Settings(), state, NAMES) == {"home", HUB}
