"""The file of the dashboard's sessions, so that they survive a restart of the hub.

Each row has the digest of a session's id, its caller, its begin, and its token encrypted with a key that the
file does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import structlog

from retinue.storage.files import make_folder, replace_file

_log = structlog.get_logger("retinue.store")


class SessionFile:
    """The rows in the file ``path``, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Mapping[str, Any]]:
        """The rows; none where the file is missing or damaged, as after the end of all sessions."""
        try:
            rows = orjson.loads(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, orjson.JSONDecodeError) as error:
            _log.warning("sessions of browsers not read", path=str(self._path), error=str(error))
            return []
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the rows; where that fails, the sessions end with the hub."""
        try:
            make_folder(self._path.parent)
            replace_file(self._path, orjson.dumps(list(rows)), mode=0o600)
        except OSError as error:
            _log.warning("sessions of browsers not stored", path=str(self._path), error=str(error))
