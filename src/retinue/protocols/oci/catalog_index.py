"""Pure: ``agents/index:latest``, the catalog as an artifact, for registries that keep none (SPEC 2, doubt 5).

Its content has the form of ``GET /v2/_catalog``: ``{"repositories": ["agents/plan", …]}``, agents and
workflows alike. A list of digests was rejected: each publishing would race for it, while names change
seldom, and what a name means is asked of the registry anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import orjson

from retinue.core.errors import MalformedArtifactError
from retinue.protocols.oci.artifacts import INDEX_ARTIFACT_TYPE, Artifact, NewArtifact, rfc3339
from retinue.protocols.oci.manifest import CREATED, parse_object
from retinue.protocols.oci.reference import Reference, is_repository

INDEX_TAG = "latest"
INDEX = Reference("agents/index", tag=INDEX_TAG)
INDEX_TITLE = "agents_index.json"


def index_artifact(repositories: Iterable[str], *, created: datetime) -> NewArtifact:
    """The index that names these repositories."""
    content = orjson.dumps({"repositories": sorted(set(repositories))})
    facts = {CREATED: rfc3339(created)}
    return NewArtifact(content, "application/json", INDEX_TITLE, INDEX_ARTIFACT_TYPE, facts)


def parse_index_artifact(artifact: Artifact) -> list[str]:
    """The repositories that an index names, in lexical order; what is no name is left out.

    Raises MalformedArtifactError when it is no index.
    """
    if artifact.form != "index":
        raise MalformedArtifactError(str(INDEX), f"it holds {artifact.title or 'something else'}, no index")
    document = parse_object(artifact.content, where=str(INDEX), what="the index")
    names = document.get("repositories")
    if not isinstance(names, list):
        raise MalformedArtifactError(str(INDEX), "the index has no list of repositories")
    return sorted({name for name in names if isinstance(name, str) and is_repository(name)})
