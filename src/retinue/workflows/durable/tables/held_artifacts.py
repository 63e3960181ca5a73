"""The table of the artifacts that runs hold: those whose links their inputs and outcomes contain.

It is stored with the runs, so that every node of a mesh sees which artifacts are in use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase

_BATCH = 500


class HeldArtifacts:
    """Writes and reads the holds of outermost runs; all methods raise StateError."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database

    async def add(self, root: str, digests: Collection[str]) -> None:
        """Let a run hold artifacts for as long as it is stored."""
        rows = [{"root": root, "digest": digest} for digest in sorted(digests)]
        if rows:
            await self._database.write(self._insert, rows)

    async def copy(self, root: str, new_root: str) -> None:
        """Let a run hold what another one holds, from which it was forked."""
        statement = sa.text(
            f"INSERT INTO {self._database.artifacts} (root, digest) "  # noqa: S608
            f"SELECT :new_root, digest FROM {self._database.artifacts} WHERE root = :root "
            "ON CONFLICT DO NOTHING"
        )
        names = {"root": root, "new_root": new_root}
        await self._database.write(lambda connection: connection.execute(statement, names))

    async def list_of(self, root: str) -> list[str]:
        """The digests that a run holds, in order."""
        query = sa.text(f"SELECT digest FROM {self._database.artifacts} WHERE root = :root ORDER BY digest")  # noqa: S608
        rows = await self._database.read(lambda c: c.execute(query, {"root": root}).fetchall())
        return [digest for (digest,) in rows]

    async def find(self, digests: Collection[str]) -> set[str]:
        """The digests among these that a run holds."""
        query = sa.text(
            f"SELECT DISTINCT digest FROM {self._database.artifacts} WHERE digest IN :digests"  # noqa: S608
        ).bindparams(sa.bindparam("digests", expanding=True))
        wanted, held = sorted(digests), set[str]()
        for at in range(0, len(wanted), _BATCH):
            held.update(await self._database.read(_list_digests, query, wanted[at : at + _BATCH]))
        return held

    async def forget(self, roots: Sequence[str]) -> set[str]:
        """End the holds of deleted runs; returns the digests that they held."""
        return set() if not roots else await self._database.write(self._delete, roots)

    def _insert(self, connection: sa.Connection, rows: Sequence[dict[str, str]]) -> None:
        statement = sa.text(
            f"INSERT INTO {self._database.artifacts} (root, digest) VALUES (:root, :digest) "  # noqa: S608
            "ON CONFLICT DO NOTHING"
        )
        connection.execute(statement, rows)

    def _delete(self, connection: sa.Connection, roots: Sequence[str]) -> set[str]:
        digests: set[str] = set()
        for root in roots:
            names = {"root": root}
            query = sa.text(f"SELECT digest FROM {self._database.artifacts} WHERE root = :root")  # noqa: S608
            digests.update(digest for (digest,) in connection.execute(query, names))
            connection.execute(
                sa.text(f"DELETE FROM {self._database.artifacts} WHERE root = :root"),  # noqa: S608
                names,
            )
        return digests


def _list_digests(connection: sa.Connection, query: sa.TextClause, digests: Sequence[str]) -> list[str]:
    return [digest for (digest,) in connection.execute(query, {"digests": list(digests)})]
