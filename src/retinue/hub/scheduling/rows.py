"""What schedules and triggers have in common where they are added and listed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from retinue.core.call import Principal
from retinue.core.errors import (
    InvalidParametersError,
    NotAllowedError,
    Problem,
    RetinueError,
    UnknownRunError,
)
from retinue.hub.scheduling.firing import Firing, Stored, command_to_add, default_name, describe
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.values import StrictModel
from retinue.workflows.schedules import LastFiring

Json = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

PAUSED_BY = "paused by "
"""The beginning of the reason of a pause that a person has ordered."""

_Rule = TypeVar("_Rule", bound=StrictModel)


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
