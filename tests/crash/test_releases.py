"""Two releases on one database: the older one refuses what it cannot use; neither takes the other's runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from retinue.core.errors import StateError
from retinue.storage.files import make_folder
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import VERSION
from retinue.workflows.durable.tables.own_tables import SCRIPTS, USABLE_FROM
from tests.crash.conftest import Start
from tests.crash.processes import await_log, read_log
from tests.crash.test_nodes import finish_all, looking_at, plan_at
from tests.processes.running import execute, program
from tests.workflows.shapes import SHAPES

OTHER_FORM = "engine-0"
KNOWN = len(SCRIPTS)
"""The version of the tables that this release knows."""

NEWER = KNOWN + 2
"""The version of a release that raised it twice, so it differs from the version that the tables require."""

SEQUENCE = SHAPES["sequence"]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RunDatabase]:
    database = RunDatabase(url)
    try:
        yield database
    finally:
        database.close()


async def change(url: str, *statements: str) -> None:
    """Do to the database what another release did; ``{own}`` and ``{engine}`` begin the names of tables."""
    async with opened(url) as database:
        own, engine = ("retinue_", "") if database.is_sqlite else ("retinue.", "dbos.")

        def run(connection: sa.Connection) -> None:
            for statement in statements:
                connection.exec_driver_sql(statement.format(own=own, engine=engine))

        await database.write(run)


async def read(url: str, query: str) -> list[tuple[Any, ...]]:
    async with opened(url) as database:
        own, engine = ("retinue_", "") if database.is_sqlite else ("retinue.", "dbos.")
        statement = query.format(own=own, engine=engine)
        return await database.read(lambda c: [tuple(row) for row in c.exec_driver_sql(statement)])


async def prepare(url: str) -> None:
    async with opened(url) as database:
        await database.prepare()


def made_by(release: str, number: int, usable_from: int) -> str:
    return (
        "UPDATE {own}schema_version "
        f"SET version = {number}, usable_from = {usable_from}, release = '{release}'"
    )


async def test_tables_that_a_newer_release_changed_are_refused_with_the_remedy(database: str) -> None:
    await prepare(database)
    await change(
        database,
        made_by("9.8.7", NEWER, KNOWN + 1),
        "UPDATE {engine}dbos_migrations SET version = version - 1",
    )
    migrations = await read(database, "SELECT version FROM {engine}dbos_migrations")
    with pytest.raises(StateError) as caught:
        await prepare(database)
    assert f"belongs to Retinue 9.8.7: its tables have version {NEWER}," in caught.value.message
    assert f"Retinue {version('retinue')} knows versions up to {KNOWN}" in caught.value.message
    assert "update Retinue here to 9.8.7 or newer" in caught.value.remedy
    # The engine's tables are as they were, too.
    assert await read(database, "SELECT version FROM {engine}dbos_migrations") == migrations


async def test_tables_to_which_a_newer_release_added_something_are_used_and_kept(
    database: str, start: Start, tmp_path: Path
) -> None:
    await prepare(database)
    await change(
        database,
        made_by("9.8.7", NEWER, KNOWN),
        *(
            f"ALTER TABLE {{own}}{table} ADD COLUMN added TEXT DEFAULT 'x'"
            for table in ("events", "signals", "nodes")
        ),
        "ALTER TABLE {engine}workflow_status ADD COLUMN added TEXT DEFAULT 'x'",
        "UPDATE {engine}dbos_migrations SET version = version + 3",
    )
    node = start(plan_at(tmp_path, database, "node", start={"r": SHAPES["wait_for"]}))
    assert node.get_report().values["r"] is not None
    assert await read(database, "SELECT * FROM {own}schema_version") == [(NEWER, KNOWN, "9.8.7")]


@pytest.mark.parametrize(
    "before",
    ["DROP TABLE {own}schema_version", made_by("0.0.1", 1, 1)],
    ids=["without-version", "version-1"],
)
async def test_tables_of_an_older_release_keep_what_they_hold_and_get_what_they_lack(
    before: str, database: str, start: Start, tmp_path: Path
) -> None:
    node = start(plan_at(tmp_path, database, "node", start={"r": SEQUENCE}))
    assert node.get_report().values == {"r": {"n": 3}}
    await change(database, "DROP TABLE {own}used_ids", before)
    async with looking_at(database, tmp_path) as runs:
        assert (await runs.get("r")).get() == {"n": 3}
        assert [event.kind for event in await runs.list_events("r")][-1] == "run_finished"
    release = version("retinue")
    assert await read(database, "SELECT * FROM {own}schema_version") == [(KNOWN, USABLE_FROM, release)]
    assert await read(database, "SELECT id, request, ended FROM {own}used_ids") == []


async def test_processes_that_start_at_once_on_an_empty_database_make_its_tables_once(database: str) -> None:
    await asyncio.gather(*(prepare(database) for _ in range(6)))
    assert len(await read(database, "SELECT * FROM {own}schema_version")) == 1


@pytest.mark.parametrize("folder", ["first", "other"])
async def test_a_run_in_the_journal_of_another_release_is_left_to_it(
    folder: str, database: str, start: Start, tmp_path: Path
) -> None:
    """By a node that has the folder of the dead one, and by one that takes over its runs."""
    log = tmp_path / "log"
    first = start(
        plan_at(tmp_path, database, "first", start={"own": SEQUENCE, "theirs": SEQUENCE}, slow_s=600)
    )
    await_log(log, lambda entries: sum(what == "begin" for what, _, _ in entries) == 2)
    first.send_signal(signal.SIGKILL)
    first.await_death()
    form = "UPDATE {engine}workflow_status SET application_version = '%s' WHERE workflow_uuid = 'theirs'"
    await change(database, form % OTHER_FORM)
    other = start(plan_at(tmp_path, database, folder, stay=True))
    async with looking_at(database, tmp_path) as runs:
        (record,) = await finish_all(runs, ["own"], 60)
        assert record.get() == {"n": 3}
        assert (await runs.get("theirs")).status == "running"
        taken = {key.partition("/")[0] for what, key, pid in read_log(log) if pid == other.pid}
        assert taken - {"-"} == {"own"}
        # Nothing else kept it from being taken.
        await change(database, form % VERSION)
        if folder == "first":
            # Only the engine's start looks for what the same node left behind.
            other.close()
            start(plan_at(tmp_path, database, folder, stay=True))
        (record,) = await finish_all(runs, ["theirs"], 60)
        assert record.get() == {"n": 3}


async def test_a_hub_tells_that_its_database_belongs_to_a_newer_release_and_goes_on_when_it_does_not(
    tmp_path: Path, retinue_home: Path
) -> None:
    url = f"sqlite:///{retinue_home}/runs.db"
    make_folder(retinue_home)
    await prepare(url)
    await change(url, made_by("9.8.7", NEWER, KNOWN + 1))
    flow = {"name": "w", "steps": [{"id": "a", "wait_for": {"topic": "t"}}]}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("workflows are paused: the database of the runs belongs to Retinue 9.8.7")
        token = (retinue_home / "keys" / "local.token").read_text()
        reply = execute(hub.url_in("hub at"), "start_run", {"workflow": flow, "input": {}}, token)
        assert reply["error"]["data"]["type"] == "state_error"
        assert "update Retinue here to 9.8.7" in str(reply["error"])
        with program("doctor", cwd=tmp_path) as doctor:
            doctor.wait_for("belongs to Retinue 9.8.7")
            assert doctor.wait() == 1
        await change(url, made_by("0.1.0", KNOWN, KNOWN))
        reply = execute(hub.url_in("hub at"), "start_run", {"workflow": flow, "input": {}, "run": "r"}, token)
        assert reply["result"]["run"] == "r", reply
