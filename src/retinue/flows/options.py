"""Options of steps: their forms as authors write them, and the options of one step of an own function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from pydantic import ValidationError

from retinue.core.errors import InvalidSettingError
from retinue.flows.steps import PlannedStep
from retinue.workflows.definitions.definition import Retry, Step
from retinue.workflows.definitions.values import render_duration

P = ParamSpec("P")
T = TypeVar("T")


class StepOptions:
    """The options of one step of an own function; made by `Run.options`. ``plan`` makes the step."""

    def __init__(
        self, plan: Callable[..., PlannedStep[Any]], name: str | None, retry: Retry | None, timeout_s: float
    ) -> None:
        self.name = name
        self.retry = retry
        self.timeout_s = timeout_s
        self._plan = plan

    @overload
    def step(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **named: P.kwargs
    ) -> PlannedStep[T]: ...

    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> PlannedStep[T]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> PlannedStep[Any]:
        """As `Run.step`."""
        return self._plan(self, function, args, named)


def make_step(method: str, path: str, keys: Mapping[str, Any]) -> Step:
    """The step of a method of `Run` with these keys of the grammar; raises InvalidSettingError."""
    try:
        return Step.model_validate({"id": path, **keys})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        text = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise InvalidSettingError(
            f"run.{method}", f"{where}: {text}", remedy="correct the arguments"
        ) from error


def read_time(timeout: str | float) -> str:
    """A duration as the grammar takes it."""
    return timeout if isinstance(timeout, str) else render_duration(timeout)


def read_retry(retry: int | Retry | None) -> Retry | None:
    """The attempts of a step; raises InvalidSettingError for another number than 1 to 20."""
    if isinstance(retry, Retry) or retry is None:
        return retry
    try:
        return Retry(attempts=retry)
    except ValidationError as error:
        raise InvalidSettingError(
            "retry", f"{retry!r} is no number of attempts", remedy="give 1 to 20"
        ) from error
