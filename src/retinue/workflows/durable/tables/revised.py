"""A table of things that all nodes of a database change, each change based on a revision.

Every change of the progress names the revision that it is based on. Of two nodes that see the same event, one
advances the row, and the other finds that its revision is out of date.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
import sqlalchemy as sa

from retinue.core.errors import TooLargeError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.nodes import read_host
from retinue.workflows.schedules import Progress, StoredSchedule
from retinue.workflows.triggers import StoredTrigger, TriggerProgress

MAX_ROWS = 1_000


_Row = TypeVar("_Row", StoredSchedule, StoredTrigger)


class RevisedTable(ABC, Generic[_Row]):
    """The rows of one table. ``nodes`` is the folder of the slots, by which a state folder is named.

    ``columns`` are those of the table beside id, spec, progress and revision. All methods raise StateError
    where the database does not answer.
    """

    columns: tuple[str, ...] = ()

    def __init__(self, database: RunDatabase, table: str, nodes: Path) -> None:
        self._database = database
        self._table = table
        self._nodes = nodes

    @abstractmethod
    def _read_row(self, row_id: str, spec: Any, progress: Any, revision: int) -> _Row:
        """A row of its stored parts."""

    def _list_values(self, row: _Row) -> Mapping[str, Any]:
        """The values of the further columns."""
        return {}

    async def read_home(self) -> str:
        """The name of this state folder among all that share the database."""
        return await asyncio.to_thread(read_host, self._nodes)

    async def list_all(self) -> list[_Row]:
        """All rows, by id."""
        return await self._select("")

    async def find(self, row_id: str) -> _Row | None:
        """The row of this id."""
        rows = await self._select("WHERE id = :id", id=row_id)
        return rows[0] if rows else None

    async def put(self, row: _Row) -> None:
        """Store a row, in place of one with its id; raises TooLargeError for too many."""
        names = ("id", *self.columns, "spec", "progress")
        count = sa.text(f"SELECT count(*) FROM {self._table} WHERE id <> :id")  # noqa: S608
        insert = sa.text(
            f"INSERT INTO {self._table} AS kept ({', '.join(names)}, revision) "  # noqa: S608
            f"VALUES ({', '.join(f':{name}' for name in names)}, 1) ON CONFLICT (id) DO UPDATE SET "
            f"{', '.join(f'{name} = excluded.{name}' for name in names[1:])}, revision = kept.revision + 1"
        )

        def write(connection: sa.Connection) -> None:
            others = connection.execute(count, {"id": row.id}).scalar() or 0
            if others >= MAX_ROWS:
                raise TooLargeError(
                    "the list of schedules",
                    MAX_ROWS,
                    "schedules",
                    remedy="remove one: retinue schedules remove NAME",
                )
            values = {
                "id": row.id,
                **self._list_values(row),
                "spec": orjson.dumps(row.to_json()).decode(),
                "progress": orjson.dumps(row.progress.to_json()).decode(),
            }
            connection.execute(insert, values)

        await self._database.prepare()
        await self._database.write(write)

    async def change(self, row: _Row, progress: Progress | TriggerProgress) -> bool:
        """Replace the progress of a row; False if another process has changed it meanwhile."""
        update = sa.text(
            f"UPDATE {self._table} SET progress = :progress, revision = revision + 1 "  # noqa: S608
            "WHERE id = :id AND revision = :revision"
        )
        values: dict[str, Any] = {
            "id": row.id,
            "revision": row.revision,
            "progress": orjson.dumps(progress.to_json()).decode(),
        }
        return await self._database.write(lambda c: c.execute(update, values).rowcount == 1)

    async def remove(self, row_id: str) -> bool:
        """Remove a row; False if there is none."""
        delete = sa.text(f"DELETE FROM {self._table} WHERE id = :id")  # noqa: S608
        return await self._database.write(lambda c: c.execute(delete, {"id": row_id}).rowcount == 1)

    async def _select(self, condition: str, **names: str) -> list[_Row]:
        query = sa.text(
            f"SELECT id, spec, progress, revision FROM {self._table} {condition} ORDER BY id"  # noqa: S608
        )

        def read(connection: sa.Connection) -> Sequence[Any]:
            return connection.execute(query, names).fetchall()

        await self._database.prepare()
        return [
            self._read_row(row.id, orjson.loads(row.spec), orjson.loads(row.progress), row.revision)
            for row in await self._database.read(read)
        ]


class ScheduleTable(RevisedTable[StoredSchedule]):
    """The schedules in a database."""

    def __init__(self, database: RunDatabase, nodes: Path) -> None:
        super().__init__(database, database.schedules, nodes)

    def _read_row(self, row_id: str, spec: Any, progress: Any, revision: int) -> StoredSchedule:
        return StoredSchedule.from_json(row_id, spec, progress, revision)
