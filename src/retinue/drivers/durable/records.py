"""Runs as the engine's rows have them, read as RunRecords."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import sqlalchemy as sa
from dbos import PortableWorkflowError, WorkflowStatus

from retinue.core.errors import UnknownRunError
from retinue.drivers.durable.database import RunDatabase
from retinue.drivers.durable.engine import MAX_RECOVERIES
from retinue.workflows.run_records import (
    Fault,
    RunRecord,
    RunRequest,
    RunStatus,
)
from retinue.workflows.runs import Accept

_STATUSES: Mapping[RunStatus, tuple[str, ...]] = {
    "running": ("PENDING", "ENQUEUED", "DELAYED"),
    "done": ("SUCCESS",),
    "failed": ("ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"),
    "cancelled": ("CANCELLED",),
}
_READ = {row: status for status, rows in _STATUSES.items() for row in rows}

_PAGE = 200
_MANY = 4_000
"""So many ids fit into one statement."""

_NO_REQUEST: Mapping[str, Any] = {"name": "", "definition": {}, "input": None}


@dataclass(frozen=True, slots=True)
class Found:
    """A run, its outermost run, and the node that has it, None for none."""

    record: RunRecord
    root: str
    executor: str | None

    @property
    def ended(self) -> bool:
        return self.record.status != "running"


class RunReader:
    """Reads runs; the database is prepared."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database

    async def find(self, ids: Sequence[str]) -> dict[str, Found]:
        """Those of these runs that exist."""
        client = self._database.client
        rows = await self._database.ask(lambda: client.list_workflows(workflow_ids=list(ids)))
        return {row.workflow_id: _parse_row(row) for row in rows}

    async def get(self, run_id: str) -> Found:
        """Raises UnknownRunError."""
        found = await self.find([run_id])
        if run_id not in found:
            raise UnknownRunError(run_id)
        return found[run_id]

    async def list_cancelled(self, ids: Sequence[str]) -> frozenset[str]:
        """Those of these runs that are cancelled; for many at once, and often."""
        query = sa.text(
            f"SELECT workflow_uuid FROM {self._database.runs} "  # noqa: S608
            "WHERE status = 'CANCELLED' AND workflow_uuid IN :ids"
        ).bindparams(sa.bindparam("ids", expanding=True))
        found: set[str] = set()
        for start in range(0, len(ids), _MANY):
            some = {"ids": ids[start : start + _MANY]}
            found |= await self._database.read(partial(_read_ids, query, some))
        return frozenset(found)

    async def list_all(
        self,
        status: RunStatus | None,
        name: str | None,
        children: bool,
        limit: int | None,
        accept: Accept | None,
    ) -> list[RunRecord]:
        """Runs, newest first."""
        records: list[RunRecord] = []
        offset = 0
        while limit is None or len(records) < limit:
            rows = await self._read_page(status, children, offset)
            found = (_parse_row(row).record for row in rows)
            records += [
                one for one in found if name in (None, one.request.name) and (accept is None or accept(one))
            ]
            offset += _PAGE
            if len(rows) < _PAGE:
                break
        # Rows are ordered by the second where that is all the database has.
        records.sort(key=lambda record: record.started_at, reverse=True)
        return records if limit is None else records[:limit]

    async def list_ended(self) -> list[tuple[str, float]]:
        """Ended outermost runs, newest first, with the time of their end."""
        ended = [row for status in ("done", "failed", "cancelled") for row in _STATUSES[status]]
        rows = await self._database.ask(
            lambda: self._database.client.list_workflows(
                status=ended, has_parent=False, sort_desc=True, load_input=False, load_output=False
            )
        )
        return [(row.workflow_id, (row.completed_at or row.created_at or 0) / 1000) for row in rows]

    async def _read_page(self, status: RunStatus | None, children: bool, offset: int) -> list[WorkflowStatus]:
        return await self._database.ask(
            lambda: self._database.client.list_workflows(
                status=None if status is None else list(_STATUSES[status]),
                has_parent=None if children else False,
                sort_desc=True,
                limit=_PAGE,
                offset=offset,
            )
        )


def _read_ids(query: sa.Executable, parameters: Mapping[str, Any], connection: sa.Connection) -> set[str]:
    return set(connection.execute(query, parameters).scalars())


def done_with(value: Any, calls: int | None) -> dict[str, Any]:
    """What a done run gives the engine; the time is there because rows in SQLite have only seconds."""
    return {"value": value, "at": time.time(), "calls": calls}


def fail_with(fault: Fault, calls: int | None) -> PortableWorkflowError:
    """The exception that ends a run with a fault."""
    data = {**fault.to_json(), "calls": calls}
    return PortableWorkflowError(fault.message, fault.type, code=str(time.time()), data=data)


def find_root(run_id: str, root: str | None) -> str:
    """The outermost run; of one that was forked from a child, itself."""
    return root if root is not None and run_id.startswith(f"{root}/") else run_id


def _parse_row(row: WorkflowStatus) -> Found:
    request, root, started_at = row.input["args"] if row.input else (_NO_REQUEST, None, 0.0)
    if row.forked_from is not None or not started_at:
        started_at = (row.created_at or 0) / 1000
    status = _READ[row.status]
    record = RunRecord(
        id=row.workflow_id,
        request=RunRequest.from_json(request),
        status=status,
        started_at=started_at,
        finished_at=None if status == "running" else max(started_at, _find_end(row)),
        value=row.output["value"] if status == "done" and row.output else None,
        fault=_parse_fault(row) if status == "failed" else None,
        parent_id=row.parent_workflow_id,
        forked_from=row.forked_from,
        calls=_find_calls(row),
    )
    executor = row.executor_id if row.status == "PENDING" else None
    return Found(record, find_root(row.workflow_id, root), executor)


def _find_end(row: WorkflowStatus) -> float:
    if row.status == "SUCCESS" and row.output:
        return float(row.output["at"])
    if isinstance(row.error, PortableWorkflowError) and row.error.code:
        return float(row.error.code)
    return (row.completed_at or 0) / 1000


def _find_calls(row: WorkflowStatus) -> int | None:
    """What the body said at its own end; rows of before hold nothing of it."""
    if row.status == "SUCCESS" and row.output:
        told = row.output.get("calls")
    elif row.status == "ERROR" and isinstance(row.error, PortableWorkflowError):
        told = row.error.data.get("calls") if isinstance(row.error.data, Mapping) else None
    else:
        told = None
    return None if told is None else int(told)


def _parse_fault(row: WorkflowStatus) -> Fault:
    if isinstance(row.error, PortableWorkflowError) and isinstance(row.error.data, Mapping):
        return Fault.from_json({key: value for key, value in row.error.data.items() if key != "calls"})
    if row.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
        message = f"its nodes died under it {MAX_RECOVERIES} times"
    else:
        message = str(row.error)
    return Fault(type="internal_error", message=message)
