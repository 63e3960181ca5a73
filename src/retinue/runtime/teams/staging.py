"""The folder in which the files of a digest are written before they appear in the state, all at once.

Its name begins with `INCOMING`. A folder that a killed command has left is removed by the next one.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from retinue.storage.files import storage_errors, sync_folder, write_all, write_file
from retinue.team.files import FileRow

INCOMING = ".incoming-"
FILES = "files"
"""The folder of the files of a digest, beside its config."""

_MODE = 0o400


class Staging:
    """Takes the files of one digest: `retinue.team.layers.FileSink` for those of its layers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = folder.parent / f"{INCOMING}{secrets.token_hex(6)}"
        self._open: int | None = None
        self._layer: list[Path] = []

    def begin_layer(self) -> None:
        """The next files are those of a layer."""
        self._layer = []

    def drop_layer(self) -> None:
        """Remove the files of the present layer, which comes again from its first byte."""
        self._close()
        with storage_errors(self._folder):
            for path in self._layer:
                path.unlink(missing_ok=True)
        self._layer = []

    def begin(self, row: FileRow) -> None:
        """Create the file of a row, which is then given piece by piece."""
        with storage_errors(self._folder):
            path = self._make_place(f"{FILES}/{row.path}")
            self._layer.append(path)
            self._open = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)

    def add(self, piece: bytes) -> None:
        """Write the next piece of the present file."""
        if self._open is not None:
            with storage_errors(self._folder):
                write_all(self._open, piece)

    def end(self) -> None:
        """Make the present file durable."""
        if self._open is not None:
            with storage_errors(self._folder):
                os.fsync(self._open)
        self._close()

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, beside the folder of those of the layers or in it."""
        with storage_errors(self._folder):
            write_file(self._make_place(path), content, mode=_MODE)

    def open_file(self, path: str) -> BufferedReader:
        """A file of a layer, to read it."""
        return (self._place / FILES / path).open("rb")

    def publish(self) -> None:
        """Let the files appear under the name of the digest, all of them at once."""
        with storage_errors(self._folder):
            # a power failure after the rename leaves no empty file under the digest
            for place in {self._place, *(path for path in self._place.rglob("*") if path.is_dir())}:
                sync_folder(place)
            self._place.rename(self._folder)
            sync_folder(self._folder.parent)

    def remove(self) -> None:
        """Remove what has not appeared; a failure leaves it to the next command."""
        self._close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _make_place(self, path: str) -> Path:
        place = self._place / path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open)
            self._open = None


@contextmanager
def staging(folder: Path) -> Iterator[Staging]:
    """The staging of the folder of a digest; nothing is left of one that is not published."""
    place = Staging(folder)
    try:
        yield place
    finally:
        place.remove()
