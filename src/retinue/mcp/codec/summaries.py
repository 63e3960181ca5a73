"""Pure: summarises values and content blocks that are too long for a model's context.

A summary keeps the form of its value: long texts are cut, and of long lists and objects the first entries
stay. So a summary usually fits the schema of the whole value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from retinue.mcp.codec.content import text_of

_LIMITS = ((2_000, 100), (1_000, 40), (400, 15), (150, 6), (60, 2), (20, 1))
"""Characters of a text and entries of a list, tried in this order until the summary is short enough."""

_LEAST_KEYS = 20
"""Entries of an object are seldom many, and a schema may require them."""

MAX_NOTES = 5


@dataclass(slots=True)
class Summary:
    """A summary; ``left_out`` describes the omissions, such as ``agents: 10 of 120 entries``."""

    value: Any = None
    left_out: list[str] = field(default_factory=list)


def summarise(value: Any, max_chars: int) -> Summary | None:
    """A summary of at most ``max_chars`` characters of JSON; None where none is that short."""
    if isinstance(value, str):
        cut = [_count("", max_chars, len(value), "characters")] if len(value) > max_chars else []
        return Summary(value[:max_chars], cut)
    for chars, entries in _LIMITS:
        summary = Summary()
        summary.value = _shorten(value, chars, entries, "", summary.left_out)
        if len(orjson.dumps(summary.value, option=orjson.OPT_INDENT_2)) <= max_chars:
            return summary
    return None


def summarise_blocks(blocks: Sequence[Mapping[str, Any]], max_chars: int) -> list[dict[str, Any]]:
    """The blocks with their texts cut to ``max_chars`` characters in all; other blocks stay."""
    left = max_chars
    shown: list[dict[str, Any]] = []
    for block in blocks:
        text = text_of(block)
        if text is None:
            shown.append(dict(block))
        elif left > 0:
            shown.append(_with_text(block, text[:left]))
            left -= len(text)
    return shown


def _with_text(block: Mapping[str, Any], text: str) -> dict[str, Any]:
    if block["type"] == "text":
        return {**block, "text": text}
    return {**block, "resource": {**block["resource"], "text": text}}


def _shorten(value: Any, chars: int, entries: int, path: str, left_out: list[str]) -> Any:
    if isinstance(value, str) and len(value) > chars:
        left_out.append(_count(path, chars, len(value), "characters"))
        return value[: chars - 1] + "…"
    if isinstance(value, Mapping):
        keys = max(entries, _LEAST_KEYS)
        if len(value) > keys:
            left_out.append(_count(path, keys, len(value), "entries"))
        return {
            key: _shorten(item, chars, entries, f"{path}.{key}" if path else str(key), left_out)
            for key, item in islice(value.items(), keys)
        }
    if isinstance(value, list | tuple):
        if len(value) > entries:
            left_out.append(_count(path, entries, len(value), "entries"))
        return [
            _shorten(item, chars, entries, f"{path}[{index}]", left_out)
            for index, item in enumerate(value[:entries])
        ]
    return value


def _count(path: str, shown: int, total: int, unit: str) -> str:
    return f"{path}: {shown:,} of {total:,} {unit}" if path else f"{shown:,} of {total:,} {unit}"


def describe_left_out(summary: Summary) -> str:
    """The first entries of ``left_out`` as one line; those nearest to the root come first."""
    nearest = sorted(summary.left_out, key=lambda path: path.count(".") + path.count("["))
    more = [f"and {len(nearest) - MAX_NOTES} more"] if len(nearest) > MAX_NOTES else []
    return "; ".join([*nearest[:MAX_NOTES], *more])
