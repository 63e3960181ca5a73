"""``retinue mirror``: cards and workflows of one registry copied into another, digests kept (P-30)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from retinue.apps.joined import tell_hub
from retinue.apps.parts import configured_registry
from retinue.core.errors import (
    DigestMismatchError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
    RetinueError,
)
from retinue.drivers.http import HttpClient
from retinue.drivers.registry import CopyableRegistry, index_change, list_published
from retinue.drivers.state import State
from retinue.protocols.oci.artifacts import (
    INDEX_ARTIFACT_TYPE,
    Artifact,
    Package,
    parse_envelope,
    same_owner,
)
from retinue.protocols.oci.manifest import Descriptor, Manifest, parse_manifest
from retinue.protocols.oci.reference import Reference, digest_of
from retinue.settings import Settings

PREFIXES = ("agents/", "workflows/")
CONCURRENT_REPOSITORIES = 8

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """A tag that means in the target now what it means in the source."""

    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(slots=True)
class MirrorReport:
    """What came of a mirroring: tags copied, tags that were there already, and what failed by name."""

    source: str
    target: str
    copied: list[Copied] = field(default_factory=list)
    unchanged: int = 0
    failed: dict[str, RetinueError] = field(default_factory=dict)


async def mirror_registries(
    settings: Settings,
    state: State,
    source: str,
    target: str,
    *,
    repositories: Sequence[str] = (),
    say: Say = lambda line: None,
) -> MirrorReport:
    """Mirror between two registries named as ``--registry`` names them, then let the hub know."""
    async with HttpClient(allow_private=settings.allow_private_urls) as http:
        report = await mirror(
            configured_registry(source, settings, http, state),
            configured_registry(target, settings, http, state),
            repositories=repositories,
            say=say,
        )
        if report.copied:
            await tell_hub(http, state, None)
    return report


async def mirror(
    source: CopyableRegistry,
    target: CopyableRegistry,
    *,
    repositories: Sequence[str] = (),
    say: Say = lambda line: None,
) -> MirrorReport:
    """Copy every tag of all agents and workflows, or of the named repositories, manifests byte for byte.

    A tag that has the same digest on both sides is left alone; nothing is deleted. What cannot be
    copied stands in the report and stops nothing else, unless a registry does not answer at all:
    then RegistryUnreachableError, as also when the source does not tell what is in it.
    """
    report = MirrorReport(source.name, target.name)
    chosen = list(repositories) or [r for r in await list_published(source) if r.startswith(PREFIXES)]
    waiting = iter(chosen)

    async def work() -> None:
        for repository in waiting:
            await _mirror_repository(source, target, repository, report, say)

    workers = [asyncio.create_task(work()) for _ in range(min(CONCURRENT_REPOSITORIES, len(chosen)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await index_change(target, added={copied.repository for copied in report.copied})
    report.copied.sort(key=str)
    return report


async def _mirror_repository(
    source: CopyableRegistry, target: CopyableRegistry, repository: str, report: MirrorReport, say: Say
) -> None:
    try:
        tags = await source.list_tags(repository)
        if not tags:
            raise ReferenceNotFoundError(source.name, repository)
    except RegistryUnreachableError:
        raise
    except RetinueError as error:
        report.failed[repository] = error
        return
    for tag in tags:
        reference = Reference(repository, tag=tag)
        try:
            copied = await _mirror_tag(source, target, reference)
        except RegistryUnreachableError:
            raise
        except RetinueError as error:
            report.failed[str(reference)] = error
            continue
        if copied is None:
            report.unchanged += 1
        else:
            report.copied.append(copied)
            say(str(copied))


async def _mirror_tag(
    source: CopyableRegistry, target: CopyableRegistry, reference: Reference
) -> Copied | None:
    """Copy what a tag means; None when the target has it, or when it is the source's own index."""
    wanted = await source.find_digest(reference)
    if wanted is None:
        raise ReferenceNotFoundError(source.name, str(reference))
    if wanted == await target.find_digest(reference):
        return None
    # By digest, so that a tag that moves meanwhile does not leave half of each.
    stored = await source.pull_manifest(Reference(reference.repository, digest=wanted))
    manifest = parse_manifest(stored.content, where=str(reference))
    if manifest.artifact_type == INDEX_ARTIFACT_TYPE:
        return None  # it names what the source holds; the target has one of its own
    blobs = {
        blob.digest: await _read_blob(source, reference.repository, blob) for blob in _blobs_of(manifest)
    }
    typed = replace(manifest, media_type=manifest.media_type or stored.media_type)
    package = Package(typed, stored.content, stored.digest, blobs)
    guard = same_owner(_open(package, reference), reference.repository)
    digest = await target.push_package(reference.repository, reference.tag or "", package, guard=guard)
    return Copied(reference.repository, reference.tag or "", digest)


async def _read_blob(source: CopyableRegistry, repository: str, blob: Descriptor) -> bytes:
    if blob.data is not None and digest_of(blob.data) == blob.digest:
        return blob.data
    return await source.pull_blob(repository, blob)


def _blobs_of(manifest: Manifest) -> tuple[Descriptor, ...]:
    return (manifest.config, *manifest.layers)


def _open(package: Package, reference: Reference) -> Artifact | None:
    """The artifact in a package; None when it is none of ours."""
    try:
        envelope = parse_envelope(package.manifest_bytes, where=str(reference), tag=reference.tag)
        return envelope.open(package.blobs[envelope.layer.digest])
    except (MalformedArtifactError, DigestMismatchError):
        return None
