"""A mesh that is opened again on its state has everything that the process before it had indexed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from retinue.core.record import AgentRecord, Listing, ListingKey, Skill
from retinue.mesh.directory.directory import MESH_VIEW, Directory
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.skill_texts import ListingText
from retinue.parts.opening import open_parts
from retinue.runtime.imports.connections import Imports
from retinue.runtime.launch import Start
from retinue.runtime.mesh import Mesh, open_mesh
from retinue.runtime.parts.imports import ImportsPart
from retinue.runtime.serving import Stop
from retinue.settings import Settings
from retinue.storage.listing_store import SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.storage.state import State
from retinue.testing.memory_runs import MemoryRuns


class CountingTexts(SqliteTextIndex):
    """Notes which listings are written and removed."""

    def __init__(self, path: Path) -> None:
        self.written: list[str] = []
        self.removed: list[str] = []
        super().__init__(path)

    def put_all(self, texts: Sequence[ListingText]) -> None:
        self.written += [text.listing_id.key for text in texts]
        super().put_all(texts)

    def remove(self, listing_ids: Collection[ListingKey]) -> None:
        self.removed += [listing_id.key for listing_id in listing_ids]
        super().remove(listing_ids)


def imported(source: str, name: str) -> Listing:
    record = AgentRecord(name, skills=(Skill("add", f"Adds the numbers of {name}"),))
    return Listing(record=record, source=source, key=name, digest=f"sha256:{name}")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Mesh, Imports, CountingTexts]]:
    settings, state = Settings(), State(folder)
    async with AsyncExitStack() as stack:
        listings = stack.enter_context(closing(SqliteListings(state.database)))
        texts = stack.enter_context(closing(CountingTexts(state.database)))
        core = open_mesh(settings, state, listings, open_runs=MemoryRuns, texts=texts)
        mesh = await stack.enter_async_context(core)
        process = mesh.as_process("hub", Start(settings, state, print, Stop()))
        await stack.enter_async_context(open_parts(process, [ImportsPart()]))
        yield mesh, process.get(Imports), texts


def find(search: SkillSearch) -> list[str]:
    return sorted(hit.entry.key for hit in search.find_skills("add numbers", MESH_VIEW).hits)


async def test_a_restart_with_imports_indexes_nothing_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as (mesh, imports, texts):
        names = [source.name for source in imports.sources]
        for name in names:
            mesh.directory.upsert(imported(name, f"sums-of-{name}"))
        keys = [f"sums-of-{name}" for name in sorted(names)]
        assert find(mesh.search) == keys
        assert sorted(texts.written) == keys

    async with opened(tmp_path) as (mesh, imports, texts):
        assert find(mesh.search) == keys
        assert (texts.written, texts.removed) == ([], [])


async def test_an_index_that_is_synchronized_after_the_last_source_keeps_the_texts_of_all(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (mesh, imports, texts):
        sources = imports.sources
        for source in sources:
            mesh.directory.upsert(imported(source.name, f"sums-of-{source.name}"))
        mesh.search.catch_up()

    with (
        closing(SqliteListings(tmp_path / "retinue.db")) as listings,
        closing(CountingTexts(tmp_path / "retinue.db")) as texts,
    ):
        directory = Directory(listings)
        search = SkillSearch(texts, directory.find_listing, find_entry=directory.find_entry, eager=True)
        directory.subscribe(lambda change: search.note(change.entry.id))
        directory.add_sources(sources)
        assert await search.synchronize([entry.id for entry in directory.list_held()]) == 0
        assert (texts.written, texts.removed) == ([], [])
        assert find(search) == sorted(f"sums-of-{source.name}" for source in sources)
