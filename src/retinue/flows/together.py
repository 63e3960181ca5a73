"""The arguments and the results of `Run.gather` and `Run.race`."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from retinue.core.errors import CallCancelledError, InvalidSettingError
from retinue.flows.steps import PlannedStep


def check_number(option: str, number: int | None, most: int | None = None) -> None:
    """Refuse a number below 1 or above ``most``; raises InvalidSettingError."""
    if number is None or (number >= 1 and (most is None or number <= most)):
        return
    remedy = "give 1 or more" if most is None else f"give 1 to {most}, the number of steps"
    raise InvalidSettingError(option, f"it is {number}", remedy=remedy)


def choose_values(results: Sequence[Any], enough: int | None) -> list[Any]:
    """The values of all steps, or of the first in the given order that are ``enough``.

    Raises the first failure where these have failed.
    """
    values = [result for result in results if not isinstance(result, BaseException)]
    if len(values) < (len(results) if enough is None else enough):
        raise find_first_error(results)
    return values[:enough]


def name_cut_off(results: Sequence[Any], steps: Sequence[PlannedStep[Any]]) -> list[Any]:
    """The results, with a typed error for each step that was cut off before it began."""
    return [
        CallCancelledError(f"step {step.path}") if _is_cut_off(result) else result
        for result, step in zip(results, steps, strict=True)
    ]


def _is_cut_off(result: Any) -> bool:
    return isinstance(result, BaseException) and not isinstance(result, Exception)


def find_first_error(results: Sequence[Any]) -> BaseException:
    """The first failure in the given order; not that of a step that was cut off because of another."""
    errors = [result for result in results if isinstance(result, BaseException)]
    return next((error for error in errors if isinstance(error, Exception)), errors[0])


def check_steps(method: str, steps: Sequence[Any]) -> None:
    """Refuse what cannot run together; coroutines are closed, so that Python does not warn of them."""
    wrong = [step for step in steps if not isinstance(step, PlannedStep)]
    for step in steps:
        if isinstance(step, Coroutine):
            step.close()
    if wrong:
        raise InvalidSettingError(
            f"run.{method}",
            f"{type(wrong[0]).__name__} {getattr(wrong[0], '__name__', '')} is no step".replace("  ", " "),
            remedy="give run.call(…) and run.step(…) themselves; make other steps one after the other",
        )
