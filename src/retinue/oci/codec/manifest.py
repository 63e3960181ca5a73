"""OCI descriptors and image manifests, parsed leniently and rendered exactly.

Unknown keys are kept in ``extra``. The digest of a manifest is that of its bytes, so a manifest is always
forwarded as received and never rendered again (image spec 1.1, "OCI Image Manifest").
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.oci.codec.reference import digest_of, is_digest

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
OCTETS_TYPE = "application/octet-stream"

TITLE = "org.opencontainers.image.title"
CREATED = "org.opencontainers.image.created"
REF_NAME = "org.opencontainers.image.ref.name"

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
"""Registries must accept manifests of this size and may reject larger ones (distribution spec 1.1)."""

EMPTY_JSON = b"{}"

_MANIFEST_KEYS = frozenset({"schemaVersion", "mediaType", "artifactType", "config", "layers", "annotations"})
_DESCRIPTOR_KEYS = frozenset({"mediaType", "digest", "size", "annotations", "artifactType", "data"})


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to content: media type, digest, size in bytes; ``data`` is the inlined content."""

    media_type: str
    digest: str
    size_bytes: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str | None = None
    data: bytes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str | None:
        """The title annotation, usually a file name."""
        return self.annotations.get(TITLE)


@dataclass(frozen=True, slots=True)
class Manifest:
    """An image manifest that carries an artifact: a config, layers, annotations."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    media_type: str | None = MANIFEST_TYPE
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as stored in a registry, whatever it describes."""

    digest: str
    media_type: str
    content: bytes


def describe(
    content: bytes, media_type: str, *, inline: bool = False, title: str | None = None
) -> Descriptor:
    """Build the descriptor of some bytes; with ``inline`` its ``data`` holds them."""
    return Descriptor(
        media_type,
        digest_of(content),
        len(content),
        annotations={TITLE: title} if title is not None else {},
        data=content if inline else None,
    )


EMPTY_CONFIG = describe(EMPTY_JSON, EMPTY_TYPE, inline=True)


def parse_manifest(raw: bytes, *, where: str) -> Manifest:
    """Parse an image manifest; ``where`` names it in errors. Raises MalformedArtifactError."""
    document = parse_object(raw, where=where, what="its manifest")
    layers = document.get("layers", [])
    if not isinstance(layers, list):
        raise MalformedArtifactError(where, "the layers of its manifest are not a list")
    return Manifest(
        config=parse_descriptor(document.get("config"), where=where),
        layers=tuple(parse_descriptor(layer, where=where) for layer in layers),
        artifact_type=_text_or_none(document.get("artifactType")),
        annotations=_texts(document.get("annotations")),
        media_type=_text_or_none(document.get("mediaType")),
        extra=_others(document, _MANIFEST_KEYS),
    )


def render_manifest(manifest: Manifest) -> bytes:
    """Render compact JSON in the key order of the image spec."""
    document: dict[str, Any] = {"schemaVersion": 2}
    if manifest.media_type is not None:
        document["mediaType"] = manifest.media_type
    if manifest.artifact_type is not None:
        document["artifactType"] = manifest.artifact_type
    document["config"] = render_descriptor(manifest.config)
    document["layers"] = [render_descriptor(layer) for layer in manifest.layers]
    if manifest.annotations:
        document["annotations"] = dict(manifest.annotations)
    document.update(manifest.extra)
    return orjson.dumps(document)


def parse_descriptor(value: Any, *, where: str) -> Descriptor:
    """Parse a descriptor; digest and size are required, everything else is optional.

    Raises MalformedArtifactError.
    """
    if not isinstance(value, dict):
        raise MalformedArtifactError(where, "a descriptor is not an object")
    digest, size_bytes = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not is_digest(digest):
        raise MalformedArtifactError(where, "a descriptor has no sha256 digest")
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise MalformedArtifactError(where, "a descriptor has no size")
    return Descriptor(
        _text_or_none(value.get("mediaType")) or OCTETS_TYPE,
        digest,
        size_bytes,
        annotations=_texts(value.get("annotations")),
        artifact_type=_text_or_none(value.get("artifactType")),
        data=_inline(value.get("data")),
        extra=_others(value, _DESCRIPTOR_KEYS),
    )


def render_descriptor(descriptor: Descriptor) -> dict[str, Any]:
    """Render a descriptor as JSON object, the inverse of `parse_descriptor`."""
    value: dict[str, Any] = {
        "mediaType": descriptor.media_type,
        "digest": descriptor.digest,
        "size": descriptor.size_bytes,
    }
    if descriptor.data is not None:
        value["data"] = base64.b64encode(descriptor.data).decode()
    if descriptor.artifact_type is not None:
        value["artifactType"] = descriptor.artifact_type
    if descriptor.annotations:
        value["annotations"] = dict(descriptor.annotations)
    value.update(descriptor.extra)
    return value


def parse_object(raw: bytes, *, where: str, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises MalformedArtifactError naming ``where`` and ``what``."""
    try:
        document = orjson.loads(raw)
    except ValueError as error:
        raise MalformedArtifactError(where, f"{what} is not JSON ({error})") from error
    if not isinstance(document, dict):
        raise MalformedArtifactError(where, f"{what} is not a JSON object")
    return document


def _inline(value: Any) -> bytes | None:
    """Decode inlined content; None when it is invalid, because the blob holds the content too."""
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: Any) -> dict[str, str]:
    if not value or not isinstance(value, dict):
        return {}
    return {key: text for key, text in value.items() if isinstance(text, str)}


def _others(document: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    if document.keys() <= known:
        return {}
    return {key: value for key, value in document.items() if key not in known}
