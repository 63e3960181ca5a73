"""Pure: the forms in which agent cards and workflows travel through an OCI registry.

SPEC 2, "Formats" and doubt 13: empty config, artifact type, one titled layer, RFC 3339 time. The
content also stands inline in its layer's descriptor (DESIGN 6), so that one request reads a card;
whoever ignores ``data`` finds the blob, as ``oras push`` would have left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from retinue.core.errors import DigestMismatchError, MalformedArtifactError, RepositoryTakenError
from retinue.protocols.oci.manifest import (
    CREATED,
    EMPTY_CONFIG,
    EMPTY_JSON,
    Descriptor,
    Manifest,
    describe,
    parse_manifest,
    parse_object,
    render_manifest,
)
from retinue.protocols.oci.reference import card_repository, digest_of, workflow_repository

CARD_ARTIFACT_TYPE = "application/vnd.a2a.agent.card"
CARD_MEDIA_TYPE = "application/json"
CARD_SUFFIX = "_agent_card.json"
INDEX_ARTIFACT_TYPE = "application/vnd.retinue.index"
WORKFLOW_MEDIA_TYPE = "application/yaml"
PALLET_WORKFLOW_TYPE = "application/vnd.pallet.workflow.v1+yaml"
WORKFLOW_MEDIA_TYPES = frozenset({WORKFLOW_MEDIA_TYPE, PALLET_WORKFLOW_TYPE})

MAX_INLINE_BYTES = 1024 * 1024
"""Larger content is not put inline: in base64 it would press the manifest towards its cap."""

MAX_BLOB_BYTES = 64 * 1024 * 1024
"""A larger blob is neither taken at our door nor mirrored."""

MAX_CONTENT_BYTES = 16 * 1024 * 1024
"""A card or workflow larger than this is refused unread."""

Form = Literal["card", "workflow", "index", "other"]


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """What is to be pushed: one content with its title, and the facts beside it."""

    content: bytes
    media_type: str
    title: str
    artifact_type: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Package:
    """A new artifact as a registry stores it: blobs by digest, then the manifest that names them."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Artifact:
    """What was pulled: the manifest with its exact bytes and digest, and the verified content."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    content: bytes
    title: str
    media_type: str
    tag: str | None = None

    @property
    def form(self) -> Form:
        """Whether this is a card, a workflow, our index of both or something of other people."""
        if self.manifest.artifact_type == INDEX_ARTIFACT_TYPE:
            return "index"
        if self.manifest.artifact_type == CARD_ARTIFACT_TYPE or self.title.endswith(CARD_SUFFIX):
            return "card"
        return "workflow" if self.media_type in WORKFLOW_MEDIA_TYPES else "other"

    @property
    def published_at(self) -> datetime | None:
        """The manifest's RFC 3339 time, always with a zone; None when absent or unreadable."""
        try:
            created = datetime.fromisoformat(self.manifest.annotations.get(CREATED, ""))
        except ValueError:
            return None
        return created if created.tzinfo is not None else created.replace(tzinfo=UTC)


Guard = Callable[[Artifact | None], None]
"""Asked before a push with what the tag holds now (else what the repository's best tag holds, None
for a new or unreadable one); raises to refuse the push."""


def card_artifact(
    name: str,
    card: bytes,
    *,
    version: str | None,
    skills: Sequence[str],
    created: datetime,
) -> NewArtifact:
    """An agent card as seed 001 publishes it: ``<short>_agent_card.json`` in one layer.

    ``card`` are the exact bytes to serve; ``skills`` the ids that others may see.
    Raises InvalidReferenceError when no repository or file can have the name.
    """
    facts = {"skills": ",".join(skills), CREATED: rfc3339(created)}
    if version is not None:
        facts = {"version": version, **facts}
    short = card_repository(name).removeprefix("agents/")
    return NewArtifact(card, CARD_MEDIA_TYPE, short + CARD_SUFFIX, CARD_ARTIFACT_TYPE, facts)


def workflow_artifact(workflow_id: str, definition: bytes, *, created: datetime) -> NewArtifact:
    """A workflow definition (YAML bytes) as ``workflows/<id>`` holds it."""
    short = workflow_repository(workflow_id).removeprefix("workflows/")
    return NewArtifact(
        definition,
        WORKFLOW_MEDIA_TYPE,
        f"{short}.yaml",
        PALLET_WORKFLOW_TYPE,
        {CREATED: rfc3339(created)},
    )


def only_card_of(name: str, repository: str) -> Guard:
    """The rule that a repository belongs to the first card name in it (SPEC 7, seed 001).

    The guard raises RepositoryTakenError when something else is held; nothing, or a card without a
    readable name, may be replaced.
    """

    def guard(held: Artifact | None) -> None:
        if held is None:
            return
        holder = find_card_name(held) if held.form == "card" else held.title or "another artifact"
        if holder is not None and holder != name:
            raise RepositoryTakenError(repository, holder, name)

    return guard


def same_owner(artifact: Artifact | None, repository: str) -> Guard:
    """The same rule for something that comes from elsewhere, card or not; None = no content of ours."""
    name = find_card_name(artifact) if artifact is not None else None
    if name is not None:
        return only_card_of(name, repository)

    def guard(held: Artifact | None) -> None:
        holder = find_card_name(held) if held is not None else None
        if holder is not None:
            raise RepositoryTakenError(repository, holder, "something else")

    return guard


def render_artifact(artifact: NewArtifact) -> Package:
    """Pack an artifact for a registry. Raises MalformedArtifactError when it is over the size limit."""
    size_bytes = len(artifact.content)
    if size_bytes > MAX_CONTENT_BYTES:
        raise MalformedArtifactError(artifact.title, f"{size_bytes:,} bytes are over the limit")
    layer = describe(
        artifact.content,
        artifact.media_type,
        inline=size_bytes <= MAX_INLINE_BYTES,
        title=artifact.title,
    )
    manifest = Manifest(
        EMPTY_CONFIG, (layer,), artifact_type=artifact.artifact_type, annotations=artifact.annotations
    )
    raw = render_manifest(manifest)
    blobs = {EMPTY_CONFIG.digest: EMPTY_JSON, layer.digest: artifact.content}
    return Package(manifest, raw, digest_of(raw), blobs)


@dataclass(frozen=True, slots=True)
class Envelope:
    """A manifest that was read and verified, with the layer whose content is still to come."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    layer: Descriptor
    where: str
    tag: str | None

    def inline_content(self) -> bytes | None:
        """The content out of the descriptor; None unless it is there and hashes to the layer's digest."""
        data = self.layer.data
        return data if data is not None and digest_of(data) == self.layer.digest else None

    def open(self, content: bytes) -> Artifact:
        """The artifact with this content; raises DigestMismatchError when it is not the layer's."""
        found = digest_of(content)
        if found != self.layer.digest:
            raise DigestMismatchError(self.where, self.layer.digest, found)
        return Artifact(
            self.manifest,
            self.manifest_bytes,
            self.digest,
            content,
            self.layer.title or "",
            self.layer.media_type,
            self.tag,
        )


def parse_envelope(
    raw: bytes, *, where: str, tag: str | None = None, wanted_digest: str | None = None
) -> Envelope:
    """Read and verify a manifest and find its content layer.

    Raises DigestMismatchError, and MalformedArtifactError when it holds no single content.
    """
    digest = digest_of(raw)
    if wanted_digest is not None and digest != wanted_digest:
        raise DigestMismatchError(where, wanted_digest, digest)
    manifest = parse_manifest(raw, where=where)
    layer = find_content_layer(manifest)
    if layer is None:
        raise MalformedArtifactError(where, "it holds no agent card and no workflow")
    if layer.size_bytes > MAX_CONTENT_BYTES:
        raise MalformedArtifactError(where, f"its content of {layer.size_bytes:,} bytes is over the limit")
    return Envelope(manifest, raw, digest, layer, where, tag)


def find_content_layer(manifest: Manifest) -> Descriptor | None:
    """The layer that holds the content: titled as a card, typed as a workflow, else the only one."""
    layers = manifest.layers
    for layer in layers:
        if (layer.title or "").endswith(CARD_SUFFIX):
            return layer
    for layer in layers:
        if layer.media_type in WORKFLOW_MEDIA_TYPES:
            return layer
    return layers[0] if len(layers) == 1 else None


def find_card_name(artifact: Artifact) -> str | None:
    """The ``name`` in the card that an artifact holds; None when it is no card with a name."""
    if artifact.form != "card":
        return None
    try:
        name = parse_object(artifact.content, where=artifact.title, what="the card").get("name")
    except MalformedArtifactError:
        return None
    return name if isinstance(name, str) else None


def rfc3339(moment: datetime) -> str:
    """A time as the annotations of manifests hold it, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
