"""Mirrors the cards and workflows of one registry to another, byte for byte (P-30)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from retinue.core.errors import (
    DigestMismatchError,
    MalformedArtifactError,
    ReferenceNotFoundError,
    RegistryUnreachableError,
    RetinueError,
    StorageFullError,
)
from retinue.oci.codec.artifacts import INDEX_ARTIFACT_TYPE, Artifact, Package, parse_envelope, same_owner
from retinue.oci.codec.manifest import Descriptor, Manifest, parse_manifest
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.registry import CopyableRegistry, index_change, list_published

PREFIXES = ("agents/", "workflows/", "prompts/", "teams/")
CONCURRENT_REPOSITORIES = 8

Echo = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Copied:
    """A tag that was copied and now has the same digest in both registries."""

    repository: str
    tag: str
    digest: str

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(slots=True)
class MirrorReport:
    """Result of a mirroring: copied tags, number of unchanged tags, errors by repository or reference."""

    source: str
    target: str
    copied: list[Copied] = field(default_factory=list)
    unchanged: int = 0
    failed: dict[str, RetinueError] = field(default_factory=dict)


async def mirror(
    source: CopyableRegistry,
    target: CopyableRegistry,
    *,
    repositories: Sequence[str] = (),
    echo: Echo = lambda line: None,
) -> MirrorReport:
    """Copy every tag of all agents and workflows, or of the given repositories.

    Tags with the same digest on both sides are skipped; nothing is deleted. An error of one tag or
    repository is recorded in the report and does not stop the rest. ``echo`` is called with each copied
    reference. Raises RegistryUnreachableError when a registry does not answer, StorageFullError when a folder
    takes no more, and RegistryError when the source cannot list its repositories.
    """
    report = MirrorReport(source.name, target.name)
    chosen = list(repositories) or [r for r in await list_published(source) if r.startswith(PREFIXES)]
    waiting = iter(chosen)

    async def work() -> None:
        for repository in waiting:
            await _mirror_repository(source, target, repository, report, echo)

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
    source: CopyableRegistry, target: CopyableRegistry, repository: str, report: MirrorReport, echo: Echo
) -> None:
    try:
        tags = await source.list_tags(repository)
        if not tags:
            raise ReferenceNotFoundError(source.name, repository)
    except (RegistryUnreachableError, StorageFullError):
        raise
    except RetinueError as error:
        report.failed[repository] = error
        return
    for tag in tags:
        reference = Reference(repository, tag=tag)
        try:
            copied = await _mirror_tag(source, target, reference)
        except (RegistryUnreachableError, StorageFullError):
            raise
        except RetinueError as error:
            report.failed[str(reference)] = error
            continue
        if copied is None:
            report.unchanged += 1
        else:
            report.copied.append(copied)
            echo(str(copied))


async def _mirror_tag(
    source: CopyableRegistry, target: CopyableRegistry, reference: Reference
) -> Copied | None:
    """Copy one tag; None when the target already has it, or when it is the index artifact of the source."""
    wanted = await source.find_digest(reference)
    if wanted is None:
        raise ReferenceNotFoundError(source.name, str(reference))
    if wanted == await target.find_digest(reference):
        return None
    # By digest: the tag may move meanwhile.
    stored = await source.pull_manifest(Reference(reference.repository, digest=wanted))
    manifest = parse_manifest(stored.content, where=str(reference))
    if manifest.artifact_type == INDEX_ARTIFACT_TYPE:
        return None  # the target has an index artifact of its own
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
    """The artifact in a package; None when it is neither a card nor a workflow."""
    try:
        envelope = parse_envelope(package.manifest_bytes, where=str(reference), tag=reference.tag)
        return envelope.open(package.blobs[envelope.layer.digest])
    except (MalformedArtifactError, DigestMismatchError):
        return None
