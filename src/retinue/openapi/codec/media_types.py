"""Pure: media types of bodies and responses, and arguments for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

BodyKind = Literal["json", "form", "multipart", "bytes", "text"]

_TEXT_ENDINGS = (
    "/json",
    "+json",
    "/xml",
    "+xml",
    "/yaml",
    "/javascript",
    "/x-www-form-urlencoded",
    "/graphql",
)

FILE: Mapping[str, Any] = {
    "description": "A file: base64 text, or an object with its content and its name.",
    "anyOf": [
        {"type": "string", "contentEncoding": "base64"},
        {
            "type": "object",
            "properties": {
                "blob": {"type": "string", "contentEncoding": "base64"},
                "text": {"type": "string"},
                "name": {"type": "string"},
                "mimeType": {"type": "string"},
            },
            "anyOf": [{"required": ["blob"]}, {"required": ["text"]}],
        },
    ],
}
"""The schema of an argument where the API takes a file."""

PREFERENCE: tuple[BodyKind, ...] = ("json", "form", "multipart", "bytes", "text")


def kind_of(media_type: str) -> BodyKind | None:
    """How a body of a media type is sent; None for text that is no media type."""
    essence = media_type.partition(";")[0].strip().lower()
    if not essence.isascii() or not essence.isprintable() or "/" not in essence:
        return None
    if essence in ("application/json", "*/*", "application/*") or essence.endswith("+json"):
        return "json"
    if essence == "application/x-www-form-urlencoded":
        return "form"
    if essence.startswith("multipart/"):
        return "multipart"
    return "text" if is_text_type(essence) else "bytes"


def is_json_type(media_type: str) -> bool:
    """Whether a media type is JSON."""
    essence = media_type.partition(";")[0].strip().lower()
    return essence in ("application/json", "text/json") or essence.endswith("+json")


def is_file(schema: Mapping[str, Any]) -> bool:
    """Whether text is the content of a file: ``format: binary``, or raw content of a binary type (3.1)."""
    kind = schema.get("type")
    if kind is not None and kind != "string" and not (isinstance(kind, list) and "string" in kind):
        return False
    media = schema.get("contentMediaType")
    raw = isinstance(media, str) and "contentEncoding" not in schema and not is_text_type(media)
    return raw or (kind is not None and schema.get("format") == "binary")


def is_text_type(media_type: str) -> bool:
    """Whether content of a media type is text."""
    essence = media_type.partition(";")[0].strip().lower()
    return essence.startswith("text/") or essence.endswith(_TEXT_ENDINGS)
