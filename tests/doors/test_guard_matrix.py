"""The guard over the endpoints (exchange 4-7): a chain is one chain at every endpoint.

A ring of each endpoint alone, and of each with the next, runs always; all other pairs in ``make soak``.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, product
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from tests.doors.guard_doors import ENDPOINTS, GuardEndpoint, Link
from tests.recording import Exchange
from tests.requirements import requirement
from tests.system import System, Wire

MAX_DEPTH = 5
NEXT = dict(zip(ENDPOINTS, [*ENDPOINTS[1:], ENDPOINTS[0]], strict=True))
"""A mixed ring has each endpoint with the next one, so each is once the first and once the second."""
PAIRS = pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            first,
            second,
            id=f"{first.name}, {second.name}",
            marks=[] if second in (first, NEXT[first]) else pytest.mark.soak,
        )
        for first, second in product(ENDPOINTS, ENDPOINTS)
    ],
)
EACH = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=[endpoint.name for endpoint in ENDPOINTS])


class Ring:
    """Agents that call each other through endpoints in turn; ``depths`` are those at which they ran."""

    def __init__(self, system: System, wire: Wire, endpoints: tuple[GuardEndpoint, ...]) -> None:
        self.depths: list[int] = []
        self._system = system
        self._wire = wire
        self._endpoints = cycle(endpoints)
        self._urls: dict[str, str] = {}

    async def start(self, names: str, *, closed: bool) -> str:
        """Serve an agent for each letter, each calling the next; the url of the first."""
        self._hub = await self._system.start_hub()
        for name, following in zip(names, [*names[1:], names[0] if closed else ""], strict=True):
            agent = self._make(name, following)
            self._urls[agent.name] = (await self._system.start_agent(agent)).url
        return self._urls[f"agent-{names[0]}"]

    def _make(self, name: str, following: str) -> Agent:
        agent = Agent(f"agent-{name}")

        @agent.skill(f"ask_{name}")
        async def ask(ctx: Context) -> Any:
            self.depths.append(ctx.trace.depth)
            if not following:
                return "the end"
            return await next(self._endpoints).call(self._link(ctx, following))

        @agent.skill(f"fan_{name}")
        async def fan(ctx: Context, times: int) -> Any:
            endpoint = next(self._endpoints)
            return await asyncio.gather(*(endpoint.call(self._link(ctx, following)) for _ in range(times)))

        return agent

    def _link(self, ctx: Context, to: str) -> Link:
        return Link(ctx, f"agent-{to}", f"ask_{to}", self._urls, self._system, self._hub, self._wire)


def expected_depths(first: GuardEndpoint, second: GuardEndpoint) -> list[int]:
    depths, endpoints = [0], cycle((first, second))
    while (depth := depths[-1] + next(endpoints).hops) <= MAX_DEPTH:
        depths.append(depth)
    return depths


@requirement("S-14")
@requirement("S-15")
@PAIRS
async def test_a_loop_is_refused_at_hop_six_and_everybody_learns_the_path(
    system: System, wire: Wire, first: GuardEndpoint, second: GuardEndpoint
) -> None:
    ring = Ring(system, wire, (first, second))
    url = await ring.start("abc", closed=True)
    reply = await wire.call(url, "ask_a", x_openstarry_trace_id="loop")
    assert ring.depths == expected_depths(first, second)
    error = reply.error
    assert error["code"] == -33007
    data = error["data"]
    assert (data["trace_id"], data["depth"], data["max_depth"]) == ("loop", 6, 5)
    assert data["path"] in error["message"]
    hops = [hop.partition(":")[0] for hop in data["path"].split(" → ")]
    names = {"agent-a", "agent-b", "agent-c", "retinue"}
    assert set(hops) <= names
    if first.tells_path and second.tells_path:
        assert len(hops) == 7
        agents = [hop for hop in hops[:-1] if hop != "retinue"]
        assert agents == [f"agent-{'abc'[n % 3]}" for n in range(len(agents))]


@requirement("S-14")
@EACH
async def test_agents_in_a_line_pass(system: System, wire: Wire, endpoint: GuardEndpoint) -> None:
    """Five, where each call is one hop."""
    names = "abcde" if endpoint.hops == 1 else "abc"
    ring = Ring(system, wire, (endpoint,))
    url = await ring.start(names, closed=False)
    assert (await wire.call(url, "ask_a")).result == "the end"
    assert ring.depths == [n * endpoint.hops for n in range(len(names))]


@requirement("S-14")
@EACH
async def test_a_fan_out_of_twenty_passes(system: System, wire: Wire, endpoint: GuardEndpoint) -> None:
    """Siblings do not push each other over the limit."""
    ring = Ring(system, wire, (endpoint,))
    url = await ring.start("ab", closed=False)
    assert (await wire.call(url, "fan_a", {"times": 20})).result == ["the end"] * 20
    assert ring.depths == [endpoint.hops] * 20


@requirement("S-13")
@EACH
async def test_every_request_of_a_chain_carries_its_id(
    system: System, wire: Wire, endpoint: GuardEndpoint
) -> None:
    ring = Ring(system, wire, (endpoint,))
    url = await ring.start("abc", closed=False)
    # the hub has the cards by now: what follows is the chain alone
    await wire.call(url, "ask_a")
    system.recording.clear()
    await wire.call(url, "ask_a", x_openstarry_trace_id="one-chain")
    sent = [one for one in system.recording.exchanges if one.method == "POST"]
    assert len(sent) >= 3
    assert {trace_id_of(one) for one in sent} == {"one-chain"}


def trace_id_of(sent: Exchange) -> Any:
    """The trace id of a request: in its headers, or in the metadata of its message (S-13)."""
    found = sent.headers.get("x-openstarry-trace-id")
    if found is None:
        params = sent.request.get("params", {})
        in_message = params.get("message", {}).get("metadata")
        keys = sent.request.get("trace") or in_message or params["_meta"]
        found = keys["X-OpenStarry-Trace-ID"]
    return found
