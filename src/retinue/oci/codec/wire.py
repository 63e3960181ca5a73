"""Error bodies, ``Link`` paging, transient errors and ``Retry-After`` of the registry protocol.

Distribution spec 1.1, "Error Codes" and "Listing Tags".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson

PAGE_SIZE_LIMIT = 1000
"""docker-registry rejects a larger ``n`` (specification 13.1)."""

MAX_DETAIL_CHARS = 300
MAX_RETRY_AFTER_S = 3600.0
DEFAULT_RETRY_AFTER_S = 5.0

ErrorCode = Literal[
    "NAME_UNKNOWN",
    "NAME_INVALID",
    "MANIFEST_UNKNOWN",
    "BLOB_UNKNOWN",
    "BLOB_UPLOAD_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "MANIFEST_INVALID",
    "MANIFEST_BLOB_UNKNOWN",
    "SIZE_INVALID",
    "UNAUTHORIZED",
    "DENIED",
    "TOOMANYREQUESTS",
    "DIGEST_INVALID",
    "TAG_INVALID",
    "PAGINATION_NUMBER_INVALID",
    "UNSUPPORTED",
    "UNKNOWN",
]


_LINK = re.compile(r"<([^<>]*)>([^,]*)")
_NEXT = re.compile(r';\s*rel\s*=\s*"?next"?\s*(?:;|$)', re.IGNORECASE)
_TRANSIENT_STATUSES = frozenset({408, 500, 502, 503, 504})
"""Statuses that are likely to change soon; the registry may have acted upon the request."""


def render_error(code: ErrorCode, message: str, detail: Any = None) -> bytes:
    """Render an error body: ``{"errors": [{"code", "message", "detail"?}]}``."""
    error: dict[str, Any] = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return orjson.dumps({"errors": [error]})


def parse_error(body: bytes) -> tuple[str, str]:
    """Code and message of the first error, either may be empty.

    The message of an invalid body is its start.
    """
    try:
        errors = orjson.loads(body).get("errors")
        first = errors[0]
        return str(first.get("code") or ""), _one_line(str(first.get("message") or ""))
    except (ValueError, AttributeError, TypeError, IndexError, KeyError):
        return "", _one_line(body[: MAX_DETAIL_CHARS * 4].decode(errors="replace"))


def parse_next_link(header: str | None) -> str | None:
    """The target of the link with ``rel="next"``, which may be relative; None on the last page."""
    for target, parameters in _LINK.findall(header or ""):
        if target and _NEXT.search(parameters):
            return str(target)
    return None


def render_next_link(target: str) -> str:
    """Render a ``Link`` header, the inverse of `parse_next_link`."""
    return f'<{target}>; rel="next"'


def is_transient(status: int, *, repeatable: bool) -> bool:
    """Whether a request is worth repeating.

    After 429 always, because the registry did nothing; after a server error only if the request is
    repeatable.
    """
    return status == 429 or (repeatable and status in _TRANSIENT_STATUSES)


def parse_retry_after(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Seconds to wait by ``retry-after`` (a number or an HTTP date), at most an hour; None when absent."""
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


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_DETAIL_CHARS]
