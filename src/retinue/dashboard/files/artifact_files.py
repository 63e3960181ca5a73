"""Artifacts on pages: foreign files, shown in place only if their first bytes are those of an image.

A page holds no bytes. It links to them by their digest, which it has from a run that its visitor may read.
The declared media type does not count, and names are plain file names.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retinue.core.artifact_links import clean_name, find_links, is_digest
from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.dashboard.files.result_files import FOREIGN_HEADERS, MAX_FILES, ShownFile, sniff_media
from retinue.dashboard.sessions import ROOT
from retinue.mesh.artifacts import Artifact, ArtifactStore
from retinue.web.disconnect import PiecesResponse

PATH = f"{ROOT}/artifacts/{{digest}}"

SHOWN_BYTES = 10 * 1024 * 1024
"""A larger image is a download."""

_SNIFFED_BYTES = 16
_SHOWN = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


class ArtifactFiles:
    """The artifacts that pages link to; without a ``store`` there are none."""

    def __init__(self, store: ArtifactStore | None) -> None:
        self._store = store

    async def show(self, values: Iterable[Any]) -> list[ShownFile]:
        """The artifacts whose links the values contain, each once."""
        if self._store is None:
            return []
        links = {link["artifact"]: link for value in values for link in find_links(value)}
        return [await self._show(self._store, link) for link in islice(links.values(), MAX_FILES)]

    async def _show(self, store: ArtifactStore, link: Any) -> ShownFile:
        named = Artifact.of(link)
        try:
            stored = await store.find(named.digest)
            kind = await _sniff(stored)
        except RetinueError as error:
            return ShownFile(_name_of(named), f"{named.media_type}, {error.message}", None)
        return ShownFile(
            _name_of(named, stored),
            kind or named.media_type,
            stored.size,
            f"/artifacts/{named.digest}",
            "image" if kind else "",
        )

    async def answer(self, request: Request, principal: Principal) -> Response:
        """The content of an artifact. Content other than images, and ``?download=1``, is a download."""
        digest = request.path_params["digest"]
        if self._store is None or not is_digest(digest):
            return JSONResponse({"detail": "there is no such artifact"}, 404)
        stored = await self._store.find(digest)
        kind = None if request.query_params.get("download") == "1" else await _sniff(stored)
        name = clean_name(request.query_params.get("name", "")) or _name_of(stored)
        place = "inline" if kind else "attachment"
        headers = {
            **FOREIGN_HEADERS,
            "content-disposition": f"{place}; filename*=UTF-8''{quote(name, safe='')}",
            "content-type": kind or "application/octet-stream",
        }
        if stored.size is not None:
            headers["content-length"] = str(stored.size)
        return await PiecesResponse.begin(self._store.open(digest), headers=headers)


async def _sniff(stored: Artifact) -> str | None:
    """The media type of an image that a page may show in place, by its first bytes; None for others."""
    if stored.size is None or stored.size > SHOWN_BYTES:
        return None
    kind = sniff_media(await stored.read(0, _SNIFFED_BYTES))
    return kind if kind in _SHOWN else None


def _name_of(*artifacts: Artifact) -> str:
    named = (artifact.name for artifact in artifacts)
    return next((name for name in named if name), artifacts[0].digest[7:19])
