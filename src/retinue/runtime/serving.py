"""Runs one listening process: binds a port, serves an ASGI app, stops on a signal or with the supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
import uvloop
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from retinue.core.errors import InvalidSettingError, PortInUseError, StateError
from retinue.runtime.machine.limits import (
    count_free_memory,
    count_open_files,
    fit_to_memory,
    fit_to_open_files,
    raise_open_files,
)
from retinue.runtime.machine.port_holder import find_port_holder
from retinue.web.connection_gate import ConnectionGate, HttpLimits
from retinue.web.fast.http_protocol import LimitedHttpProtocol, close_idle
from retinue.web.rejections import is_streamed_path

SUPERVISOR_FD = "RETINUE_SUPERVISOR_FD"
"""Environment variable with the descriptor of the supervisor's socket; when it closes, the child stops."""

LISTENER_FD = "RETINUE_LISTENER_FD"
"""Environment variable with the descriptor of a listening socket that the supervisor has opened."""

FIRST_AGENT_PORT = 8001
"""Agents take the first free port from here."""

YOUNG_OBJECTS = 10_000
"""New objects between two garbage collections. With Python's 700 a collection runs in every second call, and
finds the objects of the calls in flight alive: an eighth of the processor time of a hub with 16 clients."""

_PORTS_TRIED = 200
LAST_REQUESTS_S = 0.1
"""How long calls are still answered after the socket is closed, for connections that were accepted last."""

_STOP_GRACE_S = 8.0
_LOOPBACK_WAIT_S = 2.0
_THREADS_GRACE_S = 5.0
"""How long a stopping process waits for skills that run in threads, which cannot be cancelled."""


def bind(host: str, port: int, *, search: bool = False) -> socket.socket:
    """A listening socket; with ``search`` on the next free port upward.

    Raises PortInUseError and InvalidSettingError.
    """
    last = min(port + _PORTS_TRIED, 65535) if search and port else port
    for candidate in range(port, last + 1):
        try:
            return _listen(host, candidate)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise InvalidSettingError(
                "host", f"cannot listen on {host}:{candidate}: {error.strerror}", remedy="choose another"
            ) from error
    raise PortInUseError(host, port, holder=find_port_holder(port))


def take_listener(host: str, port: int) -> socket.socket | None:
    """The listening socket that the supervisor has opened for this process, if it is at this address."""
    descriptor_text = os.environ.get(LISTENER_FD)
    if descriptor_text is None:
        return None
    try:
        listener = socket.socket(fileno=int(descriptor_text))
    except (OSError, ValueError):
        return None
    if listener.getsockname()[:2] != (host, port):
        listener.detach()
        return None
    del os.environ[LISTENER_FD]
    listener.set_inheritable(False)
    return listener


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; otherwise small responses wait 40 ms
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # allows a port in TIME_WAIT, not one that another socket listens on
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def check_loopback() -> None:
    """Check that processes of this machine can connect to each other; raises StateError.

    Without the check agents would start and never become ready.
    """
    try:
        with _listen("127.0.0.1", 0) as listener:
            socket.create_connection(listener.getsockname(), _LOOPBACK_WAIT_S).close()
    except OSError as error:
        raise StateError(
            f"this machine cannot connect to itself at 127.0.0.1: {error.strerror or error}",
            remedy="enable the loopback interface: ip link set lo up",
        ) from error


def url_of(listener: socket.socket, *, shown_host: str | None = None) -> str:
    """The base URL of a bound socket; a wildcard address becomes ``shown_host`` or loopback."""
    host, port = listener.getsockname()[:2]
    if shown_host:
        host = shown_host
    elif host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again after its shutdown and interrupt ours
        yield


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Stop:
    """A request to stop, from a signal, the supervisor, or this process."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self.leave_s = 0.0
        """How long the process still answers calls after it was asked to stop, while ``/ready`` says 503."""
        self.reason = ""
        self.exit_code = 0
        self.on_hangup: Callable[[], None] | None = None
        """Called at SIGHUP, instead of stopping, unless the terminal of this process was closed."""

    def ask(self, reason: str, exit_code: int = 0) -> None:
        """Ask this process to stop; the first reason and its exit code are kept."""
        if not self.reason:
            self.reason, self.exit_code = reason, exit_code
        self._wanted.set()

    @property
    def asked(self) -> bool:
        return self._wanted.is_set()

    async def wait(self) -> None:
        await self._wanted.wait()

    def on_signals(self) -> None:
        """Stop on SIGINT, SIGTERM and SIGHUP; a second signal ends the process at once.

        SIGHUP comes when the terminal is closed, or from a person who wants the settings read again
        (`on_hangup`); the latter leaves the terminal, if there is one, in place.
        """
        loop = asyncio.get_running_loop()
        had_terminal = _has_terminal()

        def caught(name: str, number: int) -> None:
            is_request = number == signal.SIGHUP and (_has_terminal() or not had_terminal)
            if is_request and self.on_hangup is not None and not self.asked:
                self.on_hangup()
                return
            if self.asked:
                os._exit(128 + number)
            self.ask(name)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, caught, number.name, number)

    def with_supervisor(self) -> int | None:
        """Stop when the supervisor ends; returns the descriptor of its pipe, None without a supervisor.

        A thread watches, because a skill may block the event loop.
        """
        descriptor_text = os.environ.pop(SUPERVISOR_FD, None)
        if descriptor_text is None:
            return None
        descriptor = int(descriptor_text)
        os.set_inheritable(descriptor, False)
        loop = asyncio.get_running_loop()

        def watch() -> None:
            with contextlib.suppress(OSError):
                while os.read(descriptor, 64):
                    continue
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self.ask, "the supervisor is gone")
            time.sleep(_STOP_GRACE_S)
            os._exit(1)

        threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
        return descriptor


def _is_failure(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn tells of a failure, not of a request whose client or server went away."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ClientDisconnect | asyncio.CancelledError)


class HttpServer:
    """An HTTP server for ``app`` within ``limits``; made in the running event loop.

    ``processes`` is the number of those that serve together, and share the memory.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits | None = None, processes: int = 1) -> None:
        limits = fit_to_open_files(limits or HttpLimits(), raise_open_files() - count_open_files())
        limits = fit_to_memory(limits, count_free_memory(), processes)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="none",
            http="httptools",
            ws="none",
            # uvicorn would trust every program on this machine; PublicAddress trusts the proxies that are
            # named
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=3,
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_is_failure)
        self._gate = ConnectionGate(limits, asyncio.get_running_loop(), is_streamed_path)
        protocol = partial(LimitedHttpProtocol, gate=self._gate)
        config.http_protocol_class = cast(type[asyncio.Protocol], protocol)
        self._config = config
        self.stop_listening: Callable[[], None] = lambda: None
        """Called at the end of ``leave_s``, where connections are accepted elsewhere."""
        self._server = _Server(config)
        self.server_state = self._server.server_state

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of a connection that was accepted elsewhere."""
        return LimitedHttpProtocol(
            self._config, self.server_state, self._server.lifespan.state, gate=self._gate
        )

    @contextlib.asynccontextmanager
    async def running(self, listeners: Sequence[socket.socket], stop: Stop) -> AsyncIterator[None]:
        """Serve while inside; on leaving, wait a few seconds for calls in flight.

        As soon as the process is asked to stop, each response closes its connection, so that a client behind
        a balancer goes to another process.
        """
        server = self._server
        task = asyncio.create_task(server.serve(sockets=list(listeners)))
        task.add_done_callback(lambda _: stop.ask("the server has stopped"))
        while not server.started and not task.done():
            await asyncio.sleep(0.005)
        # objects of imports and start-up live as long as the process; exclude them from collections
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        leaving = asyncio.create_task(self._leave(stop))
        try:
            yield
        finally:
            await end_task(leaving)
            server.should_exit = True
            await task
            self._gate.close()

    async def _leave(self, stop: Stop) -> None:
        """Send clients elsewhere; at the end of ``leave_s`` nothing is accepted, and idle connections end."""
        await stop.wait()
        self._gate.is_leaving = True
        if stop.leave_s:
            await asyncio.sleep(stop.leave_s)
            for listening in getattr(self._server, "servers", ()):
                listening.close()
            self.stop_listening()
            await asyncio.sleep(LAST_REQUESTS_S)
            close_idle(self.server_state.connections)


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, stop: Stop, limits: HttpLimits | None = None
) -> AsyncIterator[None]:
    """Serve while inside; on leaving, wait a few seconds for calls in flight."""
    async with HttpServer(app, limits).running((listener,), stop):
        yield


def run_loop(main: Callable[[], Awaitable[int]], *, leave: Callable[[int], None] = os._exit) -> int:
    """Run a process's main coroutine on uvloop; returns its exit code.

    A skill that blocks a thread delays the end by a few seconds only: then ``leave`` is called with the exit
    code, in another thread. It must end or replace the process, since the blocked thread cannot be ended.
    """

    async def entry() -> int:
        return await main()

    code = 1
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        code = runner.run(entry())
    finally:
        leaving = threading.Timer(_THREADS_GRACE_S, lambda: leave(code))
        leaving.daemon = True
        leaving.start()
        runner.close()
        leaving.cancel()
    return code


@asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, Any], name: str | None = None) -> AsyncIterator[None]:
    """Run these beside the block, and cancel them on leaving it."""
    async with ending([asyncio.create_task(work, name=name) for work in works]):
        yield


@asynccontextmanager
async def ending(tasks: Iterable[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """End background tasks on leaving, one after another; tasks may be added to a list meanwhile."""
    try:
        yield
    finally:
        for task in tasks:
            await end_task(task)


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancel a background task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
