"""Content parts of results as JSON, for endpoints and stores that hold one value (specification 7.17).

A result with parts has a value in any case: the structured value, else its text, else ``{"parts": […]}``.
The parts that the value does not say stand beside it, each as an object: ``kind``, ``mime_type``, ``name``,
``size`` in bytes (null where it is unknown), and ``data`` as base64, ``url``, or both.
"""

from __future__ import annotations

import mimetypes
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import orjson

from retinue.core.call import Part, PartKind

PARTS_FIELD = "parts"
"""The only field of a value that is made of parts."""

PARTS_KEY = "retinue/parts"
"""The member of an ``/execute`` reply beside ``result``."""

_KINDS: Mapping[str, PartKind] = {kind: kind for kind in ("image", "audio", "file", "resource", "data")}
_ENDINGS = {"audio/wav": ".wav", "audio/mp3": ".mp3", "audio/ogg": ".ogg", "image/webp": ".webp"}
"""Endings that the standard library does not know in each version of Python."""

_UNKNOWN_TYPE = "application/octet-stream"
_TEXTS = ("application/json", "application/xml", "application/yaml", "application/javascript")


def value_of_parts(value: Any, parts: Sequence[Part]) -> Any:
    """The value of a result: ``value``, or without one the text of the parts, else the parts as an object."""
    if value is not None or not parts:
        return value
    texts = [str(part.value) for part in parts if part.kind == "text"]
    if texts:
        return "\n".join(texts)
    if all(part.kind == "data" for part in parts):
        return parts[0].value if len(parts) == 1 else [part.value for part in parts]
    return {PARTS_FIELD: render_parts(parts)}


def is_made_of_parts(value: Any, parts: Sequence[Part]) -> bool:
    """Whether the value says nothing besides the parts, as `value_of_parts` makes it."""
    return bool(parts) and (value is None or value == value_of_parts(None, parts))


def list_beside(value: Any, parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The parts that stand beside the value: all but texts, and data that is the value itself."""
    return render_parts(
        part for part in parts if part.kind != "text" and not (part.kind == "data" and part.value == value)
    )


def render_parts(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The parts as JSON objects."""
    return [_render_part(part) for part in parts]


def _render_part(part: Part) -> dict[str, Any]:
    rendered: dict[str, Any] = {"kind": part.kind, "mime_type": part.mime, "name": part.name, "size": None}
    if part.kind in ("image", "audio", "file") and isinstance(part.value, str):
        rendered["data"] = part.value
    elif isinstance(part.value, Mapping) and "uri" in part.value:
        contents = part.value
        rendered["size"] = contents.get("size")
        if isinstance(contents.get("blob"), str):
            rendered["data"] = contents["blob"]
        elif isinstance(contents.get("text"), str):
            rendered["data"] = b64encode(contents["text"].encode("utf-8", "surrogatepass")).decode()
        rendered["url"] = contents["uri"]
    else:
        text = part.value if isinstance(part.value, str) else orjson.dumps(part.value).decode()
        rendered["data"] = b64encode(text.encode("utf-8", "surrogatepass")).decode()
    if "data" in rendered:
        rendered["size"] = count_bytes(rendered["data"])
    if part.annotations:
        rendered["annotations"] = dict(part.annotations)
    return rendered


def count_bytes(data: str) -> int:
    """The number of bytes that base64 text stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def read_parts(value: Any, objects: Any) -> tuple[Part, ...]:
    """The parts of a result from the objects beside its value; objects of another form are left out.

    A text beside them becomes a part as well, so that the order of endpoints with content is kept.
    """
    parts = tuple(part for document in _objects_in(objects) if (part := _read_part(document)) is not None)
    return (Part.text(value), *parts) if parts and isinstance(value, str) else parts


def find_parts(value: Any) -> tuple[Part, ...]:
    """The parts in a value that is made of parts, such as the result of a run; () for any other value."""
    objects = value.get(PARTS_FIELD) if isinstance(value, Mapping) else None
    return read_parts(None, objects) if isinstance(objects, list) else ()


def without_bytes(value: Any) -> Any:
    """The value of a result with sizes in place of the bytes of its parts, to be shown."""
    if not find_parts(value):
        return value
    rows = [
        {key: document[key] for key in document if key != "data"}
        if isinstance(document, Mapping)
        else document
        for document in value[PARTS_FIELD]
    ]
    return {**value, PARTS_FIELD: rows}


def _objects_in(objects: Any) -> list[Mapping[str, Any]]:
    return (
        [document for document in objects if isinstance(document, Mapping)]
        if isinstance(objects, list)
        else []
    )


def _read_part(one: Mapping[str, Any]) -> Part | None:
    kind = _KINDS.get(str(one.get("kind")))
    data, url, mime, name = (one.get(key) for key in ("data", "url", "mime_type", "name"))
    if kind is None or not (isinstance(data, str) or isinstance(url, str)):
        return None
    mime = mime if isinstance(mime, str) and mime else _UNKNOWN_TYPE
    name = name if isinstance(name, str) and name else None
    annotations = one.get("annotations")
    kept = annotations if isinstance(annotations, Mapping) else {}
    if kind == "data":
        content = decode(data) if isinstance(data, str) else None
        try:
            return None if content is None else Part("data", orjson.loads(content), mime, name, kept)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(url, str):
        return Part("file" if kind == "resource" else kind, data, mime, name, kept)
    contents: dict[str, Any] = {"uri": url}
    if isinstance(data, str):
        contents |= _read_contents(data, mime)
    elif type(one.get("size")) is int:
        contents["size"] = one["size"]
    return Part("resource", contents, mime, name, kept)


def _read_contents(data: str, mime: str) -> dict[str, str]:
    """The contents of a resource: text where its media type is one of texts, else bytes."""
    content = decode(data) if is_text_type(mime) else None
    try:
        return {"blob": data} if content is None else {"text": content.decode()}
    except UnicodeDecodeError:
        return {"blob": data}


def is_text_type(mime: str) -> bool:
    """Whether the content of a media type is read as text."""
    kind = mime.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXTS or kind.endswith(("+json", "+xml"))


def decode(data: str) -> bytes | None:
    """The bytes of base64 text; None for text that is none."""
    try:
        return b64decode(data, validate=True)
    except (Base64Error, ValueError):
        return None


def content_of(part: Part) -> bytes | None:
    """The bytes of a part; None for a link, and for a part whose base64 text is damaged."""
    data = _render_part(part).get("data")
    return decode(data) if isinstance(data, str) else None


def url_of(part: Part) -> str | None:
    """The URL of a part: of a link, or where its content comes from; None without one."""
    url = part.value.get("uri") if isinstance(part.value, Mapping) else None
    return url if isinstance(url, str) and url else None


def file_name_of(part: Part, number: int) -> str:
    """A plain file name for the ``number``-th part, without any folder and with an ending for its type."""
    url = url_of(part)
    path = part.name or ("" if url is None else urlsplit(url).path)
    name = "".join(c for c in path.replace("\\", "/").rpartition("/")[2] if c.isprintable()).strip(" .")
    name = name[-100:] or f"{part.kind}-{number}"
    if "." not in name:
        mime = part.mime.partition(";")[0].strip().lower()
        name += _ENDINGS.get(mime) or mimetypes.guess_extension(mime) or ".bin"
    return name
