"""Loops through those who are not of the mesh: peers that hide the depth, forge the trace, or repeat it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord, Endpoint, Skill
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.storage.state import State
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import System, Wire, open_system, publish

Headers = dict[str, str]
Forge = Callable[[Headers], Headers]
TRACE = ("x-openstarry-trace-id", "x-openstarry-trace-depth", "x-retinue-trace")


class Stranger:
    """An agent of another make that calls back whoever it is told to, with the headers of ``forge``."""

    def __init__(self, wire: Wire, forge: Forge) -> None:
        self.target = ""
        self.received: list[Headers] = []
        self._wire = wire
        self._forge = forge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        self.received.append(headers)
        given = {name: headers[name] for name in TRACE if name in headers}
        reply = await self._wire.call(self.target, "ask", **self._forge(given))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": reply.body})


class Loop:
    """Our agent ``a`` and a stranger ``x`` that call each other; ``depths`` are those at which ``a`` ran."""

    def __init__(self, system: System, wire: Wire, forge: Forge) -> None:
        self.depths: list[int] = []
        self.stranger = Stranger(wire, forge)
        self._system = system
        self._wire = wire

    async def run(self, *, hub: bool) -> Any:
        """The error at which the loop ends."""
        url = await self._system.stack.enter_async_context(serve_app(self.stranger))
        await publish(self._system.home, card("x-agent", url, "echo"))
        agent = Agent("a")

        @agent.skill
        async def ask(ctx: Context) -> Any:
            self.depths.append(ctx.trace.depth)
            assert len(self.depths) < 20, "the loop does not end"
            return await ctx.call("echo")

        served = await self._system.start_agent(agent)
        self.stranger.target = (await self._system.start_hub()).url if hub else served.url
        return (await self._wire.call(served.url, "ask", x_openstarry_trace_id="t")).error


def card(name: str, url: str, skill: str) -> bytes:
    skills = (Skill(skill, "Calls back"),)
    record = AgentRecord(name, endpoints=(Endpoint("execute", url),), skills=skills)
    return encode_card(render_card(record, scopes=frozenset({"mesh"})))


def detail(headers: Headers, **changes: Any) -> Headers:
    return {
        **headers,
        "x-retinue-trace": orjson.dumps(orjson.loads(headers["x-retinue-trace"]) | changes).decode(),
    }


def only_the_id(headers: Headers) -> Headers:
    return {name: headers[name] for name in TRACE[:1]}


def the_same_depth(headers: Headers) -> Headers:
    return {name: headers[name] for name in TRACE[:2]}


def a_lower_depth(headers: Headers) -> Headers:
    return {**headers, "x-openstarry-trace-depth": "0"}


def another_signature(headers: Headers) -> Headers:
    return {**detail(headers, mac="0" * 64), "x-openstarry-trace-depth": "0"}


def a_higher_budget(headers: Headers) -> Headers:
    return detail(headers, calls_left=1_000_000)


def the_signature_that_it_received(headers: Headers) -> Headers:
    return headers


FORGERIES = [
    only_the_id,
    the_same_depth,
    a_lower_depth,
    another_signature,
    a_higher_budget,
    the_signature_that_it_received,
]


@requirement("S-15")
@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
@pytest.mark.parametrize("hub", [True, False], ids=["through a hub", "without a hub"])
async def test_a_loop_through_a_stranger_ends_whatever_it_sends(
    system: System, wire: Wire, hub: bool, forge: Forge
) -> None:
    loop = Loop(system, wire, forge)
    error = await loop.run(hub=hub)
    assert error["code"] == -33007
    assert error["data"]["trace_id"] == "t"
    if "hub-under-test" not in error["data"].get("cycle", ""):
        # a hub that finds itself in what the stranger repeats refuses at once
        assert error["data"]["depth"] > 5
    assert loop.depths == sorted(set(loop.depths)), "each round is deeper than the last"
    assert max(loop.depths) <= 5
    assert "a:ask" in error["data"]["path"]
    if forge is only_the_id and not hub:
        assert error["data"]["path"] == " → ".join(["a:ask", "?:?"] * 3 + ["a:ask"])
        assert error["data"]["cycle"] == "a → ? → a"


async def test_a_message_that_was_overheard_and_is_sent_again_is_a_claim(system: System, wire: Wire) -> None:
    """Word for word what another process of the mesh has sent, signature and all."""
    agent, depths = Agent("a"), list[int]()
    rounds: asyncio.Queue[bool] = asyncio.Queue()
    held = asyncio.Event()

    @agent.skill
    async def ask(ctx: Context) -> Any:
        depths.append(ctx.trace.depth)
        return await ctx.call("other")

    @agent.skill
    async def other(ctx: Context) -> Any:
        rounds.put_nowait(True)
        await held.wait()
        return "done"

    served = await system.start_agent(agent)
    hub = await system.start_hub()
    first = asyncio.create_task(wire.call(hub.url, "ask"))
    await asyncio.wait_for(rounds.get(), 60)
    overheard = system.recording.to("a")[0].headers
    assert "mac" in overheard["x-retinue-trace"]
    kept = {name: overheard[name] for name in TRACE}
    again = asyncio.create_task(wire.call(served.url, "ask", **kept))
    await asyncio.wait_for(rounds.get(), 60)
    held.set()
    await asyncio.gather(first, again)
    assert depths == [0, 2], "outweighed by the own call in flight, not taken at its word"


@requirement("S-15")
async def test_two_hubs_that_forward_to_each_other_stop_at_the_first_return(
    retinue_home: Path, wire: Wire
) -> None:
    """Of two meshes: neither can verify the other, and each finds itself in ``via``."""
    shelves = [LayoutRegistry(retinue_home / name) for name in ("far-1", "far-2")]
    far_1, far_2 = ((shelf.name,) for shelf in shelves)
    async with (
        open_system(State(retinue_home / "1"), registries=far_1) as here,
        open_system(State(retinue_home / "2"), registries=far_2) as there,
    ):
        one, two = await here.start_hub(hub_id="hub-1"), await there.start_hub(hub_id="hub-2")
        await publish(shelves[0], card("x-agent", f"{two.url}/agents/x-agent", "echo"))
        await publish(shelves[1], card("x-agent", f"{one.url}/agents/x-agent", "echo"))
        error = (await wire.call(one.url, "echo")).error
        assert error["code"] == -33007
        assert error["data"]["cycle"] == "hub-1 → hub-2 → hub-1"
        assert len(here.recording.to("hub", "/agents")) == len(there.recording.to("hub", "/agents")) == 1


@pytest.fixture
async def strict(retinue_home: Path, request: Any) -> AsyncIterator[System]:
    async with open_system(State(retinue_home), trace={"strict": request.param}) as system:
        yield system


@pytest.mark.parametrize(
    ("strict", "refused"),
    [("off", set()), ("trace", {"no trace"}), ("signed", {"no trace", "a claim"})],
    indirect=["strict"],
)
async def test_a_strict_mesh_refuses_what_it_was_told_to_and_works_within(
    strict: System, wire: Wire, refused: set[str]
) -> None:
    """−32600, at every endpoint; the command line and the agents sign what they send."""
    from retinue.runtime.commands.client import open_client

    agent, leaf = Agent("a"), Agent("b")

    @agent.skill
    async def ask(ctx: Context) -> Any:
        return await ctx.call("answer")

    @leaf.skill
    async def answer() -> str:
        return "yes"

    served = await strict.start_agent(agent)
    await strict.start_agent(leaf)
    hub = await strict.start_hub()
    for base in (served.url, hub.url, f"{hub.url}/agents/a"):
        for name, headers in (("no trace", {}), ("a claim", {"x_openstarry_trace_id": "t"})):
            reply = await wire.call(base, "ask", **headers)
            if name in refused:
                assert reply.error["code"] == -32600
                assert "trace.strict" in reply.error["message"]
            else:
                assert reply.result == "yes"
    async with open_client(strict.settings, strict.state) as client:
        assert await client.get("ask") == "yes"
        steps = [{"id": "go", "skill": "ask"}]
        arguments = {"workflow": {"name": "w", "steps": steps}, "input": {}}
        assert (await client.get("orchestrate_workflow", arguments))["output"] == "yes"


async def test_an_agent_of_another_state_is_a_member_in_all_but_trust(retinue_home: Path, wire: Wire) -> None:
    """With the token of the other one, not its key: what it sends are claims, and its loops end as well."""
    elsewhere = LayoutRegistry(retinue_home / "elsewhere")
    async with (
        open_system(State(retinue_home / "1"), registries=(str(retinue_home / "elsewhere"),)) as here,
        open_system(State(retinue_home / "2")) as there,
    ):
        hub = await here.start_hub()
        there.state.write_hub(hub.url)
        here.state.local_token()
        (there.state.root / "keys").mkdir()
        shutil.copy(here.state.keys / "local.token", there.state.keys)
        ours, theirs = Agent("ours"), Agent("theirs")
        depths: list[int] = []

        @ours.skill
        async def ask(ctx: Context) -> Any:
            depths.append(ctx.trace.depth)
            return await ctx.call("reply")

        @theirs.skill
        async def reply(ctx: Context) -> Any:
            depths.append(ctx.trace.depth)
            return await ctx.call("ask")

        await here.start_agent(ours)
        await there.start_agent(theirs, publish_to=elsewhere)
        error = (await wire.call(hub.url, "ask")).error
        assert (error["code"], error["data"]["depth"]) == (-33007, 6)
        assert depths == [0, 1, 2, 3, 4, 5]
