"""The process of one agent: its doors, its place in the registry, and its way to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import structlog
from starlette.applications import Starlette
from starlette.types import ASGIApp

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
from retinue.apps.serving import Stop, bind, serving, url_of
from retinue.apps.targets import Target
from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.authoring.reading import local_reader
from retinue.core.call import Principal
from retinue.core.errors import ReferenceNotFoundError, RetinueError
from retinue.core.record import AgentRecord
from retinue.drivers.http import HttpClient
from retinue.drivers.layout import LayoutRegistry
from retinue.drivers.registry import Published, Registry, publish_card, withdraw
from retinue.drivers.state import State
from retinue.mesh.dispatch import Calls, Dispatcher
from retinue.mesh.events import EventBus, log_line
from retinue.mesh.guards import TraceGuard
from retinue.mesh.limits import Limits
from retinue.protocols.pallet_card import encode_card, render_card
from retinue.settings import Settings
from retinue.surfaces.cards import card_route
from retinue.surfaces.execute import execute_route
from retinue.surfaces.health import health_route
from retinue.surfaces.mcp.door import McpDoor, McpOptions
from retinue.surfaces.mcp.record_offer import RecordOffer
from retinue.surfaces.security import LOCAL_TOKEN, Doorkeeper, DoorSettings, Tokens, check_bind

_log = structlog.get_logger("retinue.agent")

FIRST_PORT = 8001
PUBLISHED_SCOPES = frozenset({"exposed", "mesh"})
"""A published card shows what the mesh may see; visibility travels inside it (DESIGN 2)."""

Say = Callable[[str], None]


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
    check_bind(options.host, has_auth=False, insecure_ok=options.insecure_bind)
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
        registries = named_registries(settings, LayoutRegistry(state.registry), http)
        sources = registry_sources(settings, registries)
        mesh = await stack.enter_async_context(
            JoinedMesh.open(settings, state, http, sources, options.hub_url)
        )
        dispatcher = agent_dispatcher(agent, settings, mesh, url)
        mcp = agent_mcp(agent, dispatcher, mesh, settings)
        await stack.enter_async_context(mcp.running())
        app = agent_app(agent, dispatcher, settings, state, host=options.host, url=url, mcp=mcp)
        await stack.enter_async_context(serving(app, listener, stop))
        stack.callback(mcp.end)
        say(f"{agent.name} {agent.version or ''}".rstrip() + f" at {url}")
        _say_doors(agent, say)
        registry = configured_registry(options.registry or str(state.registry), settings, http, state)
        placed: list[Published] = []

        async def publish_anew() -> None:
            """The card shows what the mesh may see, so it changes with the lists."""
            if options.publish:
                placed.append(await _publish(registry, agent.record(url), options))
                await tell_hub(http, state, options.hub_url)

        if options.publish:
            published = await _publish(registry, agent.record(url), options)
            placed.append(published)
            stack.push_async_callback(_withdraw_last, registry, placed, say)
            stack.push_async_callback(tell_hub, http, state, options.hub_url)
            say(f"published {published} in {published.registry}")
            await tell_hub(http, state, options.hub_url)
        await stack.enter_async_context(watch_lists(target, say, publish_anew))
        say_ready(supervisor, {"name": agent.name, "url": url})
        await stop.wait()
        say(f"stopping: {stop.reason}")
    return 0


def agent_dispatcher(agent: Agent, settings: Settings, mesh: JoinedMesh, url: str | None) -> Dispatcher:
    """The dispatch path of one agent's process."""
    events = EventBus()
    events.subscribe(log_line)
    return local_dispatcher(
        agent,
        mesh=mesh,
        url=url,
        guard=TraceGuard(guard_settings(settings)),
        limits=Limits(limit_settings(settings)),
        events=events,
        timeouts=timeout_settings(settings),
    )


def agent_mcp(agent: Agent, dispatcher: Dispatcher, mesh: Calls | None, settings: Settings) -> McpDoor:
    """The MCP server of one agent; the caller enters its ``running()``."""
    offer = RecordOffer(
        lambda: agent.record(with_facts=True),
        agent.changes.subscribe,
        names=settings.mcp.names,
        logs=agent.logs,
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
    mcp: McpDoor | None = None,
) -> ASGIApp:
    """The doors of one agent, behind the doorkeeper."""

    @lru_cache(maxsize=8)
    def render(scopes: frozenset[str], revision: int) -> bytes:
        return encode_card(render_card(agent.record(url), scopes=scopes))

    def card(scopes: frozenset[str]) -> bytes:
        return render(scopes, agent.revision)

    app = Starlette(
        routes=[
            execute_route(dispatcher, agent=agent.name, answer_without_id=settings.execute.answer_without_id),
            card_route(card),
            health_route(),
            *(() if mcp is None else (mcp.route(),)),
        ]
    )
    return guarded(app, settings, state, host)


def guarded(
    app: ASGIApp,
    settings: Settings,
    state: State,
    host: str,
    tokens: Mapping[str, Principal] | None = None,
) -> ASGIApp:
    """The app behind the checks that every door has (DESIGN 7); ``tokens`` beside that of the state."""
    doors = DoorSettings(
        host=host,
        hosts=settings.doors.hosts,
        origins=settings.doors.origins,
        max_body_bytes=settings.limits.body_bytes,
    )
    return Doorkeeper(app, doors, Tokens({**(tokens or {}), state.local_token(): LOCAL_TOKEN}))


async def _publish(registry: Registry, record: AgentRecord, options: ServeOptions) -> Published:
    card = render_card(record, scopes=PUBLISHED_SCOPES)
    return await publish_card(
        registry,
        record.name,
        encode_card(card),
        version=record.version,
        skills=[skill["id"] for skill in card["skills"]],
        created=datetime.now(UTC),
        tag=options.tag,
    )


async def _withdraw_last(registry: Registry, placed: Sequence[Published], say: Say) -> None:
    await _withdraw(registry, placed[-1], say)


async def _withdraw(registry: Registry, published: Published, say: Say) -> None:
    """Forget the card on a clean exit; by digest, so that a successor's card is not taken away."""
    try:
        await withdraw(registry, published)
    except ReferenceNotFoundError:
        _log.debug("already forgotten", reference=str(published))
    except RetinueError as error:
        say(f"{published} stays in {published.registry}: {error.message}")


def _say_doors(agent: Agent, say: Say) -> None:
    skills: Sequence[str] = [skill.id for skill in agent.skills if skill.visibility != "private"]
    exposed = [skill.id for skill in agent.skills if skill.visibility == "exposed"]
    count = f"{len(skills)} skill{'s' * (len(skills) != 1)}"
    line = f"{count} ({', '.join(skills) or 'none'}), {len(exposed)} exposed"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    say(line)
