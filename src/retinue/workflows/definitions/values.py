"""The values of the grammar: lengths of time with their unit, texts and names; and the base of its models."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints, WithJsonSchema

MAX_DURATION_S = 7 * 24 * 3600.0

MAX_TIMER_S = 3_650 * 24 * 3600.0
"""The longest timer, about ten years."""


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h|d)")

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str, most_s: float = MAX_DURATION_S) -> float:
    """The seconds of ``250ms``, ``30s``, ``5m``, ``1h`` or ``2d``, at most ``most_s``; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no duration: write a number with a unit, as in 250ms, 30s, 5m, 1h or 2d"
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= most_s:
        raise ValueError(f"{text!r} is out of range: more than 0, at most {most_s / 3600:.0f}h")
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


def _check_timer(text: str) -> str:
    parse_duration(text, MAX_TIMER_S)
    return text


DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION.pattern}$"}

TimerDuration = Annotated[
    str,
    BeforeValidator(_refuse_bare_number),
    AfterValidator(_check_timer),
    WithJsonSchema(DURATION_SCHEMA),
]
"""A length of time that may be longer than 7 days."""

Duration = Annotated[
    str,
    BeforeValidator(_refuse_bare_number),
    AfterValidator(_check_duration),
    WithJsonSchema(DURATION_SCHEMA),
]
"""A length of time as authored, with its unit."""


STEP_ID = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")

StepId = Annotated[str, StringConstraints(pattern=STEP_ID.pattern)]

Text = Annotated[str, StringConstraints(max_length=10_000)]

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class StrictModel(BaseModel):
    """The common rules of all models of the grammar: no unknown keys, no conversion, no changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)
