"""Headers and JSON of requests for artifacts: byte ranges, file names, rows of lists (specification 10.8)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from retinue.core.artifact_links import render_link

NAME_HEADER: Final = "x-retinue-name"
"""The file name of an upload, percent-encoded."""

RUN_HEADER: Final = "x-retinue-run"
"""The run, or the chain of calls, that an upload is part of."""

DIGEST_HEADER: Final = "x-retinue-digest"
"""The digest that the content must have."""

MAX_RUN_CHARACTERS: Final = 256

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


class ByteRange(NamedTuple):
    """Bytes from ``start`` up to, not including, ``end``."""

    start: int
    end: int


def parse_range(text: str | None, size_bytes: int) -> ByteRange | None:
    """The range that a request asks for; None to send everything, as for several ranges at once.

    A range beyond the content has no byte (RFC 9110, section 14).
    """
    match = _RANGE.fullmatch((text or "").strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        return ByteRange(max(0, size_bytes - int(match[2])), size_bytes)
    start = int(match[1])
    if match[2] and int(match[2]) < start:
        return None
    last = int(match[2]) if match[2] else size_bytes - 1
    return ByteRange(start, min(last + 1, size_bytes))


def is_satisfiable(byte_range: ByteRange, size_bytes: int) -> bool:
    """Whether a range has a byte of the content; otherwise the answer is 416."""
    return byte_range.start < min(byte_range.end, size_bytes)


def foreign_headers(digest: str, name: str | None) -> dict[str, str]:
    """The headers of a foreign file: browsers store it, and neither show nor run it."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name or "")[-100:] or "artifact"
    exact = "" if name is None else f"; filename*=UTF-8''{quote(name, safe='')}"
    return {
        "accept-ranges": "bytes",
        "etag": f'"{digest}"',
        "cache-control": "private, no-cache",
        "content-disposition": f'attachment; filename="{plain}"{exact}',
        "content-security-policy": "default-src 'none'; sandbox",
        "cross-origin-resource-policy": "same-origin",
        "x-content-type-options": "nosniff",
    }


def is_matching(condition: str | None, digest: str) -> bool:
    """Whether an ``If-None-Match`` names the content."""
    tags = (condition or "").split(",")
    return any(tag.strip().removeprefix("W/") in (f'"{digest}"', "*") for tag in tags)


def render_row(
    digest: str,
    size_bytes: int,
    media_type: str,
    name: str | None,
    *,
    stored_at: float,
    saved_at: float | None,
    callers: tuple[str, ...],
) -> dict[str, Any]:
    """One row of a list: the link, times in seconds since 1970, and who saved it."""
    link = render_link(digest, size_bytes, media_type, name)
    return {**link, "stored_at": stored_at, "saved_at": saved_at, "callers": list(callers)}


def render_content_range(byte_range: ByteRange, size_bytes: int) -> str:
    """The ``Content-Range`` of a part."""
    return f"bytes {byte_range.start}-{byte_range.end - 1}/{size_bytes}"


def parse_size(headers: Mapping[str, str]) -> int | None:
    """The size of a whole content, from the headers of its part or of all of it; None if they do not say."""
    total = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
    return int(total) if total.isdecimal() and len(total) < 16 else None
