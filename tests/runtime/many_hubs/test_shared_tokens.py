"""A revoked token is accepted at no hub again, also after losses of the database or of its connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from filelock import FileLock
from structlog.testing import capture_logs

from retinue.core.errors import StateError
from retinue.runtime.many_hubs import tokens
from retinue.runtime.many_hubs.tokens import SYNCHRONIZE_S, SharedTokens
from retinue.storage.mesh_news import MeshNews, Record
from retinue.web.issued_tokens import TokenFile


class MemoryRecords(MeshNews):
    """The records of a database, in memory; ``before_write`` runs once, while records are written."""

    def __init__(self) -> None:
        super().__init__("postgresql://nobody@127.0.0.1:1/none", "one", "hub", None)
        self.rows: dict[str, Record] = {}
        self.is_away = False
        self.before_write: Callable[[], object] = lambda: None

    async def read_records(self, kind: str) -> Sequence[Record]:
        if self.is_away:
            raise StateError("the connection is lost")
        return list(self.rows.values())

    async def write_records(self, kind: str, records: Sequence[Record]) -> None:
        self.before_write()
        for row in records:
            if row.id not in self.rows or not self.rows[row.id].is_removed:
                self.rows[row.id] = row


class Hub:
    """The tokens of one hub; each round is one exchange with the others."""

    def __init__(self, records: MemoryRecords, keys: Path, key: bytes = b"key of the mesh") -> None:
        self.now = 0.0
        self.wakes = 0
        self.file = TokenFile(keys)
        self.shared = SharedTokens(records, keys, key, clock=lambda: self.now)
        self.shared.wake = self._wake

    def _wake(self) -> None:
        self.wakes += 1

    @property
    def names(self) -> list[str | None]:
        return [token.name for token in self.file.list_all()]

    async def round(self) -> int:
        """The number of messages that the hub sends."""
        self.shared.look()
        return len(await self.shared.take())


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def hubs(records: MemoryRecords, tmp_path: Path) -> tuple[Hub, Hub]:
    return Hub(records, tmp_path / "one"), Hub(records, tmp_path / "two")


async def share_token(one: Hub, two: Hub) -> str:
    """Issue a token for eve at one hub, and let the other learn of it; gives the id."""
    eve, _ = one.file.issue(["mesh"], name="eve")
    await one.round()
    await two.round()
    assert two.names == ["eve"]
    return eve.id


async def test_a_restored_database_brings_no_revoked_token_back(
    records: MemoryRecords, hubs: tuple[Hub, Hub]
) -> None:
    one, two = hubs
    token_id = await share_token(one, two)
    backup = dict(records.rows)
    one.file.revoke(token_id)
    await one.round()
    await two.shared.connected()
    await two.round()
    assert two.names == []
    records.rows = backup
    two.now = one.now = SYNCHRONIZE_S
    await two.round()
    await one.round()
    assert (one.names, two.names) == ([], [])
    assert records.rows[token_id].is_removed


async def test_a_token_that_is_revoked_while_the_database_is_emptied_stays_revoked(
    records: MemoryRecords, hubs: tuple[Hub, Hub]
) -> None:
    one, two = hubs
    token_id = await share_token(one, two)
    records.rows = {}
    one.file.revoke(token_id)
    await one.round()
    for hub in (two, one, two):
        await hub.shared.connected()
        await hub.round()
    assert (one.names, two.names) == ([], [])


async def test_news_of_a_revocation_are_looked_at_until_the_database_answers(
    records: MemoryRecords, hubs: tuple[Hub, Hub]
) -> None:
    one, two = hubs
    token_id = await share_token(one, two)
    one.file.revoke(token_id)
    assert await one.round() == 1
    records.is_away = True
    await two.shared.hear(b"1")
    for _ in range(2):
        with pytest.raises(StateError):
            await two.round()
    records.is_away = False
    await two.round()
    assert two.names == []
    assert two.wakes


async def test_a_token_that_is_revoked_while_its_hub_writes_to_the_database_is_revoked_everywhere(
    records: MemoryRecords, hubs: tuple[Hub, Hub]
) -> None:
    one, two = hubs
    token_id = await share_token(one, two)
    two.file.issue(["mesh"], name="of two")
    await two.round()
    one.file.issue(["mesh"], name="of one")

    def revoke() -> None:
        records.before_write = lambda: None
        one.file.revoke(token_id)

    records.before_write = revoke
    await one.round()
    assert await one.round() == 1
    await two.shared.hear(b"1")
    await two.round()
    assert two.names == ["of two", "of one"]


async def test_hubs_with_different_keys_do_not_wake_each_other_for_ever(
    records: MemoryRecords, tmp_path: Path
) -> None:
    one, two = Hub(records, tmp_path / "one"), Hub(records, tmp_path / "two", b"another key")
    eve, _ = one.file.issue(["mesh"], name="eve")
    two.file.merge([eve], ())
    sent = []
    for _ in range(4):
        for hub in (one, two):
            await hub.shared.hear(b"1")
            sent.append(await hub.round())
    assert sum(sent) == 2


async def test_tokens_of_other_hubs_wait_for_a_held_file_while_the_hub_gives_signs_of_life(
    records: MemoryRecords, hubs: tuple[Hub, Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MERGE_WITHIN_S", 0.01)
    one, two = hubs
    one.file.issue(["mesh"], name="eve")
    await one.round()
    (tmp_path / "two").mkdir()
    with FileLock(tmp_path / "two" / ".lock"):
        await two.round()
    assert two.names == []
    await two.round()
    assert two.names == ["eve"]


async def test_a_file_of_revoked_tokens_that_cannot_be_read_is_told(
    hubs: tuple[Hub, Hub], tmp_path: Path
) -> None:
    one, _ = hubs
    one.file.issue(["mesh"], name="bob")
    await one.round()
    (tmp_path / "one" / "shared_tokens.json").write_text("[1]")
    with capture_logs() as logs:
        one.shared.wake()
        one.file.issue(["mesh"], name="ann")
        await one.round()
    assert {log["log_level"] for log in logs if "not known which tokens" in log["event"]} == {"warning"}
