"""Pure: the small forms of the registry protocol: error bodies and ``Link`` paging.

Distribution spec 1.1, "Error Codes" and "Listing Tags".
"""

from __future__ import annotations

import re
from typing import Any, Literal

import orjson

PAGE_SIZE_LIMIT = 1000
"""docker-registry refuses a larger ``n`` (FACTS 3, B1)."""

MAX_DETAIL_CHARS = 300

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


def render_error(code: ErrorCode, message: str, detail: Any = None) -> bytes:
    """An error body: ``{"errors": [{"code", "message", "detail"?}]}``."""
    error: dict[str, Any] = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return orjson.dumps({"errors": [error]})


def parse_error(body: bytes) -> tuple[str, str]:
    """The first error's code and message, each perhaps empty; of an unreadable body its start."""
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
    """A ``Link`` header that ``parse_next_link`` reads back."""
    return f'<{target}>; rel="next"'


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_DETAIL_CHARS]
