"""One OCI image layout on disk: the folder of one repository (image spec 1.1, "OCI Image Layout").

``index.json`` exists only while the repository has content. A writer holds ``.lock``, writes the blobs first
and then replaces the index, so readers need no lock and always see a consistent repository
(specification 13.2).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import (
    BusyError,
    ContentMissingError,
    MalformedArtifactError,
    RetinueError,
    StateDamagedError,
)
from retinue.oci.codec.artifacts import Artifact, Guard, parse_envelope
from retinue.oci.codec.layout_index import LAYOUT_MARK, PUBLISHER, SUBJECT, Index, parse_index, render_index
from retinue.oci.codec.manifest import INDEX_TYPE, Descriptor, Manifest, StoredManifest, parse_manifest
from retinue.oci.codec.reference import choose_tag, digest_of, is_referrers_tag
from retinue.oci.codec.referrers import subject_of
from retinue.storage.files import (
    file_mode,
    make_folder,
    remove_leftovers,
    replace_file,
    storage_errors,
    sync_folder,
)

INDEX_FILE = "index.json"
MARK_FILE = "oci-layout"
BLOBS_FOLDER = "blobs"
LOCK_FILE = ".lock"
LOCK_POLL_S = 0.005
READ_ATTEMPTS = 20

Stamp = tuple[int, int, int]
"""Modification time in ns, inode and size of an index, which change whenever it is replaced."""


@dataclass(frozen=True, slots=True)
class StoredPackage:
    """A manifest with blobs to store, as bytes or as files to link.

    All other blobs of the manifest must already be in the layout. ``publisher`` is the caller of another
    machine that published it; None for programs of this machine.
    """

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    media_type: str
    blobs: Mapping[str, bytes | Path]
    publisher: str | None = None


class ImageLayout:
    """The layout in ``folder``. Reads need no lock; each write takes the lock and fsyncs.

    ``repository`` names the layout in errors. All methods do blocking disk I/O.
    """

    def __init__(self, folder: Path, repository: str, *, lock_timeout_s: float) -> None:
        self._folder = folder
        self._repository = repository
        self._lock_timeout_s = lock_timeout_s
        self._blobs = folder / BLOBS_FOLDER / "sha256"
        self._index_path = folder / INDEX_FILE
        self._cached: tuple[Stamp, Index] | None = None

    def read_index(self) -> Index | None:
        """Read the index; None when the repository does not exist. Raises StateDamagedError, BusyError."""
        for _ in range(READ_ATTEMPTS):
            stamp = self._stamp()
            if stamp is None:
                return None
            cached = self._cached
            if cached is not None and cached[0] == stamp:
                return cached[1]
            try:
                index = self._load_index()
            except FileNotFoundError:
                continue  # replaced by a writer: read again
            except StateDamagedError:
                if self._stamp() == stamp:
                    raise
                continue
            self._cached = (stamp, index)
            return index
        raise BusyError(f"{self._index_path} keeps changing", 1.0)

    def find_manifest(self, target: str) -> StoredManifest | None:
        """The stored manifest of a tag or digest.

        None when there is none. Raises StateDamagedError, BusyError.
        """
        for _ in range(READ_ATTEMPTS):
            index = self.read_index()
            entry = index.find(target) if index is not None else None
            if entry is None:
                return None
            content = self.find_blob(entry.digest)
            if content is not None:
                return StoredManifest(entry.digest, entry.media_type, content)
            if self.read_index() is index:
                raise self._damaged(self.path_of(entry.digest), "the file is missing")
        raise BusyError(f"{self._index_path} keeps changing", 1.0)

    def find_blob(self, digest: str) -> bytes | None:
        """Content by digest, verified; None when absent. Raises StateDamagedError when it does not match."""
        path = self.path_of(digest)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._damaged(path, error.strerror or str(error)) from error
        if digest_of(content) != digest:
            raise self._damaged(path, "its content does not match its digest")
        return content

    def find_file(self, digest: str) -> Path | None:
        """The file of a blob, without reading it; None when absent."""
        path = self.path_of(digest)
        return path if path.is_file() else None

    def read_artifact(self, stored: StoredManifest, *, where: str, tag: str | None = None) -> Artifact:
        """Read the artifact of a manifest. Raises MalformedArtifactError and StateDamagedError."""
        envelope = parse_envelope(stored.content, where=where, tag=tag)
        content = envelope.inline_content()
        if content is None:
            content = self.find_blob(envelope.layer.digest)
        if content is None:
            raise self._damaged(self.path_of(envelope.layer.digest), "the file is missing")
        return envelope.open(content)

    def write(self, tag: str | None, package: StoredPackage, guard: Guard | None) -> None:
        """Store a package under a tag, or only by digest; a failure leaves the layout unchanged.

        Raises what ``guard`` raises, ContentMissingError, StorageFullError, StateDamagedError, BusyError.
        """
        with storage_errors(self._folder), self._locked():
            before, index = self._stamp(), self.read_index()
            if guard is not None:
                guard(self._held(index, tag))
            self._check_complete(package)
            entry = Descriptor(
                package.media_type,
                package.digest,
                len(package.manifest_bytes),
                annotations=_describe(package),
                artifact_type=package.manifest.artifact_type,
            )
            old = index or Index()
            after = old.with_revision(entry) if tag is None else old.with_tag(tag, entry)
            written: list[Path] = []
            try:
                make_folder(self._blobs)
                self._write_mark()
                for digest, content in {**package.blobs, package.digest: package.manifest_bytes}.items():
                    self._write_blob(digest, content, written)
                sync_folder(self._blobs)
                replace_file(self._index_path, render_index(after))
            except BaseException:
                if self._stamp() == before:
                    self._roll_back(written, dissolve=index is None)
                raise
            if index is None or index.digests - after.digests:
                self._sweep(after)

    def remove(self, target: str) -> bool:
        """Delete a tag or digest; the last tag of an artifact removes the folder.

        False when the target did not exist.
        """
        if self._stamp() is None:
            return False
        with storage_errors(self._folder), self._locked():
            index = self.read_index()
            if index is None:
                self._dissolve()
                return False
            after = index.without(target)
            if after == index:
                return False
            if all(map(is_referrers_tag, after.tags)):
                self._dissolve()
                return True
            replace_file(self._index_path, render_index(after))
            self._sweep(after)
            return True

    def remove_all(self, targets: Sequence[str]) -> None:
        """Delete tags or digests at once; the last tag removes the folder."""
        if self._stamp() is None:
            return
        with storage_errors(self._folder), self._locked():
            index = after = self.read_index() or Index()
            for target in targets:
                after = after.without(target)
            if all(map(is_referrers_tag, after.tags)):
                self._dissolve()
            elif after != index:
                replace_file(self._index_path, render_index(after))
                self._sweep(after)

    def remove_published_by(self, publisher: str) -> list[str]:
        """Delete the manifests that the tokens of ``publisher`` published; returns the tags that they had."""
        before = self.read_index()
        if before is None or before.without_publisher(publisher) == before:
            return []
        with storage_errors(self._folder), self._locked():
            index = self.read_index() or Index()
            after = index.without_publisher(publisher)
            if all(map(is_referrers_tag, after.tags)):
                self._dissolve()
            else:
                replace_file(self._index_path, render_index(after))
                self._sweep(after)
            return [tag for tag in index.tags if tag not in after.tags]

    def _stamp(self) -> Stamp | None:
        try:
            status = self._index_path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._damaged(self._index_path, error.strerror or str(error)) from error
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _load_index(self) -> Index:
        raw = self._read_own(self._index_path)
        mark = self._folder / MARK_FILE
        try:
            version = orjson.loads(self._read_own(mark)).get("imageLayoutVersion")
        except FileNotFoundError:
            raise self._damaged(mark, "the file is missing") from None
        except (ValueError, AttributeError):
            raise self._damaged(mark, "it is not a JSON object") from None
        if not isinstance(version, str) or not version.startswith("1."):
            raise self._damaged(mark, f"its imageLayoutVersion {version!r} is not supported")
        try:
            return parse_index(raw, where=self._repository)
        except MalformedArtifactError as error:
            problem = error.message.removeprefix(f"{self._repository}: ")
            raise self._damaged(self._index_path, problem) from error

    def _read_own(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._damaged(path, error.strerror or str(error)) from error

    def _held(self, index: Index | None, tag: str | None) -> Artifact | None:
        """The artifact to pass to a guard; None for an unreadable one, which may be replaced."""
        tags = index.tags if index is not None else []
        chosen = choose_tag(tags, tag) or choose_tag(tags)
        stored = self.find_manifest(chosen) if chosen is not None else None
        if stored is None:
            return None
        try:
            return self.read_artifact(stored, where=f"{self._repository}:{chosen}", tag=chosen)
        except RetinueError:
            return None

    def _check_complete(self, package: StoredPackage) -> None:
        for blob in (package.manifest.config, *package.manifest.layers):
            if blob.digest not in package.blobs and not self.path_of(blob.digest).exists():
                raise ContentMissingError(self._repository, blob.digest)

    def _write_mark(self) -> None:
        mark = self._folder / MARK_FILE
        if not mark.exists():
            replace_file(mark, LAYOUT_MARK, sync=False)

    def _write_blob(self, digest: str, content: bytes | Path, written: list[Path]) -> None:
        path = self.path_of(digest)
        if isinstance(content, Path):
            if path.exists():
                return
            try:
                # The file was verified when it was uploaded, and is on the same disk.
                os.link(content, path)
            except FileNotFoundError:
                raise ContentMissingError(self._repository, digest) from None
            written.append(path)
            return
        if path.exists():
            if path.read_bytes() == content:
                return
        else:
            written.append(path)
        replace_file(path, content, sync=False)

    def _roll_back(self, written: list[Path], *, dissolve: bool) -> None:
        """Undo a write that failed before its index was in place."""
        # The caller must see the original error, not one of the rollback.
        with suppress(OSError):
            for path in written:
                path.unlink(missing_ok=True)
            if dissolve:
                self._dissolve()

    def _dissolve(self) -> None:
        """Remove the layout. The index is removed first, and with it the repository."""
        self._index_path.unlink(missing_ok=True)
        (self._folder / MARK_FILE).unlink(missing_ok=True)
        shutil.rmtree(self._folder / BLOBS_FOLDER, ignore_errors=True)
        # A process that waits for this lock finds its file unlinked and retries (`_locked`).
        (self._folder / LOCK_FILE).unlink(missing_ok=True)
        with suppress(OSError):  # not empty: it contains nested repositories
            self._folder.rmdir()

    def _sweep(self, index: Index) -> None:
        """Remove unreferenced blobs; removes none when a manifest cannot be read."""
        referenced: set[str] = set()
        try:
            for entry in index.entries:
                if entry.media_type == INDEX_TYPE:
                    referenced.add(entry.digest)
                    continue
                manifest = parse_manifest(self.path_of(entry.digest).read_bytes(), where=entry.digest)
                referenced.update({entry.digest, manifest.config.digest})
                referenced.update(layer.digest for layer in manifest.layers)
            for path in self._blobs.iterdir():
                if f"sha256:{path.name}" not in referenced:
                    path.unlink(missing_ok=True)
        except (OSError, MalformedArtifactError):
            return  # the repository is consistent; a later write removes the surplus

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the layout; the folder exists meanwhile. Raises BusyError after the time limit."""
        deadline = time.monotonic() + self._lock_timeout_s
        while True:
            make_folder(self._folder)
            try:
                mode = file_mode(self._folder)
                lock = FileLock(self._folder / LOCK_FILE, poll_interval=LOCK_POLL_S, mode=mode)
                lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
                break
            except FileNotFoundError:
                # Another process removed the folder between the two lines above.
                if time.monotonic() > deadline:
                    raise
            except Timeout:
                raise BusyError(f"another process holds {self._folder / LOCK_FILE}", 1.0) from None
        try:
            remove_leftovers(self._folder)
            remove_leftovers(self._blobs)
            yield
        finally:
            lock.release()

    def path_of(self, digest: str) -> Path:
        """Where the blob of a digest is, or would be."""
        return self._blobs / digest.removeprefix("sha256:")

    def _damaged(self, path: Path, problem: str) -> StateDamagedError:
        return StateDamagedError(
            str(path), problem, remedy=f"delete the folder {self._folder} and publish again"
        )


def _describe(package: StoredPackage) -> dict[str, str]:
    """The annotations of the entry of a package: who published it, and its subject."""
    facts = {PUBLISHER: package.publisher, SUBJECT: subject_of(package.manifest)}
    return {key: value for key, value in facts.items() if value is not None}
