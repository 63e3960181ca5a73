"""Outcomes by idempotency key in a file survive a restart, within bounds, and their file stops no call."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from retinue.mesh.idempotency import StoredOutcome
from retinue.storage.outcome_store import OutcomeStore
from retinue.storage.state import State


@contextmanager
def opened(state: State, agent: str = "shop", **bounds: float) -> Iterator[OutcomeStore]:
    with closing(OutcomeStore(state, agent, **bounds)) as store:  # type: ignore[arg-type]
        yield store


def make_outcome(body: str = "1") -> StoredOutcome:
    return StoredOutcome(b"arguments", body.encode())


async def list_kept(store: OutcomeStore, *keys: bytes) -> list[bytes]:
    return [key for key in keys if await store.find(key) is not None]


async def test_an_outcome_is_found_by_the_next_process_of_its_agent_only(tmp_path: Path) -> None:
    state = State(tmp_path)
    with opened(state) as store:
        assert await store.find(b"k") is None
        await store.keep(b"k", make_outcome())
        assert await store.find(b"k") == make_outcome()
    with opened(state) as store, opened(state, "other") as other:
        assert await store.find(b"k") == make_outcome()
        assert await other.find(b"k") is None
    assert state.outcomes_file("shop").stat().st_mode & 0o077 == 0


async def test_an_agent_without_keyed_calls_has_no_file(tmp_path: Path) -> None:
    with opened(State(tmp_path)):
        pass
    assert not State(tmp_path).outcomes_file("shop").parent.exists()


async def test_outcomes_end_by_age(tmp_path: Path) -> None:
    now = 0.0
    state = State(tmp_path)
    with opened(state, kept_s=10, clock=lambda: now) as store:  # type: ignore[arg-type]
        await store.keep(b"k", make_outcome())
        now = 10.0
        assert await list_kept(store, b"k") == [b"k"]
        now = 11.0
        assert await list_kept(store, b"k") == []
    with (
        opened(state, kept_s=10, clock=lambda: now) as store,  # type: ignore[arg-type]
        closing(sqlite3.connect(state.outcomes_file("shop"))) as file,
    ):
        await store.find(b"k")
        assert file.execute("SELECT count(*) FROM outcomes").fetchone() == (0,)


@pytest.mark.parametrize(("bounds", "count"), [({"count": 3}, 3), ({"size_bytes": 40}, 4)])
async def test_the_oldest_outcomes_beyond_number_and_bytes_go(
    tmp_path: Path, bounds: dict[str, int], count: int
) -> None:
    keys = [str(number).encode() for number in range(9)]
    now = 0.0
    with opened(State(tmp_path), clock=lambda: now, **bounds) as store:  # type: ignore[arg-type]
        for key in keys:
            now += 1
            await store.keep(key, make_outcome("0123456789"))
        await store.keep(b"too large", make_outcome("0" * 100_000_000))
    with opened(State(tmp_path), clock=lambda: now, **bounds) as store:  # type: ignore[arg-type]
        assert await list_kept(store, *keys, b"too large") == keys[-count:]


@pytest.mark.parametrize("damage", [b"no database at all", b""])
async def test_a_damaged_file_is_replaced(tmp_path: Path, damage: bytes) -> None:
    state = State(tmp_path)
    path = state.outcomes_file("shop")
    path.parent.mkdir()
    path.write_bytes(damage * 1000)
    with opened(state) as store:
        await store.keep(b"k", make_outcome())
        assert await store.find(b"k") == make_outcome()


async def test_a_file_of_another_version_is_replaced(tmp_path: Path) -> None:
    state = State(tmp_path)
    with opened(state) as store:
        await store.keep(b"k", make_outcome())
    with closing(sqlite3.connect(state.outcomes_file("shop"))) as file:
        file.execute("PRAGMA user_version = 99")
    with opened(state) as store:
        assert await store.find(b"k") is None
        await store.keep(b"k", make_outcome("2"))
        assert await store.find(b"k") == make_outcome("2")


async def test_without_a_file_calls_go_on_and_one_line_says_so_until_it_can_be_written(
    tmp_path: Path,
) -> None:
    obstacle = tmp_path / "outcomes"
    obstacle.write_text("a file in the place of the folder")
    with opened(State(tmp_path)) as store:
        with capture_logs() as lines:
            for _ in range(3):
                await store.keep(b"k", make_outcome())
                assert await store.find(b"k") is None
        assert [line["event"] for line in lines] == ["outcomes of calls are kept in memory only"]
        obstacle.unlink()
        await store.keep(b"k", make_outcome())
        assert await store.find(b"k") == make_outcome()


async def test_a_full_disk_stops_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite is told that the file has as many pages as it may have."""
    with opened(State(tmp_path)) as store:
        await store.keep(b"k", make_outcome())
        assert store._connection is not None
        store._connection.execute("PRAGMA max_page_count = 1")
        with capture_logs() as lines:
            for number in range(3):
                await store.keep(str(number).encode(), make_outcome("0" * 10_000))
        assert "full" in lines[0]["reason"]
        assert len(lines) == 1
        assert await list_kept(store, b"k", b"0", b"1") == [b"k"]


async def test_a_closed_store_keeps_and_finds_nothing(tmp_path: Path) -> None:
    with opened(State(tmp_path)) as store:
        await store.keep(b"k", make_outcome())
    await store.keep(b"l", make_outcome())
    assert await list_kept(store, b"k", b"l") == []
