"""Links to artifacts: files that are stored by digest and passed between agents, steps and people.

A link is the JSON object ``{"artifact": "sha256:…", "size": …, "media_type": …, "name": …}``. As text it is
``artifact:sha256:…``; the digest alone and the URL of an artifact at a hub are read too (specification 10.8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from retinue.core.errors import InvalidRequestError

FORMAT: Final = "retinue-artifact"
"""The ``format`` of the JSON Schema of a link."""

LINK_FIELD: Final = "artifact"
TEXT_PREFIX: Final = "artifact:"
PATH: Final = "/artifacts"
"""The path of artifacts at a hub."""

UNKNOWN_TYPE: Final = "application/octet-stream"
MAX_NAME_CHARACTERS: Final = 100

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TEXT = re.compile(r"(?:artifact:|https?://[^\s]{1,500}/artifacts/)?(sha256:[0-9a-f]{64})")
_IN_JSON = re.compile(rb'artifact(?:":"|:|s/)(sha256:[0-9a-f]{64})')
_PART = r"[A-Za-z0-9!#$&^_.+-]{1,127}"
_MEDIA_TYPE = re.compile(rf"{_PART}/{_PART}(; ?charset=[A-Za-z0-9_-]{{1,40}})?")

LINK_SCHEMA: Final[Mapping[str, Any]] = {
    "description": "A file: the link that a skill returned, or its text artifact:sha256:…",
    "format": FORMAT,
    "anyOf": [
        {
            "type": "object",
            "properties": {
                LINK_FIELD: {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"},
                "size": {"type": ["integer", "null"], "minimum": 0},
                "media_type": {"type": "string"},
                "name": {"type": ["string", "null"]},
            },
            "required": [LINK_FIELD],
        },
        {"type": "string", "pattern": "sha256:[0-9a-f]{64}$"},
    ],
}
"""The JSON Schema of a parameter or result that is a link."""


def is_digest(text: str) -> bool:
    """Whether a text is a digest: ``sha256:`` and 64 lower-case hex digits."""
    return _DIGEST.fullmatch(text) is not None


def check_digest(text: str) -> str:
    """The text; raises InvalidRequestError unless it is a digest."""
    if not is_digest(text):
        raise InvalidRequestError(f"{text[:80]!r} is no digest", remedy="write sha256: and 64 hex digits")
    return text


def parse_digest(text: str) -> str:
    """The digest that a link names as text; raises InvalidRequestError for any other text."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(
            f"{text[:80]!r} is no link to an artifact",
            remedy="write artifact:sha256:… with 64 hex digits, as saving it returned",
        )
    return match[1]


def read_link(value: Any) -> tuple[str, int | None, str | None, str | None]:
    """Digest, size in bytes, media type and name of a link in any of its forms; None where it does not say.

    Raises InvalidRequestError.
    """
    if isinstance(value, str):
        return parse_digest(value), None, None, None
    if not isinstance(value, Mapping) or not isinstance(value.get(LINK_FIELD), str):
        raise InvalidRequestError(
            "this is no link to an artifact", remedy="give the object or the text that saving it returned"
        )
    size, media_type, name = (value.get(key) for key in ("size", "media_type", "name"))
    return (
        parse_digest(value[LINK_FIELD]),
        size if type(size) is int and size >= 0 else None,
        media_type if isinstance(media_type, str) and is_media_type(media_type) else None,
        clean_name(name) if isinstance(name, str) else None,
    )


def render_link(digest: str, size_bytes: int | None, media_type: str, name: str | None) -> dict[str, Any]:
    """The link as a JSON object."""
    return {LINK_FIELD: digest, "size": size_bytes, "media_type": media_type, "name": name}


def is_media_type(text: str) -> bool:
    """Whether a text is a media type, which may name a character set."""
    return _MEDIA_TYPE.fullmatch(text) is not None


def check_media_type(text: str) -> str:
    """The media type; raises InvalidRequestError for a text that is none."""
    if not is_media_type(text):
        raise InvalidRequestError(
            f"{text[:80]!r} is no media type", remedy="write one such as image/png or application/pdf"
        )
    return text


def clean_name(name: str) -> str | None:
    """A plain file name, without folders, control characters and marks of direction; None if none is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(character for character in last if character.isprintable()).strip(" .")
    return plain[-MAX_NAME_CHARACTERS:].strip(" .") or None


def find_digests(encoded: bytes) -> frozenset[str]:
    """The digests of all links in a JSON text, as objects and as texts."""
    if b"sha256:" not in encoded:
        return frozenset()
    return frozenset(match.decode() for match in _IN_JSON.findall(encoded))


def find_links(value: Any) -> Iterator[Mapping[str, Any]]:
    """The links in a JSON value that are objects, each once, in their order."""
    if not find_digests(orjson.dumps(value)):
        return
    seen: set[str] = set()
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, Mapping):
            digest = item.get(LINK_FIELD)
            if isinstance(digest, str) and is_digest(digest) and digest not in seen:
                seen.add(digest)
                yield item
            pending.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            pending.extend(reversed(item))
