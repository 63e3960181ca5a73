"""Records how each session of a hub's leader began, so that the next leader goes on with it.

A leader that was killed leaves its records behind. A record has the messages of the client that made the
session what it is: ``initialize``, subscriptions and the log level. The next leader handles them again when a
request of the session comes (`retinue.mcp.server.reopening`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

_OPENING = "initialize"
_RECORDED = frozenset(
    {
        _OPENING,
        "notifications/initialized",
        "resources/subscribe",
        "resources/unsubscribe",
        "logging/setLevel",
    }
)
_RECORD_BYTES = 64 * 1024
"""A longer record is dropped; its session ends with the leader."""

_log = structlog.get_logger("retinue.mcp")


class SessionRecord(NamedTuple):
    """The `principal_key` of the opener, and its messages in their order."""

    owner: str
    messages: Sequence[Mapping[str, Any]]


class SessionRecords:
    """The records of the open sessions, one file each in ``folder``, which other users cannot read.

    ``server`` names one of several servers with the same folder.
    """

    def __init__(self, folder: Path, server: str = "") -> None:
        self._folder = folder
        self._server = server
        folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, session_id: str, owner: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Record a message that the server has handled, if it changed the session."""
        if method not in _RECORDED:
            return
        message = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        file = self._file(session_id)
        try:
            if method == _OPENING:
                file.write_bytes(orjson.dumps(owner) + b"\n" + orjson.dumps(message) + b"\n")
            elif file.exists():
                if file.stat().st_size > _RECORD_BYTES:
                    file.unlink()
                    return
                with file.open("ab") as record:
                    record.write(orjson.dumps(message) + b"\n")
        except (OSError, TypeError) as error:
            _log.warning("a session is not recorded, and ends with this process", problem=str(error))

    def find(self, session_id: str) -> SessionRecord | None:
        """The record of a session; None for one that has ended, or never was."""
        try:
            owner, *messages = map(orjson.loads, self._file(session_id).read_bytes().splitlines())
        except (OSError, ValueError):  # a half-written line is that of a leader that was killed
            return None
        return SessionRecord(owner, messages)

    def remove(self, session_id: str) -> None:
        """The session has ended."""
        with suppress(OSError):
            self._file(session_id).unlink(missing_ok=True)

    def _file(self, session_id: str) -> Path:
        place = f"{self._server}\n{session_id}".encode("utf-8", "surrogatepass")
        return self._folder / sha256(place).hexdigest()

    def of_server(self, server: str) -> SessionRecords:
        """The records of another server in the same folder."""
        return SessionRecords(self._folder, server)
