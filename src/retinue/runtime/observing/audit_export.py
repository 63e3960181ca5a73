"""Exports the audit rows of a hub to a file of JSON lines, for other programs.

A full file is renamed to ``NAME.1``, that one to ``NAME.2``, and so on; the oldest is removed. The file is
opened for each batch, so other programs may rename it as well.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import structlog

from retinue.core.errors import InvalidSettingError
from retinue.runtime.observing.log_files import open_appending, rotate
from retinue.storage.files import write_all

_log = structlog.get_logger("retinue.audit")

EXPORT_FLUSH_S = 0.2
EXPORT_BUFFER_ROWS = 10_000
"""Rows kept in memory while the file cannot be written; beyond that the oldest are dropped."""


class AuditExport:
    """The file at ``path``; it is renamed beyond ``file_bytes``, and ``files`` are kept with the current one.

    Raises InvalidSettingError if the file cannot be opened. A write error never fails a call.
    """

    def __init__(self, path: Path, *, file_bytes: int, files: int, flush_s: float = EXPORT_FLUSH_S) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._files = files
        self._flush_s = flush_s
        self._buffer: deque[bytes] = deque(maxlen=EXPORT_BUFFER_ROWS)
        self._timer: asyncio.TimerHandle | None = None
        self._has_failed = False
        try:
            os.close(open_appending(path))
        except OSError as error:
            raise InvalidSettingError(
                "audit.export",
                f"{path} cannot be written: {error.strerror}",
                remedy="name a file in a folder that the hub may write",
            ) from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row for the next batch."""
        self._buffer.append(orjson.dumps(dict(row), default=str) + b"\n")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._flush_s, self.flush)

    def flush(self) -> None:
        """Write the waiting rows; where that fails, they wait for the next batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._buffer:
            return
        try:
            self._write()
        except OSError as error:
            if not self._has_failed:
                _log.warning("audit rows wait for their export", path=str(self._path), error=str(error))
            self._has_failed = True
        else:
            self._has_failed = False

    def _write(self) -> None:
        descriptor = open_appending(self._path)
        try:
            if os.fstat(descriptor).st_size >= self._file_bytes:
                rotate(self._path, self._files)
                os.close(descriptor)
                descriptor = open_appending(self._path)
            write_all(descriptor, b"".join(self._buffer))
            self._buffer.clear()
        finally:
            os.close(descriptor)
