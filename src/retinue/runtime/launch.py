"""A process before it runs: its address, its parts, and the function that opens its core."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.permissions import Access
from retinue.parts.part import Part
from retinue.parts.process import Echo, Kind, Process, Tables
from retinue.parts.shown_agents import ShownAgents
from retinue.runtime.peers import Peers
from retinue.runtime.serving import Stop
from retinue.settings import Settings, environment
from retinue.storage.state import State
from retinue.web.connection_gate import HttpLimits


@dataclass(frozen=True, slots=True)
class Address:
    """Where a process listens; with ``search`` it takes the next free port instead of failing.

    Port 0 is any free one. ``advertise`` is the URL by which other machines reach it. ``tells_port`` prints
    that the port has moved. ``listen`` opens the socket in another way than by host and port.
    """

    host: str = "127.0.0.1"
    port: int = 0
    search: bool = False
    advertise: str | None = None
    insecure_bind: bool = False
    tells_port: bool = False
    listen: Callable[[], socket.socket] | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The facts with which the core of a process is opened; the URLs are None if it serves nothing."""

    settings: Settings
    state: State
    echo: Echo
    stop: Stop
    url: str | None = None
    own_url: str | None = None

    def make_process(
        self,
        kind: Kind,
        agent: Agent,
        dispatcher: Dispatcher,
        shown: ShownAgents,
        peers: Peers,
        invokers: LocalFirst,
    ) -> Process:
        """The process of a core, for its parts."""
        process = Process(
            kind=kind,
            agent=agent,
            dispatcher=dispatcher,
            shown=shown,
            state=self.state,
            tables=tables_of(self.settings),
            http=peers.http,
            signer=peers.signer,
            token_for=peers.token_for,
            remote=peers.remote,
            invokers=invokers,
            echo=self.echo,
            environ=environment(),
            url=self.url,
            own_url=self.own_url,
            ask_to_stop=self.stop.ask,
        )
        process.add(Peers, peers)
        process.add(Stop, self.stop)
        return process


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The names of a process: the supervisor gets ``name``, ``service`` is the name in OpenTelemetry."""

    kind: Kind
    name: str
    service: str


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """The settings of a process; ``reread`` reads them again at SIGHUP, which stops a process without it."""

    settings: Settings
    reread: Callable[[], Settings] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """How a kind of process opens what its parts share.

    ``hold_state`` prepares or locks the state folder first. ``access_of`` reads the access lists from
    settings.
    """

    hold_state: Callable[[], AbstractContextManager[None]]
    open: Callable[[Start], AbstractAsyncContextManager[Process]]
    access_of: Callable[[Settings], Access]


@dataclass(frozen=True, slots=True)
class Shared:
    """For one of several agents of a process: what stops it, and who is told that it is ready.

    The process itself handles signals and its supervisor.
    """

    stop: Stop
    report: Callable[[Mapping[str, Any]], None]


Serve = Callable[[Process, ASGIApp, socket.socket, Stop, HttpLimits], AbstractAsyncContextManager[None]]
"""Serves an app of a process at a listening socket while inside, until the process is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process to run: the differences between the kinds of processes.

    A process without an ``address`` serves nothing. Parts that open or start longer than ``hang_s`` after a
    request to stop are cut off. ``serve`` serves the app in another way than at the socket alone.
    """

    identity: ProcessIdentity
    source: SettingsSource
    state: State
    echo: Echo
    core: Core
    parts: Sequence[Part]
    address: Address | None = None
    hang_s: float = 3.0
    shared: Shared | None = None
    serve: Serve | None = None


def tables_of(settings: Settings) -> Tables:
    """The tables of the settings by class, and the settings themselves for parts that compose a process."""
    return Tables([*(value for _, value in settings if isinstance(value, BaseModel)), settings])
