"""The layers of a team: uncompressed tar archives with one possible form for a list of files.

Files are sorted by the bytes of their paths, have the time 0, the owner 0 and the mode 0644; there are no
entries of folders. A reader does not parse archives: it renders the header that a file of the list must have
and compares the bytes, so an archive with anything else in it is refused at its first other byte. It takes
the archive in pieces, and keeps none of them.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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


class FileSink(Protocol):
    """Takes the files of a layer, one after another; `end` says that the content was that of its row."""

    def begin(self, row: FileRow) -> None: ...

    def add(self, piece: bytes) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of an archive: its size, and its bytes; without them it is the content of ``row``."""

    size_bytes: int
    expected: bytes | None
    row: FileRow | None = None


class LayerReader:
    """Checks an archive while it comes, piece by piece, and gives the files of ``rows`` to a sink.

    ``rows`` are those of one layer. Every method raises TeamRefusedError at the first byte that
    `render_layer` would not have written. Nothing of the archive is kept.
    """

    def __init__(self, rows: Iterable[FileRow], sink: FileSink, *, where: str) -> None:
        self._rows = sorted(rows, key=lambda row: row.path.encode())
        self._layer = self._rows[0].layer if self._rows else "?"
        self._sink = sink
        self._where = where
        self._sha256 = hashlib.sha256()
        self._position = 0
        self._segments = self._list_segments()
        self._segment = self._begin_next()

    def feed(self, piece: bytes) -> None:
        """Check the next bytes."""
        rest = memoryview(piece)
        while rest:
            if self._segment is None:
                raise self._refuse(f"its layer {self._layer} has more than the files of its list")
            part = rest[: self._segment.size_bytes - self._position]
            self._check(self._segment, part)
            self._position += len(part)
            rest = rest[len(part) :]
            if self._position == self._segment.size_bytes:
                self._segment = self._begin_next()

    def finish(self) -> None:
        """Check that the archive has ended."""
        if self._segment is not None:
            raise self._refuse(f"its layer {self._layer} ends before the last file of its list")

    def _list_segments(self) -> Iterator[_Segment]:
        size_bytes = 0
        for row in self._rows:
            parts = (
                _Segment(len(header := _header(row.path, row.size_bytes)), header),
                _Segment(row.size_bytes, None, row),
                _Segment(len(padding := _padding(row.size_bytes)), padding),
            )
            yield from parts
            size_bytes += sum(part.size_bytes for part in parts)
        yield _Segment(end_bytes := _end_bytes(size_bytes), bytes(end_bytes))

    def _begin_next(self) -> _Segment | None:
        """End a file that is whole, and begin the next segment that has bytes; None at the end."""
        for segment in self._segments:
            self._position = 0
            if segment.row is not None:
                self._sha256 = hashlib.sha256()
                self._sink.begin(segment.row)
                if not segment.size_bytes:
                    self._end_file(segment.row)
            if segment.size_bytes:
                return segment
        return None

    def _check(self, segment: _Segment, part: memoryview) -> None:
        row = segment.row
        if row is None:
            expected = segment.expected or b""
            if part != expected[self._position : self._position + len(part)]:
                what = "is not the archive of its list"
                if len(expected) > _BLOCK and not any(expected):
                    what = "has more than the files of its list"
                raise self._refuse(f"its layer {self._layer} {what}")
            return
        self._sha256.update(part)
        self._sink.add(bytes(part))
        if self._position + len(part) == row.size_bytes:
            self._end_file(row)

    def _end_file(self, row: FileRow) -> None:
        if self._sha256.hexdigest() != row.sha256:
            raise self._refuse(f"{row.path} is not the file of its list")
        self._sink.end()

    def _refuse(self, problem: str) -> TeamRefusedError:
        return TeamRefusedError("changed", self._where, problem)


def layer_size_bytes(rows: Iterable[FileRow]) -> int:
    """The size of the archive of these files."""
    size_bytes = sum(
        len(_header(row.path, row.size_bytes)) + row.size_bytes + len(_padding(row.size_bytes))
        for row in rows
    )
    return size_bytes + _end_bytes(size_bytes)


class _InMemory:
    """The files of a layer, in memory."""

    def __init__(self) -> None:
        self.files: list[TeamFile] = []
        self._row: FileRow | None = None
        self._pieces: list[bytes] = []

    def begin(self, row: FileRow) -> None:
        self._row, self._pieces = row, []

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def end(self) -> None:
        if self._row is not None:
            self.files.append(TeamFile(self._row.path, self._row.layer, b"".join(self._pieces)))


def read_layer(archive: bytes, rows: Sequence[FileRow], *, where: str) -> list[TeamFile]:
    """The files of an archive in memory, each checked against its row.

    ``rows`` are those of this layer. Raises TeamRefusedError at the first byte that `render_layer` would not
    have written.
    """
    sink = _InMemory()
    reader = LayerReader(rows, sink, where=where)
    reader.feed(archive)
    reader.finish()
    return sink.files


def _header(path: str, size_bytes: int) -> bytes:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size_bytes, _MODE, 0
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size_bytes: int) -> bytes:
    return bytes(-size_bytes % _BLOCK)


def _end_bytes(size_bytes: int) -> int:
    """Two empty blocks, and empty ones up to a whole record."""
    return 2 * _BLOCK + -(size_bytes + 2 * _BLOCK) % _RECORD
