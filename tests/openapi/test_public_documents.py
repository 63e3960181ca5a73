"""Public documents as they are: ``*.json.gz`` and ``*.yaml.gz`` in the folder RETINUE_OPENAPI_DOCUMENTS."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.errors import RetinueError
from retinue.mesh.schema.checks import check_skill
from retinue.openapi.client import ApiClient
from retinue.openapi.codec.api import parse_api
from retinue.openapi.codec.operations import Operation
from retinue.openapi.codec.reader import read_document
from retinue.web.http_client import HttpClient
from tests.serving import serve_app

VARIABLE = "RETINUE_OPENAPI_DOCUMENTS"
# Read here, because the tests themselves run without the variables of the machine.
FOLDER = os.environ.get(VARIABLE)
OPERATIONS = {"petstore": 19, "box": 296, "discord": 242, "twilio": 197, "openai": 288}

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason=f"PUBLIC OPENAPI DOCUMENTS ARE NOT TESTED: set {VARIABLE} to their folder"
)


def _load(name: str) -> bytes:
    (path,) = Path(FOLDER or "").glob(f"{name}.*.gz")
    return gzip.decompress(path.read_bytes())


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_becomes_a_skill_that_compiles(name: str) -> None:
    content = _load(name)
    started = time.process_time()
    document = read_document(content, name)
    read = time.process_time()
    api = parse_api(document, name)
    converted = time.process_time()
    assert len(api.operations) == OPERATIONS[name]
    assert len({skill.id for skill in api.skills}) == len(api.skills)
    for skill in api.skills:
        check_skill(skill)
    compiled = time.process_time()
    dropped = sum("output schema dropped" in note for note in api.notes)
    cut = sum("input schema lost" in note for note in api.notes)
    print(
        f"{name}: {len(api.operations)} operations, {dropped} output schemas dropped, {cut} input cut, "
        f"{len(api.notes) - dropped - cut} other notes; CPU: read {read - started:.2f} s, "
        f"convert {converted - read:.2f} s, compile {compiled - converted:.2f} s"
    )
    assert not [note for note in api.notes if "broken" in note or "left out" in note]


def _least_value(schema: Any, definitions: dict[str, Any], depth: int = 0) -> Any:
    """A small value that fits a schema, or nearly."""
    if not isinstance(schema, dict) or depth > 6:
        return "x"
    if "$ref" in schema:
        return _least_value(definitions.get(schema["$ref"].removeprefix("#/$defs/")), definitions, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key) and "properties" not in schema:
            return _least_value(schema[key][0], definitions, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        return {
            name: _least_value(properties.get(name), definitions, depth + 1)
            for name in schema.get("required", ())
        }
    if kind == "array":
        return [_least_value(schema.get("items"), definitions, depth + 1)]
    texts = {"base64": "aGk="}
    numbers = {
        "integer": int(schema.get("minimum", 1)),
        "number": schema.get("minimum", 1.5),
        "boolean": True,
    }
    return numbers.get(str(kind), texts.get(schema.get("contentEncoding", ""), "x"))


def _arguments(operation: Operation) -> dict[str, Any]:
    schema: Any = operation.skill.input_schema
    value = _least_value({**schema, "required": list(schema["properties"])}, schema.get("$defs", {}))
    assert isinstance(value, dict)
    return value


async def _answer(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"method": request.method, "path": request.url.path, "bytes": len(body)})


@pytest.mark.parametrize("name", OPERATIONS)
async def test_every_operation_is_called_at_a_local_server(name: str) -> None:
    methods = ["GET", "PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS"]
    app = Starlette(routes=[Route("/{path:path}", _answer, methods=methods)])
    document = read_document(_load(name), name)
    failed: list[str] = []
    async with serve_app(app) as url, HttpClient() as http:
        api = parse_api(document, name, server=url)
        environment = {variable: "x" for scheme in api.schemes.values() for variable in scheme.variables}
        client = ApiClient(http, api, environment)
        for operation in api.operations:
            try:
                answer = await client.call(operation.skill.id, _arguments(operation))
            except RetinueError as error:
                failed.append(f"{operation.title}: {error.message}")
                continue
            if operation.method != "HEAD":
                assert answer.value["method"] == operation.method
                assert "{" not in answer.value["path"], operation.title
                orjson.dumps(answer.value)
    assert not failed
