"""The registry interface, implemented over HTTP and in a folder, and publishing agents and workflows.

``pull`` and ``push`` transfer artifacts. ``publish_*``, `forget` and `withdraw` handle agents and workflows,
and maintain the index artifact in registries without a catalog (specification 2, doubt 5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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
from retinue.oci.client.http_registry import REGISTRY_TIMEOUT_S, CredentialSource, HttpRegistry
from retinue.oci.codec.artifacts import (
    CARD_SIGNATURES,
    Artifact,
    Form,
    Guard,
    NewArtifact,
    Package,
    card_artifact,
    find_card_name,
    only_card_of,
    only_version_of,
    policy_artifact,
    prompt_artifact,
    workflow_artifact,
)
from retinue.oci.codec.bulk import Pulled
from retinue.oci.codec.catalog import INDEX, INDEX_TAG, Catalog, index_artifact, parse_index_artifact
from retinue.oci.codec.exchange import BlobSink
from retinue.oci.codec.manifest import Descriptor, StoredManifest
from retinue.oci.codec.reference import (
    DEFAULT_TAG,
    Reference,
    card_repository,
    choose_tag,
    default_tag,
    is_referrers_tag,
    policy_repository,
    prompt_repository,
    workflow_repository,
)
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.web.http_client import HttpClient

INDEX_ATTEMPTS = 5
"""Maximum number of writes of the index when concurrent publishers overwrite each other."""


class Registry(Protocol):
    """A store of artifacts. An unknown repository has no tags; a missing reference is an error.

    Every method may raise the RegistryErrors and StateErrors of its kind of registry:
    RegistryUnreachableError and RegistryRefusedError over HTTP, StateDamagedError on disk.
    """

    @property
    def name(self) -> str:
        """The url or folder of this registry, as shown in errors and lists."""
        ...

    def generation(self) -> str | None:
        """A stamp that differs after each change, found without a request; None where there is none."""
        ...

    async def list_repositories(self) -> list[str]:
        """List all repositories in lexical order; some may have no tag left."""
        ...

    async def list_tags(self, repository: str) -> list[str]:
        """List all tags in lexical order; empty for an unknown repository."""
        ...

    async def find_digest(self, reference: Reference) -> str | None:
        """The current digest of a reference; None when it does not exist."""
        ...

    async def pull(self, reference: Reference) -> Artifact:
        """Pull and verify an artifact. A reference without target means the best tag.

        Raises ReferenceNotFoundError, MalformedArtifactError, DigestMismatchError.
        """
        ...

    async def pull_if_changed(self, reference: Reference, known_digest: str | None) -> Artifact | None:
        """Like `pull`; None, after one cheap request, when the digest is still ``known_digest``."""
        ...

    async def pull_many(self, references: Sequence[Reference]) -> Pulled:
        """Artifacts by repository in one request, each of ``references`` with a digest.

        Omitted artifacts may be requested again; empty where the registry gives artifacts only one by one.
        """
        ...

    async def push(
        self, repository: str, tag: str, artifact: NewArtifact, *, guard: Guard | None = None
    ) -> str:
        """Store an artifact under a tag.

        Returns its digest. ``guard`` may reject replacing the current one.
        """
        ...

    async def delete(self, repository: str, target: str) -> None:
        """Delete a tag or digest. Raises ReferenceNotFoundError."""
        ...


class CopyableRegistry(Registry, Protocol):
    """A registry that also transfers manifests and blobs byte for byte, so that digests do not change."""

    async def pull_manifest(self, reference: Reference) -> StoredManifest:
        """Pull a stored manifest, whatever it describes. Raises ReferenceNotFoundError."""
        ...

    async def pull_blob(self, repository: str, blob: Descriptor) -> bytes:
        """Pull and verify the content of a descriptor. Raises ContentMissingError, DigestMismatchError."""
        ...

    async def copy_blob(self, repository: str, blob: Descriptor, sink: BlobSink) -> None:
        """Give the content of a descriptor to a sink, which verifies it. Raises ContentMissingError."""
        ...

    async def push_package(
        self, repository: str, tag: str, package: Package, *, guard: Guard | None = None
    ) -> str:
        """Store blobs and manifest byte for byte; returns the digest."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """Result of publishing.

    ``replaced`` is the former digest of the tag, if it differs; ``superseded_by`` the digest that a
    concurrent publisher gave the tag meanwhile (the last write wins).
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
    """Open the registry at an http(s) url, or in a folder; options as for `HttpRegistry`.

    Raises InvalidSettingError for an invalid url.
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
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        shown = url.rpartition("@")[2]
        raise InvalidSettingError(
            "registry",
            f"{shown!r} is neither a registry url nor a folder",
            remedy="write http://host:port, https://host or a folder",
        )


async def list_published(registry: Registry) -> list[str]:
    """List the repositories of a registry, as `read_published` finds them."""
    return list((await read_published(registry)).repositories)


async def read_published(registry: Registry) -> Catalog:
    """Read the repositories of a registry: its catalog, else the configured ones, else its index artifact.

    Raises the error of the catalog request when none of these exists.
    """
    rejection: RegistryRefusedError | None = None
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
        rejection = error
    if isinstance(registry, HttpRegistry) and registry.repositories:
        return Catalog(tuple(sorted(registry.repositories)))
    indexed = await _read_index(registry)
    if indexed is None and rejection is not None:
        raise rejection
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
    tag: str | None = None,
    signatures: Sequence[Mapping[str, str]] = (),
) -> Published:
    """Publish an agent card byte for byte, as ``oras push`` would (specification 2.1).

    ``skills`` holds the ids visible to others; ``repository`` overrides ``agents/<short name>``, ``tag`` the
    one of the major version (`default_tag`); ``signatures`` are over the bytes. Raises RepositoryTakenError
    when the repository holds anything but a card of this name, TagTakenError when the tag holds another major
    version of it.
    """
    place = repository or card_repository(name)
    artifact = card_artifact(
        name, card, version=version, skills=skills, created=created, signatures=signatures
    )
    tag = tag or default_tag(version)
    return await _publish(registry, place, tag, artifact, only_version_of(name, place, tag, version))


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

    Raises RepositoryTakenError when the repository holds anything but a workflow.
    """
    place = repository or workflow_repository(workflow_id)
    artifact = workflow_artifact(workflow_id, definition, created=created)

    def guard(held: Artifact | None) -> None:
        if held is not None and held.form != "workflow":
            raise RepositoryTakenError(place, find_card_name(held) or held.title, workflow_id)

    return await _publish(registry, place, tag, artifact, guard)


async def publish_prompt(
    registry: Registry,
    name: str,
    file: bytes,
    *,
    created: datetime,
    signatures: Sequence[Mapping[str, str]] = (),
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish the file of an agent in Markdown byte for byte as ``prompts/<short name>``.

    A file that is there already is left as it is. Raises RepositoryTakenError when the repository holds
    anything else.
    """
    place = repository or prompt_repository(name)
    artifact = prompt_artifact(name, file, created=created, signatures=signatures)
    return await _publish_file(registry, place, tag, artifact, "prompt", name)


async def publish_policy(
    registry: Registry,
    name: str,
    file: bytes,
    *,
    created: datetime,
    signatures: Sequence[Mapping[str, str]] = (),
    repository: str | None = None,
    tag: str = DEFAULT_TAG,
) -> Published:
    """Publish a file of policies byte for byte as ``policies/<name>``; otherwise as `publish_prompt`."""
    place = repository or policy_repository(name)
    artifact = policy_artifact(name, file, created=created, signatures=signatures)
    return await _publish_file(registry, place, tag, artifact, "policy", name)


async def _publish_file(
    registry: Registry, place: str, tag: str, artifact: NewArtifact, form: Form, name: str
) -> Published:
    """Publish a file, unless it is there already, signed or not as this one is."""

    def guard(held: Artifact | None) -> None:
        if held is not None and held.form != form:
            raise RepositoryTakenError(place, find_card_name(held) or held.title, name)

    is_signed = CARD_SIGNATURES in artifact.annotations
    with suppress(ReferenceNotFoundError, MalformedArtifactError):
        held = await registry.pull(Reference(place, tag=tag))
        if held.form == form and held.content == artifact.content and bool(held.signatures) == is_signed:
            return Published(registry.name, place, tag, held.digest)
    return await _publish(registry, place, tag, artifact, guard)


async def forget(
    registry: Registry, name: str, *, repository: str | None = None, tag: str | None = None
) -> tuple[str, ...]:
    """Delete all tags of an agent card, or one tag; returns the deleted tags.

    Raises ReferenceNotFoundError when there are none, RepositoryTakenError when the card has another name.
    """
    place = repository or card_repository(name)
    held = [held_tag for held_tag in await registry.list_tags(place) if not is_referrers_tag(held_tag)]
    tags = held if tag is None else [held_tag for held_tag in held if held_tag == tag]
    if not tags:
        raise ReferenceNotFoundError(registry.name, place if tag is None else f"{place}:{tag}")
    best = choose_tag(tags)
    # An unreadable card has no owner, and deleting it is the remedy.
    with suppress(MalformedArtifactError):
        only_card_of(name, place)(await registry.pull(Reference(place, tag=best)))
    for tag in tags:
        try:
            await registry.delete(place, tag)
        except ReferenceNotFoundError:
            # A registry that deletes by digest removes all tags of a card at once.
            continue
    if choose_tag(await registry.list_tags(place)) is None:
        await index_change(registry, gone={place})
    return tuple(tags)


async def withdraw(registry: Registry, published: Published) -> None:
    """Delete exactly the published artifact, by digest, so that a newer card remains.

    Raises ReferenceNotFoundError when it is already gone.
    """
    await registry.delete(published.repository, published.digest)
    if choose_tag(await registry.list_tags(published.repository)) is None:
        await index_change(registry, gone={published.repository})


async def index_change(
    registry: Registry, *, added: Set[str] = frozenset(), gone: Set[str] = frozenset()
) -> None:
    """Add repositories to the index artifact, or remove them; no effect when the registry has a catalog.

    The registry protocol has no conditional write. A publisher whose change was overwritten by another one
    sees this when it reads the index again, and repeats its write.
    """
    if not (added or gone) or not await _needs_index(registry):
        return
    for _ in range(INDEX_ATTEMPTS):
        names = set(await _read_index(registry) or ())
        indexed = (names | added) - gone
        if indexed == names:
            return
        index = index_artifact(indexed, created=datetime.now(UTC))
        await registry.push(INDEX.repository, INDEX_TAG, index)


async def _publish(
    registry: Registry, place: str, tag: str, artifact: NewArtifact, guard: Guard
) -> Published:
    """Push under a guard, check the tag afterwards, and add the repository to the index."""
    replaced: str | None = None

    def record_and_guard(held: Artifact | None) -> None:
        nonlocal replaced
        replaced = held.digest if held is not None and held.tag == tag else None
        guard(held)

    digest = await registry.push(place, tag, artifact, guard=record_and_guard)
    current = await registry.find_digest(Reference(place, tag=tag))
    superseded_by = None
    if current is not None and current != digest:
        superseded_by = current
        with suppress(MalformedArtifactError, ReferenceNotFoundError):
            guard(await registry.pull(Reference(place, digest=current)))
    await index_change(registry, added={place})
    return Published(
        registry.name, place, tag, digest, replaced if replaced != digest else None, superseded_by
    )


async def _needs_index(registry: Registry) -> bool:
    """Whether a registry has no catalog, so that its repositories are found only by the index artifact."""
    if not isinstance(registry, HttpRegistry) or registry.has_catalog:
        return False
    try:
        return not await registry.list_repositories()
    except RegistryRefusedError as error:
        if error.status >= 500 or error.status == 429:
            raise
        return True


async def _read_index(registry: Registry) -> list[str] | None:
    """The repositories in the index artifact; None when it cannot be read."""
    try:
        return parse_index_artifact(await registry.pull(INDEX))
    except (ReferenceNotFoundError, RegistryRefusedError):
        return None
