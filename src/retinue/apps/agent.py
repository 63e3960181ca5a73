"""The process of one agent: its doors, its place in the registry, and its way to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache, partial

import structlog
from starlette.routing import Router
from starlette.types import ASGIApp

from retinue.apps.access import agent_rule, check_address, door_settings, protected_resource, token_readers
from retinue.apps.children import say_ready
from retinue.apps.exposure import watch_lists
from retinue.apps.joined import JoinedMesh, tell_hub
from retinue.apps.parts import (
    configured_registry,
    guard_settings,
    limit_settings,
    named_registries,
    registry_sources,
    timeout_settings,
)
from retinue.apps.serving import Stop, bind, end_task, serving, url_of
from retinue.apps.standing import Standing
from retinue.apps.targets import Target
from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.authoring.reading import local_reader
from retinue.core.call import Principal
from retinue.drivers.http import HttpClient
from retinue.drivers.joins import joined_token
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.state import State
from retinue.drivers.telemetry import open_spans
from retinue.mesh.access import Access, AccessRule, is_seen
from retinue.mesh.dispatch import Calls, Dispatcher
from retinue.mesh.events import EventBus, log_line
from retinue.mesh.guards import TraceGuard
from retinue.mesh.limits import Limits
from retinue.mesh.sending import LimitedCalls
from retinue.protocols.pallet_card import encode_card, render_card
from retinue.settings import Settings, environment
from retinue.surfaces.cards import card_route
from retinue.surfaces.execute import execute_route
from retinue.surfaces.health import health_route
from retinue.surfaces.mcp.door import McpDoor, McpOptions
from retinue.surfaces.mcp.record_offer import RecordOffer
from retinue.surfaces.protected_resource import metadata_routes
from retinue.surfaces.security import LOCAL_TOKEN, Doorkeeper, Tokens

_log = structlog.get_logger("retinue.agent")

FIRST_PORT = 8001
_LOOK_S = {True: 2.0, False: 15.0}
"""How often an agent looks whether its card still stands: in a folder, and in a registry elsewhere."""

Say = Callable[[str], None]

_NO_LISTS = AccessRule()


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How one agent is served; ``port`` None = the first free one from 8001 upward."""

    host: str = "127.0.0.1"
    port: int | None = None
    port_may_move: bool = False
    publish: bool = True
    registry: str | None = None
    tag: str = "v1"
    hub_url: str | None = None
    insecure_bind: bool = False


async def serve_agent(
    target: Target, options: ServeOptions, settings: Settings, state: State, say: Say
) -> int:
    """Serve until told to stop; returns the exit code.

    Raises PortInUseError, InvalidSettingError, RegistryError, StateError.
    """
    agent = target.agent
    check_address(options.host, settings, insecure_ok=options.insecure_bind)
    state.prepare()
    listener = bind(
        options.host, options.port or FIRST_PORT, search=options.port is None or options.port_may_move
    )
    url = url_of(listener)
    stop = Stop()
    stop.on_signals()
    supervisor = stop.with_supervisor()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        registries = named_registries(settings, LayoutRegistry(state.registry), http, state)
        sources = registry_sources(settings, registries)
        mesh = await stack.enter_async_context(
            JoinedMesh.open(settings, state, http, sources, options.hub_url)
        )
        dispatcher = agent_dispatcher(agent, settings, mesh, url, target.access)
        mcp = agent_mcp(agent, dispatcher, mesh, settings)
        await stack.enter_async_context(mcp.running())
        app = agent_app(agent, dispatcher, settings, state, host=options.host, url=url, http=http, mcp=mcp)
        await stack.enter_async_context(serving(app, listener, stop))
        stack.callback(mcp.end)
        say(f"{agent.name} {agent.version or ''}".rstrip() + f" at {url}")
        _say_doors(agent, say)
        then: Callable[[], Awaitable[None]] | None = None
        if options.publish:
            registry = configured_registry(_place_of_card(options, state), settings, http, state)
            standing = Standing(
                registry,
                lambda: agent.record(url),
                options.tag,
                http,
                say,
                probe_timeout_s=settings.timeouts.probe_s,
            )
            await standing.publish()
            tell = partial(tell_hub, http, state, options.hub_url)
            # in the end the card is withdrawn first, then the hub reads that
            stack.push_async_callback(tell)
            stack.push_async_callback(standing.withdraw)
            keeping = asyncio.create_task(standing.keep(_LOOK_S[isinstance(registry, LayoutRegistry)], tell))
            stack.push_async_callback(end_task, keeping)
            await tell()

            async def publish_anew() -> None:
                """The card shows what the mesh may see, so it changes with the lists."""
                await standing.renew()
                await tell()

            then = publish_anew
        await stack.enter_async_context(watch_lists(target, say, then))
        say_ready(supervisor, {"name": agent.name, "url": url})
        await stop.wait()
        say(f"stopping: {stop.reason}")
    return 0


def agent_dispatcher(
    agent: Agent, settings: Settings, mesh: JoinedMesh, url: str | None, access: AccessRule = _NO_LISTS
) -> Dispatcher:
    """The dispatch path of one agent's process; ``access`` are the lists that its files give."""
    events = EventBus()
    events.subscribe(log_line)
    rule = agent_rule(settings, agent.name, access)
    return local_dispatcher(
        agent,
        mesh=mesh if rule.send is None else LimitedCalls(mesh, agent.name, rule.send),
        access=Access({agent.name: rule}),
        url=url,
        guard=TraceGuard(guard_settings(settings), signer=mesh.signer),
        limits=Limits(limit_settings(settings)),
        events=events,
        timeouts=timeout_settings(settings),
        spans=open_spans(agent.name, environment()),
    )


def agent_mcp(agent: Agent, dispatcher: Dispatcher, mesh: Calls | None, settings: Settings) -> McpDoor:
    """The MCP server of one agent; the caller enters its ``running()``."""
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
    return McpDoor(offer, dispatcher, local_reader(agent, dispatcher, mesh), options)


def agent_app(
    agent: Agent,
    dispatcher: Dispatcher,
    settings: Settings,
    state: State,
    *,
    host: str,
    url: str,
    http: HttpClient,
    mcp: McpDoor | None = None,
) -> ASGIApp:
    """The doors of one agent, behind the doorkeeper."""

    @lru_cache(maxsize=8)
    def render(scopes: frozenset[str], revision: int) -> bytes:
        return encode_card(render_card(agent.record(url), scopes=scopes))

    def card(scopes: frozenset[str]) -> bytes:
        return render(scopes, agent.revision)

    app = Router(
        routes=[
            execute_route(dispatcher, agent=agent.name, answer_without_id=settings.execute.answer_without_id),
            card_route(card, sees=lambda caller: is_seen(dispatcher.access.view_of(caller), agent.name)),
            health_route(),
            *(() if mcp is None else (mcp.route(),)),
            *metadata_routes(protected_resource(settings)),
        ]
    )
    return guarded(app, settings, state, host, http)


def guarded(
    app: ASGIApp,
    settings: Settings,
    state: State,
    host: str,
    http: HttpClient,
    tokens: Mapping[str, Principal] | None = None,
) -> ASGIApp:
    """The app behind the checks that every door has (DESIGN 7); ``tokens`` beside that of the state."""
    known = Tokens({**(tokens or {}), state.local_token(): LOCAL_TOKEN})
    return Doorkeeper(app, door_settings(settings, host), known, token_readers(settings, state, http))


def _place_of_card(options: ServeOptions, state: State) -> str:
    """The registry to publish in: at the hub that this machine has joined, else in the state."""
    if options.registry is None and options.hub_url is not None and joined_token(state.keys, options.hub_url):
        return options.hub_url
    return options.registry or str(state.registry)


def _say_doors(agent: Agent, say: Say) -> None:
    skills: Sequence[str] = [skill.id for skill in agent.skills if skill.visibility != "private"]
    exposed = [skill.id for skill in agent.skills if skill.visibility == "exposed"]
    count = f"{len(skills)} skill{'s' * (len(skills) != 1)}"
    line = f"{count} ({', '.join(skills) or 'none'}), {len(exposed)} exposed"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    say(line)
