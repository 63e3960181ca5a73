"""The endpoints: each decodes a request, hands it to the dispatcher, and encodes the outcome."""

from collections import Counter

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retinue.cards.pallet_card import render_card
from retinue.core.call import Call, TraceContext, new_id
from retinue.mesh.dispatch import Calls
from retinue.mesh.observing.metrics import Figures, Metric
from retinue.parts.shown_agents import ShownAgents
from retinue.web.codec.trace import CALLS_USED_KEY, parse_trace_headers
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

CALLS = "retinue_toy_calls_total"
METRICS = {CALLS: Metric("counter", "Calls over the toy protocol", ("outcome",))}


class ToyServer:
    def __init__(self, dispatcher: Calls, shown: ShownAgents) -> None:
        self._dispatcher, self._shown, self.calls = dispatcher, shown, Counter[str]()
        path = "/toy/{agent}/{skill:path}"
        self.routes = (Route("/toy", self._list), Route(path, self._call, methods=["POST"]))

    async def _list(self, request: Request) -> JSONResponse:
        agents = self._shown.iterate_others(identity_of(request.scope).principal)
        # the agents of another toy server are listed there
        own = [agent async for agent in agents if agent.record.endpoints[0].protocol != "toy"]
        return JSONResponse([render_card(agent.record, scopes=agent.scopes) for agent in own])

    async def _call(self, request: Request) -> JSONResponse:
        caller, path = identity_of(request.scope).principal, request.path_params
        trace = parse_trace_headers(request.headers) or TraceContext(id="")
        arguments = await request.json()
        call = Call(new_id(), path["skill"], arguments, caller, "toy", trace, agent=path["agent"])
        outcome = await self._dispatcher.dispatch(call)
        self.calls[outcome.status] += 1
        headers = {CALLS_USED_KEY: str(outcome.calls_used or 0)}
        if outcome.error is not None:
            fault = rest_fault(outcome.error)
            return JSONResponse(fault.body, fault.status, {**fault.headers, **headers})
        return JSONResponse({"result": outcome.value}, headers=headers)

    async def read_figures(self, figures: Figures) -> None:
        figures.put_all(CALLS, {(status,): number for status, number in self.calls.items()})
