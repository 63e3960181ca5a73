"""The process of one agent: serves its endpoints, publishes its card and connects it to the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher, local_reader
from retinue.mcp.server.lazy_server import lazy_server, mcp_route
from retinue.mcp.server.offer import McpOptions, RecordOffer
from retinue.mesh.admission import Admission, Limits
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.events import EventBus, log_lines
from retinue.mesh.guard.trace_guard import TraceGuard
from retinue.mesh.permissions import Access, AccessRule, is_seen
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.parts.lazy import Lazy
from retinue.parts.shown_agents import OwnAgent
from retinue.rest.routes import rest_route
from retinue.rpc.server import execute_route, health_route
from retinue.runtime.access import (
    OnChecks,
    advertised,
    agent_rule,
    check_address,
    guarded,
    protected_resource,
    warn_of_wildcard,
)
from retinue.runtime.card_publication import CardPublication
from retinue.runtime.configuration_reload import ConfigurationReload, dispatcher_parts, endpoint_part
from retinue.runtime.endpoints.a2a import A2aEndpoints, open_a2a
from retinue.runtime.endpoints.cards import card_routes
from retinue.runtime.factories import (
    card_signer,
    configured_registry,
    guard_settings,
    http_limits,
    limit_settings,
    named_registries,
    public_card_key,
    registry_sources,
    timeout_settings,
)
from retinue.runtime.joined_mesh import JoinedMesh, LimitedCalls, notify_hub
from retinue.runtime.loading.reloading import watch_lists
from retinue.runtime.loading.targets import Target
from retinue.runtime.messages import Messages
from retinue.runtime.observing.telemetry import span_opener
from retinue.runtime.process_state import ProcessState
from retinue.runtime.serving import FIRST_AGENT_PORT, Echo, Stop, bind, end_task, serving, url_of
from retinue.runtime.supervisor import report_ready
from retinue.settings import Settings, environment
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import State
from retinue.web.fast.exact_paths import ExactPathRouter
from retinue.web.http_client import HttpClient
from retinue.web.rejections import keys_route, metadata_routes

if TYPE_CHECKING:
    from retinue.mcp.server.endpoint import McpServer

_log = structlog.get_logger("retinue.agent")

_FOLDER_CHECK_S = 2.0
_REGISTRY_CHECK_S = 15.0
"""Interval at which an agent checks that its card is still published."""

_NO_LISTS = AccessRule()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How one agent is served; ``port`` None means the first free port from 8001."""

    host: str = "127.0.0.1"
    port: int | None = None
    port_may_move: bool = False
    publish: bool = True
    registry: str | None = None
    tag: str | None = None
    """None means the tag of the major version (`default_tag`)."""
    weight: int | None = None
    hub_url: str | None = None
    advertise: str | None = None
    insecure_bind: bool = False
    koi_join: str | None = None


async def serve_agent(
    target: Target,
    options: ServeOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Serve until asked to stop; returns the exit code. At SIGHUP it reads its settings anew with ``reread``.

    Raises PortInUseError, InvalidSettingError, RegistryError, StateError.
    """
    agent = target.agent
    attach_model(target, settings, state)
    if options.weight is not None:
        agent.amend(weight=options.weight)
    check_address(options.host, settings, insecure_ok=options.insecure_bind)
    state.prepare()
    take_from_others(state, echo)
    listener = bind(
        options.host, options.port or FIRST_AGENT_PORT, search=options.port is None or options.port_may_move
    )
    own_url = url_of(listener)
    url = options.advertise or own_url
    configured = settings
    settings = advertised(settings, options.advertise)
    warn_of_wildcard(options.host, options.advertise, echo)
    stop = Stop()
    stop.on_signals()
    supervisor = stop.with_supervisor()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        registries = named_registries(settings, LayoutRegistry(state.registry), http, state)
        sources = registry_sources(settings, registries, state)
        mesh = await stack.enter_async_context(
            JoinedMesh.open(settings, state, http, sources, options.hub_url)
        )
        dispatcher = agent_dispatcher(agent, settings, mesh, url, target.access)
        stack.callback(dispatcher.admission.events.flush)
        admission = dispatcher.admission

        def own_access(settings: Settings) -> Access:
            return Access({agent.name: agent_rule(settings, agent.name, target.access)})

        reload = ConfigurationReload(
            configured, reread or (lambda: configured), dispatcher_parts(dispatcher, own_access), echo
        )
        if reread is not None:
            stop.on_hangup = reload
        process = ProcessState.observing("agent", dispatcher.access, admission.limits, admission.events)
        process.stopping = lambda: stop.asked
        await stack.enter_async_context(process.exporting(agent.name, environment()))
        allowed = allowed_calls(agent, settings, mesh, target.access)
        mcp = agent_mcp(agent, dispatcher, allowed, settings)
        stack.push_async_callback(mcp.aclose)
        shown = OwnAgent(agent, dispatcher.access, url)
        messages = Messages(dispatcher, shown, settings, state)
        stack.push_async_callback(messages.aclose)
        await messages.recover()
        a2a = await stack.enter_async_context(
            open_a2a(dispatcher, shown, settings, state, url, messages.answer_envelope)
        )
        member = None
        open_paths: frozenset[str] = frozenset()
        if options.koi_join is not None:
            # imported here, because most agents are on no KOI network
            from retinue.koi.server import list_open_paths
            from retinue.runtime.koi.membership import KoiMember, make_node

            private = settings.allow_private_urls
            node = make_node(agent.name, url, state, settings.koi, options.koi_join, allow_private=private)
            member = KoiMember(agent, url, node)
            open_paths = list_open_paths(settings.koi.trust)
        app = agent_app(
            agent,
            dispatcher,
            settings,
            state,
            host=options.host,
            url=url,
            http=http,
            mcp=mcp,
            process=process,
            messages=messages,
            a2a=a2a,
            koi_routes=() if member is None else member.routes,
            open_paths=open_paths,
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
        reached = "" if url == own_url else f", advertised as {url}"
        echo(f"{agent.name} {agent.version or ''}".rstrip() + f" at {own_url}{reached}")
        _print_skills(agent, echo)
        on_new_lists: Callable[[], Awaitable[None]] | None = None
        if options.publish:
            registry = configured_registry(_card_registry(options, state), settings, http, state)
            publication = CardPublication(
                registry,
                lambda: agent.record(url),
                options.tag,
                http,
                echo,
                probe_timeout_s=settings.timeouts.probe_s,
                signer=await asyncio.to_thread(card_signer, settings, state),
            )
            await publication.publish()
            notify = partial(notify_hub, http, state, options.hub_url)
            # callbacks run in reverse order: first the card is withdrawn, then the hub is notified
            stack.push_async_callback(notify, withdrawn=agent.name)
            stack.push_async_callback(publication.withdraw)
            check_s = _FOLDER_CHECK_S if isinstance(registry, LayoutRegistry) else _REGISTRY_CHECK_S
            keeping = asyncio.create_task(publication.keep(check_s, notify))
            stack.push_async_callback(end_task, keeping)
            await notify()

            async def republish() -> None:
                """The card shows what the mesh may see, so it changes with the lists."""
                await publication.renew()
                await notify()

            on_new_lists = republish
        await stack.enter_async_context(watch_lists(target, echo, on_new_lists))
        if member is not None:
            await stack.enter_async_context(member.running())
            echo(f"KOI node at {url}/koi-net, joining {options.koi_join}")
        process.is_started = True
        report_ready(supervisor, {"name": agent.name, "url": own_url})
        await stop.wait()
        echo(f"stopping: {stop.reason}")
    return 0


def attach_model(target: Target, settings: Settings, state: State) -> None:
    """Open the model that answers for a character; nothing for other agents. Raises InvalidSettingError."""
    if target.model is not None:
        # imported here, because other agents need nothing of it
        from retinue.runtime.models import answer_as_character

        answer_as_character(target.agent, settings, state, target.model)


def take_from_others(state: State, echo: Echo) -> None:
    """Make a state folder of an earlier version readable by its owner only."""
    if changed := state.protect():
        echo(f"{state.root}: took {changed:,} files and folders from the other users of this machine")


def agent_dispatcher(
    agent: Agent, settings: Settings, mesh: JoinedMesh, url: str | None, access: AccessRule = _NO_LISTS
) -> Dispatcher:
    """The dispatcher of one agent's process; ``access`` holds the lists from its ``agent.json``."""
    events = EventBus()
    events.subscribe_batches(log_lines)
    rule = agent_rule(settings, agent.name, access)
    limited = allowed_calls(agent, settings, mesh, access)
    return local_dispatcher(
        agent,
        mesh=limited,
        servers=limited,
        access=Access({agent.name: rule}),
        url=url,
        admission=Admission(
            TraceGuard(guard_settings(settings), signer=mesh.signer), Limits(limit_settings(settings)), events
        ),
        timeouts=timeout_settings(settings),
        open_span=span_opener(agent.name, environment()),
    )


def allowed_calls(
    agent: Agent, settings: Settings, mesh: JoinedMesh, access: AccessRule = _NO_LISTS
) -> JoinedMesh | LimitedCalls:
    """The mesh as far as the agent may call it; ``access`` holds the lists from its ``agent.json``."""
    send = agent_rule(settings, agent.name, access).send
    return mesh if send is None else LimitedCalls(mesh, agent.name, send, mesh)


def agent_mcp(
    agent: Agent, dispatcher: Dispatcher, mesh: JoinedMesh | LimitedCalls | None, settings: Settings
) -> Lazy[McpServer]:
    """The MCP server of one agent; the caller closes it.

    Its resource and prompt functions call through ``mesh``, as `allowed_calls` gives it.
    """
    offer = RecordOffer(
        lambda: agent.record(with_facts=True),
        agent.changes.subscribe,
        names=settings.mcp.names,
        logs=agent.logs,
        sees=lambda caller: is_seen(dispatcher.access.view_of(caller), agent.name),
    )
    options = McpOptions(
        guard_as_tool_error=settings.mcp.guard_as_tool_error,
        result_chars=settings.mcp.result_chars,
        max_body_bytes=settings.limits.body_bytes,
    )
    return lazy_server(offer, dispatcher, local_reader(agent, dispatcher, mesh, mesh), options)


def agent_app(
    agent: Agent,
    dispatcher: Dispatcher,
    settings: Settings,
    state: State,
    *,
    host: str,
    url: str,
    http: HttpClient,
    mcp: Lazy[McpServer] | None = None,
    process: ProcessState | None = None,
    messages: Messages | None = None,
    a2a: A2aEndpoints | None = None,
    koi_routes: Sequence[BaseRoute] = (),
    open_paths: frozenset[str] = frozenset(),
    on_checks: OnChecks = lambda checks: None,
) -> ASGIApp:
    """The endpoints of one agent, behind the security middleware."""
    shown = OwnAgent(agent, dispatcher.access, url)
    app = ExactPathRouter(
        routes=[
            execute_route(
                dispatcher,
                agent=agent.name,
                answer_without_id=settings.execute.answer_without_id,
                validation_code=settings.execute.validation_code,
            ),
            *(() if mcp is None else (mcp_route(mcp),)),
            *(() if messages is None else messages.routes),
            *(() if a2a is None else a2a.routes),
            *card_routes(shown),
            rest_route(dispatcher, shown, url),
            *koi_routes,
            health_route(),
            keys_route(partial(public_card_key, settings, state)),
            *(() if process is None else process.routes()),
            *metadata_routes(protected_resource(settings)),
        ]
    )
    return guarded(app, settings, state, host, http, url=url, open_paths=open_paths, on_checks=on_checks)


def _card_registry(options: ServeOptions, state: State) -> str:
    """The registry to publish to: the given one, else that of the joined hub, else the state's."""
    if options.registry is None and options.hub_url is not None and joined_token(state.keys, options.hub_url):
        return options.hub_url
    return options.registry or str(state.registry)


def _print_skills(agent: Agent, echo: Echo) -> None:
    skills: Sequence[str] = [skill.id for skill in agent.skills if skill.visibility != "private"]
    exposed = [skill.id for skill in agent.skills if skill.visibility == "exposed"]
    count = f"{len(skills)} skill{'s' * (len(skills) != 1)}"
    line = f"{count} ({', '.join(skills) or 'none'}), {len(exposed)} exposed"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    echo(line)
