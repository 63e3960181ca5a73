"""retinue.db: one suite over the store of listings and its twin, and what only a file can suffer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from retinue.cards.pallet_card import parse_card
from retinue.core.errors import StateDamagedError, StateError, StorageFullError
from retinue.core.record import AgentRecord, Endpoint, Listing, ListingKey, Skill
from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.mesh.entry import entry_of
from retinue.storage import database
from retinue.storage.listing_store import SqliteListings
from tests.requirements import requirement

CARD = b"""{"name": "plan-agent",  "url": "http://localhost:8001", "version": "1.0.0",
 "skills": [{"id": "create_plan", "description": "plans", "x-foreign": [1]}], "x-more": {"kept": true}}"""
NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def listing(key: str = "agents/plan", source: str = "home", **changes: Any) -> Listing:
    record = parse_card(CARD, reference=key)
    return replace(Listing(record, source, key, tag="v1", digest="sha256:00", raw=CARD), **changes)


FULL = listing(
    published_at=NOON,
    fetched_at=NOON,
    owner="key-1",
    signature="valid",
    enabled=False,
    reachable=False,
    since=NOON,
    last_error="connection refused",
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "retinue.db"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, path: Path) -> Iterator[Listings]:
    opened: Listings = MemoryListings() if request.param == "memory" else SqliteListings(path)
    yield opened
    opened.close()


@pytest.mark.parametrize("kept", [listing(), FULL, listing(reachable=True)])
@requirement("P-17")
def test_a_listing_comes_back_as_it_was_kept_its_bytes_included(store: Listings, kept: Listing) -> None:
    store.put_all([kept])
    assert store.find(kept.id) == kept
    assert store.find_all([ListingKey("home", "absent"), kept.id]) == [kept]
    assert list(store.load()) == [entry_of(kept)]


def test_listings_come_by_source_and_key_and_the_last_of_an_id_stays(store: Listings) -> None:
    store.put_all([listing("b"), listing("a"), listing("z", "away")])
    store.put_all([listing("b", tag="v2"), listing("a", digest="sha256:02")])
    assert [(one.source, one.key, one.tag) for one in store.load()] == [
        ("away", "z", "v1"),
        ("home", "a", "v1"),
        ("home", "b", "v1"),
        ("home", "b", "v2"),
    ]
    assert [one.digest for one in store.load() if one.key == "a"] == ["sha256:02"]


def test_what_was_measured_is_noted_without_the_card(store: Listings) -> None:
    store.put_all([listing("a"), listing("b")])
    since: dict[str, Any] = {"since": NOON, "last_error": "refused"}
    ill = replace(entry_of(listing("a")), enabled=False, reachable=False, **since)
    store.update_all([ill, entry_of(listing("never kept"))])
    assert list(store.load()) == [ill, entry_of(listing("b"))]
    assert store.find(ill.id) == listing("a", enabled=False, reachable=False, **since)


def test_one_skill_is_read_by_itself(store: Listings) -> None:
    block = b"""{"name": "a", "skills": [{"id": "x", "description": "says"}, {"id": "y"}],
        "retinue": {"v": 1, "skills": {"x": {"tags": ["t"]}}}}"""
    for raw in (CARD, block):
        record = parse_card(raw, reference="a")
        kept = replace(listing("a"), record=record, raw=raw)
        store.put_all([kept])
        for skill in record.skills:
            assert store.find_skill(entry_of(kept), skill.id) == skill
    assert store.find_skill(entry_of(kept), "z") is None
    assert store.find_skill(entry_of(replace(kept, digest="sha256:01")), "x") is None
    assert store.find_skill(entry_of(listing("never kept")), "x") is None


def test_a_removed_listing_is_gone_and_an_absent_one_no_error(store: Listings) -> None:
    store.put_all([listing("a"), listing("b")])
    store.remove_all([ListingKey("home", "a", "v1")])
    store.remove_all([ListingKey("home", "a", "v1"), ListingKey("home", "c")])
    assert store.find(ListingKey("home", "a", "v1")) is None
    assert [one.key for one in store.load()] == ["b"]


def test_a_record_made_here_is_kept_by_its_card_without_private_skills(path: Path) -> None:
    skills = (Skill("shown", tags=("t",)), Skill("hidden", visibility="private"))
    record = AgentRecord("local", endpoints=(Endpoint("execute", "http://x"),), skills=skills, topics=("T",))
    store = SqliteListings(path)
    store.put_all([Listing(record, "local", "local")])
    kept = store.find(ListingKey("local", "local"))
    store.close()
    assert kept is not None
    assert kept.raw == b""
    assert kept.record == replace(record, skills=skills[:1])


def test_a_card_that_can_be_read_no_more_is_dropped_and_the_rest_loaded(path: Path) -> None:
    store = SqliteListings(path)
    store.put_all([listing("a"), listing("b"), listing("c")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE cards SET raw = '[]' WHERE key = 'a'")
        connection.execute("UPDATE listings SET since = 'yesterday' WHERE key = 'b'")
    connection.close()
    assert [one.key for one in store.load()] == ["a", "c"]
    held = [listing(key) for key in "abc"]
    assert [one.key for one in store.find_all([one.id for one in held])] == ["c"]
    assert store.find_skill(entry_of(held[0]), "create_plan") is None
    store.close()


@pytest.mark.parametrize("damage", ["all", "middle", "other"])
def test_a_damaged_file_is_named_with_the_remedy_and_left_as_it_is(path: Path, damage: str) -> None:
    store = SqliteListings(path)
    store.put_all([listing(f"agents/{i}") for i in range(200)])
    store.close()
    if damage == "all":
        path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    elif damage == "middle":
        content = bytearray(path.read_bytes())
        content[4096:-1] = b"\xff" * (len(content) - 4097)
        path.write_bytes(bytes(content))
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE listings")
        connection.close()
    before = path.read_bytes()

    def use() -> None:
        again = SqliteListings(path)
        try:
            list(again.load())
        finally:
            again.close()

    with pytest.raises(StateDamagedError) as damaged:
        use()
    assert damaged.value.path == str(path)
    assert "move it away" in damaged.value.remedy
    assert path.read_bytes() == before
    path.unlink()
    use()


def test_a_file_of_a_newer_retinue_is_refused_and_not_touched(path: Path) -> None:
    SqliteListings(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateError, match="has schema version 99") as refused:
        SqliteListings(path)
    assert "the audit" in refused.value.remedy


def test_a_path_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for unfit in (tmp_path / "folder", tmp_path / "file" / "retinue.db"):
        with pytest.raises(StateError) as refused:
            SqliteListings(unfit)
        assert str(unfit) in refused.value.message


def test_without_room_nothing_of_a_batch_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect_to_a_small_disk(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real_connect(*args, **options)
        connection.execute("PRAGMA max_page_count = 40")
        return connection

    real_connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect_to_a_small_disk)
    store = SqliteListings(path)
    store.put_all([listing("a")])
    with pytest.raises(StorageFullError) as full:
        store.put_all([listing("a", tag="v2"), *(listing(f"b{i}") for i in range(2000))])
    assert full.value.path == str(path)
    assert [(one.key, one.tag) for one in store.load()] == [("a", "v1")]
    store.put_all([listing("c")])
    store.close()


OLDER_FORM = """
    CREATE TABLE listings (
        source TEXT NOT NULL, key TEXT NOT NULL, name TEXT NOT NULL, version TEXT,
        tag TEXT, digest TEXT, hash TEXT, raw BLOB NOT NULL, rendered INTEGER NOT NULL,
        published_at TEXT, fetched_at TEXT, etag TEXT, owner TEXT, signature TEXT NOT NULL,
        hops TEXT NOT NULL, enabled INTEGER NOT NULL, reachable INTEGER, since TEXT, last_error TEXT,
        PRIMARY KEY (source, key)
    ) WITHOUT ROWID;
    CREATE TABLE audit (id INTEGER PRIMARY KEY AUTOINCREMENT, row BLOB NOT NULL);
    PRAGMA user_version = 1;
"""


def test_the_first_form_of_the_file_is_brought_to_today_s(path: Path) -> None:
    at = NOON.isoformat()
    rows = [
        ("home", key, "plan-agent", "1.0.0", "v1", "sha256:00", "h", raw, 0, at, at, '"e"', "key-1",
         "valid", '["hub-1","hub-2"]', 0, 0, at, "connection refused")
        for key, raw in (("agents/plan", CARD), ("agents/broken", b"[]"))
    ]  # fmt: skip
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(OLDER_FORM)
        connection.executemany(f"INSERT INTO listings VALUES ({', '.join('?' * 19)})", rows)
    connection.close()
    store = SqliteListings(path)
    assert list(store.load()) == [entry_of(FULL)]
    assert store.find(FULL.id) == FULL
    store.close()


def test_rows_of_another_version_are_read_anew_from_their_cards(path: Path) -> None:
    store = SqliteListings(path)
    store.put_all([FULL, listing("b"), listing("c")])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE listings SET form = 'older', skills = '[]', kinds = '', url = NULL")
        connection.execute("UPDATE cards SET raw = '[]' WHERE key = 'b'")
    connection.close()
    assert list(store.load()) == []
    store.close()
    again = SqliteListings(path)
    assert list(again.load()) == [entry_of(FULL), entry_of(listing("c"))]
    again.close()


def test_two_processes_may_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteListings(path), SqliteListings(path)]
    stores[0].put_all([listing("a")])
    assert [one.key for one in stores[1].load()] == ["a"]
    for store in stores:
        store.close()


def test_a_file_that_another_process_migrates_during_the_opening_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection remembers the tables of the version that it found."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    for script in database._MIGRATIONS[:2]:
        connection.executescript(script)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    read_version = database.Database._version
    others = [path]

    def read_after_another(opened: database.Database) -> int:
        version = read_version(opened)
        if others:
            SqliteListings(others.pop()).close()
        return version

    monkeypatch.setattr(database.Database, "_version", read_after_another)
    store = SqliteListings(path)
    assert list(store.load()) == []
    store.close()
