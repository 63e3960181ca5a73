"""The tables beside the engine's, under scripts that a later release might bring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest
import sqlalchemy as sa

from retinue.core.errors import StateError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.own_tables import SCRIPTS, USABLE_FROM, OwnTables

ADDING = "ALTER TABLE {signals} ADD COLUMN sender TEXT; CREATE TABLE {nodes}_seen (at BIGINT)"
CHANGING = "ALTER TABLE {events} RENAME COLUMN step TO path"
FAILING = "ALTER TABLE {signals} ADD COLUMN sender TEXT; ALTER TABLE {nodes}_gone ADD COLUMN at BIGINT"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """Connections to a database whose tables are this release's, with one signal."""
    database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
    OwnTables(database.engine).update()
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO retinue_signals (run_id, topic, value) VALUES ('r', 't', '1')"
        )
    yield database.engine
    database.close()


def ask(engine: sa.Engine, query: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(query)]


def test_tables_get_what_they_lack_and_keep_what_they_hold(engine: sa.Engine) -> None:
    newer = OwnTables(engine, scripts=(*SCRIPTS, ADDING))
    newer.update()
    assert ask(engine, "SELECT run_id, value, sender FROM retinue_signals") == [("r", "1", None)]
    found = ask(engine, "SELECT version, usable_from FROM retinue_schema_version")
    assert found == [(len(SCRIPTS) + 1, USABLE_FROM)]
    # The older release goes on with them, and takes nothing back.
    older = OwnTables(engine)
    older.check()
    older.update()
    assert ask(engine, "SELECT version, usable_from FROM retinue_schema_version") == found
    newer.update()
    assert ask(engine, "SELECT count(*) FROM retinue_nodes_seen") == [(0,)]


def test_tables_that_were_changed_refuse_the_older_release_only(engine: sa.Engine) -> None:
    number = len(SCRIPTS) + 1
    newer = OwnTables(engine, scripts=(*SCRIPTS, CHANGING), usable_from=number)
    newer.update()
    newer.check()
    older = OwnTables(engine)
    for refused in (older.check, older.update):
        with pytest.raises(StateError, match=f"its tables have version {number}"):
            refused()


def test_a_script_that_fails_leaves_the_tables_as_they_were(engine: sa.Engine) -> None:
    with pytest.raises(sa.exc.OperationalError, match="no such table"):
        OwnTables(engine, scripts=(*SCRIPTS, FAILING)).update()
    assert ask(engine, "SELECT version FROM retinue_schema_version") == [(len(SCRIPTS),)]
    assert ask(engine, "SELECT * FROM retinue_signals") == [(1, "r", "t", "1", None)]


def test_of_processes_that_update_at_once_one_runs_the_scripts(engine: sa.Engine) -> None:
    """A script that runs twice fails, for its column exists."""
    together = Barrier(4)
    failures: list[Exception] = []

    def update() -> None:
        database = RunDatabase(str(engine.url))
        together.wait(60)
        try:
            OwnTables(database.engine, scripts=(*SCRIPTS, ADDING)).update()
        except Exception as error:  # noqa: BLE001  # whatever it is, the test shows it
            failures.append(error)
        finally:
            database.close()

    threads = [Thread(target=update) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
