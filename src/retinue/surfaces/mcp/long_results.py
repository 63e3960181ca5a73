"""Results that are too long for a tool result: kept for a while, and read as a resource.

A model that is handed a megabyte of text has no room left to think. It gets the beginning and a link; the
whole is read under the link by whoever made the call, and by nobody else.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Part, Principal
from retinue.protocols.mcp.content import render_part, render_text

SHOWN_CHARS = 2_000
"""Characters of a long result that are shown at once."""

KEPT_S = 600.0
MAX_KEPT = 256
MAX_KEPT_CHARS = 32 * 1024 * 1024

SCHEME = "result:"


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: Principal
    text: str
    mime: str
    until: float


class LongResults:
    """The long results of one door; ``max_chars`` is how much one tool result may hold."""

    def __init__(self, max_chars: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_chars = max_chars
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._chars = 0

    def shorten(self, result: dict[str, Any], owner: Principal) -> dict[str, Any]:
        """The result, or its beginning and a link; one with a promised schema stays whole."""
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
        """The whole result under this uri; None when there is none for this reader."""
        kept = self._kept.get(uri) if uri.startswith(SCHEME) else None
        if (
            kept is None
            or kept.until < self._clock()
            or (kept.owner.id, kept.owner.kind)
            != (
                reader.id,
                reader.kind,
            )
        ):
            return None
        return Part.resource(uri, kept.text, kept.mime)

    def _keep(self, owner: Principal, text: str, mime: str) -> str:
        uri = f"{SCHEME}{secrets.token_urlsafe(16)}"
        self._kept[uri] = _Kept(owner, text, mime, self._clock() + KEPT_S)
        self._chars += len(text)
        while self._kept and (
            len(self._kept) > MAX_KEPT
            or self._chars > MAX_KEPT_CHARS
            or next(iter(self._kept.values())).until < self._clock()
        ):
            _, oldest = self._kept.popitem(last=False)
            self._chars -= len(oldest.text)
        return uri
