"""The hub's process: the directory's one writer, the doors to it and to every agent, the supervisor."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from retinue.apps.access import check_address, protected_resource
from retinue.apps.agent import Say, guarded
from retinue.apps.children import ChildSpec, OnChange, Probe, Ready, Supervisor, say_ready
from retinue.apps.hub_mcp import HubMcp, open_hub_mcp
from retinue.apps.late_runs import LateRuns
from retinue.apps.mesh import Mesh, open_mesh
from retinue.apps.serving import Stop, bind, end_task, serving, url_of
from retinue.apps.upkeep import Upkeep, watch_folder
from retinue.core.call import Principal
from retinue.core.errors import ChildFailedError, InvalidSettingError, RetinueError, UnknownAgentError
from retinue.drivers.http import HttpClient
from retinue.drivers.probes import answers, probe
from retinue.drivers.state import State
from retinue.drivers.store import SqliteAudit, SqliteListings
from retinue.drivers.text_index import SqliteTextIndex
from retinue.mesh.access import is_seen
from retinue.mesh.audit import record_calls
from retinue.mesh.directory import Directory
from retinue.mesh.events import log_line
from retinue.protocols.pallet_card import encode_card, render_card
from retinue.settings import Settings, environment
from retinue.surfaces import oci
from retinue.surfaces.cards import card_route
from retinue.surfaces.execute import execute_route
from retinue.surfaces.faults import rest_fault
from retinue.surfaces.health import health_route
from retinue.surfaces.hooks import HOOK_TOKEN, hook_route
from retinue.surfaces.protected_resource import metadata_routes
from retinue.surfaces.security import visitor_of

_log = structlog.get_logger("retinue.hub")

SHIPPED_AGENTS = (
    ("plan-agent", "retinue.agents.planner:agent", 8001),
    ("build-agent", "retinue.agents.builder:agent", 8002),
    ("test-agent", "retinue.agents.tester:agent", 8003),
)
"""Name, target and favoured port of what every hub starts unless it is bare."""


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a hub runs; ``port_may_move`` takes the next free port instead of failing."""

    host: str = "127.0.0.1"
    port: int = 9000
    port_may_move: bool = False
    bare: bool = False
    insecure_bind: bool = False


async def run_hub(options: HubOptions, settings: Settings, state: State, say: Say) -> int:
    """Run until told to stop; returns the exit code.

    An agent that does not start is said so and tried again, it does not stop the hub. Raises
    HubRunningError, PortInUseError, StateDamagedError.
    """
    check_address(options.host, settings, insecure_ok=options.insecure_bind)
    async with AsyncExitStack() as stack:
        stack.enter_context(state.own())
        listener = bind(options.host, options.port, search=options.port_may_move)
        url = url_of(listener)
        if options.port and not url.endswith(f":{options.port}"):
            say(f"port {options.port} is taken; using {url}")
        stop = Stop()
        stop.on_signals()
        supervisor_line = stop.with_supervisor()
        listings = SqliteListings(state.database)
        stack.callback(listings.close)
        audit = SqliteAudit(state.database)
        stack.callback(audit.close)
        texts = SqliteTextIndex(state.database)
        stack.callback(texts.close)
        hub_id = f"hub-{uuid.uuid4().hex[:12]}"
        mesh = await stack.enter_async_context(
            open_mesh(settings, state, listings, hub_id=hub_id, url=url, texts=texts, durable=True)
        )
        mesh.events.subscribe(record_calls(audit))
        mesh.events.subscribe(log_line)
        mcp = await stack.enter_async_context(open_hub_mcp(mesh, settings))
        app = hub_app(mesh, settings, state, host=options.host, url=url, mcp=mcp)
        await stack.enter_async_context(serving(app, listener, stop))
        stack.callback(mcp.end)
        state.write_hub(url, ready=False)
        stack.callback(state.forget_hub)
        await mesh.directory.ensure_fresh()
        upkeep = asyncio.create_task(Upkeep.of(mesh, settings, beside=mesh.prompts.refresh).run())
        stack.push_async_callback(end_task, upkeep)
        lost = f"the state folder {state.root} was deleted or replaced; start the hub again"
        watching = asyncio.create_task(watch_folder(state, lambda: stop.ask(lost)))
        stack.push_async_callback(end_task, watching)
        say(f"hub at {url} (state {state.root})")
        children = Supervisor(_card_probe(mesh.http, settings.timeouts.probe_s), _report(say))
        stack.push_async_callback(children.stop)
        if isinstance(mesh.runs, LateRuns):
            # before the agents stop: what they are cut off in is no failure of a run
            stack.push_async_callback(mesh.runs.leave)
        starting = asyncio.create_task(children.start(child_specs(settings, state, url, options.bare)))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        else:
            await end_task(starting)
        if not stop.asked:
            await mesh.directory.ensure_fresh()
            agents = mesh.directory.list_entries()
            await probe(
                mesh.directory,
                mesh.dispatcher.pulses,
                agents,
                mesh.http,
                timeout_s=settings.timeouts.probe_s,
            )
            if isinstance(mesh.runs, LateRuns):
                # not before the agents are there: runs that were left behind go on with them at once
                launching = asyncio.create_task(mesh.runs.keep_launching(say))
                stack.push_async_callback(end_task, launching)
            # who reads that it is there finds it there
            state.write_hub(url)
            _say_agents(mesh.directory, say)
            say_ready(supervisor_line, {"name": "hub", "url": url})
        await stopping
        say(f"stopping: {stop.reason}")
    return 1 if stop.reason == lost else 0


def hub_app(
    mesh: Mesh, settings: Settings, state: State, *, host: str, url: str, mcp: HubMcp | None = None
) -> ASGIApp:
    """The hub's doors: its own, those of every agent under ``/agents/{agent}``, and the registry."""
    record = mesh.agent.record(url)
    without_id = settings.execute.answer_without_id

    @lru_cache(maxsize=8)
    def own_card(scopes: frozenset[str]) -> bytes:
        return encode_card(render_card(record, scopes=scopes))

    async def agent_card(request: Request) -> Response:
        name, caller = request.path_params["agent"], visitor_of(request.scope).principal
        scopes, view = caller.scopes, mesh.access.view_of(caller)
        if name == mesh.agent.name and is_seen(view, name):
            return Response(own_card(scopes), media_type="application/json")
        await mesh.directory.ensure_fresh()
        try:
            listing = await mesh.directory.open_named(name, view=view)
        except RetinueError as error:
            # who asks for a card learns no near names: they may be hidden from it
            fault = rest_fault(UnknownAgentError(name) if isinstance(error, UnknownAgentError) else error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return Response(
            encode_card(render_card(listing.record, scopes=scopes)), media_type="application/json"
        )

    app = Router(
        routes=[
            execute_route(mesh.dispatcher, answer_without_id=without_id),
            execute_route(mesh.dispatcher, path="/agents/{agent}/execute", answer_without_id=without_id),
            *(() if mcp is None else mcp.routes),
            card_route(own_card, sees=lambda caller: is_seen(mesh.access.view_of(caller), mesh.agent.name)),
            Route("/agents/{agent}/agent-card", agent_card, methods=["GET"]),
            health_route(),
            hook_route(mesh.notifications.take),
            *metadata_routes(protected_resource(settings)),
            *oci.routes(mesh.home, mesh.home),
        ]
    )
    return guarded(app, settings, state, host, mesh.http, hook_tokens(settings))


def hook_tokens(settings: Settings) -> dict[str, Principal]:
    """The token with which registries notify, besides that of the state.

    Raises InvalidSettingError when the variable that should hold it is empty.
    """
    variable = settings.hooks.token_env
    if variable is None:
        return {}
    token = environment().get(variable, "").strip()
    if not token:
        raise InvalidSettingError(
            "hooks.token_env", f"the variable {variable} is not set", remedy=f"set {variable} to the token"
        )
    return {token: HOOK_TOKEN}


def child_specs(settings: Settings, state: State, hub_url: str, bare: bool) -> Sequence[ChildSpec]:
    """The configured agents, and the shipped ones unless the hub is bare."""
    environment = {"RETINUE_HOME": str(state.root), "RETINUE_HUB": hub_url}
    specs = []
    for table in settings.agents:
        port = () if table.port is None else ("--port", str(table.port))
        arguments = ("serve", table.target, "--host", table.host, *port)
        specs.append(ChildSpec(table.target, arguments, environment))
    if not (bare or settings.hub.bare):
        for name, target, port_number in SHIPPED_AGENTS:
            arguments = ("serve", target, "--port", str(port_number), "--port-may-move")
            specs.append(ChildSpec(name, arguments, environment))
    return specs


def _card_probe(http: HttpClient, timeout_s: float) -> Probe:
    async def probe(ready: Ready) -> bool:
        return await answers(http, str(ready["url"]), timeout_s=timeout_s) is None

    return probe


def _report(say: Say) -> OnChange:
    names: dict[str, str] = {}

    def report(child: str, news: Ready | ChildFailedError | None) -> None:
        if news is None:
            say(f"{names.get(child, child)} ended; starting it again")
        elif isinstance(news, ChildFailedError):
            say(f"{news.message}; trying again")
        else:
            names[child] = str(news["name"])
            say(f"{names[child]} at {news['url']}")

    return report


def _say_agents(directory: Directory, say: Say) -> None:
    entries = directory.list_entries()
    skills = sum(len(one.skills) for one in entries)
    exposed = sum(len(one.list_skills(frozenset({"exposed"}))) for one in entries)
    line = f"{len(entries)} agents, {skills} skills, {exposed} exposed to MCP clients"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    say(line)
