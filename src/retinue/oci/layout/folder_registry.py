"""A registry in a folder, with one OCI image layout per repository.

For example ``<root>/agents/plan/{oci-layout,index.json,blobs/sha256/…}``. A single layout for all
repositories was rejected, because each push would rewrite the index of all of them.

Reading one repository opens two or three small local files, which costs less than switching to a thread, so
it runs in the event loop. Writes (lock, fsync) and the walk over all repositories run in threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cachetools import LRUCache

from retinue.cards.card_checks import check_card
from retinue.cards.pallet_card import parse_card
from retinue.core.errors import (
    BusyError,
    ContentMissingError,
    DigestMismatchError,
    InvalidReferenceError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    StateDamagedError,
)
from retinue.oci.codec.artifacts import (
    Artifact,
    Guard,
    NewArtifact,
    Package,
    parse_envelope,
    render_artifact,
    same_owner,
)
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.catalog import Heads
from retinue.oci.codec.exchange import BlobSink
from retinue.oci.codec.layout_index import SUBJECT, Index
from retinue.oci.codec.manifest import (
    EMPTY_CONFIG,
    EMPTY_JSON,
    INDEX_TYPE,
    MANIFEST_TYPE,
    Descriptor,
    Manifest,
    StoredManifest,
    parse_manifest,
)
from retinue.oci.codec.reference import (
    Reference,
    check_repository,
    choose_tag,
    digest_of,
    is_digest,
    is_repository,
    subject_of_tag,
)
from retinue.oci.codec.referrers import IsReplaced, describe_referrer, parse_referrers, subject_of
from retinue.oci.codec.saved_files import SAVED_FILES
from retinue.oci.layout.image_layout import BLOBS_FOLDER, INDEX_FILE, MARK_FILE, ImageLayout, StoredPackage
from retinue.oci.layout.uploads import Uploads
from retinue.storage.files import make_folder, storage_errors, touch

GENERATION_FILE = ".generation"
RESERVED_PARTS = frozenset({INDEX_FILE, MARK_FILE, BLOBS_FOLDER})
"""Path parts of nested repositories that would collide with files of the outer repository."""

LAYOUTS_CACHED = 4096
_PIECE_BYTES = 256 * 1024
LARGE_BYTES = 1024 * 1024
"""Larger files are read in a thread."""


class LayoutRegistry:
    """The registry in the folder ``root``; several processes may read and write it concurrently.

    ``uploads`` are those of the same folder. Implements `retinue.oci.registry.CopyableRegistry` and the
    storage of the ``/v2/`` endpoint.
    """

    def __init__(self, root: Path, *, lock_timeout_s: float = 10.0, uploads: Uploads | None = None) -> None:
        self._root = root
        self._lock_timeout_s = lock_timeout_s
        self._layouts: LRUCache[str, ImageLayout] = LRUCache(LAYOUTS_CACHED)
        self._layouts_guard = threading.Lock()
        self.uploads = uploads or Uploads(root)

    @property
    def name(self) -> str:
        """The folder of this registry, as shown in errors and lists."""
        return str(self._root)

    def generation(self) -> str:
        """A stamp that changes with each write by any process; costs one stat call."""
        try:
            return str((self._root / GENERATION_FILE).stat().st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            return ""

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        """Empty: in a folder, reading many at once saves nothing."""
        return {}

    async def list_repositories(self) -> list[str]:
        """List all repositories with content, including damaged ones, in lexical order."""
        return await asyncio.to_thread(self._walk)

    async def read_heads(self, repositories: Iterable[str]) -> dict[str, Heads]:
        """The digests of the tags of repositories, except for damaged ones."""
        return await asyncio.to_thread(self._read_heads, repositories)

    async def list_tags(self, repository: str) -> list[str]:
        """List all tags in lexical order; empty for an unknown repository. Raises StateDamagedError."""
        index = self._layout(repository).read_index()
        return index.tags if index is not None else []

    async def find_digest(self, reference: Reference) -> str | None:
        """The current digest of a reference; None when it does not exist."""
        index = self._layout(reference.repository).read_index()
        target = _target(reference, index)
        entry = index.find(target) if index is not None and target is not None else None
        return entry.digest if entry is not None else None

    async def find_manifest(self, repository: str, target: str) -> StoredManifest | None:
        """The stored manifest of a tag or digest; None when absent."""
        return self._layout(repository).find_manifest(target)

    async def find_manifests(self, digests: Mapping[str, str], limit_bytes: int) -> dict[str, bytes | None]:
        """Manifests by repository for the digests in ``digests``, up to ``limit_bytes`` in total.

        None for a manifest that is absent, damaged or larger than ``limit_bytes`` by itself.
        """
        return await asyncio.to_thread(self._read_manifests, digests, limit_bytes)

    async def find_blob(self, repository: str, digest: str) -> bytes | None:
        """Verified content by digest, stored or uploaded for a later manifest; None when absent."""
        if not is_digest(digest):
            return None
        layout = self._layout(repository)
        file = layout.find_file(digest)
        if file is not None and file.stat().st_size > LARGE_BYTES:
            content = await asyncio.to_thread(layout.find_blob, digest)
        else:
            content = layout.find_blob(digest)
        if content is None and (path := self.uploads.find(repository, digest)) is not None:
            content = await asyncio.to_thread(path.read_bytes)
        return content

    async def pull(self, reference: Reference) -> Artifact:
        """Pull an artifact. Raises ReferenceNotFoundError, MalformedArtifactError, StateDamagedError."""
        artifact = await self.pull_if_changed(reference, None)
        assert artifact is not None
        return artifact

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """Like `pull`; None when the digest of the reference is still ``known_digest``."""
        layout = self._layout(reference.repository)
        index = layout.read_index()
        target = _target(reference, index)
        if known_digest is not None and index is not None and target is not None:
            entry = index.find(target)
            if entry is not None and entry.digest == known_digest:
                return None
        stored = layout.find_manifest(target) if target is not None else None
        if stored is None or target is None:
            raise ReferenceNotFoundError(self.name, str(reference))
        tag = None if is_digest(target) else target
        return layout.read_artifact(stored, where=str(reference.at(target)), tag=tag)

    async def pull_manifest(self, reference: Reference) -> StoredManifest:
        """Pull a stored manifest, whatever it describes. Raises ReferenceNotFoundError."""
        layout = self._layout(reference.repository)
        target = _target(reference, layout.read_index())
        stored = layout.find_manifest(target) if target is not None else None
        if stored is None:
            raise ReferenceNotFoundError(self.name, str(reference))
        return stored

    async def pull_blob(self, repository: str, blob: Descriptor) -> bytes:
        """Pull stored content, verified. Raises ContentMissingError, StateDamagedError."""
        content = await asyncio.to_thread(self._layout(repository).find_blob, blob.digest)
        if content is None:
            raise ContentMissingError(repository, blob.digest)
        return content

    async def copy_blob(self, repository: str, blob: Descriptor, sink: BlobSink) -> None:
        """Give stored content to a sink, which verifies it. Raises ContentMissingError, StateDamagedError."""
        path = self._layout(repository).find_file(blob.digest)
        if path is None:
            raise ContentMissingError(repository, blob.digest)
        await asyncio.to_thread(_copy_file, path, sink)

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        """Store an artifact under a tag; returns its digest. A failure changes nothing.

        ``guard`` is called under the lock. Raises StorageFullError, StateDamagedError, BusyError, and what
        ``guard`` raises.
        """
        return await self.push_package(repository, tag, render_artifact(artifact), guard=guard)

    async def push_package(
        self, repository: str, tag: str, package: Package, *, guard: Guard | None = None
    ) -> str:
        """Like `push`, for a manifest and blobs to store byte for byte."""
        reference = Reference(repository, tag=tag)
        media_type = package.manifest.media_type or MANIFEST_TYPE
        stored = StoredPackage(
            package.manifest, package.manifest_bytes, package.digest, media_type, package.blobs
        )
        await self._write(reference.repository, tag, stored, guard)
        return package.digest

    async def put_manifest(
        self, repository: str, target: str, raw: bytes, media_type: str, *, publisher: str | None = None
    ) -> str:
        """Store a manifest received by the endpoint under a tag or digest; returns the digest.

        Its blobs must have been uploaded. The ownership rule and `check_card` apply, as for
        ``retinue publish``, but not to a manifest without a tag that names another one as its subject.
        Raises MalformedArtifactError, DigestMismatchError, ContentMissingError, RepositoryTakenError.
        """
        reference = Reference(repository).at(target)
        if media_type == INDEX_TYPE:
            return await self._put_index(reference, raw, publisher)
        manifest = parse_manifest(raw, where=str(reference))
        digest = digest_of(raw)
        if reference.digest is not None and reference.digest != digest:
            raise DigestMismatchError(str(reference), reference.digest, digest)
        needed = {blob.digest for blob in (manifest.config, *manifest.layers)}
        staged = {d: path for d in needed if (path := self.uploads.find(repository, d)) is not None}
        stored = StoredPackage(manifest, raw, digest, media_type, staged, publisher)
        new = await asyncio.to_thread(self._read_new, reference, raw, staged)
        if new is not None and new.form == "card":
            _check_pushed(new, str(reference))
        is_beside = reference.tag is None and await self._has_subject(repository, manifest)
        guard = None if is_beside else same_owner(new, repository)
        await self._write(repository, reference.tag, stored, guard)
        for done in staged:
            self.uploads.drop(repository, done)
        return digest

    async def _put_index(self, reference: Reference, raw: bytes, publisher: str | None) -> str:
        """Store the index of referrers that a client keeps under the tag of their subject.

        `list_referrers` does not read it, because it finds the referrers by their own subject.
        """
        subject = subject_of_tag(reference.tag or "")
        if subject is None:
            raise MalformedArtifactError(
                str(reference), "an image index is taken under the tag sha256-HEX of a subject only"
            )
        parse_referrers(raw, None, where=str(reference))
        has_subject = await self.find_digest(replace(reference, tag=None, digest=subject)) is not None
        guard = None if has_subject else same_owner(None, reference.repository)
        # an index names manifests and has no content of its own
        blobs = {EMPTY_CONFIG.digest: EMPTY_JSON}
        stored = StoredPackage(Manifest(EMPTY_CONFIG, ()), raw, digest_of(raw), INDEX_TYPE, blobs, publisher)
        await self._write(reference.repository, reference.tag, stored, guard)
        return stored.digest

    async def list_referrers(
        self, repository: str, digest: str, artifact_type: str | None = None
    ) -> list[Descriptor]:
        """The artifacts of the repository whose subject is this digest, oldest first."""
        return await asyncio.to_thread(self._find_referrers, repository, digest, artifact_type)

    def _find_referrers(self, repository: str, digest: str, artifact_type: str | None) -> list[Descriptor]:
        layout = self._layout(repository)
        index = layout.read_index()
        entries = {entry.digest: entry for entry in index.entries} if index is not None else {}
        rows: list[Descriptor] = []
        for entry in entries.values():
            if entry.annotations.get(SUBJECT, digest) != digest:
                continue
            stored = layout.find_manifest(entry.digest)
            if stored is None or b'"subject"' not in stored.content:
                continue
            with suppress(MalformedArtifactError):
                manifest = parse_manifest(stored.content, where=repository)
                row = describe_referrer(manifest, entry)
                if subject_of(manifest) == digest and artifact_type in (None, row.artifact_type):
                    rows.append(row)
        return rows

    async def push_referrer(
        self, repository: str, package: Package, *, is_replaced: IsReplaced = lambda _row: False
    ) -> None:
        """Store an artifact that names its subject, so that `list_referrers` lists it; the others stay."""
        media_type = package.manifest.media_type or MANIFEST_TYPE
        stored = StoredPackage(
            package.manifest, package.manifest_bytes, package.digest, media_type, package.blobs
        )
        await self._write(check_repository(repository), None, stored, None)

    async def _has_subject(self, repository: str, manifest: Manifest) -> bool:
        """Whether the repository has the manifest that this one names as its subject."""
        subject = subject_of(manifest)
        return (
            subject is not None and await self.find_digest(Reference(repository, digest=subject)) is not None
        )

    async def mount_blob(self, repository: str, digest: str, source: str) -> bool:
        """Share a blob of ``source`` with ``repository`` without an upload.

        False when ``source`` lacks it.
        """
        path = self._layout(source).find_file(digest) or self.uploads.find(source, digest)
        return path is not None and self.uploads.adopt(repository, digest, path)

    async def delete(self, repository: str, target: str) -> None:
        """Delete a tag, or a digest with its tags; the last tag removes the repository.

        Raises ReferenceNotFoundError.
        """
        reference = Reference(repository).at(target)
        layout = self._layout(repository)

        def remove() -> bool:
            removed = layout.remove(target)
            if removed:
                self._mark_changed()
            return removed

        if not await asyncio.to_thread(remove):
            raise ReferenceNotFoundError(self.name, str(reference))

    def list_publishers(self) -> set[str]:
        """The callers of other machines that published what is here. It blocks on disk I/O."""
        publishers: set[str] = set()
        for repository in self._walk():
            with suppress(StateDamagedError, InvalidReferenceError):
                if (index := self._layout(repository).read_index()) is not None:
                    publishers |= index.publishers
        return publishers

    def remove_published_by(self, publisher: str) -> list[Reference]:
        """Delete what the tokens of one caller published here; returns the deleted tags.

        Raises BusyError. It blocks on disk I/O.
        """
        removed: list[Reference] = []
        for repository in self._walk():
            with suppress(StateDamagedError, InvalidReferenceError):  # no source reads a damaged repository
                tags = self._layout(repository).remove_published_by(publisher)
                removed += [Reference(repository, tag=tag) for tag in tags]
        if removed:
            self._mark_changed()
        return removed

    async def _write(
        self, repository: str, tag: str | None, package: StoredPackage, guard: Guard | None
    ) -> None:
        layout = self._layout(repository)

        def write() -> None:
            with storage_errors(self._root):
                make_folder(self._root)
                touch(self._root / GENERATION_FILE)
            layout.write(tag, package, guard)
            self._mark_changed()

        await asyncio.to_thread(write)

    def _read_new(self, reference: Reference, raw: bytes, staged: Mapping[str, Path]) -> Artifact | None:
        """The artifact about to be stored; None when it is neither a card nor a workflow."""
        try:
            envelope = parse_envelope(raw, where=str(reference), tag=reference.tag)
            content = envelope.inline_content()
            if content is None and (path := staged.get(envelope.layer.digest)) is not None:
                content = path.read_bytes()
            elif content is None:
                content = self._layout(reference.repository).find_blob(envelope.layer.digest)
            return envelope.open(content) if content is not None else None
        except (MalformedArtifactError, DigestMismatchError, StateDamagedError):
            return None

    def _mark_changed(self) -> None:
        now_ns = time.time_ns()
        # The change is already stored: a failure here only delays its detection until the next full reading.
        with suppress(OSError):
            os.utime(self._root / GENERATION_FILE, ns=(now_ns, now_ns))

    def _layout(self, repository: str) -> ImageLayout:
        with self._layouts_guard:
            layout = self._layouts.get(repository)
            if layout is None:
                folder = self._root.joinpath(*self._parts(repository))
                layout = ImageLayout(folder, repository, lock_timeout_s=self._lock_timeout_s)
                self._layouts[repository] = layout
            return layout

    @staticmethod
    def _parts(repository: str) -> list[str]:
        """The folder names of a repository; its grammar excludes empty, dotted and absolute parts."""
        parts = check_repository(repository).split("/")
        if RESERVED_PARTS.intersection(parts):
            raise InvalidReferenceError(repository, f"{', '.join(sorted(RESERVED_PARTS))} are reserved names")
        return parts

    def _read_heads(self, repositories: Iterable[str]) -> dict[str, Heads]:
        heads: dict[str, Heads] = {}
        for repository in repositories:
            with suppress(StateDamagedError, BusyError, InvalidReferenceError):
                if (index := self._layout(repository).read_index()) is not None:
                    entries = {tag: index.find(tag) for tag in index.tags}
                    heads[repository] = {tag: e.digest for tag, e in entries.items() if e is not None}
        return heads

    def _read_manifests(self, digests: Mapping[str, str], limit_bytes: int) -> dict[str, bytes | None]:
        manifests: dict[str, bytes | None] = {}
        left = limit_bytes
        for repository, digest in digests.items():
            content = None
            with suppress(StateDamagedError, BusyError, InvalidReferenceError):
                content = self._find_small_manifest(repository, digest, limit_bytes)
            if content is not None and len(content) > left:
                break
            manifests[repository] = content
            left -= len(content or b"")
        return manifests

    def _find_small_manifest(self, repository: str, digest: str, limit_bytes: int) -> bytes | None:
        layout = self._layout(repository)
        index = layout.read_index()
        entry = index.find(digest) if index is not None else None
        if entry is None or entry.size_bytes > limit_bytes:
            return None
        stored = layout.find_manifest(digest)
        return stored.content if stored is not None and len(stored.content) <= limit_bytes else None

    def _walk(self) -> list[str]:
        names: list[str] = []
        root = str(self._root)
        for folder, folders, files in os.walk(root):
            name = folder[len(root) :].lstrip(os.sep).replace(os.sep, "/")
            if INDEX_FILE in files and is_repository(name):
                names.append(name)
            hidden = RESERVED_PARTS if name else RESERVED_PARTS | {SAVED_FILES}
            folders[:] = [f for f in folders if f not in hidden and is_repository(f)]
        return sorted(names)


def _copy_file(path: Path, sink: BlobSink) -> None:
    sink.begin()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                sink.add(piece)
    except OSError as error:
        problem = str(error.strerror)
        raise StateDamagedError(str(path), problem, remedy="publish what it holds again") from error


def _target(reference: Reference, index: Index | None) -> str | None:
    """The target of the reference, else the best tag."""
    return reference.target or (choose_tag(index.tags) if index is not None else None)


def _check_pushed(artifact: Artifact, reference: str) -> None:
    """Raise MalformedArtifactError for a card that no source would take; other artifacts may be stored."""
    try:
        record = parse_card(artifact.content, reference=reference)
    except MalformedArtifactError:
        return  # foreign software may store what is no card under its media type
    check_card(record, artifact.content, reference=reference)
