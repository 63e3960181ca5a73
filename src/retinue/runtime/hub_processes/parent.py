"""The parent of a hub with several processes: holds the address, and keeps the processes running.

It answers no request itself. New connections wait in the sockets that it holds until a process accepts them,
so none is refused while a process starts again. When the parent ends, its processes end.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from retinue.core.durations import render_duration
from retinue.core.errors import ChildFailedError, InvalidSettingError
from retinue.core.record import HUB_NAME
from retinue.parts.process import Echo
from retinue.runtime.hub_process import HubOptions, make_hub_id
from retinue.runtime.hub_processes.board import MAX_PROCESSES, Board, create_board
from retinue.runtime.hub_processes.fork_server import ForkServer
from retinue.runtime.hub_processes.heartbeat import BEAT_S, FROZEN_LOOKS, FrozenWatch
from retinue.runtime.hub_processes.place import HubPlace, socket_path
from retinue.runtime.machine.limits import count_processors
from retinue.runtime.observing.log_files import writes_to
from retinue.runtime.parts.children import END_S
from retinue.runtime.parts.hub_moments import watch_folder
from retinue.runtime.run_process import own_state
from retinue.runtime.serving import Stop, bind, end_task, in_background, url_of
from retinue.runtime.supervisor import ChildSpec, Ready, StartProcess, Supervisor, report_ready
from retinue.settings import Settings, environment
from retinue.storage.files import storage_errors
from retinue.storage.state import HUB_PLACE_VARIABLE, State

_READY_WITHIN_S = 600.0
_BACKLOG = 1024

_TEMPORARY_PATH_BYTES = 74
"""The longest path of a folder for temporary files in which sockets have a place: theirs has 103 on macOS."""

_SHORT_PLACE = Path("/tmp")  # noqa: S108 - the folder that is made in it is for this user only

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
            board_file = create_board(folder)
        board = Board(board_file)
        stack.callback(board.close)
        descriptor = stop.with_supervisor()
        place = HubPlace(0, count, folder, make_hub_id(), listener.fileno(), -1, board_file)
        stop_within_s = settings.timeouts.leave_s + 2 * settings.timeouts.drain_s + END_S
        start = None if fork_server is None else fork_server.start_if_running
        specs = stack.enter_context(_specs(place, arguments, state, stop_within_s, start))
        processes = KeptProcesses(board, stop, echo)
        stop.on_hangup = processes.reread
        stack.push_async_callback(processes.supervisor.stop)
        await stack.enter_async_context(in_background(processes.watch()))
        if await _start(processes.supervisor, specs, stop):
            state.write_hub(url, writes_log=writes_log, processes=count)
            report_ready(descriptor, {"name": HUB_NAME, "url": url})
        await stop.wait()
        listener.close()  # each process has its own, which it closes when it has left
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
    place: HubPlace,
    arguments: Sequence[str],
    state: State,
    stop_within_s: float,
    start: StartProcess | None,
) -> Iterator[list[ChildSpec]]:
    """The processes to start, each with its sockets, which stay open here for those that follow it.

    ``place`` has what they have in common.
    """
    inners, specs = [], []
    try:
        for index in range(place.count):
            inner = _listen_inner(socket_path(place.folder, index))
            inners.append(inner)
            own_place = replace(place, index=index, inner=inner.fileno())
            own = {HUB_PLACE_VARIABLE: own_place.as_variable(), "RETINUE_HOME": str(state.root)}
            specs.append(
                ChildSpec(
                    _name(index),
                    tuple(arguments),
                    {**environment(), **own},
                    ready_within_s=_READY_WITHIN_S,
                    stop_within_s=stop_within_s,
                    descriptors=(place.listener, inner.fileno(), place.board),
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


def _index_of(name: str) -> int:
    return int(name.rpartition(" ")[2])


async def _is_ready(ready: Ready) -> bool:
    return True


class KeptProcesses:
    """What the parent does for its processes while they run; ``supervisor`` starts them again."""

    def __init__(self, board: Board, stop: Stop, echo: Echo) -> None:
        self._board = board
        self._stop = stop
        self._echo = echo
        self._to_reread: set[str] = set()
        self.supervisor = Supervisor(_is_ready, self._note)

    def reread(self) -> None:
        """Let each process read its settings again, one that starts as soon as it is ready."""
        for child in self.supervisor.children:
            if child.is_ready:
                child.send_signal(signal.SIGHUP)
            else:
                self._to_reread.add(child.spec.name)

    async def watch(self) -> None:
        """Kill each process that is frozen, until cancelled; one that starts has its own limit."""
        watch = FrozenWatch(self._board)
        while True:
            await asyncio.sleep(BEAT_S)
            children = self.supervisor.children
            ready = {_index_of(child.spec.name): child for child in children if child.is_ready}
            frozen = watch.look(ready)
            if frozen is not None:
                after = render_duration(FROZEN_LOOKS * BEAT_S)
                self._echo(f"{_name(frozen)} has not moved for {after}; killing it")
                ready[frozen].send_signal(signal.SIGKILL)

    def _note(self, name: str, news: Ready | ChildFailedError | None) -> None:
        if news is None or isinstance(news, ChildFailedError):
            # it may have served before it was ready
            self._board.note_ended(_index_of(name))
        if news is None:
            if not self._stop.asked:
                self._echo(f"{name} ended; starting it again")
        elif isinstance(news, ChildFailedError):
            self._echo(f"{news.message}; trying again")
        elif name in self._to_reread:
            self._to_reread.discard(name)
            for child in self.supervisor.children:
                if child.spec.name == name:
                    child.send_signal(signal.SIGHUP)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that only this user can enter, with a short path, because sockets are in it.

    Its lock tells systemd, which removes old files of such places, that it is in use.
    """
    place = Path(tempfile.gettempdir())
    if len(os.fsencode(place)) > _TEMPORARY_PATH_BYTES:
        place = _SHORT_PLACE
    with storage_errors(place):
        folder = Path(tempfile.mkdtemp(prefix="retinue-hub-", dir=place))
    try:
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield folder
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
