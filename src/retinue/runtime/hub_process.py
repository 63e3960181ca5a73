"""The hub's process: maintains the directory, serves the hub's endpoints and supervises agents."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from starlette.routing import BaseRoute

from retinue.core.errors import ChildFailedError
from retinue.core.record import HUB_NAME
from retinue.hub.calls import CallFilter
from retinue.hub.mesh_map import MeshParts
from retinue.llm.not_started import MODELS
from retinue.mesh.directory.directory import Directory
from retinue.mesh.events import EventBus, OncePerMinute, log_lines, record_calls
from retinue.plugins import AGENTS, list_unique_plugins
from retinue.rpc.probe import answers, probe
from retinue.runtime.access import advertised, check_address, hub_access, warn_of_wildcard
from retinue.runtime.agent_process import take_from_others
from retinue.runtime.background_tasks import BackgroundTasks, watch_folder
from retinue.runtime.configuration_reload import (
    ConfigurationReload,
    LivePart,
    dispatcher_parts,
    endpoint_part,
)
from retinue.runtime.endpoints.a2a import open_hub_a2a
from retinue.runtime.endpoints.dashboard import make_dashboard
from retinue.runtime.endpoints.mcp import open_hub_mcp
from retinue.runtime.factories import http_limits
from retinue.runtime.hub_app import hub_app
from retinue.runtime.importing.imports import Imports
from retinue.runtime.mesh import LazyRuns, check_runs, open_mesh
from retinue.runtime.models import FIRST_MODEL_PORT, Models, find_models, spending_reader
from retinue.runtime.observing.log_files import AgentLogs, keep_small, writes_to
from retinue.runtime.process_state import ProcessState
from retinue.runtime.serving import Echo, Stop, bind, end_task, serving, url_of
from retinue.runtime.supervisor import ChildSpec, OnChange, Probe, Ready, Supervisor, report_ready
from retinue.settings import Settings, environment
from retinue.storage.listing_store import SqliteAudit, SqliteListings
from retinue.storage.skill_index import SqliteTextIndex
from retinue.storage.state import State
from retinue.web.http_client import HttpClient

_log = structlog.get_logger("retinue.hub")


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a hub runs; with ``port_may_move`` it takes the next free port instead of failing.

    ``next_step`` is printed once its agents have started.
    """

    host: str = "127.0.0.1"
    port: int = 9000
    port_may_move: bool = False
    bare: bool = False
    advertise: str | None = None
    insecure_bind: bool = False
    koi: bool = False
    koi_join: str | None = None
    next_step: str | None = None


async def run_hub(
    options: HubOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run until asked to stop; returns the exit code. At SIGHUP it reads its settings anew with ``reread``.

    An agent that does not start is reported and retried; it does not stop the hub. Raises
    HubRunningError, PortInUseError, StateDamagedError.
    """
    check_address(options.host, settings, insecure_ok=options.insecure_bind)
    async with AsyncExitStack() as stack:
        stack.enter_context(state.own())
        take_from_others(state, echo)
        listener = bind(options.host, options.port, search=options.port_may_move)
        url = url_of(listener)
        if options.port and not url.endswith(f":{options.port}"):
            echo(f"port {options.port} is taken; using {url}")
        # processes of this machine use its own address, others the advertised one
        public_url = options.advertise or url
        configured = settings
        settings = advertised(settings, options.advertise)
        warn_of_wildcard(options.host, options.advertise, echo)
        stop = Stop()
        stop.on_signals()
        supervisor_line = stop.with_supervisor()
        check_runs(settings, state)
        listings = SqliteListings(state.database)
        stack.callback(listings.close)
        audit = SqliteAudit(state.database)
        stack.callback(audit.close)
        texts = SqliteTextIndex(state.database)
        stack.callback(texts.close)
        hub_id = f"hub-{uuid.uuid4().hex[:12]}"
        runs = LazyRuns(settings, state)
        imports = Imports(settings, state)
        models = find_models(settings, environment(), seeds=not (options.bare or settings.hub.bare))
        koi = None
        if options.koi or options.koi_join or settings.koi.enabled or settings.koi.join:
            # imported here, because most hubs are on no KOI network
            from retinue.koi.server import list_open_paths
            from retinue.runtime.koi.membership import KoiHub, make_node

            koi = KoiHub()
        mesh = await stack.enter_async_context(
            open_mesh(
                settings,
                state,
                listings,
                open_runs=runs.open,
                hub_id=hub_id,
                url=public_url,
                texts=texts,
                imports=imports,
                models=models.not_started,
                personalities=None if koi is None else koi.source,
                spending_of=spending_reader(settings, state),
                read_calls=partial(read_calls, audit),
                parts=MeshParts(
                    peers=settings.discovery.upstreams,
                    read_nodes=runs.list_nodes,
                    list_links=tuple if koi is None else koi.list_links,
                ),
            )
        )
        recorded = EventBus()
        recorded.subscribe_later(record_calls(audit.append))
        recorded.subscribe_batches(log_lines)
        stack.callback(recorded.flush)
        mesh.events.subscribe(OncePerMinute(recorded.emit))
        reload = ConfigurationReload(
            configured, reread or (lambda: configured), dispatcher_parts(mesh.dispatcher, hub_access), echo
        )
        if reread is not None:
            stop.on_hangup = reload
        process = ProcessState.of_mesh("hub", mesh, runs, lambda: stop.asked)
        process.needs_database = settings.database is not None
        process.upstreams = imports.list_states
        await stack.enter_async_context(process.exporting(HUB_NAME, environment()))
        mesh.figures.seed(await asyncio.to_thread(audit.summarise_calls))
        mesh.messages.recover()
        mcp = await stack.enter_async_context(open_hub_mcp(mesh, settings))
        a2a = await stack.enter_async_context(open_hub_a2a(mesh, settings, state, public_url))
        koi_routes: Sequence[BaseRoute] = ()
        open_paths: frozenset[str] = frozenset()
        if koi is not None:
            joined = options.koi_join or settings.koi.join
            private = settings.allow_private_urls
            node = make_node("retinue-hub", public_url, state, settings.koi, joined, allow_private=private)
            koi_routes = koi.open(node, public_url)
            open_paths = list_open_paths(settings.koi.trust)
        dashboard = make_dashboard(mesh, settings, state, public_url)
        app = hub_app(
            mesh,
            settings,
            state,
            host=options.host,
            url=public_url,
            mcp=mcp,
            a2a=a2a,
            process=process,
            koi_routes=koi_routes,
            open_paths=open_paths,
            dashboard=dashboard,
            on_checks=lambda checks: reload.add(
                endpoint_part(
                    checks,
                    options.host,
                    options.advertise,
                    insecure_ok=options.insecure_bind,
                    open_paths=open_paths,
                )
            ),
        )
        await stack.enter_async_context(serving(app, listener, stop, http_limits(settings)))
        stack.callback(mcp.end)
        stack.callback(a2a.end)
        stack.callback(dashboard.end)
        writes_log = writes_to(state.hub_log)
        state.write_hub(url, ready=False, writes_log=writes_log)
        stack.callback(state.forget_hub)
        await stack.enter_async_context(imports.running(mesh.directory, mesh.http))
        models.not_started.watch(mesh.directory)
        await mesh.directory.ensure_fresh()
        if koi is not None:
            await stack.enter_async_context(koi.running(mesh))
            echo(koi.describe())
        upkeep = BackgroundTasks.of(mesh, settings, on_refresh=mesh.prompts.refresh)
        reload.add(upkeep.live_part())
        background = asyncio.create_task(upkeep.run())
        stack.push_async_callback(end_task, background)
        lost = f"the state folder {state.root} was deleted or replaced; start the hub again"
        watching = asyncio.create_task(watch_folder(state, lambda: stop.ask(lost)))
        stack.push_async_callback(end_task, watching)
        reached = "" if public_url == url else f", advertised as {public_url}"
        echo(f"hub at {url} (state {state.root}){reached}")
        logs = AgentLogs(state.agent_logs, settings.logs)
        stack.callback(logs.close)
        reload.add(_log_part(logs))
        if writes_log:
            keeping = asyncio.create_task(keep_small(state.hub_log, lambda: logs.limits))
            stack.push_async_callback(end_task, keeping)
        probe_child = _card_probe(mesh.http, settings.timeouts.probe_s)
        children = Supervisor(probe_child, _report(echo, logs), logs.take)
        stack.push_async_callback(children.stop)
        process.children = lambda: children.children
        # runs leave before the agents stop, so that interrupted calls do not count as failures of a run
        stack.push_async_callback(runs.leave)

        def list_specs(settings: Settings) -> list[ChildSpec]:
            return [*child_specs(settings, state, url, options.bare), *model_children(models, state, url)]

        specs = list_specs(settings)
        reload.add(_children_part(children, list_specs))
        starting = asyncio.create_task(children.start(specs))
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
                mesh.dispatcher.agent_stats,
                agents,
                mesh.http,
                timeout_s=settings.timeouts.probe_s,
            )
            # recovered runs call agents at once, so they start after the agents
            launching = asyncio.create_task(runs.launch(echo))
            stack.push_async_callback(end_task, launching)
            # a client that reads the file expects the hub to answer
            state.write_hub(url, writes_log=writes_log)
            _echo_agents(mesh.directory, echo)
            for line in models.not_started.describe():
                echo(line)
            if options.next_step is not None:
                echo(options.next_step)
            process.is_started = True
            report_ready(supervisor_line, {"name": "hub", "url": url})
        await stopping
        echo(f"stopping: {stop.reason}")
    return 1 if stop.reason == lost else 0


def child_specs(settings: Settings, state: State, hub_url: str, bare: bool) -> Sequence[ChildSpec]:
    """The configured agents and, unless the hub is bare, those of installed distributions.

    Raises InvalidSettingError when two distributions declare the same agent.
    """
    environment = {"RETINUE_HOME": str(state.root), "RETINUE_HUB": hub_url}
    specs = []
    for table in settings.agents:
        port = () if table.port is None else ("--port", str(table.port))
        arguments = ("serve", table.target, "--host", table.host, *port)
        if table.advertise is not None:
            arguments = (*arguments, "--advertise", table.advertise)
        specs.append(ChildSpec(table.target, arguments, environment))
    if not (bare or settings.hub.bare):
        for plugin in list_unique_plugins(AGENTS):
            preferred = ("--port", plugin.qualifier, "--port-may-move") if plugin.qualifier else ()
            specs.append(ChildSpec(plugin.name, ("serve", plugin.target, *preferred), environment))
    return specs


def model_children(models: Models, state: State, hub_url: str) -> Sequence[ChildSpec]:
    """The model agents that this machine can run."""
    environment = {"RETINUE_HOME": str(state.root), "RETINUE_HUB": hub_url}
    # the ports below FIRST_MODEL_PORT are for agents that are not models
    port = ("--port", str(FIRST_MODEL_PORT), "--port-may-move")
    return [ChildSpec(name, ("serve", "--llm", name, *port), environment) for name in models.available]


async def read_calls(audit: SqliteAudit, wanted: CallFilter, limit: int) -> Sequence[Mapping[str, Any]]:
    equal = {
        "skill": wanted.skill,
        "agent": wanted.agent,
        "caller": wanted.caller,
        "status": wanted.status,
        "trace_id": wanted.trace,
    }
    audit.flush()
    given = {key: value for key, value in equal.items() if value is not None}
    return await asyncio.to_thread(
        audit.list_calls, given, failed=wanted.failed, before=wanted.before, limit=limit
    )


def _log_part(logs: AgentLogs) -> LivePart:
    def prepare(settings: Settings) -> Callable[[], None]:
        def apply() -> None:
            logs.limits = settings.logs

        return apply

    return LivePart(("logs.*",), prepare)


def _children_part(children: Supervisor, list_specs: Callable[[Settings], Sequence[ChildSpec]]) -> LivePart:
    """Agents that the settings no longer name are stopped, new ones are started."""

    def prepare(settings: Settings) -> Callable[[], None]:
        return partial(children.replace_soon, list_specs(settings))

    return LivePart(("agents",), prepare)


def _card_probe(http: HttpClient, timeout_s: float) -> Probe:
    async def probe(ready: Ready) -> bool:
        return await answers(http, str(ready["url"]), timeout_s=timeout_s) is None

    return probe


def _report(echo: Echo, logs: AgentLogs) -> OnChange:
    names: dict[str, str] = {}

    def report(child: str, news: Ready | ChildFailedError | None) -> None:
        if news is None:
            echo(f"{names.get(child, child)} ended; starting it again")
        elif isinstance(news, ChildFailedError):
            logs.name(child)
            echo(f"{news.message}; trying again")
        else:
            names[child] = str(news["name"])
            logs.name(child, names[child])
            echo(f"{names[child]} at {news['url']}")

    return report


def _echo_agents(directory: Directory, echo: Echo) -> None:
    # those that are not started have lines of their own
    entries = [one for one in directory.list_entries() if one.source != MODELS]
    skills = sum(len(one.skills) for one in entries)
    exposed = sum(len(one.list_skills(frozenset({"exposed"}))) for one in entries)
    line = f"{len(entries)} agents, {skills} skills, {exposed} exposed to MCP clients"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    echo(line)
