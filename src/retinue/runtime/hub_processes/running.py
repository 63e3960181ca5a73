"""Runs one process of a hub with several: the leader, or one that answers calls beside it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

import structlog
from starlette.types import ASGIApp

from retinue.core.record import HUB_NAME
from retinue.parts.part import Part
from retinue.parts.process import Echo, Process
from retinue.runtime.access import hub_access
from retinue.runtime.hub_process import HubOptions, hub_parts, open_hub
from retinue.runtime.hub_processes.accepting import serving_shared
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.call_core import (
    FollowPart,
    HealthPart,
    LedA2aPart,
    LedMcpPart,
    figures_app,
    open_call_process,
)
from retinue.runtime.hub_processes.forwarding import Forwarder, restored
from retinue.runtime.hub_processes.front import Front, Reach
from retinue.runtime.hub_processes.heartbeat import beat
from retinue.runtime.hub_processes.leader import LeaderExchange, inner_app
from retinue.runtime.hub_processes.leader_part import LeaderPart
from retinue.runtime.hub_processes.place import HubPlace, own_names
from retinue.runtime.launch import Core, Launch, ProcessIdentity, SettingsSource
from retinue.runtime.mesh import Chains
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.parts.calls import CallsPart
from retinue.runtime.parts.hub_moments import FolderWatchPart, HubFilePart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.parts.protocols import ExecutePart
from retinue.runtime.parts.teams.rollouts import RolloutsPart
from retinue.runtime.run_process import run_process
from retinue.runtime.serving import HttpServer, Stop, in_background
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.connection_gate import HttpLimits

LEAVES_LATER_S = 0.5
"""How much longer the leader of a hub that stops answers calls, because the others pass some on to it."""

LEADS_WITHIN_S = 10.0
"""How long a new leader waits until the one before it has ended."""

_OF_PARENT = (HubFilePart, FolderWatchPart)
"""The parts of a hub that its parent does, when it has several processes."""


async def run_hub_process(
    place: HubPlace,
    options: HubOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Run until asked to stop; returns the exit code. Raises what `run_process` raises."""
    structlog.contextvars.bind_contextvars(process=place.index)  # in each line of the log
    board = Board(place.board, place.index, place.count)
    address = replace(options.address, listen=place.take_listener)
    parts: list[Part]
    if place.is_leader:
        settings, reread = _leave_later(settings), None if reread is None else _leaving_later(reread)
        chains = Chains(place.hub_id, own_names(place), board.take, board.note_in_flight)
        core = Core(
            hold_state=partial(state.lead, LEADS_WITHIN_S),
            open=lambda start: open_hub(start, chains),
            access_of=hub_access,
        )
        parts = [part for part in hub_parts(options, settings) if not isinstance(part, _OF_PARENT)]
        parts.insert(0, LeaderPart(place, board))
    else:
        core = Core(
            hold_state=_no_state,
            open=lambda start: open_call_process(start, place, board),
            access_of=hub_access,
        )
        parts = [
            PoliciesPart(),
            LedMcpPart(),
            LedA2aPart(),
            ExecutePart(),
            HealthPart(),
            FollowPart(),
            RolloutsPart(leads=False),
            CallsPart(),
        ]
    launch = Launch(
        identity=ProcessIdentity("hub", HUB_NAME, HUB_NAME),
        source=SettingsSource(settings, reread),
        state=state,
        echo=echo if place.is_leader else _say_nothing,
        core=core,
        parts=parts,
        address=address,
        serve=partial(_serve, place, board),
    )
    async with in_background(beat(board)):
        return await run_process(launch)


@asynccontextmanager
async def _serve(
    place: HubPlace,
    board: Board,
    process: Process,
    app: ASGIApp,
    listener: socket.socket,
    stop: Stop,
    limits: HttpLimits,
) -> AsyncIterator[None]:
    """Serve at the address of the hub, and at the socket for the other processes."""
    async with AsyncExitStack() as stack:
        prefix = urlsplit(process.url or "").path.rstrip("/")
        if place.is_leader:
            forwarder = Forwarder(place)
            stack.push_async_callback(forwarder.aclose)
            front = Front(app, None, forwarder, place, board, prefix)
            exchange: ASGIApp = process.get(LeaderExchange)
        else:
            front = Front(app, process.get(Reach), process.get(Forwarder), place, board, prefix)
            exchange = figures_app(process)
        inner = HttpServer(inner_app(exchange, restored(front.answer)), limits, place.count)
        await stack.enter_async_context(inner.running((place.take_inner(),), stop))
        own = process.get(ProcessState)
        await stack.enter_async_context(
            serving_shared(front, listener, stop, limits, board, place.count, lambda: own.is_started)
        )
        yield


def _leave_later(settings: Settings) -> Settings:
    """The settings of the leader, which is the last to leave."""
    timeouts = settings.timeouts
    if not timeouts.leave_s:
        return settings
    leave_s = timeouts.leave_s + LEAVES_LATER_S
    return settings.model_copy(update={"timeouts": timeouts.model_copy(update={"leave_s": leave_s})})


def _leaving_later(reread: Callable[[], Settings]) -> Callable[[], Settings]:
    return lambda: _leave_later(reread())


@contextmanager
def _no_state() -> Iterator[None]:
    yield


def _say_nothing(line: str) -> None:
    """The leader says what the hub does."""
