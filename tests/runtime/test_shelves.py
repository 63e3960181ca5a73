"""Custom workflows: a folder of files, and versions in a registry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retinue.core.errors import DefinitionError, MalformedArtifactError, UnknownWorkflowError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_workflow
from retinue.runtime.shelves import FolderShelf, RegistryShelf, open_shelves
from retinue.settings import Settings, load_settings
from retinue.storage.state import State
from retinue.workflows.library import Library, StoredText
from tests.cli.conftest import PLAN_CARD
from tests.requirements import requirement
from tests.system import NOON, publish

GOOD = "name: good\nsteps: [{id: a, skill: s}]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "other.json").write_text('{"name": "other", "steps": [{"id": "a", "skill": "s"}]}')
    (tmp_path / "broken.yml").write_text("name: broken\nsteps:\n  - {id: a, skil: s}\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "notes.txt").write_text("no workflow")
    (tmp_path / ".hidden.yaml").write_text(GOOD)
    (tmp_path / "folder.yaml").mkdir()
    return tmp_path


@requirement("L-32")
async def test_the_files_of_a_folder_are_listed_and_a_broken_one_hides_no_other(folder: Path) -> None:
    custom = [one for one in await Library([FolderShelf(folder)]).list_all() if one.origin == "custom"]
    assert [one.name for one in custom] == ["binary", "broken", "good", "other"]
    problems = {one.name: one.problem.message for one in custom if one.problem is not None}
    assert problems.keys() == {"binary", "broken"}
    assert problems["broken"].endswith("broken.yml:3: steps[0].skil: unknown key 'skil'")


async def test_a_file_counts_as_soon_as_it_is_saved(folder: Path) -> None:
    library = Library([FolderShelf(folder)])
    assert (await library.get("good")).definition.name == "good"
    (folder / "good.yaml").write_text(GOOD.replace("skill: s", "skill: t"))
    assert (await library.get("good")).definition.steps[0].skill == "t"
    with pytest.raises(DefinitionError, match=r"broken\.yml:3"):
        await library.get("broken")


@pytest.mark.parametrize("name", ["../good", "a/b", "..", "good@v1", "nothing", "/etc/passwd"])
async def test_no_name_leads_out_of_the_folder(folder: Path, name: str) -> None:
    inner = folder / "inner"
    inner.mkdir()
    with pytest.raises(UnknownWorkflowError):
        await Library([FolderShelf(inner)]).get(name)


async def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert await FolderShelf(tmp_path / "nowhere").list_names() == ()


async def test_a_file_too_large_is_named_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("x" * 300_000)
    with pytest.raises(DefinitionError, match="larger than 256 kB"):
        await FolderShelf(tmp_path).find_text("big")


async def test_the_folder_is_that_of_the_state_unless_the_settings_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(tmp_path / "state")
    for place in (tmp_path / "state" / "workflows", tmp_path / "mine"):
        place.mkdir(parents=True)
        (place / f"{place.parent.name}-{place.name}.yaml").write_text(GOOD)
    (shelf,) = open_shelves(Settings(), state, {}, own="home")
    assert await shelf.list_names() == ["state-workflows"]
    monkeypatch.setenv("RETINUE_WORKFLOWS__DIRECTORY", str(tmp_path / "mine"))
    (shelf,) = open_shelves(load_settings(start=tmp_path), state, {}, own="home")
    assert [name.endswith("-mine") for name in await shelf.list_names()] == [True]


@requirement("P-29")
async def test_a_workflow_of_a_registry_is_read_by_name_by_tag_and_by_digest(tmp_path: Path) -> None:
    registry = LayoutRegistry(tmp_path)
    digests = {}
    for tag, skill in (("v1", "one"), ("v2", "two")):
        text = GOOD.replace("skill: s", f"skill: {skill}").encode()
        digests[tag] = (await publish_workflow(registry, "good", text, created=NOON, tag=tag)).digest
    library = Library([RegistryShelf(registry)])
    for reference, skill, digest in (
        ("good", "two", digests["v2"]),
        ("good@v1", "one", digests["v1"]),
        (f"good@{digests['v1']}", "one", digests["v1"]),
    ):
        loaded = await library.get(reference)
        assert (loaded.definition.steps[0].skill, loaded.digest) == (skill, digest)
    with pytest.raises(UnknownWorkflowError) as caught:
        await library.get("good@v3")
    assert "good" in caught.value.remedy


async def test_what_is_no_workflow_is_said_to_be_none(tmp_path: Path) -> None:
    import orjson

    registry = LayoutRegistry(tmp_path)
    await publish(registry, orjson.dumps(PLAN_CARD))
    (tmp_path / "agents").rename(tmp_path / "workflows")
    with pytest.raises(MalformedArtifactError, match="not a workflow"):
        await RegistryShelf(registry).find_text("plan")


@pytest.mark.parametrize(
    "name",
    ["n" * 130, "ü" * 130, "n" * 300, "n" * 3_000_000, "name: x\nsteps:\n" * 50_000, "n" * 130 + "@v1"],
    ids=["long", "long in bytes", "longer", "3 MB", "a text", "with a tag"],
)
async def test_a_name_too_long_for_a_file_is_unknown_and_tells_no_path(folder: Path, name: str) -> None:
    """As a definition that was sent as text."""
    with pytest.raises(UnknownWorkflowError) as caught:
        await Library([FolderShelf(folder)]).get(name)
    assert str(folder) not in caught.value.message
    assert len(caught.value.message) < 400
    if len(name) > 300:
        assert caught.value.remedy == "send a definition as a JSON object, not as text"


async def test_an_unreadable_file_is_named_without_the_place_of_the_state(folder: Path) -> None:
    """Whoever may list workflows learns nothing of the machine."""
    custom = [one for one in await Library([FolderShelf(folder)]).list_all() if one.problem is not None]
    assert len(custom) == 2
    for one in custom:
        assert one.problem is not None
        assert str(folder.parent) not in str(one.problem.message)
        assert f"{folder.name}/{one.name}." in one.problem.message


class LongText:
    """A shelf whose one workflow takes a moment to parse."""

    async def list_names(self) -> list[str]:
        return ["long"]

    async def find_text(self, name: str, version: str | None = None) -> StoredText:
        steps = "".join(f"  - {{id: s{number}, skill: s}}\n" for number in range(300))
        return StoredText(f"name: long\nsteps:\n{steps}", "long")


@pytest.mark.parametrize("ask", ["get", "list_all"])
async def test_other_tasks_run_while_a_long_text_is_parsed(ask: str) -> None:
    library = Library([LongText()])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await (library.get("long") if ask == "get" else library.list_all())
    counting.cancel()
    assert turns > 10
