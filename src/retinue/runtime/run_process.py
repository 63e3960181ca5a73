"""Runs a process made of parts: hub, agent, worker and the kinds of other distributions.

The order is the same for all kinds: state, address, core, parts open, server, parts run, parts are ready. The
end is one exit stack: what runs ends in reverse, streams drain, the server stops, the parts close in reverse.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from functools import partial
from typing import TypeVar

from retinue.parts.opening import OpenParts, open_parts
from retinue.parts.process import Echo, Process
from retinue.runtime.access import (
    advertised,
    behind_proxies,
    check_address,
    endpoint_checks,
    warn_of_wildcard,
)
from retinue.runtime.factories import http_limits
from retinue.runtime.launch import Address, Launch, Start
from retinue.runtime.loading.configuration import ConfigurationReload, dispatcher_parts, endpoint_part
from retinue.runtime.observing.process_state import ProcessState
from retinue.runtime.serving import Stop, bind, end_task, serving, url_of
from retinue.runtime.supervisor import Ready, report_ready
from retinue.settings import Settings, find_missing_parts
from retinue.settings_tables import EndpointTable, LimitTable, TimeoutTable
from retinue.storage.state import State
from retinue.web.fast.exact_paths import ExactPathRouter
from retinue.web.security import SecurityMiddleware

T = TypeVar("T")

GETTING_READY = "getting ready"
"""The name of the task in which the parts of a process finish its start."""


async def run_process(launch: Launch) -> int:
    """Run until asked to stop; returns the exit code. At SIGHUP it reads its settings again.

    Raises InvalidSettingError, PortInUseError, StateError, and what a required part raises.
    """
    async with AsyncExitStack() as stack:
        if launch.address is not None:
            check_address(
                launch.address.host, launch.source.settings.auth, insecure_ok=launch.address.insecure_bind
            )
        stack.enter_context(launch.core.hold_state())
        listener = None if launch.address is None else _listen(launch.address, launch.echo)
        if listener is not None:
            stack.callback(listener.close)
        stop, report = _listen_to_others(launch)
        process = await stack.enter_async_context(launch.core.open(_start(launch, listener, stop)))
        own = ProcessState.observing(
            launch.identity.kind, process.dispatcher.access, process.dispatcher.admission, lambda: stop.asked
        )
        own.shown = process.shown
        process.add(ProcessState, own)
        reload = ConfigurationReload(
            launch.source.settings,
            launch.source.reread or (lambda: launch.source.settings),
            dispatcher_parts(process.dispatcher, launch.core.access_of),
            launch.echo,
        )
        if launch.source.reread is not None:
            stop.on_hangup = reload
        stop.leave_s = process.tables.get(TimeoutTable).leave_s
        parts = await _enter(stack, open_parts(process, launch.parts), stop, launch.hang_s)
        if parts is None:
            return _end(launch, stop)
        own.parts = parts
        for name, missing in find_missing_parts(launch.source.settings, launch.identity.kind).items():
            parts.note_failure(name, missing)
        for live in parts.list_live():
            reload.add(live)
        await stack.enter_async_context(own.exporting(launch.identity.service, process.environ))
        if listener is not None and launch.address is not None:
            checks = make_checks(process, parts, launch.address.host)
            reload.add(endpoint_part(checks, launch.address, parts.list_path_exceptions()))
            app = behind_proxies(checks, process.tables.get(EndpointTable), process.url or "")
            limits = http_limits(process.tables.get(LimitTable))
            if launch.serve is None:
                await stack.enter_async_context(serving(app, listener, stop, limits))
            else:
                await stack.enter_async_context(launch.serve(process, app, listener, stop, limits))
        await _enter(stack, parts.running(), stop, launch.hang_s)
        if await _is_ready(parts, stop):
            own.is_started = True
            url = {} if process.own_url is None else {"url": process.own_url}
            report({"name": launch.identity.name, **url})
        await stop.wait()
        return _end(launch, stop)


def _listen_to_others(launch: Launch) -> tuple[Stop, Callable[[Ready], None]]:
    """What stops the process, and what tells that it is ready: its signals, and its supervisor."""
    if launch.shared is not None:
        return launch.shared.stop, launch.shared.report
    stop = Stop()
    stop.on_signals()
    return stop, partial(report_ready, stop.with_supervisor())


def make_checks(process: Process, parts: OpenParts, host: str) -> SecurityMiddleware:
    """The routes of the parts behind the security checks of a process that listens at ``host``."""
    checks = endpoint_checks(
        ExactPathRouter(routes=parts.list_routes()),
        process.tables.get(Settings),
        process.state,
        process.http,
        host=host,
        url=process.url or "",
        exceptions=parts.list_path_exceptions(),
        tokens=parts.list_tokens(),
    )
    checks.limit_reads(process.dispatcher.admission.limits)
    parts.give_checks(checks)
    return checks


async def _enter(
    stack: AsyncExitStack, context: AbstractAsyncContextManager[T], stop: Stop, hang_s: float
) -> T | None:
    """Enter a context; None if that takes longer than ``hang_s`` after the process was asked to stop."""

    async def cut_off() -> None:
        await stop.wait()
        await asyncio.sleep(hang_s)
        limit.reschedule(asyncio.get_running_loop().time())

    try:
        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(cut_off())
            try:
                return await stack.enter_async_context(context)
            finally:
                await end_task(watch)
    except TimeoutError:
        if not limit.expired():
            raise
        return None


def _end(launch: Launch, stop: Stop) -> int:
    launch.echo(f"stopping: {stop.reason}")
    return stop.exit_code


async def _is_ready(parts: OpenParts, stop: Stop) -> bool:
    """Let the parts finish their start; False if the process is asked to stop meanwhile."""
    starting = asyncio.create_task(parts.get_ready(), name=GETTING_READY)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await end_task(stopping)
    if not starting.done():
        await end_task(starting)
        return False
    starting.result()
    return not stop.asked


def _listen(address: Address, echo: Echo) -> socket.socket:
    if address.listen is not None:
        return address.listen()
    listener = bind(address.host, address.port, search=address.search)
    url = url_of(listener)
    if address.tells_port and address.port and not url.endswith(f":{address.port}"):
        echo(f"port {address.port} is taken; using {url}")
    return listener


def _start(launch: Launch, listener: socket.socket | None, stop: Stop) -> Start:
    if listener is None or launch.address is None:
        return Start(launch.source.settings, launch.state, launch.echo, stop)
    warn_of_wildcard(launch.address.host, launch.address.advertise, launch.echo)
    # processes of this machine use its own address, others the advertised one
    own_url = url_of(listener)
    url = launch.address.advertise or own_url
    settings = advertised(launch.source.settings, launch.address.advertise)
    return Start(settings, launch.state, launch.echo, stop, url, own_url)


@contextmanager
def own_state(state: State, echo: Echo) -> Iterator[None]:
    """Hold the state folder of a hub. Raises HubRunningError."""
    with state.own():
        take_from_others(state, echo)
        yield


@contextmanager
def prepared_state(state: State, echo: Echo) -> Iterator[None]:
    """Create the state folder of an agent if it is missing."""
    state.prepare()
    take_from_others(state, echo)
    yield


def take_from_others(state: State, echo: Echo) -> None:
    """Make a state folder of an earlier version readable by its owner only."""
    if changed := state.protect():
        echo(f"{state.root}: took {changed:,} files and folders from the other users of this machine")
