"""The journal of a cache: lines in a memory-mapped file.

The kernel keeps the mapped bytes, so they outlive this process without a system call. The file is allocated
when it is begun, so that a full disk is noticed before a change.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from retinue_koi.codec.bundles import WireError
from retinue_koi.codec.envelopes import decode_json

JOURNAL_BYTES: Final = 8 * 1024 * 1024
_ASIDE: Final = ".damaged"

log = structlog.get_logger("retinue.koi")


class Journal:
    """The journal in ``folder``, and the older one, whose changes are being written to the files.

    ``size_bytes`` is the size of a journal that is begun, and what an extended one grows by.
    """

    def __init__(self, folder: Path, size_bytes: int = JOURNAL_BYTES) -> None:
        self._size_bytes = size_bytes
        self.path = folder / "journal"
        self.old_path = folder / "journal.old"
        self._temporary = folder / "journal.new"
        self._mapped: mmap.mmap | None = None
        self._end = 0

    @property
    def is_open(self) -> bool:
        return self._mapped is not None

    def begin(self) -> None:
        """Begin an empty journal, with all its room. Raises OSError."""
        descriptor = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size_bytes)
            mapped = mmap.mmap(descriptor, self._size_bytes)
            self._temporary.replace(self.path)
        except OSError:
            self._temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        if self._mapped is not None:
            self._mapped.close()
        self._mapped = mapped
        self._end = 0

    def begin_another(self) -> None:
        """Keep this journal as the older one and begin an empty one. Raises OSError; then nothing changes."""
        os.link(self.path, self.old_path)
        try:
            self.begin()
        except OSError:
            self.old_path.unlink()
            raise

    def has_room(self, needed_bytes: int) -> bool:
        return self._end + needed_bytes <= len(self._require())

    def extend(self, needed_bytes: int) -> None:
        """Make room for so many bytes and a whole journal more. Raises OSError."""
        mapped = self._require()
        size = self._end + needed_bytes + self._size_bytes
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, size)
            larger = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        mapped.close()
        self._mapped = larger

    def append(self, line: bytes) -> None:
        """Append one line, for which there is room."""
        end = self._end + len(line)
        self._require()[self._end : end] = line
        self._end = end

    def replay(self, apply: Callable[[Any], None]) -> None:
        """Give every change of both journals to ``apply``, the oldest first; damaged lines are set aside."""
        for path in (self.old_path, self.path):
            try:
                data = path.read_bytes().rstrip(b"\x00")  # room that was not used
            except FileNotFoundError:
                continue
            for number, line in enumerate(data.split(b"\n"), 1):
                if not line:
                    continue
                try:
                    apply(decode_json(line))
                except (WireError, KeyError, TypeError, ValueError) as error:
                    aside = path.with_name(f"{path.name}{_ASIDE}")
                    aside.write_bytes(line)
                    log.warning("koi_journal_line_set_aside", line=number, file=str(aside), reason=str(error))

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def _require(self) -> mmap.mmap:
        if self._mapped is None:
            raise RuntimeError("the cache is not open")
        return self._mapped
