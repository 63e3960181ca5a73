"""The programs of seed 003: a coordinator, an agent, and the demo of a coordinator and two agents."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from retinue.core.errors import AgentUnreachableError, InvalidSettingError, PortInUseError
from retinue.mesh.permissions import Access
from retinue.parts.process import Echo
from retinue.runtime.launch import Address, Core, Launch, ProcessIdentity, SettingsSource
from retinue.runtime.run_process import run_process
from retinue.runtime.serving import Stop, bind, take_listener
from retinue.runtime.supervisor import ChildSpec, Ready, Supervisor
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.transport import TransportError
from retinue_koi.programs.config import CONFIGS, load_config
from retinue_koi.programs.nodes import host_of
from retinue_koi.programs.parts import (
    AGENT,
    COORDINATOR,
    AgentProgram,
    CoordinatorPart,
    KoiAgentPart,
    open_coordinator,
    open_koi_agent,
)

FIRST_PORTS = (9000, 8101, 8102)
"""The ports of the demo: the coordinator and its two agents (K-30)."""

_SHIFTS = 200
_LISTED_WITHIN_S = 30.0
_PROBE_S = 2.0


async def serve_coordinator(
    config_path: Path, settings: Settings, state: State, echo: Echo, *, insecure_bind: bool = False
) -> int:
    """Run the coordinator of a configuration until asked to stop; returns the exit code.

    Raises InvalidSettingError and PortInUseError.
    """
    section = load_config(config_path).coordinator
    if section is None:
        raise InvalidSettingError(
            str(config_path), "it has no section coordinator", remedy="run: retinue koi agent --config FILE"
        )
    host = host_of(section.base_url, "coordinator.base_url")
    port = section.mcp_registry_port
    address = Address(
        host,
        port,
        insecure_bind=insecure_bind,
        listen=partial(_bind, host, port, "coordinator.mcp_registry_port"),
    )
    return await run_process(
        Launch(
            identity=ProcessIdentity(COORDINATOR, section.name, section.name),
            source=SettingsSource(settings),
            state=state,
            echo=echo,
            core=Core(
                hold_state=nullcontext,
                open=partial(open_coordinator, section),
                access_of=lambda settings: Access(),
            ),
            parts=(CoordinatorPart(section),),
            address=address,
        )
    )


async def serve_agent(
    config_path: Path, settings: Settings, state: State, echo: Echo, *, insecure_bind: bool = False
) -> int:
    """Run the agent of a configuration until asked to stop; returns the exit code.

    Raises InvalidSettingError and PortInUseError.
    """
    config = load_config(config_path)
    section = config.agent
    if section is None:
        raise InvalidSettingError(
            str(config_path), "it has no section agent", remedy="run: retinue koi coordinator --config FILE"
        )
    host = host_of(section.base_url, "agent.base_url")
    if section.mcp_url is not None:
        host_of(section.mcp_url, "agent.mcp_url")
    address = Address(
        host,
        section.mcp_port,
        insecure_bind=insecure_bind,
        listen=partial(_bind, host, section.mcp_port, "agent.mcp_port"),
    )
    program = AgentProgram(section, config.network.first_contact, config_path.parent)
    return await run_process(
        Launch(
            identity=ProcessIdentity(AGENT, section.name, section.name),
            source=SettingsSource(settings),
            state=state,
            echo=echo,
            core=Core(
                hold_state=nullcontext,
                open=partial(open_koi_agent, program),
                access_of=lambda settings: Access(),
            ),
            parts=(KoiAgentPart(section, lambda port: _bind(host, port, "agent.base_url")),),
            address=address,
        )
    )


async def serve_demo(echo: Echo) -> int:
    """Run the coordinator and both agents of `CONFIGS` in processes of their own, until Ctrl-C.

    The ports move together where one is taken. Their sockets are opened here and passed on, so that no other
    program takes one meanwhile. Raises ChildFailedError and PortInUseError.
    """
    stop = Stop()
    stop.on_signals()
    async with AsyncExitStack() as stack:
        listeners = listen_together()
        stack.callback(_close, listeners)
        ports = [listener.getsockname()[1] for listener in listeners]
        if ports[0] != FIRST_PORTS[0]:
            echo(f"a port of {', '.join(map(str, FIRST_PORTS))} is taken; using {', '.join(map(str, ports))}")
        http = await stack.enter_async_context(HttpClient())

        async def probe(ready: Ready) -> bool:
            try:
                reply = await http.request("GET", f"{ready['url']}/health", timeout_s=_PROBE_S)
            except TransportError:
                return False
            return reply.status == 200

        children = Supervisor(probe)
        stack.push_async_callback(children.stop)
        specs = _children_of(listeners)
        starting = asyncio.create_task(_start(children, specs, http, f"http://127.0.0.1:{ports[0]}", echo))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        await stopping
        echo(f"stopping: {stop.reason}")
    return 0


def listen_together(first: Sequence[int] = FIRST_PORTS) -> list[socket.socket]:
    """Sockets that listen at the first ports, moved together by the smallest number for which all are free.

    Raises PortInUseError.
    """
    for shift in range(_SHIFTS):
        listeners: list[socket.socket] = []
        try:
            listeners.extend(bind("127.0.0.1", port + shift * len(first)) for port in first)
        except PortInUseError:
            _close(listeners)
        except BaseException:
            _close(listeners)
            raise
        else:
            return listeners
    raise PortInUseError("127.0.0.1", first[0], remedy=f"end a program that listens from {first[0]} on")


def _close(listeners: Sequence[socket.socket]) -> None:
    for listener in listeners:
        listener.close()


def _bind(host: str, port: int, field: str) -> socket.socket:
    """A listening socket for a port of the configuration, or the socket that the supervisor has opened for
    it.

    Raises PortInUseError, which names the field.
    """
    try:
        return take_listener(host, port) or bind(host, port)
    except PortInUseError as error:
        variable = f"KOI_MCP_{field.replace('.', '_')}".upper()
        raise PortInUseError(
            host, port, remedy=f"change {field} and the base_url, or set {variable}"
        ) from error


def _children_of(listeners: Sequence[socket.socket]) -> list[ChildSpec]:
    """The processes of the demo: the coordinator, then its agents, each with its listening socket."""
    coordinator_port, *agent_ports = [listener.getsockname()[1] for listener in listeners]
    base_url = f"http://127.0.0.1:{coordinator_port}/koi-net"
    contact = {"KOI_MCP_NETWORK_FIRST_CONTACT": base_url, "KOI_MCP_CONFIG": ""}
    coordinator = {
        "KOI_MCP_COORDINATOR_BASE_URL": base_url,
        "KOI_MCP_COORDINATOR_MCP_REGISTRY_PORT": str(coordinator_port),
    }
    agents = [
        {
            "KOI_MCP_AGENT_BASE_URL": f"http://127.0.0.1:{port}/koi-net",
            "KOI_MCP_AGENT_MCP_PORT": str(port),
            **contact,
        }
        for port in agent_ports
    ]
    return [
        _child("coordinator", "coordinator.json", coordinator, listeners[0]),
        _child("agent", "agent1.json", agents[0], listeners[1]),
        _child("agent", "agent2.json", agents[1], listeners[2]),
    ]


def _child(program: str, file: str, variables: Mapping[str, str], listener: socket.socket) -> ChildSpec:
    config = load_config(CONFIGS / file, {})
    section = config.agent or config.coordinator
    name = file if section is None else section.name
    return ChildSpec(
        name, ("koi", program, "--config", str(CONFIGS / file)), {**os.environ, **variables}, listener
    )


async def _start(
    children: Supervisor, specs: Sequence[ChildSpec], http: HttpClient, base: str, echo: Echo
) -> None:
    """Start the coordinator, then the agents, and wait until both are listed."""
    await children.start(specs[:1], insist=True)
    echo(f"coordinator at {base}")
    for ready in await children.start(specs[1:], insist=True):
        echo(f"{ready['name']} at {ready['url']}")
    wanted = len(specs) - 1
    try:
        async with asyncio.timeout(_LISTED_WITHIN_S):
            while len(listed := await _list(http, f"{base}/tools/list", "tools")) < wanted:
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AgentUnreachableError("coordinator", base, "it does not list both agents") from None
    for tool in listed:
        echo(f"  {tool['name']}: {tool['description']}  POST {tool['url']}")
    echo(f"MCP at {base}/mcp; Ctrl-C ends the demo")


async def _list(http: HttpClient, url: str, key: str) -> list[dict[str, Any]]:
    reply = await http.request("GET", url, timeout_s=_PROBE_S)
    rows: list[dict[str, Any]] = orjson.loads(reply.body)[key]
    return rows
