"""Pure: reads the response of an API as an answer, or as an error with the API's own message.

JSON becomes the value, text a string; other content is base64 text with its type, and a content part for
endpoints that have them. Nothing is followed: a redirect that the document describes is an answer with its
location, and the next page that a ``Link`` header names is a warning with its url.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import orjson

from retinue.core.call import Answer, Part
from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    Problem,
    RemoteFaultError,
    RetinueError,
    join_problems,
)
from retinue.core.json_values import is_nested_deeper
from retinue.core.text import hide_tokens
from retinue.openapi.codec.media_types import is_json_type, is_text_type
from retinue.openapi.codec.operations import Operation

MAX_DETAIL_LENGTH = 300
MAX_ERROR_BODY_BYTES = 8 * 1024
"""Bytes of the body of an error, which goes into the error's data."""

MAX_DECOMPRESSED_BYTES = 32 * 1024 * 1024
TOO_LARGE_REMEDY = "ask for less: a smaller page, fewer fields, or a narrower filter"
DEFAULT_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 3600.0
META_KEY = "retinue/http"

_ROOT_KEYS = ("$schema", "$defs")
_TOLD_PROBLEMS = 5

_SHOWN_HEADERS = ("link", "location", "retry-after", "x-total-count", "x-next-page", "x-request-id", "etag")
_INTERNAL_ERROR = -32603
_INVALID_PARAMETERS = -32602
_LOST = frozenset({502, 503, 504})
_REFUSED = frozenset({400, 405, 406, 409, 410, 411, 413, 414, 415, 422})
_TYPES = {401: "not_authenticated", 403: "not_allowed", 404: "not_found", 408: "timeout", 504: "timeout"}
_MESSAGES = (
    "message",
    "detail",
    "error_description",
    "description",
    "title",
    "msg",
    "reason",
    "error",
    "errors",
)
_NEXT = re.compile(r'<([^<>]{1,2000})>[^,<]*;\s*rel="?next"?', re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]{1,9}")
_CHARSET = re.compile(r'charset="?([\w.-]{1,40})', re.IGNORECASE)


def documented_only(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """An output schema that documents the promised form and accepts any response.

    MCP clients refuse a result that breaks the listed schema, so a warning takes a schema that fits. An
    object stays one: `as_documented` sees to it.
    """
    if schema is None:
        return None
    rest = {key: value for key, value in schema.items() if key not in _ROOT_KEYS}
    kept = {key: schema[key] for key in _ROOT_KEYS if key in schema}
    root = {"type": "object"} if schema.get("type") == "object" else {}
    # the first form ends the check of a result
    return {**kept, **root, "anyOf": [{}, rest]}


def as_documented(answer: Answer, schema: Mapping[str, Any] | None, problems: Sequence[Problem]) -> Answer:
    """The answer with a warning for the problems of its value; a value that is no object is put into one
    where the schema has an object.
    """
    if schema is None or not problems:
        return answer
    is_lost = schema.get("type") == "object" and not isinstance(answer.value, dict)
    more = f"; and {len(problems) - _TOLD_PROBLEMS} more" if len(problems) > _TOLD_PROBLEMS else ""
    warning = (
        f"the response differs from the API's document: {join_problems(problems[:_TOLD_PROBLEMS])}{more}"
    )
    value = {"result": answer.value} if is_lost else answer.value
    return replace(answer, value=value, warnings=(*answer.warnings, warning))


def read_response(
    operation: Operation,
    api: str,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> Answer:
    """The answer of a call; ``headers`` are case-insensitive or lower case, ``api`` names the API in errors.

    Raises RemoteFaultError, BusyError for 429, and AgentUnreachableError for 502, 503 and 504.
    """
    body = _decompress(api, headers.get("content-encoding", ""), body, max_decompressed_bytes)
    content_type = headers.get("content-type", "")
    shown = {name: headers[name] for name in _SHOWN_HEADERS if name in headers}
    meta = {META_KEY: {"status": status, **({"headers": shown} if shown else {})}}
    if 300 <= status < 400 and {str(status), "3XX"} & operation.statuses and "location" in headers:
        location = headers["location"]
        return Answer(value={"status": status, "location": location}, meta=meta)
    if not 200 <= status < 300:
        raise read_error(operation, api, status, headers, body)
    warnings = tuple(f"there are more results: {url}" for url in _NEXT.findall(shown.get("link", ""))[:1])
    if not body or status in (204, 205) or operation.method == "HEAD":
        return Answer(value=None, warnings=warnings, meta=meta)
    if is_json_type(content_type) or (not content_type and operation.skill.output_schema is not None):
        value = _read_json(operation, api, status, body)
        return Answer(value=value, warnings=warnings, meta=meta)
    media_type = content_type.partition(";")[0].strip().lower() or "application/octet-stream"
    if is_text_type(media_type):
        return Answer(value=_decode(content_type, body), warnings=warnings, meta=meta)
    return Answer(
        value={"mimeType": media_type, "size": len(body), "blob": base64.b64encode(body).decode()},
        parts=(_part_of(operation, media_type, body),),
        warnings=warnings,
        meta=meta,
    )


def read_error(
    operation: Operation, api: str, status: int, headers: Mapping[str, str], body: bytes
) -> RetinueError:
    """The error that a response outside 2xx means, with the API's own words."""
    detail = _find_detail(headers.get("content-type", ""), body)
    named = f"{status} {_phrase(status)}".strip()
    message = f"{api} answered {named} to {operation.title}" + (f": {detail}" if detail else "")
    if status == 429:
        return BusyError(message, _retry_after(headers))
    if status in _LOST:
        lost = AgentUnreachableError(
            api, operation.server, f"{named}: {detail}" if detail else named, sent=True
        )
        lost.remedy = "try again later; the API itself, or a proxy in front of it, does not work"
        return lost
    data: dict[str, Any] = {"type": _TYPES.get(status, "remote_error"), "status": status}
    if body:
        data["body"] = _shown_body(headers.get("content-type", ""), body)
    remedy = _remedy(status, headers)
    if remedy:
        data["remedy"] = remedy
    code = _INVALID_PARAMETERS if status in _REFUSED else _INTERNAL_ERROR
    return RemoteFaultError(api, code, message, data)


def _remedy(status: int, headers: Mapping[str, str]) -> str:
    if status == 401:
        return "check the credentials in the agent's environment: the API does not accept them"
    if status == 403:
        return "use credentials with the rights that this operation needs"
    if status == 404:
        return "check the ids in the arguments"
    if status in _REFUSED:
        return "change the arguments as the message says"
    if 300 <= status < 400:
        location = headers.get("location", "")[:500]
        return (
            f"redirects are not followed: import the API with the server of {location or 'the new location'}"
        )
    return ""


def _decompress(api: str, encoding: str, body: bytes, max_bytes: int) -> bytes:
    """The body of a server that compresses although no compression was asked for."""
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = reader.decompress(body, max_bytes)
    except zlib.error as error:
        data = {"type": "output_validation_error"}
        raise RemoteFaultError(api, _INTERNAL_ERROR, f"{api} sent a damaged body: {error}", data) from None
    if reader.unconsumed_tail:
        data = {"type": "too_large", "remedy": TOO_LARGE_REMEDY}
        message = f"{api}: the response is larger than {max_bytes:,} bytes"
        raise RemoteFaultError(api, _INTERNAL_ERROR, message, data)
    return plain


def _read_json(operation: Operation, api: str, status: int, body: bytes) -> Any:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"{api} answered {status} to {operation.title} with a body that is no JSON: {error}"
        data = {"type": "output_validation_error", "status": status, "body": _cut(body)}
        raise RemoteFaultError(api, _INTERNAL_ERROR, message, data) from None
    if is_nested_deeper(body, value):
        message = f"{api} answered {status} to {operation.title} with JSON that is nested too deeply"
        raise RemoteFaultError(
            api, _INTERNAL_ERROR, message, {"type": "output_validation_error", "status": status}
        )
    return value


def _part_of(operation: Operation, media_type: str, body: bytes) -> Part:
    if media_type.startswith("image/"):
        return Part.image(body, media_type)
    if media_type.startswith("audio/"):
        return Part.audio(body, media_type)
    return Part.resource(f"{operation.server}{operation.path}", body, media_type)


def _find_detail(content_type: str, body: bytes) -> str:
    """One line of the API's own error message; "" without a usable message."""
    if is_json_type(content_type) or body[:1] in (b"{", b"["):
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        message = _find_message(value, 0)
        if message:
            return _one_line(message)
    if "html" in content_type or not is_text_type(content_type or "text/plain"):
        return ""
    return _one_line(_decode(content_type, body[: MAX_DETAIL_LENGTH * 4]))


def _find_message(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return value
    if depth > 3:
        return ""
    if isinstance(value, dict):
        return next((text for key in _MESSAGES if (text := _find_message(value.get(key), depth + 1))), "")
    if isinstance(value, list) and value:
        return _find_message(value[0], depth + 1)
    return ""


def _one_line(text: str) -> str:
    line = " ".join(hide_tokens(text[: MAX_DETAIL_LENGTH * 4]).split())
    return line if len(line) <= MAX_DETAIL_LENGTH else line[: MAX_DETAIL_LENGTH - 1] + "…"


def _shown_body(content_type: str, body: bytes) -> Any:
    if is_json_type(content_type) and len(body) <= MAX_ERROR_BODY_BYTES:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return _cut(body)
        return _cut(body) if is_nested_deeper(body, value) else value
    return _cut(body)


def _cut(body: bytes) -> str:
    text = body[:MAX_ERROR_BODY_BYTES].decode("utf-8", "replace")
    return text if len(body) <= MAX_ERROR_BODY_BYTES else f"{text}… ({len(body):,} bytes)"


def _decode(content_type: str, body: bytes) -> str:
    match = _CHARSET.search(content_type)
    try:
        return body.decode(match[1] if match else "utf-8", "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _retry_after(headers: Mapping[str, str]) -> float:
    stated = headers.get("retry-after", "").strip()
    return min(float(stated), MAX_RETRY_AFTER_S) if _DIGITS.fullmatch(stated) else DEFAULT_RETRY_AFTER_S
