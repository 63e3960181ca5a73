"""The content parts of a result as values that a program saves: images, sounds, files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retinue.core.call import Outcome, Part
from retinue.core.errors import ExecutionFailedError
from retinue.core.parts import content_of, file_name_of, find_parts, is_made_of_parts, url_of

_ATTEMPTS = 1_000


class ReceivedPart(Part):
    """A part of a result. ``kind`` is text, data, image, audio, file or resource, ``mime`` its media type."""

    __slots__ = ()

    @classmethod
    def of(cls, part: Part) -> ReceivedPart:
        """The same part, with the methods of this class."""
        return cls(part.kind, part.value, part.mime, part.name, part.annotations)

    @property
    def content(self) -> bytes:
        """The bytes. Raises ExecutionFailedError for a link, whose content is elsewhere."""
        content = content_of(self)
        if content is None:
            place = url_of(self)
            raise ExecutionFailedError(
                f"the {self.kind} {self.mime} has no content here" + (f": it is at {place}" if place else ""),
                remedy="read it at its URL" if place else "ask the author of the agent",
            )
        return content

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bytes to a file, or into a folder under the name of the part; returns the file's path.

        A file of the folder is never replaced. Raises OSError, and ExecutionFailedError for a link.
        """
        place, content = Path(path), self.content
        if place.is_dir() or str(path).endswith(("/", os.sep)):
            place.mkdir(parents=True, exist_ok=True)
            return write_new(place, file_name_of(self, 1), content)
        place.write_bytes(content)
        return place


def write_new(folder: Path, name: str, content: bytes) -> Path:
    """Write a file that does not exist yet, under the name or the name with a number. Raises OSError."""
    plain = Path(name)
    for number in range(1, _ATTEMPTS):
        path = folder / (name if number == 1 else f"{plain.stem}-{number}{plain.suffix}")
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{folder} has {_ATTEMPTS - 1} files of the name {name}")


def receive(outcome: Outcome) -> Outcome:
    """The outcome with parts that can be saved."""
    return replace(outcome, parts=tuple(map(ReceivedPart.of, outcome.parts))) if outcome.parts else outcome


def value_with_parts(value: Any, parts: Sequence[Part]) -> Any:
    """The value of a result; a result of parts alone is its part, or a tuple of its parts."""
    parts = parts or find_parts(value)
    if not parts or isinstance(value, str) or not is_made_of_parts(value, parts):
        return value
    files = tuple(ReceivedPart.of(part) for part in parts if part.kind not in ("text", "data"))
    if not files:
        return value
    return files[0] if len(files) == 1 else files
