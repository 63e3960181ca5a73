"""Pure questions about JSON values, which the codecs share: how deep it is, and how to name its shape."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 128
"""Levels of nesting in what a stranger sent: orjson reads 1,024 but writes only 254."""


def is_nested_deeper(raw: bytes, value: Any, max_depth: int = MAX_DEPTH) -> bool:
    """Whether ``value``, decoded from ``raw``, has more than ``max_depth`` levels of lists and objects."""
    # Counting brackets bounds the depth in a microsecond; only a text with more is walked.
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
    """The shape of a JSON value in words, for messages to people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int | float):
        return "a number"
    return "a list" if isinstance(value, list) else "an object"
