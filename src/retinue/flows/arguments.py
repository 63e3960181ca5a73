"""Arguments of steps as JSON, in a form that is the same in each process."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from retinue.core.errors import InvalidParametersError, InvalidSettingError, Problem


def to_json(value: Any) -> Any:
    """Arguments as JSON; an object that has no such form is named by its type.

    Bytes are base64 text. Sets are lists in the order of their JSON, because the order of a set differs
    between processes.
    """
    made = to_jsonable_python(
        value,
        by_alias=True,
        bytes_mode="base64",
        fallback=lambda given: f"<{type(given).__qualname__}>",
    )
    return _sort_sets(value, made)


def arguments_as_json(skill: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a skill; raises InvalidParametersError for a value that JSON cannot represent."""
    given = dict(arguments)
    try:
        made: dict[str, Any] = _sort_sets(given, to_jsonable_python(given, by_alias=True))
    except (PydanticSerializationError, UnicodeDecodeError) as error:
        raise InvalidParametersError(
            [Problem("", f"an argument of {skill} is no JSON value: {error}")]
        ) from error
    return made


def refuse_iterators(function: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Raise InvalidSettingError for an argument that can be read once only: the digest would exhaust it."""
    for name, value in [*((f"{n}", value) for n, value in enumerate(args, 1)), *named.items()]:
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
    return next((iterator for one in inner if (iterator := _find_iterator(one)) is not None), None)


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
        return {key: _sort_sets(one, form) for (key, form), one in pairs}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        names: dict[str, str] = {field.serialization_alias or name: name for name, field in fields}
    else:
        names = {}
    return {
        key: _sort_sets(getattr(value, str(names.get(key, key)), None), form) for key, form in made.items()
    }
