"""Renders and parses agent cards and workflows as OCI artifacts, and checks ownership of repositories.

An artifact has an empty config, an artifact type, one layer with a title and an RFC 3339 time. Its content is
also inline in the layer's descriptor, so that one request reads a card; clients that ignore ``data`` find the
blob, as ``oras push`` would have stored it (specification 2.1; specification 2, doubt 13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from retinue.core.errors import (
    DigestMismatchError,
    MalformedArtifactError,
    RepositoryTakenError,
    TagTakenError,
)
from retinue.oci.codec.manifest import (
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
from retinue.oci.codec.reference import (
    card_repository,
    default_tag,
    digest_of,
    policy_repository,
    prompt_repository,
    workflow_repository,
)

CARD_ARTIFACT_TYPE = "application/vnd.a2a.agent.card"
CARD_MEDIA_TYPE = "application/json"
CARD_SIGNATURES = "dev.retinue.card.signatures"
"""Annotation of a card's manifest: a JSON list of signatures over the bytes of the card."""

CARD_SUFFIX = "_agent_card.json"
INDEX_ARTIFACT_TYPE = "application/vnd.retinue.index"
WORKFLOW_MEDIA_TYPE = "application/yaml"
PALLET_WORKFLOW_TYPE = "application/vnd.pallet.workflow.v1+yaml"
WORKFLOW_MEDIA_TYPES = frozenset({WORKFLOW_MEDIA_TYPE, PALLET_WORKFLOW_TYPE})
PROMPT_ARTIFACT_TYPE = "application/vnd.retinue.prompt.v1"
PROMPT_MEDIA_TYPE = "text/markdown"
POLICY_ARTIFACT_TYPE = "application/vnd.retinue.policy.v1"
POLICY_MEDIA_TYPE = "application/vnd.retinue.policy.v1+cedar"

MAX_INLINE_BYTES = 1024 * 1024
"""Larger content is not inlined: in base64 it would approach the size limit of manifests."""

MAX_BLOB_BYTES = 64 * 1024 * 1024
"""Larger blobs are neither accepted by the registry endpoint nor mirrored."""

MAX_CONTENT_BYTES = 16 * 1024 * 1024
"""Larger cards and workflows are rejected without reading them."""

Form = Literal["card", "workflow", "prompt", "policy", "index", "other"]


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """An artifact to push: its content, title and annotations."""

    content: bytes
    media_type: str
    title: str
    artifact_type: str
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Package:
    """An artifact as a registry stores it: the manifest, and blobs by digest."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    blobs: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A pulled artifact: the manifest with its exact bytes and digest, and the verified content."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    content: bytes
    title: str
    media_type: str
    tag: str | None = None

    @property
    def form(self) -> Form:
        """Whether this is a card, a workflow, an agent in Markdown, the index artifact or something else."""
        if self.manifest.artifact_type == INDEX_ARTIFACT_TYPE:
            return "index"
        if self.manifest.artifact_type == CARD_ARTIFACT_TYPE or self.title.endswith(CARD_SUFFIX):
            return "card"
        if self.manifest.artifact_type == PROMPT_ARTIFACT_TYPE:
            return "prompt"
        if self.manifest.artifact_type == POLICY_ARTIFACT_TYPE:
            return "policy"
        return "workflow" if self.media_type in WORKFLOW_MEDIA_TYPES else "other"

    @property
    def signatures(self) -> Any:
        """The signatures over the content, as they are in the manifest; () where there are none."""
        text = self.manifest.annotations.get(CARD_SIGNATURES, "")
        try:
            return orjson.loads(text) if text else ()
        except ValueError:
            # not signed in a way that anybody can verify
            return [text]

    @property
    def published_at(self) -> datetime | None:
        """The manifest's RFC 3339 time, always with a zone; None when absent or unreadable."""
        try:
            created = datetime.fromisoformat(self.manifest.annotations.get(CREATED, ""))
        except ValueError:
            return None
        return created if created.tzinfo is not None else created.replace(tzinfo=UTC)


Guard = Callable[[Artifact | None], None]
"""Called before a push with the current artifact of the tag, else of the repository's best tag, None for a
new or unreadable one. It raises to reject the push."""


def card_artifact(
    name: str,
    card: bytes,
    *,
    version: str | None,
    skills: Sequence[str],
    created: datetime,
    signatures: Sequence[Mapping[str, str]] = (),
) -> NewArtifact:
    """Build the artifact of an agent card as seed 001 publishes it: ``<short>_agent_card.json`` in one layer.

    ``card`` holds the exact bytes to serve, ``skills`` the ids visible to others, ``signatures`` those over
    the bytes.
    Raises InvalidReferenceError when the name yields no repository.
    """
    facts = {"skills": ",".join(skills), CREATED: rfc3339(created)}
    if version is not None:
        facts = {"version": version, **facts}
    if signatures:
        facts[CARD_SIGNATURES] = orjson.dumps(list(signatures)).decode()
    short = card_repository(name).removeprefix("agents/")
    return NewArtifact(card, CARD_MEDIA_TYPE, short + CARD_SUFFIX, CARD_ARTIFACT_TYPE, facts)


def workflow_artifact(workflow_id: str, definition: bytes, *, created: datetime) -> NewArtifact:
    """Build the artifact of a workflow definition (YAML bytes) for ``workflows/<id>``."""
    short = workflow_repository(workflow_id).removeprefix("workflows/")
    return NewArtifact(
        definition,
        WORKFLOW_MEDIA_TYPE,
        f"{short}.yaml",
        PALLET_WORKFLOW_TYPE,
        {CREATED: rfc3339(created)},
    )


def prompt_artifact(
    name: str, file: bytes, *, created: datetime, signatures: Sequence[Mapping[str, str]] = ()
) -> NewArtifact:
    """Build the artifact of the file of an agent in Markdown; ``signatures`` are over its bytes."""
    facts = {CREATED: rfc3339(created)}
    if signatures:
        facts[CARD_SIGNATURES] = orjson.dumps(list(signatures)).decode()
    short = prompt_repository(name).removeprefix("prompts/")
    return NewArtifact(file, PROMPT_MEDIA_TYPE, f"{short}.md", PROMPT_ARTIFACT_TYPE, facts)


def policy_artifact(
    name: str, file: bytes, *, created: datetime, signatures: Sequence[Mapping[str, str]] = ()
) -> NewArtifact:
    """Build the artifact of a file of policies; ``signatures`` are over its bytes."""
    facts = {CREATED: rfc3339(created)}
    if signatures:
        facts[CARD_SIGNATURES] = orjson.dumps(list(signatures)).decode()
    short = policy_repository(name).removeprefix("policies/")
    return NewArtifact(file, POLICY_MEDIA_TYPE, f"{short}.cedar", POLICY_ARTIFACT_TYPE, facts)


def only_card_of(name: str, repository: str) -> Guard:
    """Guard: a repository belongs to the first card name published in it (specification 7.2).

    It raises RepositoryTakenError when the repository holds something else. An empty repository, or a card
    without a readable name, may be replaced.
    """

    def guard(held: Artifact | None) -> None:
        if held is None:
            return
        holder = find_card_name(held) if held.form == "card" else held.title or "another artifact"
        if holder is not None and holder != name:
            raise RepositoryTakenError(repository, holder, name)

    return guard


def only_version_of(name: str, repository: str, tag: str, version: str | None) -> Guard:
    """Guard: as `only_card_of`, and a tag keeps its major version (specification 7.9).

    It raises TagTakenError as well. A text that is no version may replace any version, and be replaced.
    """
    only_card = only_card_of(name, repository)

    def guard(held: Artifact | None) -> None:
        only_card(held)
        if held is None or held.tag != tag or version is None:
            return
        holder = find_card_version(held)
        if holder is not None and default_tag(holder) != default_tag(version):
            raise TagTakenError(name, f"{repository}:{tag}", holder, version, free_tag=default_tag(version))

    return guard


def find_card_version(artifact: Artifact) -> str | None:
    """The version of the card in an artifact; None where it has none or cannot be read."""
    version = _find_fact(artifact, "version")
    return version if isinstance(version, str) and version else None


def same_owner(artifact: Artifact | None, repository: str) -> Guard:
    """Guard with the same rule for any artifact, card or not; None for content of another kind."""
    name = find_card_name(artifact) if artifact is not None else None
    if name is not None:
        return only_card_of(name, repository)

    def guard(held: Artifact | None) -> None:
        holder = find_card_name(held) if held is not None else None
        if holder is not None:
            raise RepositoryTakenError(repository, holder, "something else")

    return guard


def render_artifact(artifact: NewArtifact) -> Package:
    """Pack an artifact for a registry. Raises MalformedArtifactError when it exceeds the size limit."""
    size_bytes = len(artifact.content)
    if size_bytes > MAX_CONTENT_BYTES:
        raise MalformedArtifactError(
            artifact.title, f"its {size_bytes:,} bytes exceed the limit of {MAX_CONTENT_BYTES:,}"
        )
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
class VerifiedManifest:
    """A parsed and verified manifest with its content layer; the content is read separately."""

    manifest: Manifest
    manifest_bytes: bytes
    digest: str
    layer: Descriptor
    where: str
    tag: str | None

    def inline_content(self) -> bytes | None:
        """The content inlined in the descriptor; None when absent or not matching the digest."""
        data = self.layer.data
        return data if data is not None and digest_of(data) == self.layer.digest else None

    def open(self, content: bytes) -> Artifact:
        """Return the artifact with this content.

        Raises DigestMismatchError when the digest does not match.
        """
        digest = digest_of(content)
        if digest != self.layer.digest:
            raise DigestMismatchError(self.where, self.layer.digest, digest)
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
) -> VerifiedManifest:
    """Parse and verify a manifest and find its content layer.

    Raises DigestMismatchError, and MalformedArtifactError when it has no content layer.
    """
    digest = digest_of(raw)
    if wanted_digest is not None and digest != wanted_digest:
        raise DigestMismatchError(where, wanted_digest, digest)
    manifest = parse_manifest(raw, where=where)
    layer = find_content_layer(manifest)
    if layer is None:
        raise MalformedArtifactError(where, "it contains neither an agent card nor a workflow")
    if layer.size_bytes > MAX_CONTENT_BYTES:
        raise MalformedArtifactError(
            where, f"its content of {layer.size_bytes:,} bytes exceeds the limit of {MAX_CONTENT_BYTES:,}"
        )
    return VerifiedManifest(manifest, raw, digest, layer, where, tag)


def find_content_layer(manifest: Manifest) -> Descriptor | None:
    """The content layer: titled as a card, typed as a workflow, else the only layer."""
    layers = manifest.layers
    for layer in layers:
        if (layer.title or "").endswith(CARD_SUFFIX):
            return layer
    for layer in layers:
        if layer.media_type in WORKFLOW_MEDIA_TYPES:
            return layer
    return layers[0] if len(layers) == 1 else None


def find_card_name(artifact: Artifact) -> str | None:
    """The ``name`` of the card in an artifact; None when it is not a card with a name."""
    name = _find_fact(artifact, "name")
    return name if isinstance(name, str) else None


def _find_fact(artifact: Artifact, key: str) -> Any:
    """A top-level value of the card in an artifact; None when it has none or is no readable card."""
    if artifact.form != "card":
        return None
    try:
        return parse_object(artifact.content, where=artifact.title, what="the card").get(key)
    except MalformedArtifactError:
        return None


def rfc3339(moment: datetime) -> str:
    """Format a time for manifest annotations, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
