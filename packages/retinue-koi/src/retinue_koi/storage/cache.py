"""The bundles of a node on disk: one file for each RID, behind a journal.

A change is one line appended to the journal; when `KoiCache.write` returns, it survives the end of the
process. The files follow later, several changes of a RID at once, each replaced atomically. A start replays
the journal.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import structlog
from filelock import FileLock, Timeout

from retinue.core.errors import StateError, StorageFullError
from retinue.storage.files import make_folder, remove_leftovers, storage_errors
from retinue_koi.codec.bundles import Bundle, Manifest, encode_bundle, is_same_in_both, parse_bundle
from retinue_koi.codec.rids import type_name, type_of
from retinue_koi.storage.bundle_files import BundleFiles, decode_bundle
from retinue_koi.storage.journal import JOURNAL_BYTES, Journal

MAX_OBJECTS: Final = 200_000
_KEPT_PARSED: Final = 256

log = structlog.get_logger("retinue.koi")


@dataclass(slots=True)
class CacheEntry:
    """The facts of a bundle in memory: its manifest, and the owner of a personality."""

    manifest: Manifest
    instant_us: int
    owner: str | None = None
    same_in_both: bool = False
    """Its contents surely have one hash in both dialects."""


_Packed = tuple[str, str, tuple[tuple[str, Any], ...], int, str | None, bool]
"""An `CacheEntry` in memory. A tuple of plain values is small, and nothing to the garbage collector."""


class KoiCache:
    """The bundles below ``folder``; one process at a time may open it."""

    def __init__(
        self, folder: Path, *, max_objects: int = MAX_OBJECTS, journal_bytes: int = JOURNAL_BYTES
    ) -> None:
        self.folder = folder
        self._max_objects = max_objects
        self._entries: dict[str, _Packed] = {}
        self._unwritten: dict[str, bytes | None] = {}
        """Changes that are in the journal and not yet in the files; None = to be deleted."""
        self._writing: dict[str, bytes | None] = {}
        self._parsed: OrderedDict[str, Bundle] = OrderedDict()
        self._lock = FileLock(folder / ".lock", mode=0o600, thread_local=False)
        self._files = BundleFiles(folder)
        self._journal = Journal(folder, journal_bytes)
        self._checkpoint: asyncio.Task[None] | None = None
        self.notes: dict[str, Any] = {}
        """Values that others keep in the journal by `note`, the newest of each key."""
        self.queues: dict[str, dict[str, str]] = {}
        """The events that wait for each node: RID → event type. Changed by `enqueue` and `dequeue` only."""

    @property
    def is_writing_files(self) -> bool:
        """Whether changes of the older journal are being written to the files."""
        return self._checkpoint is not None

    # Opening and closing

    def open(self) -> None:
        """Load the manifests of all files, then the journal. Raises StateError, also if it is in use."""
        with storage_errors(self.folder):
            make_folder(self.folder)
            try:
                self._lock.acquire(blocking=False)
            except Timeout as error:
                raise StateError(
                    f"the folder {self.folder} is in use by another node",
                    remedy="stop the other process, or use another folder or name for this node",
                ) from error
            remove_leftovers(self.folder)
            for bundle in self._files.read_all():
                self._enter(bundle)
            kept = self._files.read_notes()
            self.notes, self.queues = kept.get("notes", {}), kept.get("queues", {})
            self._journal.replay(self._apply)
            # what the journals hold goes to the files, then both are empty
            self._writing, self._unwritten = self._unwritten, {}
            self._write_files(self._encode_notes())
            self._writing = {}
            self._journal.old_path.unlink(missing_ok=True)
            self._journal.begin()

    async def close(self) -> None:
        """Write the files, remove the journal, and let others use the folder."""
        try:
            await self._close()
        finally:
            self._lock.release()

    async def _close(self) -> None:
        if self._checkpoint is not None:
            await asyncio.wait([self._checkpoint])
        if not self._journal.is_open:
            return
        self._journal.close()
        if self._writing:
            return  # the disk was full: the journals are replayed at the next start
        self._writing, self._unwritten = self._unwritten, {}
        try:
            with storage_errors(self.folder):
                self._write_files(self._encode_notes())
                self._journal.path.unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - closing must not fail: the journal holds everything
            log.warning("koi_cache_not_written", folder=str(self.folder), error=str(error))

    # Reading

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, rid: object) -> bool:
        return str(rid) in self._entries

    def exists(self, rid: object) -> bool:
        return str(rid) in self._entries

    def find_entry(self, rid: object) -> CacheEntry | None:
        text = str(rid)
        packed = self._entries.get(text)
        if packed is None:
            return None
        timestamp, digest, more, instant_us, owner, same_in_both = packed
        return CacheEntry(Manifest(text, timestamp, digest, more), instant_us, owner, same_in_both)

    def list_rids(self, rid_types: Iterable[Any] = ()) -> list[str]:
        """The RIDs of these types, which are texts or classes; without types all."""
        type_names = {type_name(rid_type) for rid_type in rid_types}
        if not type_names:
            return list(self._entries)
        return [rid for rid in self._entries if type_of(rid) in type_names]

    def read(self, rid: object) -> Bundle | None:
        """The bundle of a RID, or None. A file that was damaged meanwhile is set aside."""
        text = str(rid)
        if text not in self._entries:
            return None
        found = self._parsed.get(text)
        if found is not None:
            self._parsed.move_to_end(text)
            return found
        for pending in (self._unwritten, self._writing):
            data = pending.get(text)
            if data is not None:
                return self._remember(decode_bundle(data))
        bundle = self._files.read(text)
        if bundle is None:
            self._entries.pop(text, None)
            return None
        return self._remember(bundle)

    # Writing

    def write(self, bundle: Bundle, owner: str | None = None) -> None:
        """Keep a bundle. Raises StorageFullError, StateError; then nothing has changed.

        ``owner`` is the RID of the node to which a personality belongs.
        """
        rid = bundle.rid
        if rid not in self._entries and len(self._entries) >= self._max_objects:
            raise StorageFullError(f"{self.folder} (it holds {self._max_objects} objects, its limit)")
        data = encode_bundle(bundle)
        self._append(b'{"w":%b}\n' % data)
        self._entries[rid] = _pack(bundle.manifest, owner, is_same_in_both(data))
        self._unwritten[rid] = data
        self._parsed.pop(rid, None)

    def delete(self, rid: object) -> None:
        """Forget a RID. Raises StorageFullError, StateError."""
        text = str(rid)
        if text not in self._entries:
            return
        self._append(orjson.dumps({"d": text}) + b"\n")
        del self._entries[text]
        self._parsed.pop(text, None)
        self._unwritten[text] = None

    def note(self, key: str, value: Any) -> None:
        """Store a small JSON value next to the bundles; None removes it. Raises StateError."""
        self._append(orjson.dumps({"n": [key, value]}) + b"\n")
        self._set_note(key, value)

    def enqueue(self, target: str, rid: str, event_type: str) -> None:
        """Let an event wait for a node; it replaces an earlier one of that RID.

        Raises StorageFullError, StateError.
        """
        self._append(orjson.dumps({"q": [target, rid, event_type]}) + b"\n")
        self._set_queued(target, rid, event_type)

    def dequeue(self, target: str, rids: Iterable[str]) -> None:
        """Remove events that reached a node. Raises StorageFullError, StateError."""
        gone = list(rids)
        self._append(orjson.dumps({"s": [target, gone]}) + b"\n")
        self._drop_queued(target, gone)

    def _set_queued(self, target: str, rid: str, event_type: str) -> None:
        queue = self.queues.setdefault(target, {})
        queue.pop(rid, None)
        queue[rid] = event_type

    def _drop_queued(self, target: str, rids: list[str]) -> None:
        queue = self.queues.get(target, {})
        for rid in rids:
            queue.pop(rid, None)
        if not queue:
            self.queues.pop(target, None)

    def _set_note(self, key: str, value: Any) -> None:
        if value is None:
            self.notes.pop(key, None)
        else:
            self.notes[key] = value

    def _remember(self, bundle: Bundle) -> Bundle:
        self._parsed[bundle.rid] = bundle
        self._parsed.move_to_end(bundle.rid)
        if len(self._parsed) > _KEPT_PARSED:
            self._parsed.popitem(last=False)
        return bundle

    # The journal

    def _append(self, line: bytes) -> None:
        """Append one line. Raises StorageFullError, StateError; then nothing has changed."""
        if not self._journal.has_room(len(line)):
            with storage_errors(self._journal.path):
                self._make_room(len(line))
        self._journal.append(line)

    def _make_room(self, needed_bytes: int) -> None:
        """Begin another journal, or extend this one while the files of the last are being written."""
        if self._checkpoint is None and not self._writing and self._unwritten:
            self._journal.begin_another()
            self._writing, self._unwritten = self._unwritten, {}
        if self._checkpoint is None and self._writing:
            work = self._write_checkpoint(self._encode_notes())
            self._checkpoint = asyncio.get_running_loop().create_task(work)
        if not self._journal.has_room(needed_bytes):
            self._journal.extend(needed_bytes)

    async def _write_checkpoint(self, notes: bytes) -> None:
        try:
            with storage_errors(self.folder):
                await asyncio.to_thread(self._write_files, notes)
                self._journal.old_path.unlink(missing_ok=True)
            self._writing = {}
        except Exception as error:  # noqa: BLE001 - both journals stay, and a later change tries again
            log.warning("koi_cache_not_written", folder=str(self.folder), error=str(error))
        finally:
            self._checkpoint = None

    def _write_files(self, notes: bytes) -> None:
        self._files.write(self._writing)
        self._files.write_notes(notes)

    def _encode_notes(self) -> bytes:
        return orjson.dumps({"notes": self.notes, "queues": self.queues})

    def _apply(self, change: dict[str, Any]) -> None:
        if "w" in change:
            bundle = parse_bundle(change["w"])
            self._enter(bundle)
            self._unwritten[bundle.rid] = encode_bundle(bundle)
        elif "d" in change:
            self._entries.pop(change["d"], None)
            self._unwritten[change["d"]] = None
        elif "q" in change:
            target, rid, event_type = change["q"]
            self._set_queued(target, rid, event_type)
        elif "s" in change:
            target, rids = change["s"]
            self._drop_queued(target, rids)
        else:
            key, value = change["n"]
            self._set_note(key, value)

    def _enter(self, bundle: Bundle) -> None:
        owner = bundle.contents.get("node_rid")
        same_in_both = is_same_in_both(encode_bundle(bundle))
        self._entries[bundle.rid] = _pack(
            bundle.manifest, owner if isinstance(owner, str) else None, same_in_both
        )


def _pack(manifest: Manifest, owner: str | None, same_in_both: bool) -> _Packed:
    # the context that every manifest has is added when it is sent
    has_context_only = len(manifest.more) == 1 and manifest.more[0][0] == "@context"
    more = () if has_context_only else manifest.more
    return manifest.timestamp, manifest.sha256_hash, more, manifest.instant_us, owner, same_in_both


def iterate_bundles(cache: KoiCache, rid_types: Iterable[Any]) -> Iterator[Bundle]:
    """The bundles of these types, one after the other from disk."""
    for rid in cache.list_rids(rid_types):
        bundle = cache.read(rid)
        if bundle is not None:
            yield bundle
