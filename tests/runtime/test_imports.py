"""The file of imports in the state: what is written is read back, by many writers at once, and privately."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.client.mesh_client import MeshClient
from retinue.core.call import Call, Outcome
from retinue.core.errors import InvalidSettingError
from retinue.runtime.commands.imports import wait_for_hub
from retinue.runtime.imports.files import open_pins, read_imports, write_import
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.storage.state import State

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TABLES = st.builds(
    ImportTable,
    command=TEXTS,
    args=st.lists(TEXTS, max_size=3).map(tuple),
    env=st.dictionaries(TEXTS, TEXTS, max_size=3),
    visibility=st.sampled_from(["mesh", "exposed"]),
    start_s=st.floats(0.1, 1000),
)


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), table=TABLES)
def test_what_is_kept_is_read_back(name: str, table: ImportTable) -> None:
    with TemporaryDirectory() as folder:
        state = State(Path(folder) / "state")
        write_import(state, name, table)
        assert read_imports(Settings(), state) == {name: table}
        write_import(state, name, None)
        assert read_imports(Settings(), state) == {}


def test_many_writers_at_once_lose_nothing_and_the_file_is_private(tmp_path: Path) -> None:
    state = State(tmp_path)
    names = [f"server-{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: write_import(state, name, ImportTable(command=name)), names))
    assert sorted(read_imports(Settings(), state)) == sorted(names)
    assert stat.S_IMODE(state.imports.stat().st_mode) == 0o600


def test_the_settings_come_before_the_state(tmp_path: Path) -> None:
    state = State(tmp_path)
    write_import(state, "one", ImportTable(command="kept"))
    settings = Settings(imports=ImportsTable.model_validate({"one": {"url": "http://x/mcp"}}))
    assert read_imports(settings, state)["one"].url == "http://x/mcp"


@pytest.mark.parametrize("text", ["[one]\ncomand = 'x'", "[one", "[one]\nurl = 'a'\ncommand = 'b'"])
def test_a_broken_file_is_named_with_the_remedy(tmp_path: Path, text: str) -> None:
    state = State(tmp_path)
    state.imports.write_text(text)
    with pytest.raises(InvalidSettingError, match=r"imports\.toml") as caught:
        read_imports(Settings(), state)
    assert "import again" in caught.value.remedy


def test_what_a_person_accepts_outlives_what_the_hub_writes_meanwhile(tmp_path: Path) -> None:
    state = State(tmp_path)
    tools = [{"name": "add", "description": "Adds."}]
    changed = [{"name": "add", "description": "Adds, and tells somebody."}]
    hub = open_pins(Settings(), state)
    hub.review("sums", tools)
    hub.review("sums", changed)
    command = open_pins(Settings(), state)
    assert command.accept("sums") == ["add"]
    hub.review("other", tools)
    later = open_pins(Settings(), state)
    assert not later.list_waiting("sums")
    assert later.accepted_tools("sums") == tuple(changed)
    assert later.accepted_tools("other") == tuple(tools)


def test_pins_that_many_write_at_once_are_all_kept(tmp_path: Path) -> None:
    state = State(tmp_path)
    names = [f"server-{number}" for number in range(20)]
    writers = [open_pins(Settings(), state) for _ in names]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pins, name: pins.review(name, [{"name": name}]), writers, names))
    kept = open_pins(Settings(), state)
    assert all(kept.accepted_tools(name) for name in names)


class ListingHub:
    """A hub that lists these agents with their skills."""

    def __init__(self, agents: dict[str, list[str]]) -> None:
        self._rows = [
            {"name": name, "status": "available", "skills": skills} for name, skills in agents.items()
        ]

    async def dispatch(self, call: Call, channel: Any = None) -> Outcome:
        return Outcome(call.id, call.skill, "done", value={"agents": self._rows})


async def test_an_import_tells_which_of_its_skills_others_offer_already() -> None:
    hub = ListingHub({"vic": ["echo", "sing"], "bob": ["echo"], "srv": ["echo", "add"]})
    tables = {"srv": ImportTable(command="srv")}
    (outcome,) = await wait_for_hub(MeshClient(hub, None), tables, {})
    assert outcome.skills == ("echo", "add")
    assert outcome.shared == {"echo": ("vic", "bob")}
