"""Pure: the ``index.json`` of one image layout, which says what its repository holds.

Image spec 1.1, "OCI Image Layout". A tag is the annotation ``…ref.name`` of an entry; an entry without
one is a revision that lost its tag and is still readable by digest, as in a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.protocols.oci.manifest import (
    INDEX_TYPE,
    REF_NAME,
    Descriptor,
    parse_descriptor,
    parse_object,
    render_descriptor,
)

LAYOUT_MARK = orjson.dumps({"imageLayoutVersion": "1.0.0"})
"""Content of the file ``oci-layout``."""

REVISIONS_KEPT = 10
"""How many revisions without a tag stay readable by digest; older ones go, so that publishing
again and again does not fill the disk."""


@dataclass(frozen=True, slots=True)
class Index:
    """The manifests of one repository, oldest first."""

    entries: tuple[Descriptor, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> list[str]:
        """All tags, in lexical order."""
        return sorted({tag for entry in self.entries if (tag := _tag_of(entry)) is not None})

    @property
    def digests(self) -> frozenset[str]:
        return frozenset(entry.digest for entry in self.entries)

    def find(self, target: str) -> Descriptor | None:
        """The entry of a tag or digest; of two with one tag the later counts."""
        if ":" in target:
            return next((e for e in self.entries if e.digest == target), None)
        return next((e for e in reversed(self.entries) if _tag_of(e) == target), None)

    def with_tag(self, tag: str, manifest: Descriptor) -> Index:
        """The index in which ``tag`` means ``manifest``; its former manifest stays as a revision."""
        kept = [_untagged(entry) if _tag_of(entry) == tag else entry for entry in self.entries]
        tagged = replace(manifest, annotations={**manifest.annotations, REF_NAME: tag})
        return replace(self, entries=_tidied([*kept, tagged]))

    def with_revision(self, manifest: Descriptor) -> Index:
        """The index that holds ``manifest`` under its digest alone; a tag that it has stays."""
        return replace(self, entries=_tidied([*self.entries, _untagged(manifest)]))

    def without(self, target: str) -> Index:
        """The index less a tag, or less a digest with all its tags; equal to this one if it has neither.

        A manifest that loses its last tag here goes wholly: who deletes does not want it any more.
        """
        if ":" in target:
            return replace(self, entries=tuple(e for e in self.entries if e.digest != target))
        gone = {e.digest for e in self.entries if _tag_of(e) == target}
        kept = [e for e in self.entries if _tag_of(e) != target]
        still_tagged = {e.digest for e in kept if _tag_of(e) is not None}
        return replace(
            self, entries=tuple(e for e in kept if e.digest not in gone or e.digest in still_tagged)
        )


def parse_index(raw: bytes, *, where: str) -> Index:
    """Read an ``index.json``; ``where`` names it in errors. Raises MalformedArtifactError."""
    document = parse_object(raw, where=where, what="the index")
    manifests = document.get("manifests")
    if not isinstance(manifests, list):
        raise MalformedArtifactError(where, "the index has no list of manifests")
    known = {"schemaVersion", "mediaType", "manifests"}
    return Index(
        tuple(parse_descriptor(entry, where=where) for entry in manifests),
        extra={key: value for key, value in document.items() if key not in known},
    )


def render_index(index: Index) -> bytes:
    """Compact JSON that ``parse_index`` reads back."""
    document = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [render_descriptor(entry) for entry in index.entries],
        **index.extra,
    }
    return orjson.dumps(document)


def _tag_of(entry: Descriptor) -> str | None:
    return entry.annotations.get(REF_NAME)


def _untagged(entry: Descriptor) -> Descriptor:
    return replace(entry, annotations={k: v for k, v in entry.annotations.items() if k != REF_NAME})


def _tidied(entries: list[Descriptor]) -> tuple[Descriptor, ...]:
    """Drop revisions that are tagged elsewhere or named twice, then all but the newest few."""
    tagged = {entry.digest for entry in entries if _tag_of(entry) is not None}
    revisions = {entry.digest: entry for entry in entries if entry.digest not in tagged}
    newest = set(list(revisions)[-REVISIONS_KEPT:])
    kept: list[Descriptor] = []
    for entry in entries:
        if _tag_of(entry) is not None:
            kept.append(entry)
        elif entry.digest in newest:
            newest.discard(entry.digest)
            kept.append(entry)
    return tuple(kept)
