"""Pure: which answers of a registry are weather, to be waited out, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_S = 3600.0
DEFAULT_RETRY_AFTER_S = 5.0

_PASSING = frozenset({408, 500, 502, 503, 504})
"""Answers that are likely to be others in a moment; the request may have been acted upon."""


def is_weather(status: int, *, repeatable: bool) -> bool:
    """Whether to ask again: after 429 always, for nothing was done; after a server's failure only
    where asking twice does no harm."""
    return status == 429 or (repeatable and status in _PASSING)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds to wait by ``retry-after``, a number or an HTTP date, at most an hour; None when unsaid."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    wait_s = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(0.0, wait_s), MAX_RETRY_AFTER_S)
