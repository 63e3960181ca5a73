"""Writes artifacts to files: whole and verified, or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from retinue.mesh.artifacts import Artifact
from retinue.storage.files import storage_errors

_ATTEMPTS = 1_000


async def export_artifact(artifact: Artifact, path: str | PathLike[str]) -> Path:
    """Write an artifact to a file, or into a folder under its name; returns the file's path.

    The file appears when all of it was written and its digest is right. A file in a folder is never replaced.
    Raises UnknownArtifactError, DigestMismatchError, StorageFullError and StateError.
    """
    place = Path(path)
    is_folder = os.fspath(path).endswith(("/", os.sep)) or await asyncio.to_thread(place.is_dir)
    folder = place if is_folder else place.parent
    temporary = folder / f".artifact.{secrets.token_hex(8)}.tmp"
    with storage_errors(place):
        file = await asyncio.to_thread(_create, temporary, is_folder)
    try:
        await _write(artifact, file, place)
        with storage_errors(place):
            if not is_folder:
                temporary.replace(place)
                return place
            name = artifact.name or (await artifact.details()).name or artifact.digest[7:19]
            return _link_new(temporary, folder, name)
    finally:
        file.close()
        temporary.unlink(missing_ok=True)


def _create(temporary: Path, is_folder: bool) -> BinaryIO:
    if is_folder:
        temporary.parent.mkdir(parents=True, exist_ok=True)
    return temporary.open("xb")


async def _write(artifact: Artifact, file: BinaryIO, place: Path) -> None:
    async with artifact.open() as pieces:
        async for piece in pieces:
            with storage_errors(place):
                await asyncio.to_thread(file.write, piece)
    with storage_errors(place):
        await asyncio.to_thread(file.close)


def _link_new(temporary: Path, folder: Path, name: str) -> Path:
    """Give the file the name, or the name with a number; raises FileExistsError for too many."""
    plain = Path(name)
    for number in range(1, _ATTEMPTS):
        path = folder / (name if number == 1 else f"{plain.stem}-{number}{plain.suffix}")
        try:
            os.link(temporary, path)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder} has {_ATTEMPTS - 1} files of the name {name}")
