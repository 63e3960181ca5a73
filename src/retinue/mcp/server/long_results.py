"""Results that are too long for a model's context: kept for a while and offered as a resource.

The client gets the beginning and a link. Only the caller can read the resource behind the link.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache

from retinue.core.call import Part, Principal
from retinue.mcp.codec.content import render_part, render_text

SHOWN_CHARS = 2_000
"""Characters of a long result that are returned at once."""

KEPT_S = 600.0
MAX_KEPT = 256
MAX_KEPT_CHARS = 32 * 1024 * 1024

SCHEME = "result:"


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: Principal
    text: str
    mime: str


class LongResults:
    """The long results of one server; ``max_chars`` bounds one tool result."""

    def __init__(self, max_chars: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_chars = max_chars
        self._kept: TTLCache[str, _Kept, float] = TTLCache(MAX_KEPT_CHARS, KEPT_S, clock, _count_chars)

    def shorten(self, result: dict[str, Any], owner: Principal) -> dict[str, Any]:
        """The result, or its beginning and a link."""
        content = result["content"]
        if len(content) != 1 or content[0]["type"] != "text" or result.get("isError"):
            return result
        text: str = content[0]["text"]
        if len(text) <= self._max_chars:
            return result
        is_json = "structuredContent" in result
        uri = self._keep(owner, text, "application/json" if is_json else "text/plain")
        note = f"… ({len(text):,} characters in all; the whole is the resource {uri}, kept for a while)"
        link = Part.link(uri, "the whole result", "application/json" if is_json else "text/plain")
        return {"content": [render_text(text[:SHOWN_CHARS]), render_text(note), render_part(link)]}

    def find(self, uri: str, reader: Principal) -> Part | None:
        """The whole result under this URI; None when there is none for this reader."""
        kept = self._kept.get(uri) if uri.startswith(SCHEME) else None
        if kept is None or (kept.owner.id, kept.owner.kind) != (reader.id, reader.kind):
            return None
        return Part.resource(uri, kept.text, kept.mime)

    def _keep(self, owner: Principal, text: str, mime: str) -> str:
        uri = f"{SCHEME}{secrets.token_urlsafe(16)}"
        with suppress(ValueError):  # larger than the whole cache
            self._kept[uri] = _Kept(owner, text, mime)
        return uri


def _count_chars(kept: _Kept) -> int:
    """The size of an entry; a minimum size bounds the number of entries to ``MAX_KEPT``."""
    return max(len(kept.text), MAX_KEPT_CHARS // MAX_KEPT)
