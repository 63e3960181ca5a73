"""Registries: one protocol over a folder of layouts and over any OCI registry, and publishing to either.

``pull`` and ``push`` move artifacts; ``publish_*`` and ``forget`` know about agents and workflows, and
keep the index artifact where a registry has no catalog (SPEC 2, doubt 5).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from retinue.core.errors import (
    InvalidSettingError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryRefusedError,
    RepositoryTakenError,
)
from retinue.drivers.http import HttpClient
from retinue.drivers.http_registry import REGISTRY_TIMEOUT_S, CredentialSource, HttpRegistry
from retinue.drivers.layout import LayoutRegistry
from retinue.protocols.oci.artifacts import (
    Artifact,
    Guard,
    NewArtifact,
    Package,
    card_artifact,
    find_card_name,
    only_card_of,
    workflow_artifact,
)
from retinue.protocols.oci.catalog import Catalog
from retinue.protocols.oci.catalog_index import INDEX, INDEX_TAG, index_artifact, parse_index_artifact
from retinue.protocols.oci.manifest import Descriptor, StoredManifest
from retinue.protocols.oci.reference import (
    DEFAULT_TAG,
    Reference,
    card_repository,
    choose_tag,
    workflow_repository,
)

INDEX_ATTEMPTS = 5
"""How often the index is written again when another publisher's version took ours away."""


class Registry(Protocol):
    """Where artifacts live. Unknown repositories have no tags; a missing reference is an error.

    Every method may raise the RegistryErrors and StateErrors of its kind of registry:
    RegistryUnreachableError and RegistryRefusedError over HTTP, StateDamagedError on disk.
    """

    @property
    def name(self) -> str:
        """What errors and lists call this registry: its url or folder."""
        ...

    async def list_repositories(self) -> list[str]:
        """All repositories, in lexical order; some may have no tag left."""
        ...

    async def list_tags(self, repository: str) -> list[str]:
        """All tags, in lexical order; empty for an unknown repository."""
        ...

    async def find_digest(self, reference: Reference) -> str | None:
        """The digest that a reference means now; None when there is nothing."""
        ...

    async def pull(self, reference: Reference) -> Artifact:
        """The artifact, verified. A reference without tag and digest takes the best tag.

        Raises ReferenceNotFoundError, MalformedArtifactError, DigestMismatchError.
        """
        ...

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """As ``pull``; None, at the cost of one cheap request, while it is still ``known_digest``."""
        ...

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        """Store an artifact under a tag; gives its digest. ``guard`` may refuse what it would replace."""
        ...

    async def delete(self, repository: str, target: str) -> None:
        """Delete a tag or digest. Raises ReferenceNotFoundError."""
        ...


class CopyableRegistry(Registry, Protocol):
    """A registry that also gives and takes artifacts byte for byte, so that digests stay as they are."""

    async def pull_manifest(self, reference: Reference) -> StoredManifest:
        """The manifest as it is stored, whatever it describes. Raises ReferenceNotFoundError."""
        ...

    async def pull_blob(self, repository: str, blob: Descriptor) -> bytes:
        """The content of a descriptor, verified. Raises ContentMissingError, DigestMismatchError."""
        ...

    async def push_package(
        self, repository: str, tag: str, package: Package, *, guard: Guard | None = None
    ) -> str:
        """Store blobs and manifest as they are; gives the digest."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """Where something was published, and whom it met there.

    ``replaced`` is the other digest that the tag meant before; ``superseded_by`` the one that another
    publisher gave it while we were writing: the last writer's stands.
    """

    registry: str
    repository: str
    tag: str
    digest: str
    replaced: str | None = None
    superseded_by: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


def open_registry(
    location: str | Path,
    client: HttpClient,
    *,
    timeout_s: float = REGISTRY_TIMEOUT_S,
    mirrors: Sequence[str] = (),
    ca_file: Path | None = None,
    credentials: CredentialSource | None = None,
    repositories: Sequence[str] = (),
) -> CopyableRegistry:
    """The registry at an http(s) url, else the one in a folder; options as ``HttpRegistry`` has them.

    Raises InvalidSettingError.
    """
    if isinstance(location, Path) or "://" not in location:
        return LayoutRegistry(Path(location))
    for url in (location, *mirrors):
        _check_url(url)
    return HttpRegistry(
        location,
        client,
        timeout_s=timeout_s,
        mirrors=mirrors,
        ca_file=ca_file,
        credentials=credentials,
        repositories=repositories,
    )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        shown = url.rpartition("@")[2]
        raise InvalidSettingError(
            "registry", f"{shown!r} is no registry", remedy="write http://host:port or a folder"
        )


async def list_published(registry: Registry) -> list[str]:
    """The repositories of a registry; as `read_published`."""
    return list((await read_published(registry)).repositories)


async def read_published(registry: Registry) -> Catalog:
    """The repositories of a registry: its catalog, else those configured for it, else its index artifact.

    Raises what the catalog's reading raises when there is nothing else to go by.
    """
    refusal: RegistryRefusedError | None = None
    try:
        if isinstance(registry, HttpRegistry):
            catalog = await registry.read_catalog()
        else:
            catalog = Catalog(tuple(await registry.list_repositories()))
        if catalog.repositories:
            return catalog
    except RegistryRefusedError as error:
        if error.status >= 500 or error.status == 429:
            raise
        refusal = error
    if isinstance(registry, HttpRegistry) and registry.repositories:
        return Catalog(tuple(sorted(registry.repositories)))
    indexed = await _read_index(registry)
    if indexed is None and refusal is not None:
        raise refusal
    return Catalog(tuple(indexed or ()))


async def publish_card(
    registry: Registry,
    name: str,
    card: bytes,
    *,
    version: str | None,
    skills: Sequence[str],
    created: datetime,
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish an agent card, byte for byte, as ``oras push`` would (SPEC 2, formats).

    ``skills`` are the ids that others may see; ``repository`` overrides ``agents/<short name>``.
    Raises RepositoryTakenError when the repository holds something else than a card of this name.
    """
    place = repository or card_repository(name)
    artifact = card_artifact(name, card, version=version, skills=skills, created=created)
    return await _publish(registry, place, tag, artifact, only_card_of(name, place))


async def publish_workflow(
    registry: Registry,
    workflow_id: str,
    definition: bytes,
    *,
    created: datetime,
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish a workflow definition (YAML bytes) as ``workflows/<id>`` (P-29).

    Raises RepositoryTakenError when the repository holds something else than a workflow.
    """
    place = repository or workflow_repository(workflow_id)
    artifact = workflow_artifact(workflow_id, definition, created=created)

    def guard(held: Artifact | None) -> None:
        if held is not None and held.form != "workflow":
            raise RepositoryTakenError(place, find_card_name(held) or held.title, workflow_id)

    return await _publish(registry, place, tag, artifact, guard)


async def forget(registry: Registry, name: str, *, repository: str | None = None) -> tuple[str, ...]:
    """Delete every tag of an agent's card; gives the tags that went.

    Raises ReferenceNotFoundError when there are none, RepositoryTakenError when they are of another name.
    """
    place = repository or card_repository(name)
    tags = await registry.list_tags(place)
    if not tags:
        raise ReferenceNotFoundError(registry.name, place)
    best = choose_tag(tags)
    # What cannot be read is nobody's card any more; forgetting it is the remedy.
    with suppress(MalformedArtifactError):
        only_card_of(name, place)(await registry.pull(Reference(place, tag=best)))
    for tag in tags:
        try:
            await registry.delete(place, tag)
        except ReferenceNotFoundError:
            # A registry that deletes by digest takes all tags of a card at once.
            continue
    await index_change(registry, gone={place})
    return tuple(tags)


async def withdraw(registry: Registry, published: Published) -> None:
    """Take back exactly what was published, so that a successor's card stays.

    Raises ReferenceNotFoundError when it is gone already.
    """
    await registry.delete(published.repository, published.digest)
    if not await registry.list_tags(published.repository):
        await index_change(registry, gone={published.repository})


async def index_change(
    registry: Registry, *, added: Set[str] = frozenset(), gone: Set[str] = frozenset()
) -> None:
    """Note repositories in the index artifact, or strike them out, where the registry has no catalog.

    The registry protocol has no way to write only over what was read: of two publishers at the same
    moment one may lose its line, sees so when it reads again, and writes once more.
    """
    if not (added or gone) or not await _needs_index(registry):
        return
    for _ in range(INDEX_ATTEMPTS):
        names = set(await _read_index(registry) or ())
        wanted = (names | added) - gone
        if wanted == names:
            return
        index = index_artifact(wanted, created=datetime.now(UTC))
        await registry.push(INDEX.repository, INDEX_TAG, index)


async def _publish(
    registry: Registry, place: str, tag: str, artifact: NewArtifact, guard: Guard
) -> Published:
    """Push under a guard, look what stands there afterwards, and note it in the index."""
    replaced: str | None = None

    def note_and_guard(held: Artifact | None) -> None:
        nonlocal replaced
        replaced = held.digest if held is not None and held.tag == tag else None
        guard(held)

    digest = await registry.push(place, tag, artifact, guard=note_and_guard)
    standing = await registry.find_digest(Reference(place, tag=tag))
    superseded_by = None
    if standing is not None and standing != digest:
        superseded_by = standing
        with suppress(MalformedArtifactError, ReferenceNotFoundError):
            guard(await registry.pull(Reference(place, digest=standing)))
    await index_change(registry, added={place})
    return Published(
        registry.name, place, tag, digest, replaced if replaced != digest else None, superseded_by
    )


async def _needs_index(registry: Registry) -> bool:
    """Whether a registry shows no catalog, so that what is published in it would not be found."""
    if not isinstance(registry, HttpRegistry) or registry.has_catalog:
        return False
    try:
        return not await registry.list_repositories()
    except RegistryRefusedError as error:
        if error.status >= 500 or error.status == 429:
            raise
        return True


async def _read_index(registry: Registry) -> list[str] | None:
    """The repositories that the index artifact names; None where there is none to be read."""
    try:
        return parse_index_artifact(await registry.pull(INDEX))
    except (ReferenceNotFoundError, RegistryRefusedError):
        return None
