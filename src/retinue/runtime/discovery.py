"""Directories for programs outside a mesh process: ``open_directory`` and ``discover_agent`` (P-01)."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path

from retinue.core.call import LOCAL, Call, Outcome, new_id
from retinue.core.errors import InvalidSettingError
from retinue.core.record import QUERY_CAPABILITIES
from retinue.mesh.asking.query import Query
from retinue.mesh.directory.directory import Directory, DispatchQuery
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import new_trace
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.factories import HOME_SOURCE, named_registries, registry_sources
from retinue.settings import Settings, environment, load_settings
from retinue.storage.state import State, find_state_folder
from retinue.web.http_client import HttpClient

_CLOSE_S = 2.0
"""How long the end of the program waits for its directories to close."""


@asynccontextmanager
async def open_directory(registries: Sequence[str] | None = None) -> AsyncIterator[Directory]:
    """The directory of these registries (URLs or folders); None means those of the state and its settings.

    The registries have been read when the block begins; ``directory.problems()`` names those that could not
    be read. Raises InvalidSettingError.
    """
    settings, state = _read_configuration(registries)
    async with _open(settings, state, with_home=registries is None) as directory:
        await directory.ensure_fresh()
        yield directory


def discover_agent(skill_id: str, *, registries: Sequence[str] | None = None) -> str:
    """The URL of the first agent in catalog order that offers the skill, as its card states it.

    For synchronous programs. All look-ups of a program share one directory for each choice of registries,
    which reads a catalog again when its time to live has passed or nothing offers the skill. Inside an event
    loop use ``open_directory``. Raises UnknownSkillError, which lists similar skills and the registries that
    could not be read, and InvalidSettingError.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        settings, state = _read_configuration(registries)
        return _lookups_of(os.getpid()).discover(skill_id, settings, state, with_home=registries is None)
    raise InvalidSettingError(
        "discover_agent",
        "called inside an event loop, which it would block",
        remedy="use: async with open_directory() as directory: await directory.discover_agent(skill_id)",
    )


def _read_configuration(registries: Sequence[str] | None) -> tuple[Settings, State]:
    flags = {} if registries is None else {"registries": tuple(registries)}
    return load_settings(flags), State(find_state_folder(environment(), Path.cwd()))


@asynccontextmanager
async def _open(settings: Settings, state: State, *, with_home: bool) -> AsyncIterator[Directory]:
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        named = named_registries(settings, LayoutRegistry(state.registry), http)
        if not with_home:
            del named[HOME_SOURCE]
        directory = Directory(
            MemoryListings(), registry_sources(settings, named, state), ttl_s=settings.directory.ttl_s
        )
        directory.dispatch_query = _query_dispatcher(directory, http)
        try:
            yield directory
        finally:
            await directory.aclose()


def _query_dispatcher(directory: Directory, http: HttpClient) -> DispatchQuery:
    """Asks agents of the directory at their ``/execute``, without a token."""

    @cache
    def calls() -> Dispatcher:
        # imported here, because most programs that open a directory ask no agent
        from retinue.rpc.client import PeerInvoker
        from retinue.rpc.queries import PeerQueries

        peers = PeerInvoker(http)
        return Dispatcher("script", directory, lambda _: peers, queries=PeerQueries(peers))

    async def dispatch(query: Query, agent: str) -> Outcome:
        payload = query.as_payload()
        call = Call(new_id(), QUERY_CAPABILITIES, payload, LOCAL, "script", new_trace(), agent=agent)
        return await calls().dispatch(call)

    return dispatch


class _Lookups:
    """The directories of a synchronous program, in an event loop of a thread of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._directories: dict[tuple[Path, str, bool], Directory] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retinue-discovery", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def discover(self, skill_id: str, settings: Settings, state: State, *, with_home: bool) -> str:
        """As `discover_agent`; safe in any thread."""
        looking = self._discover(skill_id, settings, state, with_home=with_home)
        url = asyncio.run_coroutine_threadsafe(looking, self._loop)
        try:
            return url.result()
        except BaseException:
            url.cancel()
            raise

    def close(self) -> None:
        """Close the connections, so that the end of a program prints no warning."""
        closing = asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop)
        try:
            closing.result(_CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_S)
            if not self._thread.is_alive():
                self._loop.close()

    async def _discover(self, skill_id: str, settings: Settings, state: State, *, with_home: bool) -> str:
        choice = (state.root, settings.model_dump_json(), with_home)
        async with self._opening:
            directory = self._directories.get(choice)
            if directory is None:
                opening = _open(settings, state, with_home=with_home)
                directory = self._directories[choice] = await self._stack.enter_async_context(opening)
        return await directory.discover_agent(skill_id)


@cache
def _lookups_of(pid: int) -> _Lookups:
    """One for each process: a fork has the memory of its parent, but not its threads."""
    return _Lookups()
