"""The table of schedules, which all nodes of a database share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.revised_table import RevisedTable
from retinue.workflows.schedules import StoredSchedule


class ScheduleTable(RevisedTable[StoredSchedule]):
    """The schedules in a database."""

    def __init__(self, database: RunDatabase, nodes: Path) -> None:
        super().__init__(database, database.schedules, nodes)

    def _read_row(self, row_id: str, spec: Any, progress: Any, revision: int) -> StoredSchedule:
        return StoredSchedule.from_json(row_id, spec, progress, revision)
