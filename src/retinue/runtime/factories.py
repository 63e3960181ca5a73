"""Builds the parts of a process from its settings: registries, directory sources, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.cards.signatures import CardSigner, CardVerifier
from retinue.core.allowance import Allowance
from retinue.core.errors import InvalidSettingError
from retinue.core.trust import Trust
from retinue.mesh.admission import LimitSettings
from retinue.mesh.dispatch import TimeoutSettings
from retinue.mesh.guard.trace_guard import GuardSettings
from retinue.oci.client.credentials import DockerCredentials
from retinue.oci.client.http_registry import CredentialSource
from retinue.oci.codec.auth import RegistryCredentials
from retinue.oci.registry import CopyableRegistry, Registry, open_registry
from retinue.oci.source import RegistrySource
from retinue.settings import Settings, environment
from retinue.settings_tables import (
    LimitTable,
    RegistryTable,
    SignatureTable,
    TimeoutTable,
    TraceTable,
)
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.card_keys import CardKeys
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import State
from retinue.web.connection_gate import HttpLimits
from retinue.web.http_client import HttpClient

if TYPE_CHECKING:
    from retinue.storage.artifacts.blobs import Blobs
    from retinue.storage.artifacts.store import FindHeld, StoredArtifacts

HOME_SOURCE = "home"
"""Source name of the registry in the state folder."""


def named_registries(
    settings: Settings, home: Registry, http: HttpClient, state: State | None = None
) -> dict[str, Registry]:
    """The registries by source name, in order of precedence: the state's, then the configured ones."""
    configured = [configured_registry(location, settings, http, state) for location in settings.registries]
    return {HOME_SOURCE: home, **{registry.name: registry for registry in configured}}


def configured_registry(
    location: str, settings: Settings, http: HttpClient, state: State | None = None
) -> CopyableRegistry:
    """The registry at a URL or in a folder, with its settings table and this machine's Docker credentials.

    The running hub of ``state`` receives the state's token, and a joined hub the token issued for joining
    it. No other server receives either. Raises InvalidSettingError and StateDamagedError.
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
    """Credentials for a hub that accepts a token as the password."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    async def find(self, host: str) -> RegistryCredentials:
        return RegistryCredentials("retinue", self._token())


def _plain(url: str) -> str:
    """The URL without user, password and trailing slash."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    return scheme + mark + rest.rpartition("@")[2] if mark else url


def mesh_sources(settings: Settings, state: State, registries: Iterable[str]) -> frozenset[str]:
    """The named registries whose agents belong to the mesh and receive its token (decision 0024).

    Only the mesh publishes to the state's own registry and to that of a joined hub; other registries are
    trusted by configuration. Raises StateDamagedError.
    """
    trusted = {_plain(table.url) for table in settings.registry.values() if table.mesh}
    return frozenset(
        name
        for name in registries
        if name == HOME_SOURCE or _plain(name) in trusted or joined_token(state.keys, name) is not None
    )


def registry_sources(
    settings: Settings, registries: Mapping[str, Registry], state: State | None = None
) -> list[RegistrySource]:
    """The registries as sources of the directory; ``state`` has the keys that are trusted."""
    tag = settings.directory.tag
    verifier = None if state is None else card_verifier(settings.signatures, state)
    own = frozenset({HOME_SOURCE}) if state is None else mesh_sources(settings, state, registries)
    return [
        RegistrySource(
            name,
            registry,
            tag=tag,
            verifier=verifier,
            trust=Trust.OWN_MESH if name in own else Trust.IMPORTED,
        )
        for name, registry in registries.items()
    ]


def card_keys(signatures: SignatureTable, state: State) -> CardKeys:
    """The keys for signatures of cards."""
    return CardKeys(state.keys, [path.expanduser() for path in signatures.trusted])


def public_card_key(signatures: SignatureTable, state: State) -> Mapping[str, Any]:
    """The public key of this state, as JWK. Raises StateError."""
    state.prepare()
    return card_keys(signatures, state).signing_key().public


def card_verifier(signatures: SignatureTable, state: State) -> CardVerifier:
    """The policy for signatures of cards."""
    keys = card_keys(signatures, state)
    return CardVerifier(signatures.policy, keys.trusted, keys.revision)


def card_signer(signatures: SignatureTable, state: State) -> CardSigner | None:
    """The signer of published cards of this state; None where the settings say so. Raises StateError."""
    if not signatures.sign:
        return None
    state.prepare()
    return CardSigner(card_keys(signatures, state).signing_key(), signatures.valid_days)


def guard_settings(trace: TraceTable) -> GuardSettings:
    """The configured limits of a call chain."""
    return GuardSettings(
        max_depth=trace.max_depth,
        calls=trace.calls,
        refuse_cycles=trace.refuse_cycles,
        strict=trace.strict,
        allowance=Allowance.of(trace.tokens, trace.dollars),
    )


def limit_settings(limits: LimitTable) -> LimitSettings:
    """The configured rate and concurrency limits of an endpoint."""
    return LimitSettings(limits.in_flight, limits.calls_per_s, limits.burst)


def http_limits(limits: LimitTable) -> HttpLimits:
    """The configured limits of the HTTP server; one body of the largest size always fits."""
    return HttpLimits(
        head_bytes=limits.head_bytes,
        headers=limits.headers,
        head_s=limits.head_s,
        body_s=limits.body_s,
        connections=limits.connections,
        held_bytes=max(limits.held_bytes, limits.body_bytes),
    )


def state_artifacts(settings: Settings, state: State, http: HttpClient) -> StateArtifacts:
    """The artifacts of a state folder, which are opened at their first use."""

    def make(find_held: FindHeld) -> StoredArtifacts:
        # imported here, because most processes save no file
        from retinue.oci.client.http_registry import HttpRegistry
        from retinue.oci.client.saved_files import RegistryFiles
        from retinue.oci.layout.saved_files import LayoutFiles
        from retinue.storage.artifacts.index import ArtifactIndex
        from retinue.storage.artifacts.store import ArtifactLimits, StoredArtifacts

        table = settings.artifacts
        limits = ArtifactLimits(table.max_bytes, table.quota_bytes, table.caller_bytes, table.keep_days)
        index = ArtifactIndex(state.artifacts)
        blobs: Blobs = LayoutFiles(state.registry)
        if table.registry is not None:
            registry = configured_registry(table.registry, settings, http, state)
            if not isinstance(registry, HttpRegistry):
                raise InvalidSettingError(
                    "artifacts.registry",
                    f"{table.registry} is a folder",
                    remedy="write the URL of a registry, or leave it out",
                )
            blobs = RegistryFiles(registry, table.repository, index.own_id)
        return StoredArtifacts(index, blobs, limits, find_held=find_held)

    def may_have_runs() -> bool:
        # imported here, because most agents are never asked to delete a file
        from retinue.storage.run_store import RunStore

        return RunStore(settings.database, state.runs).exists()

    return StateArtifacts(make, state.artifacts.exists, may_have_runs)


def timeout_settings(timeouts: TimeoutTable) -> TimeoutSettings:
    """The configured time-outs of a call."""
    return TimeoutSettings(timeouts.door_s, timeouts.agent_call_s)
