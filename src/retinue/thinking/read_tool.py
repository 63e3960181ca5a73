"""The tool ``read_result``: the model reads parts of a large result by its link.

It reads an artifact only if its link came up before: in the prompt, or in the result of a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.artifact_links import TEXT_PREFIX, find_digests
from retinue.core.foreign_text import strip_hidden
from retinue.core.text import fence
from retinue.thinking.completion import Tool, ToolCall, ToolResult
from retinue.thinking.results import answer

READ_RESULT = "read_result"
"""The tool with which the model reads parts of large results."""

DEFAULT_LENGTH = 8_000
"""The bytes that one call reads, unless it says otherwise."""

_LEAST_LENGTH = 16

_SHORT_DIGEST = re.compile(r"(?:artifact:)?(?:sha256:)?([0-9a-f]{8,64})")
_LINES = re.compile(r"\s*(\d{1,12})\s*(?:-\s*(\d{1,12})\s*)?")

READ_TOOL = Tool(
    READ_RESULT,
    "Reads a part of a large result, or of another text file, by its link. Give lines, or offset and length.",
    {
        "type": "object",
        "properties": {
            "link": {"type": "string", "description": "The link, as in artifact:sha256:…"},
            "offset": {"type": "integer", "minimum": 0, "description": "The first byte; 0 without it"},
            "length": {
                "type": "integer",
                "minimum": 1,
                "description": f"How many bytes; {DEFAULT_LENGTH:,} without it",
            },
            "lines": {"type": "string", "description": "The lines in place of bytes, as in 120-180"},
        },
        "required": ["link"],
        "additionalProperties": False,
    },
)


@dataclass(slots=True)
class KnownLinks:
    """The digests of the artifacts whose links the model has read, in the order in which they came."""

    _digests: dict[str, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._digests)

    def note(self, text: str) -> None:
        """Add the links in a text that the model reads."""
        for digest in sorted(find_digests(text.encode("utf-8", "replace"))):
            self._digests.setdefault(digest)

    def find(self, link: str) -> str | None:
        """The digest of a link, which may be shortened to the first digits; None for an unknown one."""
        match = _SHORT_DIGEST.fullmatch(link.strip())
        digits = "" if match is None else match[1]
        fitting = [digest for digest in self._digests if digest.partition(":")[2].startswith(digits)]
        return fitting[0] if digits and len(fitting) == 1 else None

    def list_latest(self, most: int = 5) -> list[str]:
        """The latest links, as texts."""
        return [f"{TEXT_PREFIX}{digest}" for digest in list(self._digests)[-most:]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A part of an artifact: bytes from ``offset`` on, or the lines ``first`` to ``last``, from 1."""

    digest: str
    offset: int = 0
    length: int = DEFAULT_LENGTH
    first: int | None = None
    last: int = 0


def parse_reading(arguments: Mapping[str, Any], links: KnownLinks, most_bytes: int) -> Reading | str:
    """What a call of the tool reads, at most ``most_bytes``; else the problem, for the model."""
    link = str(arguments["link"])
    digest = links.find(link)
    if digest is None:
        known = f" Known are {', '.join(links.list_latest())}." if links else ""
        return f"{link[:100]!r} is the link of no result here.{known}"
    length = max(_LEAST_LENGTH, min(int(arguments.get("length", DEFAULT_LENGTH)), most_bytes))
    lines = arguments.get("lines")
    if lines is None:
        return Reading(digest, int(arguments.get("offset", 0)), length)
    match = _LINES.fullmatch(lines)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 0 < first <= last:
        return f"{lines[:50]!r} are no lines: write them as in 120-180, from 1."
    return Reading(digest, 0, most_bytes, first, last)


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part that was read, as the run records it; ``place`` says where it is, ``text`` is the part."""

    place: str
    text: str


def render_part(call: ToolCall, part: ReadPart) -> ToolResult:
    """The result of the tool: the part as data, and where it is."""
    return answer(call, f"({part.place})\n{fence('a part of a result', strip_hidden(part.text))}")


def cut_piece(piece: bytes, start: int, size: int) -> tuple[str, int, int]:
    """The text of a piece of a UTF-8 text, with the offsets of its first byte and of what follows it.

    Bytes of a character that the piece does not have whole are left out at both ends. Raises
    UnicodeDecodeError for bytes that are no text.
    """
    skipped = 0
    while start and skipped < min(3, len(piece)) and piece[skipped] & 0xC0 == 0x80:
        skipped += 1
    piece = piece[skipped:]
    end = start + skipped + len(piece)
    try:
        return piece.decode(), start + skipped, end
    except UnicodeDecodeError as error:
        if end >= size or error.reason != "unexpected end of data" or error.start < len(piece) - 3:
            raise
        return piece[: error.start].decode(), start + skipped, start + skipped + error.start
