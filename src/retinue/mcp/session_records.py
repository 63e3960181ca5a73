"""Records the open MCP sessions of a hub's leader, so that the next leader goes on with them.

A leader that was killed leaves its records behind. `SessionRecords` has the sessions of the hub's own
servers, `RelayedRecords` those at agents, whose requests the hub passes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

from retinue.core.record import ListingKey

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


class _RecordFiles:
    """One file for each open session in ``folder``, which other users cannot read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, server: str, session_id: str) -> Path:
        """The file of a session; the server or agent that opened it is part of its name."""
        place = f"{server}\n{session_id}".encode("utf-8", "surrogatepass")
        return self.folder / sha256(place).hexdigest()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Log what keeps a session from being recorded."""
        try:
            yield
        except (OSError, TypeError) as error:
            _log.warning("a session is not recorded, and ends with this process", problem=str(error))

    def read(self, server: str, session_id: str) -> Sequence[Any]:
        """The lines of a record; () for a session that has ended, or never was."""
        try:
            return [orjson.loads(line) for line in self.path(server, session_id).read_bytes().splitlines()]
        except (OSError, ValueError):  # a half-written line is that of a leader that was killed
            return ()

    def remove(self, server: str, session_id: str) -> None:
        with suppress(OSError):
            self.path(server, session_id).unlink(missing_ok=True)


class SessionRecord(NamedTuple):
    """The `principal_key` of the opener, and its messages in their order."""

    owner: str
    messages: Sequence[Mapping[str, Any]]


class SessionRecords:
    """Records how each session of the hub began, in files of ``folder``.

    A record has the messages of the client that changed the session: ``initialize``, subscriptions and the
    log level. The next leader handles them again when a request of the session comes
    (`retinue.mcp.server.reopening`). ``server`` names one of several servers with the same folder.
    """

    def __init__(self, folder: Path, server: str = "") -> None:
        self._files = _RecordFiles(folder)
        self._server = server

    def add(self, session_id: str, owner: str, method: str, params: Mapping[str, Any] | None) -> None:
        """Record a message that the server has handled, if it changed the session."""
        if method not in _RECORDED:
            return
        message = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        file = self._files.path(self._server, session_id)
        with self._files.writing():
            if method == _OPENING:
                file.write_bytes(orjson.dumps(owner) + b"\n" + orjson.dumps(message) + b"\n")
            elif file.exists():
                if file.stat().st_size > _RECORD_BYTES:
                    file.unlink()
                    return
                with file.open("ab") as record:
                    record.write(orjson.dumps(message) + b"\n")

    def find(self, session_id: str) -> SessionRecord | None:
        """The record of a session; None for one that has ended, or never was."""
        if not (lines := self._files.read(self._server, session_id)):
            return None
        owner, *messages = lines
        return SessionRecord(owner, messages)

    def remove(self, session_id: str) -> None:
        """The session has ended."""
        self._files.remove(self._server, session_id)

    def of_server(self, server: str) -> SessionRecords:
        """The records of another server in the same folder."""
        return SessionRecords(self._files.folder, server)


class RelayedRecords:
    """Records the listing and the owner of each session that an agent has opened, in files of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._files = _RecordFiles(folder)

    def add(self, agent: str, session_id: str, listing: ListingKey, owner: str) -> None:
        """Record a session that an agent has opened; ``owner`` is a `principal_key`."""
        with self._files.writing():
            self._files.path(agent, session_id).write_bytes(orjson.dumps([list(listing), owner]))

    def find(self, agent: str, session_id: str) -> tuple[ListingKey, str] | None:
        """The listing and the owner of a session; None for one that has ended, or never was."""
        if not (lines := self._files.read(agent, session_id)):
            return None
        listing, owner = lines[0]
        return ListingKey(*listing), owner

    def remove(self, agent: str, session_id: str) -> None:
        """The session has ended."""
        self._files.remove(agent, session_id)
