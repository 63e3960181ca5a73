"""What happens to the history while its database does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mesh.history.small_mesh import ANNA, BEN, Mesh

EXPERIENCE_BOOK = "retinue.mesh.history.experience_book"


@contextmanager
def database_away(mesh: Mesh) -> Iterator[None]:
    """A folder has the name of the database."""
    path, aside = mesh.folder / "history.db", mesh.folder / "aside"
    path.rename(aside)
    path.mkdir()
    yield
    path.rmdir()
    aside.rename(path)


def use_often(mesh: Mesh, times: int) -> None:
    for number in range(times):
        mesh.use("routes", "plan_route", ANNA, text=f"a train to the place {number}")


async def test_what_is_dropped_during_a_long_failure_is_bounded_and_goes_from_the_database_after_it(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{EXPERIENCE_BOOK}.MAX_PER_VOICE", 8)
    other = Mesh(mesh.folder)
    use_often(mesh, 8)
    await mesh.history.flush()
    first = {record.id for record in mesh.store.read()}
    with database_away(mesh):
        for _ in range(3):
            use_often(mesh, 12)
            await mesh.history.flush()
            assert len(mesh.history._dropped) == 8
    # what another hub writes is not this one's to remove
    other.now = mesh.now
    other.use("trips", "book_trip", BEN)
    await other.history.flush()
    use_often(mesh, 1)
    await mesh.history.flush()
    kept = {record.id for record in mesh.history.list_records() if record.key.agent == "routes"}
    stored = mesh.store.read()
    assert len(kept) == 8
    assert {record.id for record in stored if record.key.agent == "routes"} == kept
    assert not kept & first
    assert [record.key.agent for record in stored].count("trips") == 1
    use_often(mesh, 1)
    await mesh.history.flush()
    assert len(mesh.store.read()) == 9


async def test_a_record_that_is_dropped_after_a_write_of_it_failed_is_not_stored_later(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{EXPERIENCE_BOOK}.MAX_PER_VOICE", 4)
    use_often(mesh, 4)
    await mesh.history.flush()
    with database_away(mesh):
        use_often(mesh, 4)
        await mesh.history.flush()
        use_often(mesh, 4)
    await mesh.history.flush()
    assert {one.id for one in mesh.store.read()} == {one.id for one in mesh.history.list_records()}


async def test_what_other_hubs_wrote_while_this_one_could_not_read_is_read_after_it(mesh: Mesh) -> None:
    other = Mesh(mesh.folder)
    use_often(mesh, 1)
    await mesh.history.flush()
    other.now = mesh.now = mesh.now + 1_000
    other.use("trips", "book_trip", BEN)
    await other.history.flush()
    mesh.now += 1_000
    with database_away(mesh):
        await mesh.history.read_others()
    mesh.now += 1_000
    await mesh.history.read_others()
    assert ("book_trip", "done") in mesh.verdicts()


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)
