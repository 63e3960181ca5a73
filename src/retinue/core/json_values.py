"""JSON values: lossless copies, depth limits, rendering, and names of shapes for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

import orjson

from retinue.core.errors import InvalidParametersError, OutOfMemoryError, OutputInvalidError, Problem

MAX_DEPTH = 128
"""Maximum levels of nesting in received JSON: orjson reads 1,024 but writes only 254."""

_WRITABLE_DEPTH = 254
"""Maximum levels of nesting that orjson writes."""


def decode_json(body: bytes) -> Any:
    """The value of a JSON text that was received.

    Raises ``orjson.JSONDecodeError``, and OutOfMemoryError where memory does not suffice to read it.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        # orjson says "failed to allocate memory" of a text with 200 open brackets, which is only malformed
        if "Not enough memory" in error.msg:
            raise OutOfMemoryError(f"a message of {len(body):,} bytes") from None
        raise


def copy_json(value: Any, what: str) -> Any:
    """A deep copy through JSON text; raises OutputInvalidError where JSON cannot represent the value."""
    return orjson.loads(encode_json(value, what))


def encode_json(value: Any, what: str) -> bytes:
    """The JSON text of a value; raises OutputInvalidError where JSON cannot represent it."""
    try:
        encoded = orjson.dumps(
            value, option=orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
        )
    except TypeError as error:
        problem = str(error)
        if "64-bit" in problem:
            problem = "an integer beyond 64 bits: send such a number as text"
        raise OutputInvalidError(what, [Problem("", problem)]) from None
    # orjson writes NaN and infinity as null, so they are searched for only where the text has a null.
    if b"null" in encoded and find_nonfinite(value) is not None:
        raise OutputInvalidError(what, [Problem("", "NaN and infinity are not JSON")])
    return encoded


def find_nonfinite(value: Any) -> Problem | None:
    """The problem of a NaN or an infinity in a value that orjson can write; None without one.

    The search needs the time of a walk: search only where the JSON text has a ``null``. A container is
    searched once, so that objects which hold each other come to an end.
    """
    stack: list[tuple[str, Any]] = [("", value)]
    searched: set[int] = set()
    while stack:
        path, item = stack.pop()
        if id(item) in searched:
            continue
        if isinstance(item, float) and not isfinite(item):
            name = f"{path} is {item}" if path else str(item)
            return Problem(path, f"{name}, which is not JSON: send null or a text")
        if isinstance(item, (Mapping, list, tuple)) or is_dataclass(item):
            searched.add(id(item))
        if isinstance(item, Mapping):
            stack.extend((_join(path, key), part) for key, part in item.items())
        elif isinstance(item, (list, tuple)):
            stack.extend((_join(path, place), part) for place, part in enumerate(item))
        elif is_dataclass(item) and not isinstance(item, type):
            stack.extend((_join(path, field.name), getattr(item, field.name, None)) for field in fields(item))
    return None


def find_unencodable(value: Any) -> Problem | None:
    """The problem of a part that orjson cannot write, such as a set or a mapping with numbers as keys."""
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        path, item, depth = stack.pop()
        where = f"{path} is" if path else "the value is"
        if depth > _WRITABLE_DEPTH:
            return Problem(path, f"{where} nested deeper than {_WRITABLE_DEPTH} levels")
        if isinstance(item, Mapping) and not isinstance(item, dict):
            return Problem(path, f"{where} a {type(item).__name__}, which is not JSON: send a dict")
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    return Problem(path, f"{where} a dict with the key {key!r:.80}: JSON has texts as keys")
            stack.extend((_join(path, key), part, depth + 1) for key, part in item.items())
        elif isinstance(item, (list, tuple)):
            stack.extend((_join(path, place), part, depth + 1) for place, part in enumerate(item))
        else:
            try:
                orjson.dumps(item)
            except TypeError as error:
                return Problem(path, f"{where} {_describe_unencodable(item, error)}")
    return None


def check_encodable(value: Any) -> None:
    """Raises InvalidParametersError that names the first part of ``value`` that JSON does not have."""
    problem = find_unencodable(value) or find_nonfinite(value)
    if problem is not None:
        raise InvalidParametersError([problem])


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _describe_unencodable(item: object, error: TypeError) -> str:
    if isinstance(item, int):
        return "an integer beyond 64 bits: send such a number as text"
    if isinstance(item, str):
        return "a text with half of a surrogate pair, which UTF-8 does not have"
    kind = type(item).__name__
    return f"a {kind}, which is not JSON" if "serializable" in str(error) else f"a {kind}: {error}"


def is_nested_deeper(raw: bytes, value: Any, max_depth: int = MAX_DEPTH) -> bool:
    """Whether ``value``, decoded from ``raw``, has more than ``max_depth`` levels of lists and objects."""
    # Counting brackets bounds the depth in a microsecond; only a text with more brackets is walked.
    if raw.count(b"{") + raw.count(b"[") <= max_depth:
        return False
    level = [value]
    for _ in range(max_depth):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def name_shape(value: Any) -> str:
    """The shape of a JSON value as text, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"


TEXT_KEYS = ("text", "output", "result", "answer", "response", "content", "message", "value")
"""Keys under which agents return a single text."""


def text_of(value: Any) -> str:
    """A value as text: the text itself, the single text of an object, else JSON."""
    value = unwrap(value)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def unwrap(value: Any) -> Any:
    """The value of an object with one of the ``TEXT_KEYS`` as its only key, else the value."""
    while isinstance(value, Mapping) and len(value) == 1:
        key, inner = next(iter(value.items()))
        if key not in TEXT_KEYS:
            return value
        value = inner
    return value


def find_reference(document: Any, reference: Any) -> Any:
    """The value that a reference such as ``#/$defs/Item`` means in a document; None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    target = document
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target
