"""The manifest that keeps a saved file in a registry, whose garbage collection removes blobs without one.

The files of a state are in the repositories ``retinue-artifacts/00`` to ``…/ff``, named by the beginning of
their digest, so that no index grows with all of them. The tag is the rest of the digest (specification 10.8).
"""

from __future__ import annotations

from typing import Final

from retinue.oci.codec.manifest import EMPTY_CONFIG, TITLE, Descriptor, Manifest

SAVED_FILES: Final = "retinue-artifacts"
"""The repositories below this name hold saved files; they are in no catalog."""

SAVED_FILE_TYPE: Final = "application/vnd.retinue.artifact"

STATE: Final = "dev.retinue.state"
"""Annotation of a manifest in a shared registry: the state whose file it keeps."""

_SHARD_CHARACTERS = 2
_PREFIX = "sha256:"


def is_saved_files(repository: str) -> bool:
    """Whether a repository holds saved files."""
    return repository == SAVED_FILES or repository.startswith(f"{SAVED_FILES}/")


def shard_of(digest: str) -> str:
    """The repository of a file."""
    return f"{SAVED_FILES}/{digest.removeprefix(_PREFIX)[:_SHARD_CHARACTERS]}"


def tag_of(digest: str) -> str:
    """The tag of a file in its repository."""
    return digest.removeprefix(_PREFIX)


def manifest_of(
    digest: str, size_bytes: int, media_type: str, name: str | None, *, state: str = ""
) -> Manifest:
    """The manifest of one file; that of another ``state`` has another digest."""
    titled = {} if name is None else {TITLE: name}
    layer = Descriptor(media_type, digest, size_bytes, annotations=titled)
    annotations = {STATE: state} if state else {}
    return Manifest(EMPTY_CONFIG, (layer,), artifact_type=SAVED_FILE_TYPE, annotations=annotations)
