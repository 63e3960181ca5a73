"""The table of triggers, and the events that arrived for them a short time ago."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.tables.revised import RevisedTable
from retinue.workflows.triggers import RATE_S, REMEMBERED_S, StoredTrigger


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether a run may be started for an event that has arrived.

    ``new``: it has not been seen. ``again``: it has, and its sender sent it once more. ``repeated``: the very
    same sending has been seen. ``busy``: too many events, the next one is taken in ``retry_after_s``.
    """

    what: Literal["new", "again", "repeated", "busy"]
    retry_after_s: float = 0.0


class TriggerTable(RevisedTable[StoredTrigger]):
    """The triggers in a database, and the events of the last minutes, which all nodes share."""

    columns = ("hook",)

    def __init__(self, database: RunDatabase, nodes: Path) -> None:
        super().__init__(database, database.triggers, nodes)
        self._deliveries = database.deliveries

    def _read_row(self, row_id: str, spec: Any, progress: Any, revision: int) -> StoredTrigger:
        return StoredTrigger.from_json(row_id, spec, progress, revision)

    def _list_values(self, row: StoredTrigger) -> Mapping[str, Any]:
        return {"hook": row.hook}

    async def find_hook(self, hook: str) -> StoredTrigger | None:
        """The trigger whose webhook has this id."""
        rows = await self._select("WHERE hook = :hook", hook=hook)
        return rows[0] if rows else None

    async def remove(self, row_id: str) -> bool:
        """Remove a trigger with its events; False if there is none."""
        forget = sa.text(f"DELETE FROM {self._deliveries} WHERE trigger_id = :id")  # noqa: S608
        await self._database.write(lambda c: c.execute(forget, {"id": row_id}).rowcount)
        return await super().remove(row_id)

    async def claim(self, trigger: StoredTrigger, event: str, *, sent_at: float, now: float) -> Claim:
        """Note that an event has arrived, which was sent at ``sent_at``; times are seconds since 1970.

        A sending that is not newer than the last one of the event is a repetition.
        """
        key = {"trigger_id": trigger.id, "event": event}

        def write(connection: sa.Connection) -> Claim:
            self._lock(connection, trigger.id)
            connection.execute(
                sa.text(f"DELETE FROM {self._deliveries} WHERE trigger_id = :trigger_id AND at < :old"),  # noqa: S608
                {"trigger_id": trigger.id, "old": now - REMEMBERED_S},
            )
            seen = connection.execute(
                sa.text(
                    f"SELECT sent_at FROM {self._deliveries} "  # noqa: S608
                    "WHERE trigger_id = :trigger_id AND event = :event"
                ),
                key,
            ).scalar()
            if seen is not None and sent_at <= seen:
                return Claim("repeated")
            times = (
                connection.execute(
                    sa.text(
                        f"SELECT at FROM {self._deliveries} "  # noqa: S608
                        "WHERE trigger_id = :trigger_id AND at > :recent ORDER BY at DESC"
                    ),
                    {"trigger_id": trigger.id, "recent": now - RATE_S},
                )
                .scalars()
                .all()
            )
            if len(times) >= trigger.options.per_minute:
                oldest = times[trigger.options.per_minute - 1]
                return Claim("busy", max(1.0, oldest + RATE_S - now))
            connection.execute(
                sa.text(
                    f"INSERT INTO {self._deliveries} (trigger_id, event, sent_at, at) "  # noqa: S608
                    "VALUES (:trigger_id, :event, :sent_at, :at) ON CONFLICT (trigger_id, event) "
                    "DO UPDATE SET sent_at = excluded.sent_at, at = excluded.at"
                ),
                key | {"sent_at": sent_at, "at": now},
            )
            return Claim("new" if seen is None else "again")

        return await self._database.write(write)

    async def release(self, trigger: StoredTrigger, event: str) -> None:
        """Forget an event whose run could not be started, so that the same sending is taken again."""
        delete = sa.text(
            f"DELETE FROM {self._deliveries} WHERE trigger_id = :trigger_id AND event = :event"  # noqa: S608
        )
        key = {"trigger_id": trigger.id, "event": event}
        await self._database.write(lambda c: c.execute(delete, key).rowcount)

    def _lock(self, connection: sa.Connection, trigger_id: str) -> None:
        """Count the events of one trigger one after another; SQLite has locked the database already."""
        if not self._database.is_sqlite:
            lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:trigger_id))")
            connection.execute(lock, {"trigger_id": trigger_id})
