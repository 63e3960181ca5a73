"""The toy protocol as a part of a hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retinue.cards.pallet_card import render_card
from retinue.core.call import Call, TraceContext, new_id
from retinue.mesh.metrics import Metric
from retinue.mesh.permissions import is_seen
from retinue.parts.part import Check, HubProcess, Opened, Part, Problem
from retinue.storage.state import State
from retinue.web.codec.trace import CALLS_USED_KEY, parse_raw_trace_headers
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of
from retinue_toy.client import TOY, ToyAgents, ToyInvoker
from retinue_toy.table import ToyTable

CALLS = "retinue_toy_calls_total"


class ToyPart(Part[HubProcess]):
    """Serves every agent of the hub at ``/toy``, and lists the agents of other toy servers."""

    name, interface, kinds, table = TOY, 1, frozenset({"hub"}), ToyTable

    def checks(self, table: ToyTable, state: State) -> Sequence[Check]:
        """The row of ``retinue doctor``."""
        return [Check(TOY, "ok", f"{len(table.servers)} servers")]

    @asynccontextmanager
    async def open(self, process: HubProcess) -> AsyncIterator[Opened]:
        """The routes, the source and its invoker."""
        agents = ToyAgents(process.http, process.table(ToyTable).servers)
        calls = Counter[str]()

        async def list_agents(request: Request) -> JSONResponse:
            caller = identity_of(request.scope).principal
            view = process.access.view_of(caller)
            own = [one for one in process.directory.list_entries() if one.source != TOY]
            listings = process.directory.open_all([one for one in own if is_seen(view, one.name)])
            return JSONResponse([render_card(one.record, scopes=caller.scopes) for one in listings])

        async def call(request: Request) -> JSONResponse:
            visitor, path = identity_of(request.scope), request.path_params
            trace = parse_raw_trace_headers(visitor.headers) or TraceContext(id="")
            arguments = await request.json()
            outcome = await process.dispatcher.dispatch(
                Call(new_id(), path["skill"], arguments, visitor.principal, TOY, trace, agent=path["agent"])
            )
            calls[outcome.status] += 1
            headers = {CALLS_USED_KEY: str(outcome.calls_used or 0)}
            if outcome.error is not None:
                fault = rest_fault(outcome.error)
                return JSONResponse(fault.body, fault.status, {**fault.headers, **headers})
            return JSONResponse({"result": outcome.value}, headers=headers)

        yield Opened(
            routes=[Route("/toy", list_agents), Route("/toy/{agent}/{skill:path}", call, methods=["POST"])],
            sources=[agents],
            invokers={TOY: ToyInvoker(process.http, process.signer)},
            metrics={CALLS: Metric("counter", "Calls over the toy protocol", ("outcome",))},
            figures=lambda figures: figures.put_all(CALLS, {(one,): n for one, n in calls.items()}),
            problems=lambda: [Problem(TOY, url, why, is_fatal=False) for url, why in agents.failures.items()],
            drain=lambda: process.echo(f"toy: {calls.total()} calls"),
        )
