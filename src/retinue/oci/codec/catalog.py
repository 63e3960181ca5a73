"""Registry catalogs: the hub's extended ``GET /v2/_catalog``, and the index artifact.

The extended catalog lists the repositories with the digests of their tags, so one request shows what changed
in a whole registry. Clients request it by naming its media type in ``Accept``; registries without it return
the plain catalog.

The index artifact ``agents/index:latest`` is the catalog of registries that have none. Its content has the
form of ``GET /v2/_catalog``: ``{"repositories": ["agents/plan", …]}``, agents and workflows alike. It holds
no digests, because every publication would have to update it (specification 2, doubt 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.oci.codec.artifacts import INDEX_ARTIFACT_TYPE, Artifact, NewArtifact, rfc3339
from retinue.oci.codec.manifest import CREATED, parse_object
from retinue.oci.codec.reference import Reference, is_digest, is_repository, is_tag

CATALOG_TYPE = "application/vnd.retinue.catalog.v1+json"
INDEX_TAG = "latest"
INDEX = Reference("agents/index", tag=INDEX_TAG)
INDEX_TITLE = "agents_index.json"

Heads = Mapping[str, str]
"""Digests by tag."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Repositories in lexical order; ``heads`` by repository, where the registry reports them."""

    repositories: tuple[str, ...]
    heads: Mapping[str, Heads] = field(default_factory=dict)


def parse_heads(document: Any) -> dict[str, Heads]:
    """Parse the heads by repository; repositories with invalid entries are skipped."""
    stated = document.get("heads") if isinstance(document, dict) else None
    if not isinstance(stated, dict):
        return {}
    return {name: heads for name, heads in stated.items() if _is_heads(heads)}


def render_heads(names: Iterable[str], heads: Mapping[str, Heads]) -> dict[str, Heads]:
    """Render the heads of the repositories on a page, the inverse of `parse_heads`."""
    return {name: heads[name] for name in names if name in heads}


def index_artifact(repositories: Iterable[str], *, created: datetime) -> NewArtifact:
    """Build the index artifact for these repositories."""
    content = orjson.dumps({"repositories": sorted(set(repositories))})
    facts = {CREATED: rfc3339(created)}
    return NewArtifact(content, "application/json", INDEX_TITLE, INDEX_ARTIFACT_TYPE, facts)


def parse_index_artifact(artifact: Artifact) -> list[str]:
    """Parse the repositories of an index artifact, in lexical order; invalid names are skipped.

    Raises MalformedArtifactError when it is not an index.
    """
    if artifact.form != "index":
        raise MalformedArtifactError(
            str(INDEX), f"it contains {artifact.title or 'another artifact'} instead of an index"
        )
    document = parse_object(artifact.content, where=str(INDEX), what="the index")
    names = document.get("repositories")
    if not isinstance(names, list):
        raise MalformedArtifactError(str(INDEX), "the index has no list of repositories")
    return sorted({name for name in names if isinstance(name, str) and is_repository(name)})


def _is_heads(heads: Any) -> bool:
    return isinstance(heads, dict) and all(
        is_tag(tag) and isinstance(digest, str) and is_digest(digest) for tag, digest in heads.items()
    )
