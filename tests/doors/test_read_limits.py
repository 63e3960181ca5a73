"""Rates bind requests that read without a call as well, and metrics name to a caller what it may see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from retinue import Agent
from retinue.core.call import Principal
from retinue.mesh.observing.metrics import OTHER
from retinue.runtime.observing.process_state import ProcessState
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.system import System, open_system, open_wire

BURST = 3
READS = [
    ("GET", "/v2/"),
    ("GET", "/v2/_catalog"),
    ("GET", "/tools/list"),
    ("GET", "/koi-net/resources/list"),
    ("GET", "/resources/read/agent:echo"),
    ("GET", "/agent-card"),
    ("GET", "/agents/echo/agent-card"),
    ("GET", "/.well-known/agent-card.json"),
    ("GET", "/.well-known/ai-catalog.json"),
    ("POST", "/search"),
]


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    limits = {"calls_per_s": 0.001, "burst": BURST}
    async with open_system(State(tmp_path), limits=limits) as system:
        yield system


def _issue(system: System, *scopes: str, name: str) -> str:
    return f"Bearer {TokenFile(system.state.keys).issue(scopes, name=name)[1]}"


@pytest.mark.parametrize(("method", "path"), READS)
async def test_reads_of_a_caller_have_its_rate_and_other_callers_their_own(
    system: System, method: str, path: str
) -> None:
    hub = await system.start_hub()
    ada, ben = (_issue(system, "mesh", name=name) for name in ("ada", "ben"))
    async with open_wire() as wire:

        async def read(authorization: str) -> tuple[int, str]:
            if method == "GET":
                reply = await wire.get(f"{hub.url}{path}", authorization=authorization)
            else:
                reply = await wire.post(f"{hub.url}{path}", {}, authorization=authorization)
            return reply.status, reply.headers.get("retry-after", "")

        for _ in range(BURST):
            assert (await read(ada))[0] != 429
        status, retry_after = await read(ada)
        assert status == 429
        assert int(retry_after) > 0
        assert (await read(ben))[0] != 429
        assert (await wire.get(f"{hub.url}/health")).status == 200


async def test_reads_and_calls_of_a_caller_share_its_rate(system: System) -> None:
    hub = await system.start_hub()
    ada = _issue(system, "mesh", name="ada")
    async with open_wire() as wire:
        for _ in range(BURST):
            await wire.get(f"{hub.url}/v2/", authorization=ada)
        reply = await wire.call(hub.url, "list_agents", authorization=ada)
    assert reply.json["error"]["data"]["type"] == "busy"


async def test_metrics_name_to_a_caller_the_skills_that_it_may_see(tmp_path: Path) -> None:
    async with open_system(State(tmp_path)) as system, open_wire() as wire:
        agent = Agent("shop", version="1.0.0")

        @agent.skill(expose=True)
        async def order() -> str:
            """Orders tea."""
            return "ordered"

        @agent.skill
        async def restock() -> str:
            """Fills the shelves."""
            return "full"

        await system.start_agent(agent)
        hub = await system.start_hub()
        process = hub.process
        state = ProcessState.observing(
            "hub", process.dispatcher.access, process.dispatcher.admission, lambda: False
        )
        state.shown = process.shown
        for skill in ("order", "restock"):
            reply = await wire.call(hub.url, skill, authorization=system.token)
            assert "result" in reply.json
        hub.mesh.events.flush()

        async def list_skills(*scopes: str) -> set[str]:
            figures = await state.read_for(Principal("token:x", "token", frozenset(scopes)))
            calls = figures.values["retinue_calls_total"]
            histograms = figures.histograms["retinue_call_duration_seconds"]
            assert {labels[1] for labels in calls if labels[0]} == {labels[1] for labels in histograms}
            return {labels[1] for labels in calls if labels[0] == "shop"}

        assert await list_skills("exposed") == {"order", OTHER}
        assert await list_skills("exposed", "mesh") == {"order", "restock"}
