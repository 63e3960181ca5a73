"""At which node a new run begins: here, unless another has much less to do."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from retinue.drivers.durable.database import VERSION, RunDatabase
from retinue.drivers.durable.engine import RUN
from retinue.drivers.durable.leases import Lease, queue_of
from retinue.workflows.run_records import RunRequest

SPREAD_RUNS = 8
"""A run is started here unless another node has so many runs less."""


class Spreading:
    """Chooses nodes for new runs, and sends them there."""

    def __init__(self, database: RunDatabase) -> None:
        self._database = database
        self._sent: Counter[str] = Counter()
        self._sent_to: object = None

    def find_other(self, lease: Lease, running: int) -> str | None:
        """The node that has much less to do than this one with ``lease``, which has ``running`` runs."""
        nodes = lease.nodes
        if self._sent_to is not nodes:
            # The nodes have said anew how much they have.
            self._sent_to, self._sent = nodes, Counter()
        others = {
            node.executor: node.running + self._sent[node.executor]
            for node in nodes
            if node.executor != lease.executor
        }
        if not others:
            return None
        idlest = min(others, key=lambda executor: others[executor])
        if others[idlest] + SPREAD_RUNS > running:
            return None
        self._sent[idlest] += 1
        return idlest

    async def send(self, executor: str, run_id: str, request: RunRequest) -> None:
        """Queue a run at a node; one that exists stays what it is."""
        options: Any = {
            "workflow_name": RUN,
            "queue_name": queue_of(executor),
            "workflow_id": run_id,
            "app_version": VERSION,
        }
        client = self._database.client
        await self._database.ask(lambda: client.enqueue(options, request.to_json(), None, time.time()))
