"""Pure: reads an OpenAPI document of version 3.0 or 3.1 into an `Api`, with operations as skills.

Nothing of a document costs more than itself: an operation that cannot be read is left out, a broken or too
large output schema is dropped, an input schema is cut, each with a note. Only a document that yields no
operation is refused. No library for OpenAPI is used: the existing ones refuse real documents or take seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import urljoin, urlsplit

from retinue.core.errors import InvalidSettingError, TooLargeError
from retinue.core.json_values import name_shape
from retinue.core.record import Hints, Skill
from retinue.openapi.codec.media_types import is_json_type
from retinue.openapi.codec.operations import InputReader, LeftOutError, Operation
from retinue.openapi.codec.reader import JSON_REMEDY, BrokenReferenceError, follow
from retinue.openapi.codec.schema_keywords import BrokenSchemaError
from retinue.openapi.codec.schema_size import cut_schema, find_refusal
from retinue.openapi.codec.schemas import MAX_DEFINITIONS_BYTES, SchemaConverter
from retinue.openapi.codec.security import SecurityScheme, parse_alternatives, parse_schemes

MAX_OPERATIONS = 2_000
MAX_FINE_CUTS = 32
"""Input schemas of a document that are cut as little as possible, at 0.1 s each."""

MAX_SKILL_ID_LENGTH = 64

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_HASH_LENGTH = 8
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_VARIABLE = re.compile(r"\{([^{}]+)\}")
_SUCCESS = re.compile(r"2(?:\d\d|XX)")


@dataclass(frozen=True, slots=True)
class Api:
    """A document as it was imported; ``schemes`` name the environment variables for its credentials.

    ``notes`` name omitted or cut parts, with the reason. ``server`` is the first one of the document, or the
    one that replaces its servers.
    """

    name: str
    title: str
    version: str
    description: str
    operations: tuple[Operation, ...]
    schemes: Mapping[str, SecurityScheme]
    notes: tuple[str, ...]
    server: str = ""

    @property
    def skills(self) -> tuple[Skill, ...]:
        return tuple(operation.skill for operation in self.operations)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers to which requests go."""
        return tuple(dict.fromkeys(operation.server for operation in self.operations))

    def find(self, skill_id: str) -> Operation | None:
        """The operation of a skill; None for another id."""
        return next((operation for operation in self.operations if operation.skill.id == skill_id), None)


def parse_api(
    document: Mapping[str, Any],
    name: str,
    *,
    source: str = "the document",
    url: str | None = None,
    server: str | None = None,
    variables: Mapping[str, str] | None = None,
    max_operations: int = MAX_OPERATIONS,
) -> Api:
    """The API that a document describes; ``name`` begins the names of its environment variables.

    ``url`` is where the document was found, to which relative servers refer. ``server`` replaces every server
    of the document; ``variables`` are values for those in the urls of servers.
    Raises InvalidSettingError and TooLargeError.
    """
    return _DocumentReader(document, name, source, url, server, variables or {}).read(max_operations)


class _DocumentReader:
    def __init__(
        self,
        document: Mapping[str, Any],
        name: str,
        source: str,
        url: str | None,
        server: str | None,
        variables: Mapping[str, str],
    ) -> None:
        self._document = document
        self._name = name
        self._source = source
        self._url = url
        self._server = server
        self._variables = variables
        self._notes: list[str] = []
        self._cuts = 0
        self._refusals: dict[bytes, str | None] = {}
        is_30 = self._check_version()
        plain = SchemaConverter(document, is_30=is_30, direction="input")
        files = SchemaConverter(document, is_30=is_30, direction="input", files=True)
        self._inputs = InputReader(document, plain, files)
        self._outputs = SchemaConverter(document, is_30=is_30, direction="output")
        self._converters = (plain, files, self._outputs)

    def read(self, max_operations: int) -> Api:
        """The API; see `parse_api`."""
        schemes, notes = parse_schemes(self._document, self._name)
        self._notes += notes
        raw_operations = list(self._list_operations())
        if len(raw_operations) > max_operations:
            error = TooLargeError(f"the number of operations of {self._source}", max_operations, "operations")
            error.remedy = f"leave out paths until at most {max_operations:,} operations are left"
            raise error
        ids = _name_skills(
            [(method, path, _operation_id(stated)) for method, path, _, stated in raw_operations]
        )
        first_server = ""
        if self._server is not None or raw_operations:
            # A wrong server given by hand, or of the whole document, is told once.
            first_server = self._server_of({}, {})
        operations: list[Operation] = []
        left_out: list[str] = []
        for skill_id, (method, path, item, operation) in zip(ids, raw_operations, strict=True):
            try:
                operations.append(self._read_operation(skill_id, method, path, item, operation))
            except LeftOutError as error:
                left_out.append(f"{method.upper()} {path} left out: {error}")
        if not operations:
            problem = f"no operation can be imported: {left_out[0]}" if left_out else "it has no operations"
            raise InvalidSettingError(self._source, problem, remedy=JSON_REMEDY)
        for place in dict.fromkeys(place for converter in self._converters for place in converter.too_large):
            self._notes.append(f"{place} accepts anything: it has over {MAX_DEFINITIONS_BYTES:,} bytes")
        info = self._document.get("info")
        facts = info if isinstance(info, dict) else {}
        title, version, description = (_text(facts, key) for key in ("title", "version", "description"))
        all_notes = (*left_out, *self._notes)
        return Api(
            self._name, title, version, description, tuple(operations), schemes, all_notes, first_server
        )

    def _check_version(self) -> bool:
        """Whether the document is of 3.0; raises InvalidSettingError for other versions than 3.0 and 3.1."""
        version = self._document.get("openapi")
        if isinstance(version, str) and (match := re.fullmatch(r"3\.(\d{1,3})(?:\.[\w.-]{1,40})?", version)):
            if int(match[1]) > 1:
                self._notes.append(f"version {version} is read as 3.1")
            return match[1] == "0"
        if "swagger" in self._document:
            remedy = "convert it to OpenAPI 3, for example: npx swagger2openapi FILE -o openapi.json"
            raise InvalidSettingError(f"{self._source}: swagger", "it is of version 2", remedy=remedy)
        shape = (
            "missing"
            if version is None
            else f"{version!r:.60}"
            if isinstance(version, str)
            else name_shape(version)
        )
        raise InvalidSettingError(f"{self._source}: openapi", f"{shape}, not 3.0 or 3.1", remedy=JSON_REMEDY)

    def _list_operations(self) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        """Method, path, path item and operation of each."""
        paths = self._document.get("paths")
        for path, value in paths.items() if isinstance(paths, dict) else ():
            if not path.startswith("/"):
                continue
            try:
                item = follow(self._document, value)
                item = item if isinstance(item, dict) else {}
                operations = [
                    (method, follow(self._document, item[method])) for method in _METHODS if method in item
                ]
            except BrokenReferenceError as error:
                self._notes.append(f"{path} left out: {error.problem}; {error.remedy}")
                continue
            for method, operation in operations:
                if isinstance(operation, dict):
                    yield method, path, item, operation

    def _read_operation(
        self, skill_id: str, method: str, path: str, item: Mapping[str, Any], operation: Mapping[str, Any]
    ) -> Operation:
        server = self._server_of(item, operation)
        parameters, body, schema = self._inputs.read(path, item, operation)
        self._notes += [f"{skill_id}: {note}" for note in self._inputs.notes]
        refusal = find_refusal(schema, self._refusals)
        if refusal is not None:
            schema, cut = cut_schema(schema, finely=self._cuts < MAX_FINE_CUTS)
            self._cuts += 1
            self._notes.append(f"{skill_id}: the input schema lost {cut}: {refusal}")
        responses = self._read_responses(operation)
        summary, description = _text(operation, "summary"), _text(operation, "description")
        stated = _operation_id(operation)
        tags = operation.get("tags")
        skill = Skill(
            skill_id,
            description=_describe(method, path, summary, description, operation.get("deprecated") is True),
            title=summary or None,
            input_schema=schema,
            output_schema=self._read_output(skill_id, responses),
            tags=tuple(dict.fromkeys(tag for tag in tags if isinstance(tag, str)))
            if isinstance(tags, list)
            else (),
            similes=(stated,) if stated is not None and stated != skill_id else (),
            hints=Hints(
                read_only=method in ("get", "head", "options"),
                destructive=method == "delete",
                idempotent=method not in ("post", "patch"),
                open_world=True,
            ),
            channel=False,
        )
        security = operation["security"] if "security" in operation else self._document.get("security")
        return Operation(
            skill,
            method.upper(),
            path,
            server,
            parameters,
            body,
            parse_alternatives(security),
            frozenset(responses),
        )

    def _read_responses(self, operation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The described responses by status; an unreadable response is empty."""
        by_status: dict[str, dict[str, Any]] = {}
        responses = operation.get("responses")
        for status, value in responses.items() if isinstance(responses, dict) else ():
            try:
                response = follow(self._document, value)
            except BrokenReferenceError:
                response = None
            by_status[str(status).upper()] = response if isinstance(response, dict) else {}
        return by_status

    def _read_output(
        self, skill_id: str, responses: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any] | None:
        """The schema of the first 2xx response with JSON; other 2xx responses are alternatives to it.

        None where nothing is promised: without JSON, or when the schema is broken or too large.
        """
        succeeding = [responses[status] for status in sorted(responses) if _SUCCESS.fullmatch(status)]
        schemas = [_json_schema(response) for response in succeeding]
        promised = [schema for schema in schemas if schema is not None]
        if not promised:
            return None
        try:
            converted: list[dict[str, Any] | bool] = []
            definitions: dict[str, Any] = {}
            for schema in promised:
                form, reached = self._outputs.convert(schema)
                definitions.update(reached)
                if form not in converted:
                    converted.append(form)
        except BrokenSchemaError as error:
            self._notes.append(f"{skill_id}: output schema dropped: it is broken: {error}; {error.remedy}")
            return None
        if len(promised) < len(succeeding):
            converted.append({"type": "null"})  # a response without content, such as 204
        whole = converted[0] if len(converted) == 1 else {"anyOf": converted}
        if isinstance(whole, bool) or not whole:
            return None
        output = {**whole, "$defs": definitions} if definitions else whole
        refusal = find_refusal(output, self._refusals)
        if refusal is not None:
            self._notes.append(f"{skill_id}: output schema dropped: {refusal}")
            return None
        return output

    def _server_of(self, item: Mapping[str, Any], operation: Mapping[str, Any]) -> str:
        """The server of an operation. Raises LeftOutError; InvalidSettingError for the document's server."""
        if self._server is not None:
            return _check_server(self._server, f"{self._source}: server")
        for owner in (operation, item):
            if isinstance(owner.get("servers"), list) and owner["servers"]:
                try:
                    return self._fill_server(owner["servers"][0])
                except InvalidSettingError as error:
                    raise LeftOutError(f"{error.message}; {error.remedy}") from None
        listed = self._document.get("servers")
        return self._fill_server(listed[0] if isinstance(listed, list) and listed else {"url": "/"})

    def _fill_server(self, server: Any) -> str:
        where = f"{self._source}: servers"
        url = server.get("url") if isinstance(server, dict) else None
        if not isinstance(url, str):
            shape = name_shape(url if isinstance(server, dict) else server)
            raise InvalidSettingError(where, f"{shape}, not a url", remedy="give the server's url")
        stated = server.get("variables")
        described = stated if isinstance(stated, dict) else {}

        def fill(match: re.Match[str]) -> str:
            facts = described.get(match[1])
            facts = facts if isinstance(facts, dict) else {}
            value = self._variables.get(match[1], facts.get("default"))
            if not isinstance(value, str | int):
                raise InvalidSettingError(
                    where,
                    f"variable {match[1][:80]} of {url[:200]} has no value",
                    remedy=f"give {match[1][:80]}=VALUE",
                )
            allowed = facts.get("enum")
            if match[1] in self._variables and isinstance(allowed, list) and value not in allowed:
                shown = ", ".join(str(choice) for choice in allowed[:20])
                raise InvalidSettingError(
                    where, f"variable {match[1]} is not one of: {shown}", remedy="choose one"
                )
            return str(value)

        try:
            absolute = urljoin(self._url or "", _VARIABLE.sub(fill, url))
        except ValueError:
            absolute = ""
        return _check_server(absolute, where)


def _check_server(url: str, where: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        usable = usable and not parts.query and not parts.fragment and url.isprintable() and " " not in url
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        problem = f"{url[:200]!r} is not an absolute http or https url without credentials and query"
        raise InvalidSettingError(
            where, problem, remedy="give the url of the API's server: --server URL, or server in the table"
        )
    return url.rstrip("/")


def _name_skills(operations: list[tuple[str, str, str | None]]) -> list[str]:
    """A unique, safe id for each operation, which does not depend on the others' order.

    An operationId that is safe stays; in any other each unsafe character is ``_``, and a hash of method and
    path ends a name that is too long or that two operations want.
    """
    names = [
        _UNSAFE.sub("_", stated or f"{method}{path}").strip("_") or method
        for method, path, stated in operations
    ]
    count = Counter(names)
    exact = Counter(stated for *_, stated in operations)
    kept = {
        at
        for at, ((*_, stated), name) in enumerate(zip(operations, names, strict=True))
        if len(name) <= MAX_SKILL_ID_LENGTH and (count[name] == 1 or (stated == name and exact[name] == 1))
    }
    taken = {names[at] for at in kept}
    for at, (method, path, _) in enumerate(operations):
        digest = f"{method} {path}"
        while at not in kept:
            digest = sha256(digest.encode("utf-8", "surrogatepass")).hexdigest()
            name = f"{names[at][: MAX_SKILL_ID_LENGTH - 1 - _HASH_LENGTH]}_{digest[:_HASH_LENGTH]}"
            if name not in taken:
                names[at] = name
                taken.add(name)
                break
    return names


def _describe(method: str, path: str, summary: str, description: str, deprecated: bool) -> str:
    text = description or summary or f"{method.upper()} {path}"
    return f"Deprecated. {text}" if deprecated else text


def _operation_id(operation: Mapping[str, Any]) -> str | None:
    return _text(operation, "operationId") or None


def _json_schema(response: Mapping[str, Any]) -> Any:
    content = response.get("content")
    for media_type, media in content.items() if isinstance(content, dict) else ():
        if is_json_type(media_type) and isinstance(media, dict):
            return media.get("schema", True)
    return None


def _text(holder: Mapping[str, Any], key: str) -> str:
    value = holder.get(key)
    return value.strip() if isinstance(value, str) else ""
