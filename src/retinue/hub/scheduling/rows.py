"""What schedules and triggers have in common where they are added and listed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from retinue.core.call import Principal
from retinue.core.errors import (
    InvalidParametersError,
    NotAllowedError,
    Problem,
    RetinueError,
    UnknownRunError,
    UnknownScheduleError,
)
from retinue.hub.run_access import reject_limited
from retinue.hub.scheduling.firing import Firing, Stored, command_to_add, default_name, describe
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.values import StrictModel
from retinue.workflows.schedules import LastFiring, StoredSchedule
from retinue.workflows.triggers import StoredTrigger

if TYPE_CHECKING:  # with the database libraries, which a process without runs does not load
    from retinue.workflows.durable.tables.revised import RevisedTable

Json = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

PAUSED_BY = "paused by "
"""The beginning of the reason of a pause that a person has ordered."""

_Rule = TypeVar("_Rule", bound=StrictModel)
_Row = TypeVar("_Row", StoredSchedule, StoredTrigger)


class RowBook(ABC, Generic[_Row]):
    """The rows of one table, to which a caller has access as to the runs of their owners.

    ``exists`` = whether there may be any.
    """

    def __init__(
        self,
        open_table: Callable[[], Awaitable[RevisedTable[_Row]]],
        firing: Firing,
        exists: Callable[[], bool],
    ) -> None:
        self._open_table: Callable[[], Awaitable[RevisedTable[_Row]]] = open_table
        self._firing = firing
        self._access = firing.starter.access
        self._exists = exists

    async def list_all(self, principal: Principal) -> list[Json]:
        """The rows that a caller has access to, each with what happened last."""
        reject_limited(principal)
        if not self._exists():
            return []
        table = await self._open_table()
        home = await table.read_home()
        return [
            await self._render(row, principal, home=home)
            for row in await table.list_all()
            if self._may_access(principal, row)
        ]

    async def has(self, principal: Principal, name: str) -> bool:
        """Whether the caller has a row of this name itself."""
        return (
            self._exists()
            and await (await self._open_table()).find(self._access.stored_id(name, principal)) is not None
        )

    async def _get(self, table: RevisedTable[_Row], principal: Principal, name: str) -> _Row:
        for stored_id in self._access.list_stored_ids(name, principal):
            row = await table.find(stored_id)
            if row is not None and self._may_access(principal, row):
                return row
        raise UnknownScheduleError(name)

    def _may_access(self, principal: Principal, row: _Row) -> bool:
        return self._access.may_act_for(principal, row.owner.id, row.owner.scopes)

    @abstractmethod
    async def _render(self, row: _Row, principal: Principal, *, home: str = "") -> Json:
        """The row as its caller sees it, with the problem of a row of this state folder, named ``home``."""


def make_name(workflow: str, name: str | None) -> str:
    """The name of a schedule: ``name``, or one made of the workflow's; raises InvalidParametersError."""
    if name is None:
        name = default_name(workflow)
    if _NAME.fullmatch(name) is None:
        form = "1 to 64 letters, digits, and . _ - after the first"
        raise InvalidParametersError([Problem("name", f"field 'name' is no name of a schedule: {form}")])
    return name


def read_rule(model: type[_Rule], value: Mapping[str, Any], field: str) -> _Rule:
    """The rule in a parameter of this name; raises InvalidParametersError with the keys that are wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = []
        for fault in error.errors(include_url=False):
            path = ".".join([field, *map(str, fault["loc"])])
            text = str(fault["ctx"]["error"]) if fault["type"] == "value_error" else str(fault["msg"])
            problems.append(Problem(path, f"{path}: {text}"))
        raise InvalidParametersError(problems) from None


def check_input(definition: Definition, value: Any) -> None:
    """Raises InvalidParametersError where the input of a schedule does not fit the workflow."""
    schema = compile_schema(definition.input or {}, f"the input of {definition.name}")
    if problems := schema.problems(definition.complete_input(value)):
        raise InvalidParametersError(
            [
                Problem(
                    f"schedule.input.{problem.path}".rstrip("."),
                    f"schedule.input: {problem.message}",
                    problem.hint,
                )
                for problem in problems
            ]
        )


def refuse_ended(firing: Firing, stored: Stored) -> None:
    """Raises NotAllowedError where the rights of the owner have ended."""
    if reason := firing.check_owner(stored.owner):
        raise NotAllowedError(
            f"schedule {stored.name} acts for {stored.owner.id}: {reason}",
            remedy=f"add it again, with your own rights and its options: {command_to_add(stored)}",
        )


async def find_problem(firing: Firing, stored: Stored) -> str:
    """Why a schedule or trigger would start nothing now; "" for no reason."""
    try:
        if reason := firing.check_owner(stored.owner):
            return reason
        await firing.load(stored)
    except RetinueError as error:
        return describe(error)
    return ""


async def render_last(firing: Firing, last: LastFiring, principal: Principal) -> Json:
    """What happened last, and what has become of the run."""
    row: Json = {"status": last.what}
    if last.reason:
        row["reason"] = last.reason
    if last.run is None:
        return row
    row["run"] = firing.starter.access.shown_id(last.run, principal)
    if last.what == "started":
        try:
            record = await firing.starter.runs.get(last.run)
        except UnknownRunError:
            return row | {"status": "deleted"}
        row["status"] = record.status
        if record.fault is not None:
            row["reason"] = record.fault.message
    return row
