"""Hubs on one Postgres share the history of calls."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from retinue.core.call import Principal
from retinue.core.errors import StateError
from retinue.mesh.history.records import Experience, Hashes, SkillKey, Wish
from retinue.mesh.history.search_history import SearchHistory
from retinue.storage.history_store import ServerDatabase, SqlHistory
from retinue.storage.receipt_store import ReceiptClaims
from tests.crash.postgres import Postgres
from tests.processes.commands import run_command
from tests.processes.running import execute, program, wait_until

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
    wish = Wish("w1", 100.0, (1,), 2, "a taxi")
    first_store.write([RECORD], [])
    first_store.write_wishes([wish], [])
    await second.read_others()
    assert second.list_records() == (RECORD,)
    assert second.wishes.list_all() == (wish,)
    first_store.write_wishes([], [wish.id])
    await second.read_others()
    assert second.wishes.list_all() == (), "it came true at the other hub"
    first_store.write_wishes([wish], [])
    await second.read_others()
    assert second.learn_for(ANNA, "a plan") is not None
    now = 300.0
    assert await first.forget() == 2
    await second.read_others()
    assert second.list_records() == ()
    assert second_store.read_wishes() == []
    assert second.wishes.list_all() == ()


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


AGENT = """
from retinue import Agent

agent = Agent("routes-agent", version="1.0.0")


@agent.skill(read_only=True)
def plan_route(place: str) -> str:
    "Plans a journey by train."
    return f"to {place}"
"""
QUERY = {"query": "plan a journey by train", "detailed": True}


def test_a_command_without_a_hub_forgets_what_hubs_keep_on_a_server_and_says_who_has_it(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.create_database()
    store = SqlHistory(ServerDatabase(url))
    store.write([RECORD], [])
    store.write_wishes([Wish("w1", 100.0, (1,), 2, "a taxi")], [])
    for keep, because in (
        ("true", "hubs keep the history in the database; ask one of them"),
        ("false", "history.keep is false"),
    ):
        environment = {
            "RETINUE_HOME": str(tmp_path / "state"),
            "RETINUE_DATABASE": url,
            "RETINUE_HISTORY__KEEP": keep,
        }
        for command in ("history", "wishes"):
            told = run_command(command, cwd=tmp_path, environment=environment)
            assert because in told.stderr, told
        assert len(store.read()) == 1
    told = run_command("history", "--forget", cwd=tmp_path, environment=environment)
    assert "2 records forgotten" in told.stderr
    assert (store.read(), store.read_wishes()) == ([], [])


def find(url: str, token: str) -> Any:
    return execute(url, "find_skills", QUERY, token)["result"]


def is_listed(url: str, token: str) -> bool:
    return bool(find(url, token)["skills"])


def list_tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows if "history" in name or "wishes" in name or "receipt" in name}


def test_a_hub_learns_from_the_calls_at_another_hub_and_one_that_is_off_stores_nothing(
    postgres: Postgres, tmp_path: Path
) -> None:
    database = postgres.create_database()
    (tmp_path / "routes.py").write_text(AGENT)
    at_agent = {"RETINUE_HOME": str(tmp_path / "agent")}
    registries = orjson.dumps([str(tmp_path / "agent" / "registry")]).decode()
    first, second = (
        {
            "RETINUE_HOME": str(tmp_path / name),
            "RETINUE_REGISTRIES": registries,
            "RETINUE_DATABASE": database,
        }
        for name in ("first", "second")
    )
    bare = ("hub", "--bare", "--port", "0")
    with program("serve", "routes.py", cwd=tmp_path, environment=at_agent) as served:
        served.wait_for("published")
        for name in ("first", "second"):  # hubs of one mesh have its key
            shutil.copytree(tmp_path / "agent" / "keys", tmp_path / name / "keys")
        token = (tmp_path / "agent" / "keys" / "local.token").read_text()
        off = {**first, "RETINUE_HISTORY__KEEP": "false", "RETINUE_EXAM__POLICY": "off"}
        for environment in (off, first):
            with program(*bare, cwd=tmp_path, environment=environment) as hub:
                url = hub.url_in("hub at")
                wait_until(partial(is_listed, url, token), "the agent is listed")
                assert execute(url, "plan_route", {"place": "Rome"}, token)["result"] == "to Rome"
                execute(url, "find_skills", {"query": "a taxi to the moon"}, token)
            if environment is off:
                assert list_tables(database) == set()
        with program(*bare, cwd=tmp_path, environment=second) as other:
            url = other.url_in("hub at")
            wait_until(partial(is_listed, url, token), "the agent is listed")
            (learned,) = [row for row in find(url, token)["learned"] if row["calls"]]
            assert learned["skill"] == "plan_route"
            rows = execute(url, "show_history", {}, token)["result"]["skills"]
            assert [(row["skill"], row["verdicts"]) for row in rows] == [("plan_route", {"done": 1})]
            assert len(execute(url, "list_wishes", {}, token)["result"]["wishes"]) == 1
            assert execute(url, "forget_history", {}, token)["result"] == {"forgotten": 2}
            assert not any(row["calls"] for row in find(url, token)["learned"])
