"""The table of the policies that each node of a database has, so that nodes notice where they differ."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase


class PolicyDigestTable:
    """The digests of the nodes' policies, "" without any; all methods raise StateError."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database

    async def announce(self, executor: str, digest: str) -> None:
        """Tell which policies a node has."""
        statement = sa.text(
            f"INSERT INTO {self._database.policy_digests} (executor, digest) "  # noqa: S608
            "VALUES (:executor, :digest) ON CONFLICT (executor) DO UPDATE SET digest = excluded.digest"
        )

        def write(connection: sa.Connection) -> None:
            connection.execute(statement, {"executor": executor, "digest": digest})

        await self._database.prepare()
        await self._database.write(write)

    async def read(self) -> Mapping[str, str]:
        """The last digest of each node, also of nodes that have ended."""
        query = sa.text(f"SELECT executor, digest FROM {self._database.policy_digests}")  # noqa: S608

        def read(connection: sa.Connection) -> dict[str, str]:
            return {row.executor: row.digest for row in connection.execute(query)}

        await self._database.prepare()
        return await self._database.read(read)
