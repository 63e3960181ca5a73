"""Hubs on one Postgres share the history of calls."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.call import Principal
from retinue.core.errors import StateError
from retinue.mesh.history.records import Experience, Hashes, SkillKey, Wish
from retinue.mesh.history.search_history import SearchHistory
from retinue.storage.history_store import ServerDatabase, SqlHistory
from retinue.storage.receipt_store import ReceiptClaims
from tests.crash.postgres import Postgres

ANNA = Principal("token:anna", "token", frozenset({"mesh", "exposed"}))
RECORD = Experience("r1", 100.0, SkillKey("home", "routes", "plan"), "d", (-1, 2), -3, "done")


def nothing(*_: Any) -> None:
    return None


async def test_what_one_hub_writes_the_other_reads_and_what_one_forgets_the_other_does_too(
    postgres: Postgres,
) -> None:
    url = postgres.create_database()
    now = 200.0
    hubs = []
    for _ in range(2):
        hub = SearchHistory(nothing, nothing, clock=lambda: now)
        store = SqlHistory(ServerDatabase(url), clock=lambda: now)
        hub.open(store, Hashes(b"k"), "text", lambda: None)
        hubs.append((hub, store))
    (first, first_store), (second, second_store) = hubs
    first_store.write([RECORD], [])
    first_store.write_wishes([Wish("w1", 100.0, (1,), 2, "a taxi")], [])
    await second.read_others()
    assert second.list_records() == (RECORD,)
    assert [wish.text for wish in second_store.read_wishes()] == ["a taxi"]
    assert second.learn_for(ANNA, "a plan") is not None
    now = 300.0
    assert await first.forget() == 2
    await second.read_others()
    assert second.list_records() == ()
    assert second_store.read_wishes() == []


def test_a_database_that_does_not_answer_is_a_typed_error() -> None:
    with pytest.raises(StateError, match="history"):
        SqlHistory(ServerDatabase("postgresql://nobody@127.0.0.1:1/none")).read()


def test_of_hubs_on_one_database_one_claims_the_receipt_of_a_day(postgres: Postgres) -> None:
    url = postgres.create_database()
    first, second = ReceiptClaims(url), ReceiptClaims(url)
    card, day_s = ("agents/plan", "sha256:1"), 86_400.0
    assert first.claim(card, 1_000.0, day_s)
    assert not second.claim(card, 1_060.0, day_s)
    assert not first.claim(card, 1_120.0, day_s)
    assert second.claim(("agents/plan", "sha256:2"), 1_060.0, day_s), "another version of the card"
    assert second.claim(card, 1_000.0 + day_s, day_s), "the day is over"
    assert not first.claim(card, 1_060.0 + day_s, day_s)
