"""What the tests of the directory start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.storage.listing_store import SqliteListings
from tests.mesh.directory.listings import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Listings]]:
    """Opens the same store again and again, as one process after the other would."""
    memory = MemoryListings()
    opened: list[Listings] = []

    def open_again() -> Listings:
        store = memory if request.param == "memory" else SqliteListings(tmp_path / "retinue.db")
        opened.append(store)
        return store

    yield open_again
    for store in opened:
        store.close()
