"""Keeps results that are too long for a model's context, and offers them as resources.

The client gets a summary and a link. Only a caller with the same identity and rights can read the resource
behind the link. The results are kept in memory: they do not survive the process. A process of a hub with
several sends its results to the leader, which answers the reads.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache

from retinue.core.call import Outcome, Part, Principal
from retinue.core.record import Schema
from retinue.mcp.codec.content import count_characters, render_part, render_text, text_of, value_as_text
from retinue.mcp.codec.summaries import describe_left_out, summarise, summarise_blocks
from retinue.mcp.codec.tools import render_output_schema, wrap_result
from retinue.mesh.permissions import principal_key
from retinue.mesh.schema.checks import compile_schema

LEAST_SHOWN_CHARS = 2_000
SHOWN_SHARE = 4
"""A summary has at most this fraction (1/n) of the characters that a whole result may have."""

KEPT_S = 600.0
MAX_KEPT = 256
MAX_KEPT_CHARS = 32 * 1024 * 1024
MAX_RESULT_CHARS = 8 * 1024 * 1024

SCHEME = "result:"

SHORTENED_KEY = "retinue/shortened"
"""In ``_meta`` of a summary: ``uri`` of the whole (None if it was not kept) and its ``characters``."""


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: str
    parts: tuple[Part, ...]
    size_chars: int


class LongResults:
    """The long results of one process; ``max_chars`` bounds the text of one tool result.

    With ``send`` they are kept by another process, which takes them by `take`.
    """

    def __init__(
        self,
        max_chars: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        send: Callable[[Sequence[Any]], Awaitable[None]] | None = None,
    ) -> None:
        self.max_chars = max_chars
        self._send = send
        self.unsent: list[Sequence[Any]] = []
        """The results that the other process does not have yet, as `take` takes them."""
        self._shown_chars = max(LEAST_SHOWN_CHARS, max_chars // SHOWN_SHARE)
        self._kept: TTLCache[str, _Kept, float] = TTLCache(MAX_KEPT_CHARS, KEPT_S, clock, _count_chars)

    def shorten(
        self, result: dict[str, Any], outcome: Outcome, schema: Schema | None, owner: Principal
    ) -> dict[str, Any]:
        """The result, or a summary of it and a link; ``schema`` is the output schema of the skill."""
        size_chars = count_characters(result)
        if size_chars <= self.max_chars:
            return result
        is_promised = render_output_schema(schema) is not None
        value = None if outcome.parts and not is_promised else outcome.value
        summary = None if value is None else summarise(value, self._shown_chars)
        if is_promised and (summary is None or not _fits(schema, summary.value)):
            return result  # the client checks the value: it would refuse a summary of another form
        uri = self._keep(owner, result, outcome, size_chars)
        note = f"… shortened from {size_chars:,} characters"
        if outcome.parts:
            shown = summarise_blocks(result["content"], self._shown_chars)
        elif summary is None:
            shown = [render_text(value_as_text(value)[: self._shown_chars])]
        else:
            shown = [render_text(value_as_text(summary.value))]
            note += f" ({describe_left_out(summary)})"
        if uri is None:
            shown.append(render_text(f"{note}. The whole is too long to be kept: ask for less."))
        else:
            kept = f"kept for {KEPT_S / 60:g} minutes"
            shown.append(render_text(f"{note}. The whole is the resource {uri}, {kept}."))
            shown.append(render_part(Part.link(uri, "the whole result", _mime_of(outcome))))
        meta = {**result.get("_meta", {}), SHORTENED_KEY: {"uri": uri, "characters": size_chars}}
        shortened: dict[str, Any] = {"content": shown, "_meta": meta}
        structured = None if summary is None else wrap_result(schema, summary.value)
        if structured is not None:
            shortened["structuredContent"] = structured
        return shortened

    def find(self, uri: str, reader: Principal) -> tuple[Part, ...] | None:
        """The contents of the whole result under this URI; None when there is none for this reader."""
        kept = self._kept.get(uri) if uri.startswith(SCHEME) else None
        return None if kept is None or kept.owner != principal_key(reader) else kept.parts

    def _keep(
        self, owner: Principal, result: dict[str, Any], outcome: Outcome, size_chars: int
    ) -> str | None:
        if size_chars > MAX_RESULT_CHARS:
            return None
        uri = f"{SCHEME}{secrets.token_urlsafe(16)}"
        texts = [(block, text) for block in result["content"] if (text := text_of(block)) is not None]
        mime = _mime_of(outcome)
        rows = [(text, block.get("resource", {}).get("mimeType", mime)) for block, text in texts]
        if self._send is None:
            self.take(uri, principal_key(owner), size_chars, rows)
        else:
            self.unsent.append((uri, principal_key(owner), size_chars, rows))
        return uri

    async def send(self) -> None:
        """Send what the other process does not have yet, before a client gets its link."""
        assert self._send is not None, "only then something is unsent"
        unsent, self.unsent = self.unsent, []
        for result in unsent:
            await self._send(result)

    def take(self, uri: str, owner: str, size_chars: int, rows: Sequence[Sequence[str]]) -> None:
        """Keep a result; ``rows`` are its texts with their media types."""
        parts = tuple(Part.resource(uri, text, mime) for text, mime in rows)
        self._kept[uri] = _Kept(owner, parts, size_chars)


def _mime_of(outcome: Outcome) -> str:
    """The media type of the text that the value was rendered as."""
    return "text/plain" if outcome.parts or isinstance(outcome.value, str) else "application/json"


def _fits(schema: Schema | None, value: Any) -> bool:
    return schema is None or compile_schema(schema, "a summary").is_valid(value)


def _count_chars(kept: _Kept) -> int:
    """The size of an entry; a minimum size bounds the number of entries to ``MAX_KEPT``."""
    return max(kept.size_chars, MAX_KEPT_CHARS // MAX_KEPT)
