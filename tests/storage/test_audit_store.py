"""The audit rows in retinue.db: one suite with their twin in memory, batches, bounds of age and size."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest

from retinue.storage.audit_store import AUDIT_FLUSH_ROWS, SqliteAudit
from tests.support.memory_audit import MemoryAudit

NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "retinue.db"


@pytest.fixture(params=["memory", "sqlite"])
def audit(request: pytest.FixtureRequest, path: Path) -> Iterator[MemoryAudit | SqliteAudit]:
    if request.param == "memory":
        yield MemoryAudit(keep=300)
        return
    row = orjson.dumps({"number": 100, "timestamp": NOON.isoformat()})
    opened = SqliteAudit(path, keep_bytes=300 * (len(row) + 12), clock=lambda: NOON)
    yield opened
    opened.close()


def test_the_newest_rows_come_first_and_the_oldest_go(audit: MemoryAudit | SqliteAudit) -> None:
    for number in range(450):
        audit.append({"number": 100 + number, "timestamp": NOON.isoformat()})
    assert [row["number"] for row in audit.recent(3)] == [549, 548, 547]
    assert len(audit.recent(1000)) == 300
    assert list(audit.recent(0)) == []


async def test_rows_are_written_in_batches_a_moment_later(path: Path) -> None:
    audit = SqliteAudit(path, flush_s=0.0)
    reader = sqlite3.connect(path)

    def written() -> int:
        return int(reader.execute("SELECT count(*) FROM audit").fetchone()[0])

    audit.append({"n": 1})
    assert written() == 0
    for _ in range(3):
        await asyncio.sleep(0)
    assert written() == 1
    for number in range(AUDIT_FLUSH_ROWS):
        audit.append({"n": number})
    assert written() == 1 + AUDIT_FLUSH_ROWS
    audit.append({"n": "last"})
    audit.close()
    assert written() == 2 + AUDIT_FLUSH_ROWS
    reader.close()


def test_a_file_that_cannot_be_written_fails_no_call_and_loses_no_row(path: Path) -> None:
    audit = SqliteAudit(path)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("ALTER TABLE audit RENAME TO aside")
    audit.append({"n": 1})
    audit.append({"n": 2})
    blocker.execute("ALTER TABLE aside RENAME TO audit")
    blocker.close()
    assert [row["n"] for row in audit.recent(9)] == [2, 1]
    audit.close()


def test_rows_of_earlier_days_go_a_batch_at_a_time_and_the_newest_stay(path: Path) -> None:
    now = NOON
    audit = SqliteAudit(path, keep_days=30, clock=lambda: now)
    for number in range(3_000):
        audit.append({"number": number, "timestamp": NOON.isoformat()})
    now = NOON + timedelta(days=29)
    audit.append({"number": "newer", "timestamp": now.isoformat()})
    assert len(audit.recent(9_999)) == 3_001
    now = NOON + timedelta(days=31)
    counts = []
    for _ in range(4):
        audit.append({"number": "newest", "timestamp": now.isoformat()})
        counts.append(len(audit.recent(9_999)))
    assert counts == [2_002, 1_003, 4, 5]
    audit.close()


def test_a_smaller_bound_of_bytes_holds_for_the_rows_of_an_earlier_process(path: Path) -> None:
    earlier = SqliteAudit(path, clock=lambda: NOON)
    for number in range(100):
        earlier.append({"number": 100 + number, "timestamp": NOON.isoformat()})
    earlier.close()
    row_bytes = len(orjson.dumps({"number": 100, "timestamp": NOON.isoformat()})) + 12
    later = SqliteAudit(path, keep_bytes=7 * row_bytes, clock=lambda: NOON)
    later.measure()
    later.append({"number": 200, "timestamp": NOON.isoformat()})
    assert [row["number"] for row in later.recent(99)] == [200, 199, 198, 197, 196, 195, 194]
    later.close()


async def test_a_long_query_does_not_hold_up_what_is_written(path: Path) -> None:
    audit = SqliteAudit(path)
    audit.append({"type": "CALL:ENDED", "status": "done"})
    audit.flush()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    found = await asyncio.to_thread(audit.list_calls, {}, failed=False, before=None, limit=9)
    blocker.execute("ROLLBACK")
    blocker.close()
    assert [row["status"] for row in found] == ["done"]
    audit.close()
