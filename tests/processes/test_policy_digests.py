"""Nodes that share one database notice that their policies differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.workflows.durable.database_watch import RunFigures
from retinue.workflows.durable.nodes import Node
from tests.doors.test_policies import DENY, open_bank
from tests.system import System, Wire


async def test_ready_tells_that_a_node_of_the_same_database_has_other_policies(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = await open_bank(system, wire, DENY, durable=True)
    steps = {"name": "w", "steps": [{"id": "a", "skill": "balance"}]}
    await wire.call(bank.hub.url, "orchestrate_workflow", {"workflow": steps, "input": {}})
    loaded, runs = bank.hub.process.get(LoadedPolicies), bank.hub.process.get(LazyRuns)
    figures = await runs.read_figures()
    assert figures is not None
    assert figures.own_node is not None
    # one process holds one engine of runs, so the other node is in the table only
    nodes = (Node(figures.own_node, 0), Node("far-1", 0))
    acting = figures.own_node

    async def read_figures() -> RunFigures:
        return replace(figures, nodes=nodes, own_node=acting)

    monkeypatch.setattr(runs, "read_figures", read_figures)
    assert await loaded.find_problems() == []
    gate = loaded.gate
    assert gate is not None
    own = gate.engine.policies.digest
    for digest, theirs in (("sha256:other", "other policies (sha256:other)"), ("", "no policies"), (own, "")):
        acting = "far-1"
        await runs.announce_policies(digest)
        acting = "gone-1"
        await runs.announce_policies("sha256:older")
        acting = figures.own_node
        problems = [problem.reason for problem in await loaded.find_problems()]
        expected = f"node far-1 of the same database has {theirs}; this one has {own[:19]}"
        assert problems == ([expected] if theirs else [])
