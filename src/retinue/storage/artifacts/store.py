"""The artifacts of a state folder: saves within quotas, reads by range, deletion of what nobody holds.

A save holds an artifact for ``keep_days``. A run whose input or outcomes contain its link holds it as long as
the run is stored. What nothing holds is deleted by `StoredArtifacts.collect`.
"""

from __future__ import annotations

import asyncio
import mimetypes
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import structlog

from retinue.core.artifact_links import UNKNOWN_TYPE, check_digest, check_media_type, clean_name
from retinue.core.errors import (
    BusyError,
    InvalidRequestError,
    NotAllowedError,
    TooLargeError,
    UnknownArtifactError,
)
from retinue.mesh.artifacts import Artifact, Content
from retinue.storage.artifacts.blobs import Blobs, Staged, file_name_in, iterate_content
from retinue.storage.artifacts.export import export_artifact
from retinue.storage.artifacts.index import ArtifactIndex, Quotas, StoredArtifact

_DAY_S = 86_400.0
_BATCH = 500
FREE_BYTES = 1024 * 1024
"""Content up to this size is taken before the quotas are asked, because it may be stored already."""

FindHeld = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""The digests among these that runs hold."""

_log = structlog.get_logger("retinue.artifacts")


@dataclass(frozen=True, slots=True)
class ArtifactLimits:
    """The size of one artifact, the quotas, and how long a save holds an artifact."""

    max_bytes: int = 2 * 1024**3
    quota_bytes: int = 20 * 1024**3
    caller_bytes: int = 10 * 1024**3
    keep_days: float = 30.0


@dataclass(frozen=True, slots=True)
class Collected:
    """The artifacts that a collection has deleted."""

    count: int = 0
    size_bytes: int = 0


async def hold_nothing(digests: Collection[str]) -> Collection[str]:
    """The digests that runs hold, in a state without runs."""
    return ()


class StoredArtifacts:
    """The artifacts of a state: an `ArtifactStore`, with lists and deletion.

    ``find_held`` tells which artifacts runs hold. Several processes may use the same state.
    """

    def __init__(
        self,
        index: ArtifactIndex,
        blobs: Blobs,
        limits: ArtifactLimits,
        *,
        find_held: FindHeld = hold_nothing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.limits = limits
        self.read_bytes = 0
        """How many bytes were read by this process."""
        self._index = index
        self._blobs = blobs
        self._find_held = find_held
        self._clock = clock
        self._quotas = Quotas(limits.quota_bytes, limits.caller_bytes)

    def close(self) -> None:
        self._index.close()

    async def save(
        self,
        content: Content,
        media_type: str | None = None,
        *,
        caller: str,
        name: str | None = None,
        run: str | None = None,
        digest: str | None = None,
        size_bytes: int | None = None,
    ) -> Artifact:
        """As `ArtifactStore.save`. Content of another ``digest`` than the given one is refused.

        ``size_bytes`` is its size if it is known, so that it is refused before it is read.
        """
        file_name = name or file_name_in(content)
        plain = None if file_name is None else clean_name(file_name)
        kind = check_media_type(media_type or guess_type(plain))
        if digest is not None:
            check_digest(digest)
        staged = await self._stage(content, caller, size_bytes)
        is_stored = False
        try:
            if digest not in (None, staged.digest):
                raise InvalidRequestError(
                    f"the content has the digest {staged.digest}, not {digest}", remedy="send it again"
                )
            await staged.prepare(kind, plain)
            new = StoredArtifact(staged.digest, staged.size_bytes, kind, plain, 0.0)
            await asyncio.to_thread(
                self._index.add, new, caller, run or "", self._quotas, lambda: staged.place(kind, plain)
            )
            is_stored = True
            if not await staged.is_there():
                await asyncio.to_thread(self._index.drop_saves, digest=staged.digest)
                await self._remove([staged.digest])
                raise BusyError("the artifact was deleted while it was saved", 1.0)
        finally:
            await staged.discard(is_stored=is_stored or await self._is_known(staged.digest))
        _log.info("artifact saved", digest=staged.digest[:19], size=staged.size_bytes, caller=caller)
        return Artifact(staged.digest, staged.size_bytes, kind, plain, self)

    async def _stage(self, content: Content, caller: str, size_bytes: int | None) -> Staged:
        """Take the content, no more of it than the quotas leave room for."""
        known = size_bytes or 0
        room = await asyncio.to_thread(
            self._index.check_room, caller, known if known > FREE_BYTES else -1, self._quotas
        )
        limit = min(self.limits.max_bytes, max(room, FREE_BYTES))
        async with aclosing(iterate_content(content)) as pieces:
            try:
                return await self._blobs.stage(pieces, limit)
            except TooLargeError:
                if limit < self.limits.max_bytes:
                    await asyncio.to_thread(self._index.check_room, caller, limit + 1, self._quotas)
                raise

    async def find(self, digest: str) -> Artifact:
        stored = await self._find(digest)
        return Artifact(stored.digest, stored.size_bytes, stored.media_type, stored.name, self)

    async def open(self, digest: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        stored = await self._find(digest)
        last = stored.size_bytes if end is None else min(end, stored.size_bytes)
        if start < last:
            async with aclosing(self._blobs.open(digest, max(0, start), last)) as pieces:
                async for piece in pieces:
                    self.read_bytes += len(piece)
                    yield piece

    async def export(self, artifact: Artifact, path: str | PathLike[str]) -> Path:
        return await export_artifact(replace(artifact, _store=self), path)

    async def show(self, digest: str) -> StoredArtifact:
        """One artifact with its savers. Raises UnknownArtifactError."""
        return await self._find(digest)

    async def is_held_by_run(self, digest: str) -> bool:
        """Whether a stored run holds an artifact."""
        return bool(await self._find_held([digest]))

    async def list_all(
        self, *, caller: str | None = None, after: float | None = None, limit: int = 100
    ) -> list[StoredArtifact]:
        """The artifacts, newest first, or those that ``caller`` has saved."""
        return await asyncio.to_thread(self._index.list_all, caller=caller, after=after, limit=limit)

    async def measure(self, caller: str | None = None) -> tuple[int, int]:
        """The number of artifacts and their bytes, or of those that a caller has saved."""
        return await asyncio.to_thread(self._index.measure, caller)

    async def delete(self, digest: str, *, caller: str | None = None) -> bool:
        """End the hold of all saves of an artifact, or those of one caller; True if its content is deleted.

        The content stays while a run or another caller holds it. Raises UnknownArtifactError, and
        NotAllowedError if the caller has not saved it.
        """
        await self._find(digest)
        dropped = await asyncio.to_thread(self._index.drop_saves, digest=digest, caller=caller)
        if not dropped and caller is not None:
            remedy = "ask whoever saved it, or use the token of the hub's state"
            raise NotAllowedError("this caller has not saved the artifact", remedy=remedy)
        return bool((await self._remove([digest])).count)

    async def release(self, runs: Sequence[str], digests: Sequence[str] = ()) -> Collected:
        """End the holds of deleted runs, and delete the artifacts that nothing else holds.

        ``runs`` are the ids of runs and of their chains of calls, ``digests`` the artifacts that they held.
        """
        dropped = await asyncio.to_thread(self._index.drop_saves, runs=[run for run in runs if run])
        return await self._remove(sorted({*dropped, *digests}))

    async def collect(self) -> Collected:
        """Delete the artifacts that nothing has held for ``keep_days``, and what killed processes left."""
        collected, after = Collected(), ""
        while True:
            digests = await asyncio.to_thread(
                self._index.list_unheld, self._oldest(), limit=_BATCH, after=after
            )
            if not digests:
                break
            after = digests[-1]
            removed = await self._remove(digests)
            collected = Collected(collected.count + removed.count, collected.size_bytes + removed.size_bytes)
        await self._remove_strays()
        return collected

    async def _remove(self, digests: Sequence[str]) -> Collected:
        """Delete those of the artifacts that neither a run nor a save holds."""
        held = set(await self._find_held(digests)) if digests else set()
        free = [digest for digest in digests if digest not in held]
        if not free:
            return Collected()
        removed = await asyncio.to_thread(self._index.remove, free, self._oldest(), self._blobs.displace)
        await self._blobs.delete([artifact.digest for artifact in removed])
        size_bytes = sum(artifact.size_bytes for artifact in removed)
        if removed:
            _log.info("artifacts deleted", count=len(removed), size=size_bytes)
        return Collected(len(removed), size_bytes)

    async def _remove_strays(self) -> None:
        digests = await self._blobs.list_digests()
        for at in range(0, len(digests), _BATCH):
            batch = digests[at : at + _BATCH]
            held = set(await self._find_held(batch))
            free = [digest for digest in batch if digest not in held]
            count = await asyncio.to_thread(self._index.remove_strays, free, self._blobs.displace)
            if count:
                _log.info("leftovers of artifacts deleted", count=count)

    def _oldest(self) -> float:
        return self._clock() - self.limits.keep_days * _DAY_S

    async def _find(self, digest: str) -> StoredArtifact:
        stored = await asyncio.to_thread(self._index.find, check_digest(digest))
        stored = stored or await self._blobs.find(digest)
        if stored is None:
            raise UnknownArtifactError(digest)
        return stored

    async def _is_known(self, digest: str) -> bool:
        return await asyncio.to_thread(self._index.find, digest) is not None


def guess_type(name: str | None) -> str:
    """The media type of a file name."""
    return (None if name is None else mimetypes.guess_type(name)[0]) or UNKNOWN_TYPE
