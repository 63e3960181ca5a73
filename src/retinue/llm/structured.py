"""Reads structured answers leniently: removes the text of the model around JSON or code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyjson5

_BLOCK = re.compile(r"```[^\n`]*\n(?P<inner>.*?)\n?```", re.DOTALL)
_MAX_STARTS = 200
"""Braces at which an object is looked for."""


class UnreadableAnswerError(ValueError):
    """An answer that is not of the form asked for; the text names the missing part."""


def read_object(answer: str, texts: tuple[str, ...], lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """The object in an answer, with these keys as texts and lists.

    Code fences, text around the object, trailing commas, comments and single quotes are accepted; a list
    where a text belongs is joined by lines, a text where a list belongs is split into its lines. Other keys
    are dropped. Raises UnreadableAnswerError.
    """
    problem = "it holds no JSON object"
    for candidate in _list_objects(answer):
        missing = [key for key in (*texts, *lists) if key not in candidate]
        if not missing:
            return {
                **{key: _as_text(candidate[key]) for key in texts},
                **{key: _as_list(candidate[key]) for key in lists},
            }
        problem = f"its JSON object has no {' and no '.join(missing)}"
    raise UnreadableAnswerError(problem)


def find_object(answer: str) -> dict[str, Any] | None:
    """The first JSON object in an answer; None without one."""
    return next((dict(candidate) for candidate in _list_objects(answer)), None)


def read_code(answer: str) -> str:
    """The code of an answer: its longest code block, the key ``code`` of a JSON object, else all of it."""
    blocks = [block["inner"] for block in _BLOCK.finditer(answer)]
    if blocks:
        return max(blocks, key=len)
    if answer.lstrip().startswith("{"):
        for candidate in _list_objects(answer):
            if isinstance(code := candidate.get("code"), str):
                return code
    return answer.strip()


def _list_objects(answer: str) -> Iterator[Mapping[str, Any]]:
    """The JSON objects in a text that are not part of another one."""
    for candidate in (answer, *(block["inner"] for block in _BLOCK.finditer(answer))):
        if isinstance(value := _decode(candidate.strip()), dict):
            yield value
    at = answer.find("{")
    for _ in range(_MAX_STARTS):
        if at < 0:
            return
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(answer, at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict):
                yield value
        at = answer.find("{", end)
    return


def _decode(text: str) -> Any:
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass  # the lenient reader takes more, but is not needed for most answers
    try:
        return pyjson5.decode(text)
    except (pyjson5.Json5DecoderException, RecursionError):
        return None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False, indent=2)


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines() if line.strip()]
    return [value]
