"""Pure: ``GET /v2/_catalog`` as a hub gives it to whoever asks: with the tags, and what they mean.

One request then tells what changed in a whole registry. Whoever does not name this media type in
``Accept`` gets the plain catalog, and a registry that does not know it answers with that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.protocols.oci.reference import is_digest, is_tag

CATALOG_TYPE = "application/vnd.retinue.catalog.v1+json"

Heads = Mapping[str, str]
"""Digests by tag."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The repositories in lexical order; ``heads`` of those about which the registry said so."""

    repositories: tuple[str, ...]
    heads: Mapping[str, Heads] = field(default_factory=dict)


def parse_heads(document: Any) -> dict[str, Heads]:
    """The tags with their digests by repository; a repository with anything unreadable is left out."""
    told = document.get("heads") if isinstance(document, dict) else None
    if not isinstance(told, dict):
        return {}
    return {name: heads for name, heads in told.items() if _is_heads(heads)}


def render_heads(names: Iterable[str], heads: Mapping[str, Heads]) -> dict[str, Heads]:
    """The part of a page that `parse_heads` reads back, for the repositories on it."""
    return {name: heads[name] for name in names if name in heads}


def _is_heads(heads: Any) -> bool:
    return isinstance(heads, dict) and all(
        is_tag(tag) and isinstance(digest, str) and is_digest(digest) for tag, digest in heads.items()
    )
