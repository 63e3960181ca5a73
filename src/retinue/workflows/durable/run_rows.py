"""Reads stored runs as records and journals, and renders requests and results for storage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.errors import StateError, UnknownRunError, UnknownStepError
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.dbos_engine import (
    MAX_RECOVERIES,
    RUN,
    STATUS_OF,
    VERSION,
    StoredFailure,
    StoredRun,
)
from retinue.workflows.durable.recorded_calls import PATCHED, EngineCall, is_patch
from retinue.workflows.durable.tables.stored_once import Reference, StoredValues, pack_alone, unpack
from retinue.workflows.runs.ports import Accept
from retinue.workflows.runs.records import (
    Fault,
    RunRecord,
    RunRequest,
    RunStatus,
    StepOutcome,
    StepRecord,
    as_json,
    read_json,
)

CALLS = ("wait", "cancel", "sleep", "receive", "until", PATCHED)
"""Recorded calls other than steps are named ``<call> <path>``, a step by its path alone."""

_PAGE = 200
_NO_REQUEST: Mapping[str, Any] = {"name": "", "definition": {}, "input": None}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A stored run, its outermost run, the node that executes it, None where none does.

    ``journal`` is the form in which its calls were recorded, ``last_executor`` the node that executed it
    last.
    """

    record: RunRecord
    root: str
    executor: str | None
    journal: str | None
    last_executor: str | None = None

    @property
    def ended(self) -> bool:
        return self.record.status != "running"

    def check_journal(self) -> None:
        """Raises StateError where this release cannot replay the run."""
        if self.journal not in (None, VERSION):
            raise StateError(
                f"run {self.record.id} was stored in the form {self.journal} of another release, "
                f"and this one continues runs of the form {VERSION}",
                remedy="resume it with a process of that release, or start it again",
            )


class RunRows:
    """The stored runs; the database is prepared. All methods raise StateError where it does not answer."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._client = database.client

    async def find(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """The existing runs among these."""
        rows = await self._database.ask(self._client.find, ids)
        found: dict[str, RunRow] = {}
        for row in rows:
            result = _parse_result(row)
            run = _parse_row(row, result)
            has_parts = "parts" in result or "steps" in result
            found[row.workflow_id] = await self._complete(run, result) if has_parts else run
        return found

    async def get(self, run_id: str) -> RunRow:
        """Raises UnknownRunError."""
        return (await self.get_all([run_id]))[run_id]

    async def get_all(self, ids: Sequence[str]) -> dict[str, RunRow]:
        """Raises UnknownRunError for the first that does not exist."""
        rows = await self.find(ids)
        for run_id in ids:
            if run_id not in rows:
                raise UnknownRunError(run_id)
        return rows

    async def list_all(
        self,
        status: RunStatus | None,
        name: str | None,
        children: bool,
        limit: int | None,
        accept: Accept | None,
    ) -> list[RunRecord]:
        """Runs, newest first; large outputs may be left out of them."""
        records: list[RunRecord] = []
        offset = 0
        while limit is None or len(records) < limit:
            rows = await self._database.ask(self._client.list_page, status, children, _PAGE, offset)
            page = (_parse_row(row, _parse_result(row)).record for row in rows)
            records += [
                record
                for record in page
                if name in (None, record.request.name) and (accept is None or accept(record))
            ]
            offset += _PAGE
            if len(rows) < _PAGE:
                break
        # Rows are ordered by the second where that is all the database has.
        records.sort(key=lambda record: record.started_at, reverse=True)
        return records if limit is None else records[:limit]

    async def list_steps(self, run_id: str, root: str) -> tuple[StepRecord, ...]:
        """The outcomes of a run and of all below it, as `Runs.list_steps`; none for an unknown run."""
        return tuple(_iterate_steps(run_id, root, await self._read_calls_below(run_id)))

    async def get_first_call(self, run: RunRow, step: str) -> int:
        """The number of the first call of a step; raises UnknownStepError."""
        calls = await self._database.ask(self._client.list_calls, run.record.id, False)
        owners = await self._list_ancestors(run)
        paths = [(call.number, _path_of(call, owners)) for call in calls if not is_patch(call)]
        number = next((number for number, path in paths if _is_within(path, step)), None)
        if number is None:
            raise UnknownStepError(step, known=_list_tops(path for _, path in paths))
        return number

    async def _complete(self, run: RunRow, result: Mapping[str, Any]) -> RunRow:
        """The row with the parts of its output that are stored as outcomes of its steps."""
        parts = [*result.get("parts", ()), *_parse_older(result.get("steps", {}))]
        if not parts:
            return run
        sources = {call for _, call, _ in parts}
        calls = await self._database.ask(self._client.list_calls, run.record.id, True)
        outputs = {
            call.name: read_ended(call.output) if call.name.startswith("wait ") else call.output
            for call in calls
            if call.name in sources
        }
        return replace(run, record=replace(run.record, value=unpack(run.record.value, parts, outputs)))

    async def _list_ancestors(self, run: RunRow) -> list[str]:
        """A run and the runs that it was forked from, because children keep the name that they were started
        with.
        """
        ids = [run.record.id]
        while run.record.forked_from is not None and run.record.forked_from not in ids:
            ids.append(run.record.forked_from)
            try:
                run = await self.get(run.record.forked_from)
            except UnknownRunError:
                break
        return ids

    async def _read_calls_below(self, run_id: str) -> dict[str, Sequence[EngineCall]]:
        """The calls of a run and of all below it, with one query for each level."""
        calls: dict[str, Sequence[EngineCall]] = {}
        run_ids = [run_id]
        while run_ids:
            calls_read = await self._database.ask(self._client.list_calls_of, run_ids)
            calls |= calls_read
            children = [
                call.child_id for call_list in calls_read.values() for call in call_list if call.name == RUN
            ]
            run_ids = [child_id for child_id in children if child_id is not None and child_id not in calls]
        return calls


def _iterate_steps(run_id: str, root: str, calls: Mapping[str, Sequence[EngineCall]]) -> Iterator[StepRecord]:
    below = run_id[len(root) :].lstrip("/")
    children = []
    for call in calls[run_id]:
        if call.name == RUN:
            if call.child_id is not None:
                children.append(call.child_id)
        elif call.name.partition(" ")[0] not in CALLS or call.name.startswith("receive "):
            path = "/".join(part for part in (below, _find_path(call.name)) if part)
            yield StepRecord(run_id, path, read_json(StepOutcome, call.output or {}))
    for child in children:
        # a fork has children of the run that it was forked from
        yield from _iterate_steps(child, child.partition("/")[0], calls)


def refer_to_calls(
    value: Any, outcomes: Mapping[str, Any], waits: Mapping[str, Any]
) -> tuple[Any, list[Reference]]:
    """The output of a run as it is stored: large parts that its recorded calls store are left out.

    ``outcomes`` are the values of its steps by path, ``waits`` what its waits gave, by the call's name.
    """
    stored = StoredValues()
    for path, outcome in outcomes.items():
        stored.add(path, outcome, ("value",))
    for name, ended in waits.items():
        stored.add(name, ended)
    return stored.pack(value)


def stored_output(
    value: Any, parts: Sequence[Reference], calls: int | None, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The output of a done run; with the time, because rows in SQLite have only seconds."""
    stored = {"value": value, "at": time.time(), "calls": calls}
    if usage is not None:
        stored["usage"] = usage
    return {**stored, "parts": list(parts)} if parts else stored


def stored_ended(ended: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a wait in its stored form: each large value once."""
    value, parts = pack_alone(list(ended))
    return {"ended": value, "parts": parts} if parts else {"ended": value}


def read_ended(recorded: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a wait, from its stored form."""
    return {**recorded, "ended": unpack(recorded["ended"], recorded.get("parts", ()), {})}


def stored_failure(fault: Fault, calls: int | None, usage: Mapping[str, Any] | None = None) -> StoredFailure:
    """The exception that ends a run with a fault."""
    data = {**as_json(fault), "calls": calls}
    if usage is not None:
        data["usage"] = usage
    return StoredFailure(fault.message, fault.type, code=str(time.time()), data=data)


def stored_args(request: RunRequest, root: str | None) -> tuple[Any, ...]:
    """The arguments of a new run: its request, its outermost run, and the time."""
    return (request.to_json(), root, time.time())


def started_record(run_id: str, request: RunRequest, args: Sequence[Any]) -> RunRecord:
    """The record of an outermost run that was just started with what `stored_args` gave."""
    return RunRecord(run_id, request, "running", started_at=args[-1])


def is_outermost(run_id: str) -> bool:
    """Whether an id is that of an outermost run, which is its own root."""
    return "/" not in run_id


def find_root(run_id: str, root: str | None) -> str:
    """The outermost run; a run forked from a child is its own root."""
    return root if root is not None and run_id.startswith(f"{root}/") else run_id


def _parse_older(steps: Mapping[str, str]) -> list[Reference]:
    """References as older versions stored them: by key, to the value of a step."""
    return [((key,) if key else (), path, ("value",)) for key, path in steps.items()]


def _parse_row(row: StoredRun, result: Mapping[str, Any]) -> RunRow:
    request, root, started_at = row.input["args"] if row.input else (_NO_REQUEST, None, 0.0)
    created_at, status = (row.created_at or 0) / 1000, STATUS_OF[row.status]
    if row.forked_from is not None or not started_at:
        started_at = created_at
    ended_at = max(started_at, result.get("at") or (row.completed_at or 0) / 1000)
    record = RunRecord(
        id=row.workflow_id,
        request=RunRequest.from_json(request),
        status=status,
        started_at=started_at,
        finished_at=None if status == "running" else ended_at,
        value=result.get("value"),
        fault=read_json(Fault, result) if status == "failed" else None,
        parent_id=row.parent_workflow_id,
        forked_from=row.forked_from,
        calls=result.get("calls"),
        usage=result.get("usage"),
    )
    executor = row.executor_id if row.status == "PENDING" else None
    return RunRow(record, find_root(row.workflow_id, root), executor, row.app_version, row.executor_id)


def _parse_result(row: StoredRun) -> Mapping[str, Any]:
    """The stored output of a done run, the fault of a failed one, with ``calls`` and ``at``."""
    error, status = row.error, STATUS_OF[row.status]
    if status == "done":
        return row.output or {}
    if status != "failed":
        return {}
    if isinstance(error, StoredFailure) and isinstance(error.data, Mapping):
        return {**error.data, "at": float(error.code or 0)}
    given_up = row.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED"
    message = f"its nodes died under it {MAX_RECOVERIES} times" if given_up else str(error)
    return {"type": "internal_error", "message": message}


def _find_path(name: str) -> str:
    """The path of a recorded call that is not a child's start."""
    call, space, path = name.partition(" ")
    return path if space and call in CALLS else name


def _path_of(call: EngineCall, owners: Sequence[str]) -> str:
    """The path of a recorded call; that of a child's start is in the child's id."""
    if call.name != RUN:
        return _find_path(call.name)
    child = str(call.child_id)
    return next((child[len(owner) + 1 :] for owner in owners if child.startswith(f"{owner}/")), child)


def _is_within(path: str, step: str) -> bool:
    """Whether a durable call belongs to a step: itself, its choice, a further try, a nested one."""
    return path == step or (path.startswith(step) and path[len(step)] in "/@.#")


def _list_tops(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.split("/")[0].split("@")[0] for path in paths))
