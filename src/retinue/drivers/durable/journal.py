"""The recorded calls of a run, out of the engine's own rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from retinue.core.errors import UnknownRunError, UnknownStepError
from retinue.drivers.durable.context import CALLS, find_path
from retinue.drivers.durable.database import RunDatabase
from retinue.drivers.durable.engine import RUN
from retinue.drivers.durable.records import Found, RunReader
from retinue.workflows.run_records import StepOutcome, StepRecord


class Journal:
    """Reads what the runs in a database have recorded."""

    def __init__(self, database: RunDatabase, reader: RunReader) -> None:
        self._database = database
        self._reader = reader

    async def list_steps(self, found: Found) -> tuple[StepRecord, ...]:
        """The outcomes of a run and of all below it, as `Runs.list_steps`."""
        return tuple([step async for step in self._iterate_steps(found, found.root)])

    async def get_first_call(self, found: Found, step: str) -> int:
        """The number of the first call of a step; raises UnknownStepError."""
        calls = await self._list_calls(found)
        number = next((number for number, path in calls if _is_within(path, step)), None)
        if number is None:
            raise UnknownStepError(step, known=_list_tops(path for _, path in calls))
        return number

    async def _list_calls(self, found: Found) -> list[tuple[int, str]]:
        """The recorded calls of a run: number and path."""
        client, run_id = self._database.client, found.record.id
        steps = await self._database.ask(lambda: client.list_workflow_steps(run_id, load_output=False))
        owners = await self._list_ancestors(found)
        return [(step["function_id"], _path_of(step, owners)) for step in steps]

    async def _list_ancestors(self, found: Found) -> list[str]:
        """A run and those that it was forked from: children keep the name that they were started with."""
        ids = [found.record.id]
        while found.record.forked_from is not None and found.record.forked_from not in ids:
            ids.append(found.record.forked_from)
            try:
                found = await self._reader.get(found.record.forked_from)
            except UnknownRunError:
                break
        return ids

    async def _iterate_steps(self, found: Found, root: str) -> AsyncIterator[StepRecord]:
        client, run_id = self._database.client, found.record.id
        below = run_id[len(root) :].lstrip("/")
        children = []
        for step in await self._database.ask(lambda: client.list_workflow_steps(run_id)):
            name = step["function_name"]
            if name == RUN:
                children.append(str(step["child_workflow_id"]))
            elif name.partition(" ")[0] not in CALLS or name.startswith("receive "):
                path = "/".join(part for part in (below, find_path(name)) if part)
                yield StepRecord(run_id, path, StepOutcome.from_json(step["output"] or {}))
        for child in (await self._reader.find(children)).values() if children else ():
            async for record in self._iterate_steps(child, child.root):
                yield record


def _path_of(step: Mapping[str, Any], owners: Sequence[str]) -> str:
    """The path of a recorded call; that of a child's start is in the child's id."""
    if step["function_name"] != RUN:
        return find_path(step["function_name"])
    child = str(step["child_workflow_id"])
    return next((child[len(owner) + 1 :] for owner in owners if child.startswith(f"{owner}/")), child)


def _is_within(path: str, step: str) -> bool:
    """Whether a durable call belongs to a step: itself, its choice, a further try, a nested one."""
    return path == step or (path.startswith(step) and path[len(step)] in "/@.#")


def _list_tops(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path.split("/")[0].split("@")[0] for path in paths))
