"""Pure: renders the arguments of a skill as one HTTP request: url, headers and body.

A null argument that is not required is not sent: models send null for omitted arguments.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote, quote_plus

import orjson

from retinue.core.errors import InvalidParametersError, Problem, TooLargeError
from retinue.core.json_values import name_shape
from retinue.openapi.codec.media_types import is_json_type
from retinue.openapi.codec.operations import BODY, Body, Encoding, Operation
from retinue.openapi.codec.parameters import (
    Parameter,
    render_header_value,
    render_path_value,
    render_query_fields,
)
from retinue.openapi.codec.security import RequestCredentials

MAX_URL_LENGTH = 32_768
"""Servers accept 8 to 64 kB; a longer url is an argument in the wrong place."""

_VARIABLE = re.compile(r"\{([^{}/]+)\}")
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:; ?[\w.-]+=[\w.+\"-]+)*", re.ASCII)
_BINARY = "application/octet-stream"
_PATH_SAFE = "/!$&'()*+,;=:@%-._~"
_QUOTED = str.maketrans({'"': "%22", "\r": "%0D", "\n": "%0A"})


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; header names are lower case. Credentials are in it, so it is not shown."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    name: str | None
    media_type: str | None


def render_request(operation: Operation, arguments: Any, credentials: RequestCredentials) -> HttpRequest:
    """The request of one call. Raises InvalidParametersError and TooLargeError."""
    checked = _check_arguments(operation, arguments)
    path = operation.path.partition("#")[0]
    query: list[str] = []
    headers = {"accept": _accepted(operation)}
    cookies: list[str] = []
    values: dict[str, str] = {}
    for parameter in operation.parameters:
        value = checked.get(parameter.argument)
        if value is None:
            continue
        if parameter.place == "path":
            values[parameter.name] = render_path_value(parameter, value)
        elif parameter.place == "query":
            query += render_query_fields(parameter, value)
        elif parameter.place == "header":
            headers[parameter.name.lower()] = render_header_value(parameter, value)
        else:
            cookies += render_query_fields(parameter, value)
    body = None
    if (
        operation.body is not None
        and BODY in checked
        and (checked[BODY] is not None or operation.body.required)
    ):
        headers["content-type"], body = render_body(operation.body, checked[BODY])
    query += [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in credentials.query.items()]
    cookies += [f"{name}={quote(value, safe='')}" for name, value in credentials.cookies.items()]
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    headers |= credentials.headers
    template, _, fixed = path.partition("?")
    filled = "".join(_fill(template, values))
    url = f"{operation.server}{filled}"
    if parts := [*([quote(fixed, safe=_PATH_SAFE + "?&=")] if fixed else []), *query]:
        url += "?" + "&".join(parts)
    if len(url) > MAX_URL_LENGTH:
        raise TooLargeError(f"the url of {operation.skill.id}", MAX_URL_LENGTH, "characters")
    return HttpRequest(operation.method, url, headers, body)


def render_body(body: Body, value: Any) -> tuple[str, bytes]:
    """Content type and bytes of a request body. Raises InvalidParametersError."""
    if body.kind == "json":
        return body.media_type, _as_json(BODY, value)
    if body.kind == "text":
        if not isinstance(value, str):
            raise _problem(BODY, f"{name_shape(value)}: give the text that is sent as {body.media_type}")
        return _with_charset(body.media_type), _encode(BODY, value)
    if body.kind == "bytes":
        file = _read_file(BODY, value)
        return body.media_type if "*" not in body.media_type else file.media_type or _BINARY, file.content
    if not isinstance(value, dict):
        raise _problem(BODY, f"{name_shape(value)}: give an object with the fields of the form")
    if body.kind == "form":
        fields = [
            part
            for name, property_value in value.items()
            for part in _form_fields(body, name, property_value)
        ]
        return body.media_type, "&".join(fields).encode()
    return _render_multipart(body, value)


def _check_arguments(operation: Operation, arguments: Any) -> Mapping[str, Any]:
    """The arguments; raises InvalidParametersError, as the skill's schema does, where it was not checked."""
    if not isinstance(arguments, Mapping):
        raise InvalidParametersError(
            [Problem("", f"{name_shape(arguments)}: give the arguments as an object")]
        )
    known = {parameter.argument: parameter.required for parameter in operation.parameters}
    if operation.body is not None:
        known[BODY] = operation.body.required
    problems = [
        Problem(name, f"missing required field {name!r}")
        for name, required in known.items()
        if required and (name not in arguments or (arguments[name] is None and name != BODY))
    ]
    problems += [
        Problem(str(name), f"unknown field {str(name)[:80]!r}") for name in arguments if name not in known
    ]
    if problems:
        raise InvalidParametersError(problems)
    return arguments


def _fill(template: str, values: Mapping[str, str]) -> Iterator[str]:
    at = 0
    for match in _VARIABLE.finditer(template):
        yield quote(template[at : match.start()], safe=_PATH_SAFE)
        yield values[match[1]]
        at = match.end()
    yield quote(template[at:], safe=_PATH_SAFE)


def _accepted(operation: Operation) -> str:
    return "application/json, */*;q=0.5" if operation.skill.output_schema is not None else "*/*"


def _form_fields(body: Body, name: str, value: Any) -> list[str]:
    """The fields of one property of an urlencoded form: JSON text for objects unless a style is stated."""
    encoding = body.encodings.get(name, Encoding())
    where = f"{BODY}.{name}"
    if value is None:
        return []
    if encoding.style is not None:
        stated = Parameter(
            where, name, "query", False, encoding.style, encoding.explode, encoding.allow_reserved
        )
        return render_query_fields(stated, value)
    items = value if isinstance(value, list) else [value]
    return [
        f"{quote_plus(_encode(where, name))}={quote_plus(_as_field(where, encoding, item))}"
        for item in items
        if item is not None
    ]


def _render_multipart(body: Body, value: Mapping[str, Any]) -> tuple[str, bytes]:
    parts: list[bytes] = []
    for name, property_value in value.items():
        encoding = body.encodings.get(name, Encoding())
        where = f"{BODY}.{name}"
        for item in property_value if isinstance(property_value, list) else [property_value]:
            if item is None:
                continue
            if name in body.files:
                file = _read_file(where, item)
                media_type = file.media_type or _stated_type(encoding) or _BINARY
                parts.append(_part(where, name, file.content, media_type, file.name or name))
            else:
                structured = isinstance(item, dict | list)
                media_type = _stated_type(encoding) or ("application/json" if structured else "")
                parts.append(_part(where, name, _as_field(where, encoding, item), media_type, None))
    # A boundary must not occur in the content: nothing holds its own hash.
    boundary = sha256(b"".join(parts)).hexdigest()[:40]
    line = f"--{boundary}".encode()
    content = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return f"{body.media_type.partition(';')[0].strip()}; boundary={boundary}", content


def _part(where: str, name: str, content: bytes, media_type: str, filename: str | None) -> bytes:
    head = f'Content-Disposition: form-data; name="{name.translate(_QUOTED)}"'
    if filename is not None:
        head += f'; filename="{filename.translate(_QUOTED)}"'
    if media_type:
        head += f"\r\nContent-Type: {media_type}"
    return _encode(where, head) + b"\r\n\r\n" + content


def _stated_type(encoding: Encoding) -> str | None:
    """The first content type of a field, if it can be sent."""
    first = (encoding.content_type or "").partition(",")[0].strip()
    return first if _MEDIA_TYPE.fullmatch(first) else None


def _read_file(where: str, value: Any) -> _File:
    """A file from base64 text, or from ``{"blob" or "text", "name", "mimeType"}``."""
    if isinstance(value, str):
        return _File(_from_base64(where, value), None, None)
    if not isinstance(value, dict):
        raise _problem(
            where, f'{name_shape(value)}: give a file as base64 text or as {{"blob": base64, "name": …}}'
        )
    name, media_type = value.get("name"), value.get("mimeType")
    if media_type is not None and not (isinstance(media_type, str) and _MEDIA_TYPE.fullmatch(media_type)):
        raise _problem(f"{where}.mimeType", "it is no media type: write one such as image/png")
    if name is not None and not isinstance(name, str):
        raise _problem(f"{where}.name", f"{name_shape(name)}: give the file's name as text")
    if isinstance(value.get("blob"), str):
        return _File(_from_base64(f"{where}.blob", value["blob"]), name, media_type)
    if isinstance(value.get("text"), str):
        return _File(_encode(f"{where}.text", value["text"]), name, media_type)
    raise _problem(where, "a file has its content as base64 in 'blob' or as text in 'text'")


def _from_base64(where: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        remedy = 'encode the file, or give text as {"text": …}'
        raise _problem(where, f"{len(text):,} characters that are no base64: {remedy}") from None


def _as_field(where: str, encoding: Encoding, value: Any) -> bytes:
    if isinstance(value, str) and not is_json_type(encoding.content_type or ""):
        return _encode(where, value)
    return _as_json(where, value)


def _as_json(where: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise _problem(where, f"it is no JSON: {error}") from None


def _encode(where: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _problem(where, "it has half of a surrogate pair: send whole characters") from None


def _with_charset(media_type: str) -> str:
    plain = media_type.lower().startswith("text/") and "charset" not in media_type.lower()
    return f"{media_type}; charset=utf-8" if plain else media_type


def _problem(where: str, message: str) -> InvalidParametersError:
    return InvalidParametersError([Problem(where, f"{where}: {message}")])
