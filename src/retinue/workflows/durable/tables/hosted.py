"""The table of the workflows in Python that the nodes host.

A node announces its workflows with its lease: the rows of a node count as long as it lives. So each process
on the database knows which node can execute a run, and lists and starts workflows whose code it does not
have itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa

from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.runs.hosting import HostedWorkflow

Hosts = Mapping[str, Sequence[HostedWorkflow]]
"""The workflows that nodes announced, by executor."""


class HostedTable:
    """The announcements; ``own`` are the workflows of this process. All methods block."""

    def __init__(self, database: RunDatabase, own: Sequence[HostedWorkflow] = ()) -> None:
        self._database = database
        self._own = tuple(own)

    def is_announced(self, hosts: Hosts, executor: str) -> bool:
        """Whether the announcements of this process are there; another node removes those of a lost lease."""
        return {workflow.code for workflow in hosts.get(executor, ())} == {
            workflow.code for workflow in self._own
        }

    def announce(self, connection: sa.Connection, executor: str) -> None:
        """Store the workflows of this process, in the transaction that renews its lease."""
        self.forget(connection, executor)
        insert = sa.text(
            f"INSERT INTO {self._database.hosted} (executor, name, workflow) "  # noqa: S608
            "VALUES (:executor, :name, :workflow)"
        )
        rows = [
            {
                "executor": executor,
                "name": workflow.code.name,
                "workflow": orjson.dumps(workflow.to_json()).decode(),
            }
            for workflow in self._own
        ]
        if rows:
            connection.execute(insert, rows)

    def forget(self, connection: sa.Connection, executor: str) -> None:
        """Delete the announcements of a node."""
        statement = sa.text(f"DELETE FROM {self._database.hosted} WHERE executor = :executor")  # noqa: S608
        connection.execute(statement, {"executor": executor})

    def forget_lost(self, connection: sa.Connection) -> None:
        """Delete the announcements of nodes without a lease."""
        connection.exec_driver_sql(
            f"DELETE FROM {self._database.hosted} "  # noqa: S608
            f"WHERE executor NOT IN (SELECT executor FROM {self._database.nodes})"
        )

    def read(self, connection: sa.Connection) -> Hosts:
        """The announcements of all nodes with a row in the table of leases."""
        query = f"SELECT executor, workflow FROM {self._database.hosted} ORDER BY executor, name"  # noqa: S608
        return _group(connection.exec_driver_sql(query))

    def read_living(self, connection: sa.Connection) -> Hosts:
        """The announcements of nodes whose lease lasts by the clock of the database."""
        query = sa.text(
            f"SELECT hosted.executor, workflow FROM {self._database.hosted} AS hosted "  # noqa: S608
            f"JOIN {self._database.nodes} AS nodes ON nodes.executor = hosted.executor "
            f"WHERE nodes.expires > {self._database.now} ORDER BY hosted.executor, name"
        )
        return _group(connection.execute(query, self._database.clock()))


def _group(rows: Iterable[Any]) -> Hosts:
    hosts: dict[str, list[HostedWorkflow]] = {}
    for executor, text in rows:
        hosts.setdefault(executor, []).append(HostedWorkflow.from_json(orjson.loads(text)))
    return hosts
