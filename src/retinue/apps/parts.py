"""From settings to the parts of a process: registries, sources and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from retinue.drivers.docker_credentials import DockerCredentials
from retinue.drivers.http import HttpClient
from retinue.drivers.http_registry import CredentialSource
from retinue.drivers.joins import joined_token
from retinue.drivers.registry import CopyableRegistry, Registry, open_registry
from retinue.drivers.shelves import FolderShelf, RegistryShelf
from retinue.drivers.sources import RegistrySource
from retinue.drivers.state import State
from retinue.mesh.dispatch import TimeoutSettings
from retinue.mesh.guards import GuardSettings
from retinue.mesh.limits import LimitSettings
from retinue.protocols.oci.auth import Credentials
from retinue.settings import RegistryTable, Settings, environment
from retinue.workflows.shelf import Shelf

WORKFLOW_FOLDER = "workflows"
"""Folder of a person's own workflows below the state's."""

HOME_SOURCE = "home"
"""Source name of the registry in the state folder."""


def named_registries(
    settings: Settings, home: Registry, http: HttpClient, state: State | None = None
) -> dict[str, Registry]:
    """The registries in the order in which they are believed: this state's, then the configured."""
    configured = [configured_registry(location, settings, http, state) for location in settings.registries]
    return {HOME_SOURCE: home, **{registry.name: registry for registry in configured}}


def configured_registry(
    location: str, settings: Settings, http: HttpClient, state: State | None = None
) -> CopyableRegistry:
    """The registry at a url or in a folder, with its table of the settings and this machine's logins.

    The hub that runs on ``state`` gets the token of that state, and a hub that it has joined the one that
    was given out for it; no other server gets either.
    Raises InvalidSettingError and StateDamagedError.
    """
    hub = state.read_hub() if state is not None and "://" in location else None
    credentials: CredentialSource = DockerCredentials(environment(), Path.home())
    if state is not None and hub is not None and hub.url == _plain(location):
        credentials = _TokenLogin(state.local_token)
    elif state is not None and (joined := joined_token(state.keys, location)) is not None:
        credentials = _TokenLogin(lambda: joined)
    tables = {_plain(table.url): table for table in settings.registry.values()}
    table = tables.get(_plain(location), RegistryTable(url=location))
    return open_registry(
        location,
        http,
        timeout_s=settings.timeouts.registry_s,
        mirrors=table.mirrors,
        ca_file=table.ca_file,
        repositories=table.repositories,
        credentials=credentials,
    )


class _TokenLogin:
    """Who we are at a hub that knows us by a token."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def find(self, host: str) -> Credentials:
        return Credentials("retinue", self._token())


def _plain(url: str) -> str:
    """The url without user, password and last slash."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    return scheme + mark + rest.rpartition("@")[2] if mark else url


def mesh_sources(settings: Settings, state: State, registries: Iterable[str]) -> frozenset[str]:
    """Those of the named registries whose agents are of the mesh, and get its token (decision 0024).

    Into the state's own and that of a hub which the state has joined only the mesh publishes; of others a
    person has said so. Raises StateDamagedError.
    """
    told = {_plain(table.url) for table in settings.registry.values() if table.mesh}
    return frozenset(
        name
        for name in registries
        if name == HOME_SOURCE or _plain(name) in told or joined_token(state.keys, name) is not None
    )


def registry_sources(settings: Settings, registries: Mapping[str, Registry]) -> list[RegistrySource]:
    """The registries as sources of the directory."""
    tag = settings.directory.tag
    return [RegistrySource(name, registry, tag=tag) for name, registry in registries.items()]


def open_shelves(settings: Settings, state: State, registries: Mapping[str, Registry]) -> list[Shelf]:
    """The folder of custom workflows, then every registry in the order in which they are believed."""
    folder = settings.workflows.directory or state.root / WORKFLOW_FOLDER
    return [FolderShelf(folder), *(RegistryShelf(registry) for registry in registries.values())]


def guard_settings(settings: Settings) -> GuardSettings:
    """The bounds of a chain, as configured."""
    trace = settings.trace
    return GuardSettings(
        max_depth=trace.max_depth, calls=trace.calls, refuse_cycles=trace.refuse_cycles, strict=trace.strict
    )


def limit_settings(settings: Settings) -> LimitSettings:
    """The caps of a door, as configured."""
    limits = settings.limits
    return LimitSettings(limits.in_flight, limits.calls_per_s, limits.burst)


def timeout_settings(settings: Settings) -> TimeoutSettings:
    """The time-outs of a call, as configured."""
    timeouts = settings.timeouts
    return TimeoutSettings(timeouts.door_s, timeouts.agent_call_s)
