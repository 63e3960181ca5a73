"""Pure: renders parameters of path, query, header and cookie in the styles of OpenAPI.

The values between the delimiters of a style are percent-encoded, so that a value with a comma in it arrives
whole (RFC 6570; OpenAPI 3.1.1, 4.8.12 and appendix E). Only headers are not encoded. What the styles leave
open: arrays and objects inside ``deepObject`` are written as PHP, Rails and qs read them, ``a[b][]=1``, and
``a[b][0][c]=1`` for objects in an array; inside the other styles of a query the whole value is JSON text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, unquote

import orjson

from retinue.core.errors import InvalidParametersError, Problem
from retinue.core.json_values import name_shape

Place = Literal["path", "query", "header", "cookie"]

STYLES: Final[Mapping[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place; the first is its default."""

_RESERVED = ":/?#[]@!$&'()*+,;="
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_MAX_NESTING = 8
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operation, and the ``argument`` of the skill that gives its value.

    ``as_json``: the value is sent as JSON text (a parameter with ``content``).
    """

    argument: str
    name: str
    place: Place
    required: bool = False
    style: str = "form"
    explode: bool = True
    allow_reserved: bool = False
    as_json: bool = False


def render_path_value(parameter: Parameter, value: Any) -> str:
    """The text that replaces ``{name}`` in a path. Raises InvalidParametersError.

    A value that would lead to another path, such as "" or "..", is refused.
    """
    text = _render_path(parameter, value)
    if not text.strip("."):
        shape = "an empty value" if not text else f"{text!r}"
        raise _problem(parameter, f"{shape} would lead to another path: give the name or id that is meant")
    return text


def render_query_fields(parameter: Parameter, value: Any) -> list[str]:
    """The parts of a query string, each ``name=value``; none for null and for an empty array or object."""
    if value is None:
        return []
    if parameter.as_json or (parameter.style != "deepObject" and _is_nested(value)):
        return [f"{_encode(parameter, parameter.name)}={_encode(parameter, _as_json(parameter, value))}"]
    if isinstance(value, list | dict) and not value:
        return []
    name = _encode(parameter, parameter.name)
    if parameter.style == "deepObject" and isinstance(value, list | dict):
        return _render_deep(parameter, name, value, 0)
    if isinstance(value, list):
        if parameter.explode:
            return [f"{name}={_encode_value(parameter, item)}" for item in value]
        return [f"{name}={_join(parameter, value)}"]
    if isinstance(value, dict):
        if parameter.explode:
            return [
                f"{_encode(parameter, key)}={_encode_value(parameter, item)}" for key, item in value.items()
            ]
        return [f"{name}={_join(parameter, [part for pair in value.items() for part in pair])}"]
    return [f"{name}={_encode_value(parameter, value)}"]


def render_header_value(parameter: Parameter, value: Any) -> str:
    """The text of a header in the style ``simple``. Raises InvalidParametersError for line breaks."""
    if parameter.as_json:
        text = _as_json(parameter, value)
    elif isinstance(value, list):
        text = ",".join(_scalar(parameter, item) for item in value)
    elif isinstance(value, dict):
        joint = "=" if parameter.explode else ","
        text = ",".join(f"{key}{joint}{_scalar(parameter, item)}" for key, item in value.items())
    else:
        text = _scalar(parameter, value)
    if _CONTROLS.search(text):
        raise _problem(parameter, "it has a line break or control character: a header holds one line")
    if not text.isascii():
        raise _problem(parameter, "it has a character that is not ASCII: a header holds ASCII only")
    return text.strip()


def _render_path(parameter: Parameter, value: Any) -> str:
    prefix = {"label": ".", "matrix": ";"}.get(parameter.style, "")
    name = _encode(parameter, parameter.name)
    if parameter.as_json:
        return _encode(parameter, _as_json(parameter, value))
    if isinstance(value, list):
        items = [_encode_value(parameter, item) for item in value]
        if parameter.style == "matrix":
            return (
                "".join(f";{name}={item}" for item in items)
                if parameter.explode
                else f";{name}={','.join(items)}"
            )
        return prefix + (prefix if parameter.explode and prefix else ",").join(items)
    if isinstance(value, dict):
        pairs = [(_encode(parameter, key), _encode_value(parameter, item)) for key, item in value.items()]
        if parameter.explode:
            return prefix + (prefix or ",").join(f"{key}={encoded}" for key, encoded in pairs)
        flat = ",".join(part for pair in pairs for part in pair)
        return f";{name}={flat}" if parameter.style == "matrix" else prefix + flat
    text = _encode_value(parameter, value)
    return f";{name}={text}" if parameter.style == "matrix" else prefix + text


def _is_nested(value: Any) -> bool:
    """Whether a value holds lists or objects inside, which no style but deepObject can carry."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(item, list | dict) for item in inner)


def _join(parameter: Parameter, values: list[Any]) -> str:
    """Values between the delimiters of a style that does not explode.

    The delimiters of two styles are sent encoded, so a value cannot hold them.
    """
    delimiter = _DELIMITERS.get(parameter.style, ",")
    if delimiter != "," and any(unquote(delimiter) in _scalar(parameter, item) for item in values):
        raise _problem(
            parameter, f"a value holds {unquote(delimiter)!r}, which separates values here: leave it out"
        )
    return delimiter.join(_encode_value(parameter, item) for item in values)


def _render_deep(parameter: Parameter, name: str, value: Any, depth: int) -> list[str]:
    if depth > _MAX_NESTING:
        raise _problem(parameter, f"it is nested deeper than {_MAX_NESTING} levels: send fewer")
    if isinstance(value, dict):
        if any(bracket in key for key in value for bracket in "[]"):
            raise _problem(
                parameter, "a name in it holds a bracket, which separates names here: leave it out"
            )
        parts = [(f"%5B{_encode(parameter, key)}%5D", item) for key, item in value.items()]
    elif isinstance(value, list):
        flat = not any(isinstance(item, list | dict) for item in value)
        parts = [("%5B%5D" if flat else f"%5B{at}%5D", item) for at, item in enumerate(value)]
    else:
        return [] if value is None else [f"{name}={_encode_value(parameter, value)}"]
    return [
        field for suffix, item in parts for field in _render_deep(parameter, name + suffix, item, depth + 1)
    ]


def _encode_value(parameter: Parameter, value: Any) -> str:
    return _encode(parameter, _scalar(parameter, value), parameter.allow_reserved)


def _encode(parameter: Parameter, text: str, allow_reserved: bool = False) -> str:
    try:
        # Even where reserved characters are allowed, these would end the value or the query.
        return quote(text, safe="".join(c for c in _RESERVED if c not in "&#+=[]") if allow_reserved else "")
    except UnicodeEncodeError:
        raise _problem(parameter, "it has half of a surrogate pair: send whole characters") from None


def _scalar(parameter: Parameter, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    if isinstance(value, int | float):
        return orjson.dumps(value).decode() if isinstance(value, float) else str(value)
    raise _problem(parameter, f"{name_shape(value)} inside a list or object cannot be sent here: send text")


def _as_json(parameter: Parameter, value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise _problem(parameter, f"it is no JSON: {error}") from None


def _problem(parameter: Parameter, message: str) -> InvalidParametersError:
    where = f"{parameter.argument} ({parameter.place} parameter {parameter.name})"
    return InvalidParametersError([Problem(parameter.argument, f"{where}: {message}")])
