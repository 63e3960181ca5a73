"""The layers of a team: uncompressed tar archives with one possible form for a list of files.

Files are sorted by the bytes of their paths, have the time 0, the owner 0 and the mode 0644; there are no
entries of folders. A reader does not parse archives: it renders the header that a file of the list must have
and compares the bytes, so an archive with anything else in it is refused at its first other byte.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator, Sequence

from retinue.core.errors import TeamRefusedError
from retinue.team.files import FileRow, TeamFile

_BLOCK = 512
_RECORD = 20 * _BLOCK
_MODE = 0o644


def render_layer(files: Iterable[TeamFile]) -> bytes:
    """The archive of some files; equal files give equal bytes on every Python and machine."""
    pieces: list[bytes] = []
    for file in sorted(files, key=lambda file: file.path.encode()):
        pieces += (_header(file.path, len(file.content)), file.content, _padding(len(file.content)))
    size_bytes = sum(map(len, pieces))
    pieces.append(bytes(_end_bytes(size_bytes)))
    return b"".join(pieces)


def read_layer(archive: bytes, rows: Sequence[FileRow], *, where: str) -> Iterator[TeamFile]:
    """The files of an archive, one after another, each checked against its row before it is given.

    ``rows`` are those of this layer. Raises TeamRefusedError at the first byte that `render_layer` would not
    have written; files given before that were correct.
    """
    position = 0
    for row in sorted(rows, key=lambda row: row.path.encode()):
        header = _header(row.path, row.size_bytes)
        content_at = position + len(header)
        end = content_at + row.size_bytes
        padding = _padding(row.size_bytes)
        content = archive[content_at:end]
        if archive[position:content_at] != header or archive[end : end + len(padding)] != padding:
            raise TeamRefusedError("changed", where, f"its layer {row.layer} is not the archive of its list")
        if len(content) != row.size_bytes or hashlib.sha256(content).hexdigest() != row.sha256:
            raise TeamRefusedError("changed", where, f"{row.path} is not the file of its list")
        yield TeamFile(row.path, row.layer, content)
        position = end + len(padding)
    if archive[position:] != bytes(_end_bytes(position)):
        layer = rows[0].layer if rows else "?"
        raise TeamRefusedError("changed", where, f"its layer {layer} has more than the files of its list")


def _header(path: str, size_bytes: int) -> bytes:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size_bytes, _MODE, 0
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % _BLOCK)


def _end_bytes(size_bytes: int) -> int:
    """Two empty blocks, and empty ones up to a whole record."""
    return 2 * _BLOCK + -(size_bytes + 2 * _BLOCK) % _RECORD
