"""Lets a language model work on a prompt, as the step ``think`` of a workflow in YAML does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from retinue.authoring.forms import make_form
from retinue.core.errors import InvalidSettingError, RetinueError, StepFailedError
from retinue.flows.steps import Perform
from retinue.workflows.definitions.definition import Retry
from retinue.workflows.definitions.think import Think
from retinue.workflows.interpreter.frame import Frame
from retinue.workflows.interpreter.think.steps import think
from retinue.workflows.runs.records import Fault, as_json


def make_think(
    prompt: str, into: Any, retry: Retry | None, options: Mapping[str, Any]
) -> tuple[Think, Perform[Any]]:
    """The step, and how it is made; ``options`` are keys of the step in YAML. Raises InvalidSettingError."""
    schema, read = (None, None) if into is None else make_form(into)
    think_options = _read_options({"prompt": prompt, "output": schema, **options})

    async def perform(frame: Frame, path: str) -> Any:
        result = await think(frame, think_options, path, retry)
        if read is None:
            return result.output
        try:
            return read(result.output)
        except RetinueError as error:
            raise StepFailedError(path, None, as_json(Fault.from_error(error))) from error

    return think_options, perform


def _read_options(options: Mapping[str, Any]) -> Think:
    present = {key: _as_plain(value) for key, value in options.items() if value is not None}
    try:
        return Think.model_validate(present)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidSettingError(
            "run.think", f"{where}: {problem}", remedy="correct the argument"
        ) from error


def _as_plain(value: Any) -> Any:
    """Mappings and sequences as the grammar takes them."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
