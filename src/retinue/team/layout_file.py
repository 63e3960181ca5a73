"""An OCI image layout as one tar file: a team with its signatures, to carry without a registry."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import BinaryIO

import orjson

from retinue.core.errors import ReferenceNotFoundError, TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.layout_index import LAYOUT_MARK
from retinue.oci.codec.manifest import (
    INDEX_TYPE,
    REF_NAME,
    Descriptor,
    StoredManifest,
    parse_descriptor,
    render_descriptor,
)
from retinue.oci.codec.reference import digest_of
from retinue.team.files import MAX_TEAM_BYTES

MAX_LAYOUT_BYTES = MAX_TEAM_BYTES + 64 * 1024 * 1024
MAX_MEMBERS = 1_000
"""A team and its signatures have fewer than twenty blobs."""
PIECE_BYTES = 256 * 1024
_BLOBS = "blobs/sha256/"


def render_layout(packages: Mapping[str, Package]) -> bytes:
    """The tar file of packages by tag; equal packages give equal bytes."""
    blobs: dict[str, bytes] = {}
    rows = []
    for tag, package in packages.items():
        blobs |= {**package.blobs, package.digest: package.manifest_bytes}
        media_type = package.manifest.media_type or ""
        entry = Descriptor(media_type, package.digest, len(package.manifest_bytes))
        entry = replace(entry, annotations={REF_NAME: tag}, artifact_type=package.manifest.artifact_type)
        rows.append(render_descriptor(entry))
    index = orjson.dumps({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": rows})
    members = {"index.json": index, "oci-layout": LAYOUT_MARK}
    members |= {_BLOBS + digest.removeprefix("sha256:"): content for digest, content in blobs.items()}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(members.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


class LayoutFile:
    """The manifests and blobs of a tar file; every blob is checked against its digest when it is read.

    ``open_file`` opens the file anew. The file is never in memory as a whole.
    """

    def __init__(self, open_file: Callable[[], BinaryIO], name: str) -> None:
        self.name = name
        self._open = open_file
        with open_file() as file:
            self._members = _find_members(file, name)
        try:
            rows = orjson.loads(self._read("index.json"))["manifests"]
            self._entries = [parse_descriptor(row, where=name) for row in rows]
        except (KeyError, ValueError, TypeError) as error:
            raise TeamRefusedError("not_a_team", name, "it is no OCI layout in a tar file") from error

    def list_tags(self) -> list[str]:
        """The tags in their order in the file."""
        return [entry.annotations[REF_NAME] for entry in self._entries if REF_NAME in entry.annotations]

    def find_digest(self, target: str) -> str | None:
        """The digest of a tag or digest; None where the file does not have it."""
        for entry in self._entries:
            if target in (entry.digest, entry.annotations.get(REF_NAME)):
                return entry.digest
        return None

    def pull_manifest(self, target: str) -> StoredManifest:
        """The manifest of a tag or digest. Raises ReferenceNotFoundError."""
        digest = self.find_digest(target)
        entry = next((entry for entry in self._entries if entry.digest == digest), None)
        if digest is None or entry is None:
            raise ReferenceNotFoundError(self.name, target)
        return StoredManifest(digest, entry.media_type, self.read_blob(digest))

    def read_blob(self, digest: str) -> bytes:
        """Checked content. Raises ReferenceNotFoundError, TeamRefusedError."""
        content = b"".join(self.read_pieces(digest))
        if digest_of(content) != digest:
            raise TeamRefusedError("changed", self.name, f"its blob {digest[:19]} has other content")
        return content

    def read_pieces(self, digest: str) -> Iterator[bytes]:
        """Content in pieces, which the caller checks. Raises ReferenceNotFoundError."""
        name = _BLOBS + digest.removeprefix("sha256:")
        if name not in self._members:
            raise ReferenceNotFoundError(self.name, digest)
        return self._read_pieces(name)

    def _read(self, name: str) -> bytes:
        return b"".join(self._read_pieces(name))

    def _read_pieces(self, name: str) -> Iterator[bytes]:
        member = self._members[name]
        left_bytes = member.size_bytes
        with self._open() as file:
            file.seek(member.position)
            while left_bytes and (piece := file.read(min(left_bytes, PIECE_BYTES))):
                left_bytes -= len(piece)
                yield piece


@dataclass(frozen=True, slots=True)
class _Member:
    """Where the content of a member is in the file."""

    position: int
    size_bytes: int


def _find_members(file: BinaryIO, name: str) -> dict[str, _Member]:
    """The plain files of a tar file by name, of the first of each name; only headers are read."""
    file_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file_bytes > MAX_LAYOUT_BYTES:
        raise TeamRefusedError("too_large", name, f"it is over {MAX_LAYOUT_BYTES:,} bytes")
    members: dict[str, _Member] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for number, member in enumerate(archive):
                if number == MAX_MEMBERS:
                    raise TeamRefusedError("too_large", name, f"it has over {MAX_MEMBERS:,} members")
                # a sparse member declares a size that the file does not have, and reading allocates it
                if member.issparse() or member.size > file_bytes:
                    raise TeamRefusedError("too_large", name, "a member declares more than the file holds")
                if member.isreg():
                    members.setdefault(member.name, _Member(member.offset_data, member.size))
    except (tarfile.TarError, ValueError, OverflowError, EOFError, OSError) as error:
        raise TeamRefusedError("not_a_team", name, "it is no tar file") from error
    return members
