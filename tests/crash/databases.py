"""What the tests do to the database of the runs themselves."""

from __future__ import annotations

import asyncio

import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase


def forget_nodes(url: str) -> None:
    """Let the leases of all nodes have run out: none of them lives."""
    database = RunDatabase(url)
    statement = sa.text(f"DELETE FROM {database.nodes}")
    try:
        asyncio.run(database.write(lambda connection: connection.execute(statement)))
    finally:
        database.close()
