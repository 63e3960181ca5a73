"""Lengths of time as a definition spells them: a number with its unit."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

MAX_DURATION_S = 7 * 24 * 3600.0

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """The seconds of ``250ms``, ``30s``, ``5m`` or ``1h``; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a number with a unit, as in 250ms, 30s, 5m or 1h")
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is out of range: more than 0, at most 168h")
    return seconds


def render_duration(seconds: float) -> str:
    """Seconds in the spelling of the grammar, as in ``90s``; exact to the microsecond of a unit."""
    text = f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"{text}s"


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


def _refuse_bare_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit: write {value}s, {value}m or {value}ms")
    return value


Duration = Annotated[str, BeforeValidator(_refuse_bare_number), AfterValidator(_check_duration)]
"""A length of time as authored, with its unit."""
