"""The table of schedules, which all nodes of a database share.

Every change names the revision that it is based on. Of two nodes that see the same time, one advances the
schedule, and the other finds that its revision is out of date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from retinue.core.errors import TooLargeError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.nodes import read_host
from retinue.workflows.schedules import Progress, StoredSchedule

MAX_SCHEDULES = 1_000


class ScheduleTable:
    """The schedules in a database. ``nodes`` is the folder of the slots, by which a state folder is named.

    All methods raise StateError where the database does not answer.
    """

    def __init__(self, database: RunDatabase, nodes: Path) -> None:
        self._database = database
        self._nodes = nodes
        self._table = database.schedules

    async def read_home(self) -> str:
        """The name of this state folder among all that share the database."""
        return await asyncio.to_thread(read_host, self._nodes)

    async def list_all(self) -> list[StoredSchedule]:
        """All schedules, by id."""
        return await self._select("")

    async def find(self, schedule_id: str) -> StoredSchedule | None:
        """The schedule of this id."""
        rows = await self._select("WHERE id = :id", id=schedule_id)
        return rows[0] if rows else None

    async def put(self, schedule: StoredSchedule) -> None:
        """Store a schedule, in place of one with its id; raises TooLargeError for too many."""
        count = sa.text(f"SELECT count(*) FROM {self._table} WHERE id <> :id")  # noqa: S608
        insert = sa.text(
            f"INSERT INTO {self._table} AS kept (id, spec, progress, revision) "  # noqa: S608
            "VALUES (:id, :spec, :progress, 1) ON CONFLICT (id) DO UPDATE "
            "SET spec = excluded.spec, progress = excluded.progress, revision = kept.revision + 1"
        )

        def write(connection: sa.Connection) -> None:
            others = connection.execute(count, {"id": schedule.id}).scalar() or 0
            if others >= MAX_SCHEDULES:
                raise TooLargeError(
                    "the list of schedules",
                    MAX_SCHEDULES,
                    "schedules",
                    remedy="remove one: retinue schedules remove NAME",
                )
            row = {
                "id": schedule.id,
                "spec": orjson.dumps(schedule.to_json()).decode(),
                "progress": orjson.dumps(schedule.progress.to_json()).decode(),
            }
            connection.execute(insert, row)

        await self._database.prepare()
        await self._database.write(write)

    async def change(self, schedule: StoredSchedule, progress: Progress) -> bool:
        """Replace the progress of a schedule; False if another process has changed it meanwhile."""
        update = sa.text(
            f"UPDATE {self._table} SET progress = :progress, revision = revision + 1 "  # noqa: S608
            "WHERE id = :id AND revision = :revision"
        )
        row: dict[str, Any] = {
            "id": schedule.id,
            "revision": schedule.revision,
            "progress": orjson.dumps(progress.to_json()).decode(),
        }
        return await self._database.write(lambda c: c.execute(update, row).rowcount == 1)

    async def remove(self, schedule_id: str) -> bool:
        """Remove a schedule; False if there is none."""
        delete = sa.text(f"DELETE FROM {self._table} WHERE id = :id")  # noqa: S608
        return await self._database.write(lambda c: c.execute(delete, {"id": schedule_id}).rowcount == 1)

    async def _select(self, condition: str, **names: str) -> list[StoredSchedule]:
        query = sa.text(
            f"SELECT id, spec, progress, revision FROM {self._table} {condition} ORDER BY id"  # noqa: S608
        )

        def read(connection: sa.Connection) -> Sequence[Any]:
            return connection.execute(query, names).fetchall()

        await self._database.prepare()
        return [
            StoredSchedule.from_json(row.id, orjson.loads(row.spec), orjson.loads(row.progress), row.revision)
            for row in await self._database.read(read)
        ]
