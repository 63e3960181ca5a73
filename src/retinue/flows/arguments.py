"""Arguments of steps as JSON, in a form that is the same in each process."""

from __future__ import annotations

import dataclasses
import inspect
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from retinue.core.errors import InvalidParametersError, InvalidSettingError, Problem
from retinue.core.json_values import find_nonfinite


def to_json(value: Any) -> Any:
    """Arguments as JSON; an object that has no such form is named by its type.

    Bytes are base64 text. Sets are lists in the order of their JSON, because the order of a set differs
    between processes.
    """
    made = to_jsonable_python(
        value,
        by_alias=True,
        bytes_mode="base64",
        fallback=lambda unknown: f"<{type(unknown).__qualname__}>",
    )
    return _sort_sets(value, made)


def arguments_as_json(skill: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a skill; raises InvalidParametersError for a value that JSON cannot represent."""
    if not isinstance(arguments, Mapping):
        shape = type(arguments).__name__
        raise InvalidParametersError(
            [Problem("", f"the arguments of {skill} are a {shape}, and not a mapping")]
        )
    copied = dict(arguments)
    # NaN becomes null in the JSON form
    if (problem := find_nonfinite(copied)) is not None:
        raise InvalidParametersError([problem])
    try:
        made: dict[str, Any] = _sort_sets(copied, to_jsonable_python(copied, by_alias=True))
    except ValueError as error:  # of pydantic, of UTF-8, or about a container in itself
        name = next((name for name, value in copied.items() if not _is_json(value)), "")
        problem = Problem(name, f"argument {name} of {skill} is no JSON value: {error}")
        raise InvalidParametersError([problem]) from error
    return made


def _is_json(value: Any) -> bool:
    try:
        to_jsonable_python(value, by_alias=True)
    except ValueError:
        return False
    return True


def check_function(function: Any) -> None:
    """Raise InvalidSettingError for what ``run.step`` cannot call."""
    if callable(function):
        return
    if inspect.iscoroutine(function):
        function.close()  # else Python warns that nobody awaited it
    raise InvalidSettingError(
        "run.step",
        f"{type(function).__name__} is no function",
        remedy="give the function and its arguments apart: run.step(upload, reviews)",
    )


def check_text(method: str, name: str, value: Any) -> None:
    """Raise InvalidSettingError for an argument of a method of `Run` that is no text."""
    if not isinstance(value, str):
        raise InvalidSettingError(
            f"run.{method}", f"{name} is {value!r:.80}, and not a text", remedy="give a text"
        )


def check_seconds(method: str, name: str, value: Any) -> None:
    """Raise InvalidSettingError for a time limit of a method of `Run` that is no number above 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < inf:
        problem = f"{name} is {value!r:.80}, and not a number of seconds above 0"
        raise InvalidSettingError(f"run.{method}", problem, remedy=f"write {name}=30")


def check_own_arguments(function: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise InvalidSettingError for an argument of an own function that is not recorded as it is.

    An iterator can be read once only, and the digest would exhaust it. NaN is no JSON.
    """
    for name, value in [*((f"{n}", value) for n, value in enumerate(args, 1)), *named.items()]:
        if (problem := find_nonfinite(value)) is not None:
            raise InvalidSettingError(
                f"argument {name} of run.step({function})", problem.message, remedy="give null or a text"
            )
        if (iterator := _find_iterator(value)) is not None:
            raise InvalidSettingError(
                f"argument {name} of run.step({function})",
                f"a {type(iterator).__name__} can be read only once, and its values are not recorded",
                remedy="give a list: list(…)",
            )


def _find_iterator(value: Any) -> Iterator[Any] | None:
    if isinstance(value, Iterator):
        return value
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple | deque):
        inner = list(value)
    elif isinstance(value, BaseModel):
        inner = list(value.__dict__.values())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        return None
    return next((iterator for element in inner if (iterator := _find_iterator(element)) is not None), None)


def _sort_sets(value: Any, made: Any) -> Any:
    """The JSON ``made`` of a value, with the list of each set in it sorted."""
    if isinstance(made, list):
        if not isinstance(value, list | tuple | deque | set | frozenset) or len(value) != len(made):
            return made
        items = [_sort_sets(one, form) for one, form in zip(value, made, strict=True)]
        if isinstance(value, set | frozenset):
            items.sort(key=lambda form: orjson.dumps(form, option=orjson.OPT_SORT_KEYS))
        return items
    if not isinstance(made, dict):
        return made
    if isinstance(value, Mapping):
        if len(value) != len(made):
            return made
        pairs = zip(made.items(), value.values(), strict=True)
        return {key: _sort_sets(inner, form) for (key, form), inner in pairs}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        names: dict[str, str] = {field.serialization_alias or name: name for name, field in fields}
    else:
        names = {}
    return {
        key: _sort_sets(getattr(value, str(names.get(key, key)), None), form) for key, form in made.items()
    }
