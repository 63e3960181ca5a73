"""Pages of a large mesh: three hundred agents, three thousand calls, a run of five hundred steps.

What the pages cost is measured by ``benchmarks/dashboard.py``; here they are bounded in size.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.authoring.agent import Agent
from retinue.dashboard.drawings.step_levels import MAX_ROWS
from retinue.storage.state import State
from tests.support.large_mesh import LONG_TRACE, STEPS, fill_state
from tests.system import Wire, open_system, open_wire

AGENTS = 300
CALLS = 3_000
MAX_BYTES = 150_000


@dataclass(frozen=True, slots=True)
class Visitor:
    """Reads pages with the token of the mesh."""

    wire: Wire
    url: str
    token: str
    run: str

    async def read(self, path: str) -> str:
        reply = await self.wire.get(f"{self.url}{path}", authorization=self.token, accept="text/html")
        assert reply.status == 200, path
        assert len(reply.body) < MAX_BYTES, (path, len(reply.body))
        return reply.body.decode()


def make_worker() -> Agent:
    agent = Agent("worker-agent", version="1.0.0")

    @agent.skill(expose=True)
    async def work(n: int) -> dict[str, object]:
        """Works on one item."""
        if n == 7:
            raise ValueError("item 7 is bad")
        return {"n": n, "text": '"<x>"' * 400}

    return agent


@pytest.fixture
async def visitor(retinue_home: Path) -> AsyncIterator[Visitor]:
    state = State(retinue_home)
    await fill_state(state, agents=AGENTS, calls=CALLS)
    async with open_system(state) as system, open_wire() as wire:
        await system.start_agent(make_worker())
        hub = await system.start_hub(dashboard=True)
        state.runs.touch()
        start = {"workflow": "long", "input": {"items": list(range(STEPS))}}
        reply = await wire.call(hub.url, "start_run", start, authorization=system.token)
        run = reply.result["run"]
        done = False
        after = 0
        while not done:
            asked = {"run": run, "after": after}
            followed = (await wire.call(hub.url, "follow_run", asked, authorization=system.token)).result
            done, after = followed["done"], followed["next"]
        yield Visitor(wire, hub.url, system.token, run)


async def test_every_page_of_a_large_mesh_is_bounded_and_nothing_is_out_of_reach(visitor: Visitor) -> None:
    run = f"/ui/runs/{visitor.run}"
    for path in (
        "/",
        "/ui/agents?q=build+kind+7",
        "/ui/agents/agent-0005",
        "/ui/agents/agent-0005/skills/skill_5_0",
        "/ui/calls?failed=1",
        "/ui/runs",
        "/ui/workflows",
        f"{run}?step=each%238",
        f"{run}?step=each%238/item",
    ):
        await visitor.read(path)
    assert (await visitor.read("/ui/agents")).count("<tr data-key") == 50
    assert (await visitor.read("/ui/calls")).count("<tr data-key") == 50
    trace = await visitor.read(f"/ui/traces/{LONG_TRACE}")
    assert trace.count("<tr data-key") == 100
    assert 'rel="next"' in trace
    mesh = await visitor.read("/ui/mesh")
    assert f"{AGENTS + 1} agents" in mesh
    assert sum(
        len(re.findall("M", one)) for one in re.findall(r'<path class="s-[^"]+" d="([^"]+)"', mesh)
    ) == (AGENTS + 1)
    whole = await visitor.read(run)
    assert whole.count("<tr data-key") == 3
    assert "499 done, 1 failed" in whole
    each = await visitor.read(f"{run}?step=each")
    assert 25 <= each.count("<tr data-key") <= MAX_ROWS
    assert f"1–25 of {STEPS}" in each
    assert f"{STEPS - 24}–{STEPS} of {STEPS}" in await visitor.read(f"{run}?step=each&from={STEPS - 25}")
    failed = await visitor.read(f"{run}?failed=1")
    assert re.findall(r'<tr data-key="([^"]+)"', failed) == ["each#8/item"]
