"""The parent of a hub with several processes: holds the address, and keeps the processes running.

It answers no request itself. New connections wait in the sockets that it holds until a process accepts them,
so none is refused while a process starts again. When the parent ends, its processes end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

from retinue.core.errors import ChildFailedError, InvalidSettingError
from retinue.core.record import HUB_NAME
from retinue.parts.process import Echo
from retinue.runtime.hub_process import HubOptions, make_hub_id
from retinue.runtime.hub_processes.board import MAX_PROCESSES, Board
from retinue.runtime.hub_processes.fork_server import ForkServer
from retinue.runtime.hub_processes.place import HubPlace, board_path, socket_path
from retinue.runtime.machine.limits import count_processors
from retinue.runtime.observing.log_files import writes_to
from retinue.runtime.parts.children import END_S
from retinue.runtime.parts.hub_moments import watch_folder
from retinue.runtime.run_process import own_state
from retinue.runtime.serving import Stop, bind, end_task, in_background, url_of
from retinue.runtime.supervisor import ChildSpec, OnChange, Ready, StartProcess, Supervisor, report_ready
from retinue.settings import Settings, environment
from retinue.storage.files import storage_errors
from retinue.storage.state import HUB_PLACE_VARIABLE, State

_READY_WITHIN_S = 600.0
_BACKLOG = 1024

_LASTING_S = 1.0
"""A process that has run so long is started again at once; one that ends earlier, after a pause."""


def count_processes(configured: int | str) -> int:
    """How many processes a hub has: a number, or "auto" for one for each processor that it may use.

    Raises InvalidSettingError.
    """
    if configured == "auto":
        return min(count_processors(), MAX_PROCESSES)
    try:
        count = int(configured)
    except ValueError:
        raise InvalidSettingError(
            "hub.processes", f"{configured!r} is not a number", remedy='write a number, or "auto"'
        ) from None
    if not 1 <= count <= MAX_PROCESSES:
        raise InvalidSettingError(
            "hub.processes", f"{count} is not 1 to {MAX_PROCESSES}", remedy='write a number, or "auto"'
        )
    return count


async def run_hub_parent(
    count: int,
    arguments: Sequence[str],
    options: HubOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    fork_server: ForkServer | None = None,
) -> int:
    """Run a hub of ``count`` processes until asked to stop; returns the exit code.

    ``fork_server`` starts the processes; without it each imports the program anew.

    ``arguments`` are those of the command that each process is started with. At SIGHUP each process reads
    its settings again. Raises HubRunningError, PortInUseError, StateDamagedError and ChildFailedError.
    """
    stop = Stop()
    stop.on_signals()
    async with AsyncExitStack() as stack:
        stack.enter_context(own_state(state, echo))
        address = options.address
        listener = stack.enter_context(bind(address.host, address.port, search=address.search))
        url = url_of(listener)
        if address.port and not url.endswith(f":{address.port}"):
            echo(f"port {address.port} is taken; using {url}")
        writes_log = writes_to(state.hub_log)
        state.write_hub(url, ready=False, writes_log=writes_log, processes=count)
        stack.callback(state.forget_hub)
        lost = f"the state folder {state.root} was deleted or replaced; start the hub again"
        await stack.enter_async_context(in_background(watch_folder(state, lambda: stop.ask(lost, 1))))
        folder = stack.enter_context(_folder())
        with storage_errors(folder):
            board = Board(board_path(folder))
        stack.callback(board.close)
        descriptor = stop.with_supervisor()
        stop_within_s = settings.timeouts.leave_s + 2 * settings.timeouts.drain_s + END_S
        start = None if fork_server is None else fork_server.start_if_running
        specs = stack.enter_context(_specs(count, folder, listener, arguments, state, stop_within_s, start))
        children = Supervisor(_is_ready, _follow(board, stop, echo))
        stop.on_hangup = lambda: _pass_on(children)
        stack.push_async_callback(children.stop)
        if await _start(children, specs, stop):
            state.write_hub(url, writes_log=writes_log, processes=count)
            report_ready(descriptor, {"name": HUB_NAME, "url": url})
        await stop.wait()
    return stop.exit_code


async def _start(children: Supervisor, specs: Sequence[ChildSpec], stop: Stop) -> bool:
    """Start all processes; False if this one is asked to stop meanwhile. Raises ChildFailedError."""
    starting = asyncio.create_task(children.start(specs, insist=True))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await end_task(stopping)
    if not starting.done():
        await end_task(starting)
        return False
    starting.result()
    return True


@contextmanager
def _specs(
    count: int,
    folder: Path,
    listener: socket.socket,
    arguments: Sequence[str],
    state: State,
    stop_within_s: float,
    start: StartProcess | None,
) -> Iterator[list[ChildSpec]]:
    """The processes to start, each with its sockets, which stay open here for those that follow it."""
    hub_id, inners, specs = make_hub_id(), [], []
    try:
        for index in range(count):
            inner = _listen_inner(socket_path(folder, index))
            inners.append(inner)
            place = HubPlace(index, count, folder, hub_id, listener.fileno(), inner.fileno())
            own = {HUB_PLACE_VARIABLE: place.as_variable(), "RETINUE_HOME": str(state.root)}
            specs.append(
                ChildSpec(
                    _name(index),
                    tuple(arguments),
                    {**environment(), **own},
                    ready_within_s=_READY_WITHIN_S,
                    stop_within_s=stop_within_s,
                    descriptors=(listener.fileno(), inner.fileno()),
                    shares_output=True,
                    first_back_off_s=0.0,
                    lasting_s=_LASTING_S,
                    start=start,
                )
            )
        yield specs
    finally:
        for inner in inners:
            inner.close()


def _listen_inner(path: Path) -> socket.socket:
    inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    inner.bind(str(path))
    inner.listen(_BACKLOG)
    return inner


def _name(index: int) -> str:
    return f"hub process {index}"


async def _is_ready(ready: Ready) -> bool:
    return True


def _follow(board: Board, stop: Stop, echo: Echo) -> OnChange:
    def note(name: str, news: Ready | ChildFailedError | None) -> None:
        if news is None:
            board.note_ended(int(name.rpartition(" ")[2]))
            if not stop.asked:
                echo(f"{name} ended; starting it again")
        elif isinstance(news, ChildFailedError):
            echo(f"{news.message}; trying again")

    return note


def _pass_on(children: Supervisor) -> None:
    """Let each process read its settings again."""
    for child in children.children:
        if child.is_ready and child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGHUP)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a short path, because sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="retinue-hub-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
