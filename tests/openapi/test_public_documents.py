"""Public documents as they are: ``*.json.gz`` and ``*.yaml.gz`` in the folder RETINUE_OPENAPI_DOCUMENTS."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import time
from dataclasses import replace
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
from retinue.openapi.codec.responses import documented_only
from retinue.web.http_client import HttpClient
from tests.mcp import clients
from tests.processes.running import program
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
        check_skill(replace(skill, output_schema=documented_only(skill.output_schema)))
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


async def test_all_documents_are_agents_of_one_hub_whose_client_sees_a_short_list(tmp_path: Path) -> None:
    app = Starlette(routes=[Route("/{path:path}", _answer, methods=["GET", "POST"])])
    environment = {**os.environ, "RETINUE_HOME": str(tmp_path / "home")}
    environment |= {"PETSTORE_API_KEY": "x", "PETSTORE_PETSTORE_AUTH_TOKEN": "x"}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "retinue", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async with serve_app(app) as mock:
        with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment) as hub:
            url = hub.url_in("hub at")
            for name, number in OPERATIONS.items():
                suffix = "yaml" if name == "petstore" else "json"
                (tmp_path / f"{name}.{suffix}").write_bytes(_load(name))
                said = await asyncio.to_thread(
                    run, "import", "openapi", f"{name}.{suffix}", "--name", name, "--server", mock
                )
                assert said.startswith(f"{name}: {number} skills")
            async with clients.connect(f"{url}/mcp", "auto") as client:
                tools = (await client.list_tools()).tools
                shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
                assert len(orjson.dumps(shown)) < 12_000
                assert any(
                    f"{sum(OPERATIONS.values())} more tools of 5" in (t.description or "") for t in tools
                )
                found = await client.call_tool("find_skills", {"query": "find pet by id", "limit": 5})
                rows = orjson.loads(clients.texts(found)[0])["skills"]
                assert "getPetById" in {row["skill"] for row in rows}
                pet = await client.call_tool("petstore__getPetById", {"petId": 1})
                assert not pet.is_error, pet.content
                assert (pet.structured_content or {})["result"]["path"] == "/pet/1"
                texts = [getattr(block, "text", "") for block in pet.content]
                assert any("differs from the API's document" in text for text in texts)
