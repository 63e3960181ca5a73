"""Images, sounds and files of results on pages: shown by the type that their bytes have, else downloaded.

A page holds no bytes. It links to a file by a key, under which the file is kept in memory for 15 minutes, for
the visitor of the page. The declared type of a file does not count: bytes that are no image or sound of a
known form, such as SVG or HTML, are a download.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

from cachetools import TTLCache
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retinue.core.call import Part, Principal
from retinue.core.parts import content_of, file_name_of, find_parts, url_of
from retinue.dashboard.sessions import ROOT

KEPT_S = 900.0
KEPT_BYTES = 32 * 1024 * 1024
"""The bytes of all kept files of one process."""

MAX_FILES = 50
"""Files of one result that a page shows."""

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
FOREIGN_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, max-age=900",
}
"""The headers of a foreign file: a browser runs nothing of it."""


def sniff_media(content: bytes) -> str | None:
    """The media type of an image or a sound by its first bytes; None for any other content."""
    if content[:4] == b"RIFF":
        return _RIFF.get(content[8:12])
    return next((mime for beginning, mime in _BEGINNINGS if content.startswith(beginning)), None)


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file as a page shows it; ``path`` leads to its bytes, "" for a link and for a file that is too large.

    ``shown_as`` is "image" or "audio" for content that a browser shows in place, else "".
    """

    name: str
    mime: str
    size: int | None
    path: str = ""
    shown_as: str = ""
    url: str | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: str
    name: str
    content: bytes


class ResultFiles:
    """The files of results that pages showed lately, each for its visitor."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: TTLCache[str, _Kept, float] = TTLCache(kept_bytes, KEPT_S, clock, _count_bytes)

    def show(self, parts: Sequence[Part], principal: Principal) -> list[ShownFile]:
        """The files among the parts, whose bytes are kept for the visitor."""
        files = [part for part in parts if part.kind not in ("text", "data")]
        return [self._show(part, number, principal) for number, part in enumerate(files[:MAX_FILES], 1)]

    def show_value(self, value: Any, principal: Principal) -> list[ShownFile]:
        """The files in the value of a step or a run."""
        return self.show(find_parts(value), principal)

    def _show(self, part: Part, number: int, principal: Principal) -> ShownFile:
        content, name = content_of(part), file_name_of(part, number)
        if content is None:
            return ShownFile(name, part.mime, None, url=url_of(part))
        kept = _Kept(principal.id, name, content)
        key = blake2b(content, digest_size=16, key=principal.id.encode()[:64]).hexdigest()
        if _count_bytes(kept) > self._kept.maxsize:
            return ShownFile(name, part.mime, len(content))
        self._kept[key] = kept
        mime = sniff_media(content)
        kind = "" if mime is None else mime.partition("/")[0]
        return ShownFile(name, mime or part.mime, len(content), f"/files/{key}", kind)

    async def answer(self, request: Request, principal: Principal) -> Response:
        """The bytes of a file. Content other than images and sounds, and ``?download=1``, is a download."""
        kept = self._kept.get(request.path_params["key"])
        if kept is None or kept.owner != principal.id:
            return JSONResponse({"detail": "the file is no longer kept: open its page again"}, 404)
        mime = sniff_media(kept.content)
        is_download = mime is None or request.query_params.get("download") == "1"
        disposition = (
            f"{'attachment' if is_download else 'inline'}; filename*=UTF-8''{quote(kept.name, safe='')}"
        )
        headers = {**FOREIGN_HEADERS, "content-disposition": disposition}
        return Response(kept.content, 200, headers, media_type=mime or "application/octet-stream")


PATH = f"{ROOT}/files/{{key}}"


def _count_bytes(kept: _Kept) -> int:
    """The size of an entry; a minimum bounds the number of entries."""
    return max(len(kept.content), 4096)
