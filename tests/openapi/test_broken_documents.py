"""Whatever a document says: skills that compile, or an error of ours."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.errors import RetinueError
from retinue.mesh.schema.checks import check_skill
from retinue.openapi.codec.api import Api, parse_api
from retinue.openapi.codec.reader import read_document
from retinue.openapi.codec.requests import render_request
from retinue.openapi.codec.responses import read_response
from retinue.openapi.codec.security import choose_credentials
from tests.openapi.documents import NOTES, PETS_YAML
from tests.strategies import json_values

PETS = read_document(PETS_YAML.encode(), "pets.yaml")

WORDS = [
    *("#/components/schemas/Pet", "#/components/schemas/Note", "#", "#/paths", "other.yaml", "{", "/{a}"),
    *(
        "object",
        "array",
        "binary",
        "query",
        "path",
        "https://{x}.example.com",
        "application/json",
        "deepObject",
    ),
]
KEYS = [
    *(
        "$ref",
        "type",
        "properties",
        "items",
        "allOf",
        "anyOf",
        "nullable",
        "required",
        "enum",
        "format",
        "$defs",
    ),
    *("parameters", "in", "name", "schema", "content", "requestBody", "responses", "200", "get"),
    *("servers", "url", "security"),
]
hostile = st.recursive(
    st.sampled_from(WORDS) | st.booleans() | st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=10,
)


def _check(error: RetinueError) -> None:
    assert error.message
    assert error.remedy
    orjson.dumps(error.data)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as its container and key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        entries = list(one.items()) if isinstance(one, dict) else list(enumerate(one))
        found += [(one, key) for key, _ in entries]
        waiting += [inner for _, inner in entries if isinstance(inner, dict | list)]
    return found


def _use(document: Any, arguments: Any) -> None:
    """Everything that is done with a document and a call of it."""
    try:
        api = parse_api(document, "x", url="https://example.com/openapi.json")
    except RetinueError as error:
        _check(error)
        return
    for operation in api.operations:
        check_skill(operation.skill)
        orjson.dumps([operation.skill.id, operation.skill.input_schema])
    _call(api, arguments)


def _call(api: Api, arguments: Any) -> None:
    for operation in api.operations:
        given = {parameter.argument: arguments for parameter in operation.parameters}
        given |= {"body": arguments} if operation.body is not None else {}
        try:
            credentials = choose_credentials("x", operation.security, api.schemes, {})
            request = render_request(operation, given, credentials)
        except RetinueError as error:
            _check(error)
            continue
        assert request.url.startswith(("http://", "https://"))
        assert request.url.isascii()
        assert request.url.isprintable()
        assert " " not in request.url
        for value in (*request.headers, *request.headers.values()):
            assert "\n" not in value
            assert "\r" not in value


@settings(max_examples=100)
@given(st.sampled_from([PETS, NOTES]), st.data(), hostile, json_values)
def test_a_document_that_is_broken_anywhere_gives_skills_or_an_error_of_ours(
    document: dict[str, Any], data: st.DataObject, broken: Any, arguments: Any
) -> None:
    changed = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(_places(changed)))
        if data.draw(st.booleans()):
            holder[key] = copy.deepcopy(broken)
        elif isinstance(holder, dict):
            holder[data.draw(st.sampled_from(KEYS))] = copy.deepcopy(broken)
    _use(changed, arguments)


@given(
    st.dictionaries(
        st.sampled_from(["openapi", "paths", "info", "servers", "components", "security"]), hostile
    )
)
def test_an_object_that_is_no_document_gives_an_error_of_ours(document: dict[str, Any]) -> None:
    _use({"openapi": "3.1.0", **document}, None)
    _use(document, None)


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_bytes_that_are_no_document_give_an_object_or_an_error_of_ours(content: bytes) -> None:
    for text in (content, b"{" + content, b"openapi: 3.0.0\n" + content):
        try:
            assert isinstance(read_document(text, "x"), dict)
        except RetinueError as error:
            _check(error)


@given(
    st.integers(100, 599),
    st.sampled_from(
        ["", "application/json", "text/plain; charset=x", "image/png", "text/html", ";", "a/b;charset=\x00"]
    ),
    st.dictionaries(st.sampled_from(["link", "location", "retry-after"]), st.text(max_size=20)),
    st.binary(max_size=50) | json_values.map(orjson.dumps),
)
def test_a_response_of_any_form_is_an_answer_or_an_error_of_ours(
    status: int, content_type: str, headers: dict[str, str], body: bytes
) -> None:
    api = parse_api(NOTES, "x", url="https://example.com/openapi.json")
    try:
        answer = read_response(
            api.operations[0], "x", status, {**headers, "content-type": content_type}, body
        )
    except RetinueError as error:
        orjson.dumps([error.message, error.data])
        return
    orjson.dumps([answer.value, dict(answer.meta), list(answer.warnings)])
