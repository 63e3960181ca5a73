"""The guard over loops through an imported A2A agent, which forwards the trace in one way or in none."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import aiohttp
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.a2a.client.imports import ImportLimits
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.a2a_card import CARD_PATH, render_agent_card
from retinue.core.record import AgentRecord, Skill
from retinue.runtime.imports.connections import Imports
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from retinue.web.codec.trace import TRACE_KEYS
from tests.requirements import requirement
from tests.serving import serve_app
from tests.system import System, Wire


class Foreign:
    """An agent whose skill calls the agent again at the hub; ``forwards`` is what it takes along."""

    def __init__(self, forwards: str) -> None:
        self.hub = self.url = ""
        self._forwards = forwards

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route(CARD_PATH, self.card), Route("/a2a", self.answer, methods=["POST"])])

    async def card(self, request: Request) -> Response:
        skill = Skill("again", "Calls again", input_schema={"type": "object"})
        record = AgentRecord("foreign", skills=(skill,))
        return JSONResponse(render_agent_card(record, f"{self.url}/a2a", scopes=frozenset({"mesh"})))

    async def answer(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        given = {key: one for key, one in request.headers.items() if key.lower() in TRACE_KEYS}
        told = body["params"]["message"]["metadata"]
        metadata = {key: one for key, one in told.items() if key.lower() in TRACE_KEYS}
        message = {
            "messageId": str(uuid.uuid4()),
            "role": "ROLE_USER",
            "parts": [{"data": {"skill": "ask_a", "arguments": {}}}],
            "metadata": metadata if self._forwards == "only metadata" else {},
        }
        sent = {"jsonrpc": "2.0", "id": "1", "method": "SendMessage", "params": {"message": message}}
        headers = {"a2a-version": "1.0", **(given if self._forwards == "only headers" else {})}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.hub}/agents/agent-a", json=sent, headers=headers) as answer,
        ):
            return Response(await answer.read(), media_type="application/json")


@requirement("S-15")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("forwards", ["nothing", "only headers", "only metadata"])
async def test_a_loop_through_an_imported_agent_ends(system: System, wire: Wire, forwards: str) -> None:
    # each round goes through four endpoints, and two hundred of them take seconds
    limits = ImportLimits(max_in_flight=20)
    depths: list[int] = []
    agent = Agent("agent-a")

    @agent.skill("ask_a", expose=True)
    async def ask(ctx: Context) -> Any:
        depths.append(ctx.trace.depth)
        return await ctx.call("again", agent="foreign")

    foreign = Foreign(forwards)
    foreign.url = await system.stack.enter_async_context(serve_app(foreign.app))
    system.settings = Settings(imports=ImportsTable.model_validate({"foreign": ImportTable(a2a=foreign.url)}))
    hub = await system.start_hub(make_imports=partial(Imports, agent_limits=limits))
    foreign.hub = hub.url
    served = await system.start_agent(agent)
    await hub.wait_until_healthy("foreign")
    await hub.mesh.directory.refresh()
    reply = await wire.call(served.url, "ask_a", x_openstarry_trace_id="loop")
    said = reply.error["message"]
    if forwards == "nothing":
        assert set(depths) == {0}
        assert len(depths) == 21
        assert "in flight" in said, said
    else:
        # each round is two hops: to the agent, and from it
        assert depths == [0, 2, 4]
        assert "hop 6 of at most 5" in said
