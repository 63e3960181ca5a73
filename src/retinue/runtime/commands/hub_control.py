"""Stops the hub of a state folder, and shows its status."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retinue.core.durations import render_duration
from retinue.core.errors import HubRunningError, RetinueError, StateError
from retinue.rpc.probe import answers
from retinue.runtime.checks.hub import check_ready
from retinue.runtime.commands.client import open_client
from retinue.settings import Settings
from retinue.storage.state import HubAddress, State, is_process
from retinue.web.http_client import HttpClient

_POLL_S = 0.05
_STARTING_S = 5.0
"""How long a hub may hold the lock of its state before its address is known."""

_LIST_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class HubStatus:
    """How the hub of a state is.

    ``status`` is running, starting, unanswering, killed (it left its address behind) or stopped.
    """

    status: str
    state: str
    hub: HubAddress | None = None
    log: str | None = None
    memory_bytes: int | None = None
    agents: int | None = None
    available: int | None = None
    problem: str | None = None

    @property
    def up_s(self) -> float | None:
        """Seconds since the start; None if it is not recorded."""
        try:
            started = datetime.fromisoformat(self.hub.started_at if self.hub else "")
        except ValueError:
            return None
        return max(0.0, (datetime.now(UTC) - started).total_seconds())

    def as_json(self) -> dict[str, Any]:
        hub, up_s = self.hub, self.up_s
        facts: Mapping[str, Any] = {
            "url": hub and hub.url,
            "pid": hub and hub.pid,
            "processes": hub.processes if hub and hub.processes != 1 else None,
            "started_at": hub and hub.started_at,
            "up_s": None if up_s is None else round(up_s, 1),
            "log": self.log,
            "memory_bytes": self.memory_bytes,
            "agents": self.agents,
            "available": self.available,
            "problem": self.problem,
        }
        known = {key: value for key, value in facts.items() if value is not None}
        return {"status": self.status, "state": self.state, **known}


async def read_status(settings: Settings, state: State) -> HubStatus:
    """How the hub of ``state`` is, asked with the configured limit of a probe; raises StateDamagedError."""
    hub = state.read_hub()
    if hub is None:
        return HubStatus("killed" if state.hub_file.exists() else "stopped", str(state.root))
    log = str(state.hub_log) if hub.writes_log else None
    memory = _read_memory_of(hub)
    timeout_s = settings.timeouts.probe_s
    async with HttpClient() as http:
        trouble = await answers(http, hub.url, timeout_s=timeout_s)
    if trouble is not None:
        status = "unanswering" if hub.is_ready else "starting"
        return HubStatus(status, str(state.root), hub, log, memory, problem=str(trouble))
    agents = available = problem = None
    try:
        async with open_client(settings, state, hub_url=hub.url) as client:
            reply = await client.get("list_agents", timeout_s=_LIST_WITHIN_S)
        rows = reply["agents"]
        agents = len(rows)
        available = sum(row.get("status") != "unavailable" for row in rows)
        problem = await find_problem(settings, state, hub)
    except RetinueError as error:
        problem = f"its agents are not known: {error.message}"
    status = "running" if hub.is_ready else "starting"
    return HubStatus(status, str(state.root), hub, log, memory, agents, available, problem)


async def find_problem(settings: Settings, state: State, hub: HubAddress) -> str | None:
    """What ``/ready`` tells of a hub that works with a fault, such as policies that are not loaded."""
    async with HttpClient() as http:
        checks = await check_ready(state, hub.url, settings, http)
    return next((check.found for check in checks if check.status != "ok"), None)


async def stop_hub(state: State, *, within_s: float, kill: bool = False) -> HubAddress | None:
    """Ask the hub of ``state`` to stop and wait until its process has ended; None if none runs.

    A hub that was killed left its address behind, which is removed. A hub that does not stop within
    ``within_s`` is killed with ``kill``; its agents then stop by themselves. Raises StateError if it runs on,
    and if it belongs to another user.
    """
    hub = await _find_hub(state)
    if hub is None:
        return None
    descriptor = _open_process(hub)
    try:
        _send(hub, descriptor, signal.SIGTERM)
        if await _has_ended(hub, within_s):
            return hub
        if not kill:
            raise StateError(
                f"the hub (pid {hub.pid}) still runs {render_duration(within_s)} after it was asked to stop",
                remedy="wait, or end it with --kill; steps in flight then run again",
            )
        _send(hub, descriptor, signal.SIGKILL)
        if not await _has_ended(hub, within_s):
            raise StateError(f"the hub (pid {hub.pid}) cannot be killed", remedy="look at it: ps -l -p PID")
        _forget(state, hub)
        return hub
    finally:
        if descriptor is not None:
            os.close(descriptor)


async def _find_hub(state: State) -> HubAddress | None:
    deadline = time.monotonic() + _STARTING_S
    while (hub := state.read_hub()) is None:
        if not state.root.is_dir() or not _is_owned(state):
            _forget(state, None)
            return None
        if time.monotonic() > deadline:
            raise StateError(
                f"a process holds {state.root} and does not say which", remedy="wait until it has started"
            )
        await asyncio.sleep(_POLL_S)
    return hub


def _is_owned(state: State) -> bool:
    try:
        with state.own():
            return False
    except HubRunningError:
        return True


def _forget(state: State, hub: HubAddress | None) -> None:
    """Remove the address that a killed hub left behind, unless another hub has replaced it."""
    now = state.read_hub()
    if now is None or (hub is not None and now.pid == hub.pid):
        state.hub_file.unlink(missing_ok=True)


def _open_process(hub: HubAddress) -> int | None:
    """A descriptor of the hub's process, which another process cannot take over as it can a pid.

    None where the system has none (macOS) and where the process has ended.
    """
    try:
        descriptor = os.pidfd_open(hub.pid)
    except (AttributeError, OSError):
        return None
    if is_process(hub.pid, hub.birth):
        return descriptor
    os.close(descriptor)
    return None


def _send(hub: HubAddress, descriptor: int | None, number: signal.Signals) -> None:
    try:
        if descriptor is not None:
            signal.pidfd_send_signal(descriptor, number)
        elif is_process(hub.pid, hub.birth):
            os.kill(hub.pid, number)
    except ProcessLookupError:
        return
    except PermissionError:
        raise StateError(
            f"the hub (pid {hub.pid}) belongs to another user", remedy="stop it as that user"
        ) from None


async def _has_ended(hub: HubAddress, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while is_process(hub.pid, hub.birth):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _read_memory_of(hub: HubAddress) -> int | None:
    """The memory of the hub; that of several processes counts what they share once."""
    if hub.processes == 1:
        return _read_memory(hub.pid)
    sizes = [_read_own_share(pid) for pid in _list_processes(hub.pid)]
    return sum(size for size in sizes if size is not None) or None


def _list_processes(parent: int) -> list[int]:
    """The processes of a hub with several: the parent, those it started, and those of its fork server."""
    command = _read_command(parent)
    started = _list_children(parent)
    # a fork has the command of the parent; the agents of the leader have others
    forked = [pid for child in started for pid in _list_children(child) if _read_command(pid) == command]
    return [parent, *started, *forked]


def _list_children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _read_own_share(pid: int) -> int | None:
    """Memory of a process (Linux), its share only of pages that other processes have as well."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return _read_memory(pid)


def _read_memory(pid: int) -> int | None:
    """Resident memory of a process (Linux); None where the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
