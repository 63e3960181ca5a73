"""Nodes that share one database notice that their policies differ."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3

from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.storage.state import State
from retinue.workflows.durable.database_watch import RunFigures
from retinue.workflows.durable.nodes import Node
from tests.crash.postgres import Postgres
from tests.doors.test_policies import DENY, open_bank
from tests.processes.running import program, wait_until
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


def test_two_hubs_on_one_database_tell_that_their_policies_differ_until_they_are_equal(
    tmp_path: Path,
) -> None:
    postgres = Postgres()
    rule = '@id("a") forbid(principal, action, resource == Retinue::Skill::"bank/%s");'
    with ExitStack() as stack:
        stack.callback(postgres.close)
        database = postgres.create_database()
        hubs: list[tuple[str, State]] = []
        for name in ("near", "far"):
            state = State(tmp_path / name)
            (state.root / "policies").mkdir(parents=True)
            (state.root / "policies" / "own.cedar").write_text(rule % name, "utf-8")
            environment = {"RETINUE_DATABASE": database, "RETINUE_HOME": str(state.root)}
            hub = program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment)
            hubs.append((stack.enter_context(hub).url_in("hub at"), state))

        def find_problems(place: tuple[str, State]) -> list[str]:
            url, state = place
            headers = {"authorization": f"Bearer {state.local_token()}"}
            reply = urllib3.request("GET", f"{url}/ready", headers=headers, timeout=120.0)
            return [
                one["reason"] for one in reply.json().get("problems", ()) if one.get("name") == "policies"
            ]

        other = "has other policies (sha256:"
        wait_until(
            lambda: all(any(other in text for text in find_problems(place)) for place in hubs),
            "each hub names the other",
        )
        near, far = (state.root / "policies" / "own.cedar" for _, state in hubs)
        far.write_bytes(near.read_bytes())
        wait_until(lambda: not any(map(find_problems, hubs)), "the policies are equal")
