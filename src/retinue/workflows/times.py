"""Reads and renders points in time as RFC 3339 texts; in the code they are seconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def parse_time(text: str) -> float:
    """The seconds since 1970 of an RFC 3339 time such as ``2026-12-01T08:00:00+01:00``; raises ValueError."""
    if _TIME.fullmatch(text) is None:
        raise ValueError(
            f"{text[:80]!r} is no time: write it with a time zone, as in 2026-12-01T08:00:00+01:00 or "
            "2026-12-01T07:00:00Z"
        )
    try:
        return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time: {error}") from None


def render_time(at: float) -> str:
    """A time in UTC to the second, as in ``2026-12-01T07:00:00Z``."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
