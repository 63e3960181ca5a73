"""The ``index.json`` of an image layout: tags and revisions of one repository.

A tag is the annotation ``…ref.name`` of an entry. An entry without it is a revision that lost its tag and
remains readable by digest, as in a registry (image spec 1.1, "OCI Image Layout").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.oci.codec.manifest import (
    INDEX_TYPE,
    REF_NAME,
    Descriptor,
    parse_descriptor,
    parse_object,
    render_descriptor,
)

LAYOUT_MARK = orjson.dumps({"imageLayoutVersion": "1.0.0"})
"""Content of the file ``oci-layout``."""

PUBLISHER = "dev.retinue.publisher"
"""Annotation of an entry: the caller whose token published it (``join:NAME``). No manifest contains it."""

SUBJECT = "dev.retinue.subject"
"""Annotation of an entry: the digest that its manifest names as its subject, so that lists are quick."""

REFERRERS_KEPT = 64
"""Referrers of one manifest that stay; older ones are removed."""

REVISIONS_KEPT = 10
"""Number of untagged revisions that stay readable by digest; older ones are removed to bound disk usage."""


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
        """The entry of a tag or digest; the later one of two entries with the same tag."""
        if ":" in target:
            return next((e for e in self.entries if e.digest == target), None)
        return next((e for e in reversed(self.entries) if _tag_of(e) == target), None)

    def with_tag(self, tag: str, manifest: Descriptor) -> Index:
        """The index with ``tag`` set to ``manifest``; its former manifest becomes a revision.

        A former index of referrers is dropped, else a few of them would take the place of cards.
        """
        entries = [e for e in self.entries if not (e.media_type == INDEX_TYPE and _tag_of(e) == tag)]
        kept = [_untagged(entry) if _tag_of(entry) == tag else entry for entry in entries]
        tagged = replace(manifest, annotations={**manifest.annotations, REF_NAME: tag})
        return replace(self, entries=_tidied([*kept, tagged]))

    def with_revision(self, manifest: Descriptor) -> Index:
        """The index with ``manifest`` added by digest; its existing tags are kept."""
        return replace(self, entries=_tidied([*self.entries, _untagged(manifest)]))

    @property
    def publishers(self) -> frozenset[str]:
        """The callers of other machines that published a manifest of this repository."""
        return frozenset(name for e in self.entries if (name := e.annotations.get(PUBLISHER)) is not None)

    def without_publisher(self, publisher: str) -> Index:
        """The index without the manifests that the tokens of this caller published."""
        return replace(
            self, entries=tuple(e for e in self.entries if e.annotations.get(PUBLISHER) != publisher)
        )

    def without(self, target: str) -> Index:
        """The index without a tag, or without a digest and all its tags; unchanged if it has neither.

        A manifest that loses its last tag this way is removed too: its user deleted it.
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
    """Parse an ``index.json``; ``where`` names it in errors. Raises MalformedArtifactError."""
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
    """Render compact JSON, the inverse of `parse_index`."""
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
    """Drop duplicate revisions and revisions that also have a tag, then all but the newest.

    The referrers of a manifest that stays do not count as revisions: the newest of each manifest stay too.
    """
    tagged = {entry.digest for entry in entries if _tag_of(entry) is not None}
    revisions = {entry.digest: entry for entry in entries if entry.digest not in tagged}
    present = {entry.digest for entry in entries}
    plain = [digest for digest, entry in revisions.items() if entry.annotations.get(SUBJECT) not in present]
    newest = set(plain[-REVISIONS_KEPT:])
    subjects = tagged | newest
    referrers: dict[str, list[str]] = {}
    for digest, entry in revisions.items():
        subject = entry.annotations.get(SUBJECT)
        if subject in subjects:
            referrers.setdefault(str(subject), []).append(digest)
    for digests in referrers.values():
        newest.update(digests[-REFERRERS_KEPT:])
    kept: list[Descriptor] = []
    for entry in entries:
        if _tag_of(entry) is not None:
            kept.append(entry)
        elif entry.digest in newest:
            newest.discard(entry.digest)
            kept.append(entry)
    return tuple(kept)
