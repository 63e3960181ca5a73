"""Records whose the sessions at agents are, so that the next leader of a hub passes on their requests."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import orjson
import structlog

from retinue.core.record import ListingKey

_log = structlog.get_logger("retinue.mcp")


class RelayedRecords:
    """One file for each open session in ``folder``, which other users cannot read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def add(self, agent: str, session_id: str, listing: ListingKey, owner: str) -> None:
        """Record a session that an agent has opened; ``owner`` is a `principal_key`."""
        try:
            self._file(agent, session_id).write_bytes(orjson.dumps([list(listing), owner]))
        except (OSError, TypeError) as error:
            _log.warning("a session is not recorded, and ends with this process", problem=str(error))

    def find(self, agent: str, session_id: str) -> tuple[ListingKey, str] | None:
        """The listing and the owner of a session; None for one that has ended, or never was."""
        try:
            listing, owner = orjson.loads(self._file(agent, session_id).read_bytes())
        except (OSError, ValueError):  # a half-written file is that of a leader that was killed
            return None
        return ListingKey(*listing), owner

    def remove(self, agent: str, session_id: str) -> None:
        """The session has ended."""
        with suppress(OSError):
            self._file(agent, session_id).unlink(missing_ok=True)

    def _file(self, agent: str, session_id: str) -> Path:
        place = f"{agent}\n{session_id}".encode("utf-8", "surrogatepass")
        return self._folder / sha256(place).hexdigest()
