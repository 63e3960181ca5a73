"""The audit of a hub as a part: records calls, counts them and shows them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import orjson

from retinue.hub.calls import CallFilter, add_call_skills
from retinue.mesh.observing.access_rows import AccessRows
from retinue.mesh.observing.call_figures import CallFigures
from retinue.mesh.observing.events import (
    EventBus,
    LateBeginnings,
    OncePerMinute,
    log_lines,
    record_calls,
)
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.observing.audit_export import AuditExport
from retinue.settings_tables import AuditTable
from retinue.storage.audit_store import SqliteAudit


class RecordedEvents(EventBus):
    """A product: the calls that are recorded and logged in batches."""


class AuditLog:
    """A product: where the audit rows of a hub go; ``append`` must not block for long.

    ``append_rendered`` takes rows that another process of the hub has rendered (`render_row`).
    """

    def __init__(
        self,
        append: Callable[[Mapping[str, Any]], None],
        append_rendered: Callable[[bytes], None] | None = None,
    ) -> None:
        self.append = append
        self.append_rendered = append_rendered or (lambda row: append(orjson.loads(row)))


@contextmanager
def recording(process: Process, log: AuditLog) -> Iterator[RecordedEvents]:
    """Record the calls of a process in ``log``, and write their log lines."""
    recorded, rows = RecordedEvents(), LateBeginnings(record_calls(log.append))
    recorded.subscribe_later(rows)
    recorded.subscribe_batches(log_lines)
    process.dispatcher.admission.events.subscribe(OncePerMinute(recorded.emit))
    try:
        yield recorded
    finally:
        recorded.flush()
        rows.close()


class AuditPart(Part):
    """Records the calls of a hub and writes their log lines; the figures begin with the recorded calls."""

    name = "audit"
    kinds = frozenset({"hub"})
    needs = (SqliteAudit, CallFigures)
    gives = RecordedEvents
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        audit, access = process.get(SqliteAudit), process.dispatcher.access
        table, exports = process.tables.get(AuditTable), []
        if table.export is not None:
            exports.append(
                AuditExport(table.export, file_bytes=table.export_file_bytes, files=table.export_files)
            )

        def append(row: Mapping[str, Any]) -> None:
            audit.append(row)
            for export in exports:
                export.append(row)

        log = AuditLog(append, None if exports else audit.append_rendered)
        process.add(AuditLog, log)
        try:
            with recording(process, log) as recorded:
                # before the process serves, else calls would count twice
                summary, _ = await asyncio.gather(
                    asyncio.to_thread(audit.summarise_calls), asyncio.to_thread(audit.measure)
                )
                process.get(CallFigures).seed(summary)
                yield Opened(
                    product=recorded,
                    on_checks=lambda checks: checks.watch_access(AccessRows(append).note),
                    skills=lambda agent: add_call_skills(agent, partial(read_calls, process), access),
                )
        finally:
            for export in exports:
                export.flush()


def flush_calls(process: Process) -> None:
    """Write every call that has ended in this process to the audit log of a hub, in this thread."""
    # both hold calls: the bus those of the last batch, the log those that it has not written
    if (recorded := process.find(RecordedEvents)) is not None:
        recorded.flush()
    if (audit := process.find(SqliteAudit)) is not None:
        audit.flush()


async def read_calls(process: Process, call_filter: CallFilter, limit: int) -> Sequence[Mapping[str, Any]]:
    """The recorded calls that match, newest first."""
    audit = process.get(SqliteAudit)
    equal = {
        "skill": call_filter.skill,
        "agent": call_filter.agent,
        "caller": call_filter.caller,
        "status": call_filter.status,
        "trace_id": call_filter.trace,
    }
    flush_calls(process)
    filters = {key: value for key, value in equal.items() if value is not None}
    return await asyncio.to_thread(
        audit.list_calls, filters, failed=call_filter.failed, before=call_filter.before, limit=limit
    )
