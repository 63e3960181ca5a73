"""Calls to a real server through the guarded HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    CallTimedOutError,
    InvalidParametersError,
    NotAuthenticatedError,
    OutputInvalidError,
    RemoteFaultError,
    UnknownSkillError,
)
from retinue.core.record import AgentRecord, Listing
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.pins import Pins
from retinue.mesh.schema.checks import compile_schema
from retinue.openapi.client import ApiClient
from retinue.openapi.codec.api import Api, parse_api
from retinue.openapi.imports import ApiSpec, ImportedApis
from retinue.web.http_client import HttpClient
from tests.mesh.scripted import ScriptedLookup, make_call
from tests.openapi.documents import document
from tests.serving import serve_app

ENVIRONMENT = {"SHOP_KEY": "s3cret", "SHOP_LOGIN_USERNAME": "ada", "SHOP_LOGIN_PASSWORD": "pw"}
ITEM = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema, **fields}


DOCUMENT = document(
    {
        "/items/{id}": {
            "get": {
                "operationId": "getItem",
                "parameters": [
                    _query("tags", {"type": "array"}, style="pipeDelimited", explode=False),
                    _query("filter", {"type": "object"}, style="deepObject"),
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {"200": _json({"$ref": "#/components/schemas/Item"})},
            }
        },
        "/items": {
            "post": {
                "operationId": "addItem",
                "requestBody": {"required": True, **_json({"$ref": "#/components/schemas/Item"})},
                "responses": {"201": _json({"$ref": "#/components/schemas/Item"})},
            }
        },
        "/files": {
            "post": {
                "operationId": "upload",
                "requestBody": {
                    "content": {
                        "multipart/form-data": {
                            "schema": {
                                "properties": {"file": {"type": "string", "format": "binary"}, "note": {}}
                            }
                        }
                    }
                },
            }
        },
        "/form": {
            "post": {
                "operationId": "form",
                "requestBody": {
                    "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object"}}}
                },
            }
        },
        "/whoami": {"get": {"operationId": "whoami", "security": [{"login": []}]}},
        "/status/{code}": {"get": {"operationId": "status"}},
        "/slow": {"get": {"operationId": "slow"}},
        "/large": {"get": {"operationId": "large"}},
        "/moved": {"get": {"operationId": "moved"}},
    },
    schemas={"Item": ITEM},
    security=[{"key": []}],
)
DOCUMENT["components"]["securitySchemes"] = {
    "key": {"type": "apiKey", "name": "X-Key", "in": "header"},
    "login": {"type": "http", "scheme": "basic"},
}


async def _item(request: Request) -> Response:
    return JSONResponse(
        {
            "id": request.path_params["id"],
            "path": request.scope["raw_path"].decode(),
            "query": request.query_params.multi_items(),
            "trace": request.headers.get("x-trace"),
            "key": request.headers.get("x-key"),
        }
    )


async def _add(request: Request) -> Response:
    return JSONResponse(await request.json(), 201)


async def _read_form(request: Request) -> Response:
    # parsed by hand: the form parser of Starlette is an extra that is not installed
    body = await request.body()
    return JSONResponse({"type": request.headers["content-type"], "body": body.decode("latin-1")})


async def _whoami(request: Request) -> Response:
    return PlainTextResponse(request.headers.get("authorization", ""))


async def _status(request: Request) -> Response:
    code = int(request.path_params["code"])
    return JSONResponse({"message": f"this is {code}"}, code, {"retry-after": "3"})


async def _slow(request: Request) -> Response:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response()


async def _large(request: Request) -> Response:
    return PlainTextResponse("x" * 10_000)


async def _moved(request: Request) -> Response:
    return RedirectResponse("http://127.0.0.1:1/elsewhere", 302)


APP = Starlette(
    routes=[
        Route("/v1/items/{id:path}", _item),
        Route("/v1/items", _add, methods=["POST"]),
        Route("/v1/files", _read_form, methods=["POST"]),
        Route("/v1/form", _read_form, methods=["POST"]),
        Route("/v1/whoami", _whoami),
        Route("/v1/status/{code}", _status),
        Route("/v1/slow", _slow),
        Route("/v1/large", _large),
        Route("/v1/moved", _moved),
    ]
)


def _api(url: str) -> Api:
    return parse_api(DOCUMENT, "shop", server=f"{url}/v1")


@asynccontextmanager
async def _client(environment: dict[str, str] = ENVIRONMENT, **limits: Any) -> AsyncIterator[ApiClient]:
    async with serve_app(APP) as url, HttpClient() as http:
        yield ApiClient(http, _api(url), environment, **limits)


async def test_a_call_sends_its_arguments_and_returns_what_its_schema_promises() -> None:
    async with _client() as client:
        arguments = {"id": "a/b c", "tags": ["x", "y z"], "filter": {"min": 1}, "X-Trace": "t"}
        answer = await client.call("getItem", arguments)
    assert answer.value == {
        "id": "a/b c",
        "path": "/v1/items/a%2Fb%20c",
        "query": [["tags", "x|y z"], ["filter[min]", "1"]],
        "trace": "t",
        "key": "s3cret",
    }
    schema = _api("http://h").skills[0].output_schema
    assert schema is not None
    assert compile_schema(schema, "output").is_valid(answer.value)


async def test_the_dispatch_path_checks_both_sides_of_a_call_and_records_its_end() -> None:
    async with serve_app(APP) as url, HttpClient() as http:
        api = _api(url)
        listing = Listing(AgentRecord("shop", skills=api.skills), "imports", "shop")
        client = ApiClient(http, api, ENVIRONMENT)
        dispatcher = Dispatcher("hub", ScriptedLookup([listing]), lambda _: client)
        done = await dispatcher.dispatch(make_call("getItem", {"id": "7"}))
        wrong = await dispatcher.dispatch(make_call("getItem", {"id": "7", "limit": 1}))
        bad = await dispatcher.dispatch(make_call("addItem", {"body": {}}))
        failed = await dispatcher.dispatch(make_call("status", {"code": "404"}))
    assert (done.status, done.value["id"], done.calls_used) == ("done", "7", 0)
    assert (wrong.status, bad.status, failed.status) == ("refused", "refused", "failed")
    assert isinstance(wrong.error, InvalidParametersError)
    assert isinstance(bad.error, InvalidParametersError)
    assert "this is 404" in str(failed.error)


async def test_bodies_arrive_as_json_as_a_form_and_as_files() -> None:
    async with _client() as client:
        assert (await client.call("addItem", {"body": {"id": "é"}})).value == {"id": "é"}
        form = await client.call("form", {"body": {"a": "1 &", "b": [1, 2]}})
        files = await client.call(
            "upload", {"body": {"file": {"text": "hello", "name": "h.txt"}, "note": "n"}}
        )
    assert form.value == {"type": "application/x-www-form-urlencoded", "body": "a=1+%26&b=1&b=2"}
    assert files.value["type"].startswith("multipart/form-data; boundary=")
    assert 'name="file"; filename="h.txt"' in files.value["body"]


async def test_each_operation_gets_the_credentials_of_its_own_scheme() -> None:
    async with _client() as client:
        assert (await client.call("whoami", {})).value == "Basic YWRhOnB3"


async def test_without_credentials_nothing_is_sent_and_the_variable_is_named() -> None:
    async with HttpClient() as http:
        client = ApiClient(http, _api("http://127.0.0.1:1"), {})
        with pytest.raises(NotAuthenticatedError) as refused:
            await client.call("getItem", {"id": "1"})
    assert "SHOP_KEY" in refused.value.remedy


@pytest.mark.parametrize(
    ("code", "error"),
    [(404, RemoteFaultError), (401, RemoteFaultError), (429, BusyError), (503, AgentUnreachableError)],
)
async def test_a_status_becomes_an_error_with_the_words_of_the_api(code: int, error: type[Exception]) -> None:
    async with _client() as client:
        with pytest.raises(error, match=f"this is {code}"):
            await client.call("status", {"code": code})


async def test_a_redirect_is_not_followed() -> None:
    async with _client() as client:
        with pytest.raises(RemoteFaultError, match="302") as moved:
            await client.call("moved", {})
    assert "elsewhere" in moved.value.remedy


async def test_a_response_over_the_limit_is_an_error_that_says_what_to_do() -> None:
    async with _client(max_response_bytes=1_000) as client:
        with pytest.raises(RemoteFaultError, match="1,000 bytes") as large:
            await client.call("large", {})
    assert large.value.remote_type == "too_large"
    assert "smaller page" in large.value.remedy


async def test_a_server_that_hangs_ends_with_the_limit_that_ran_out() -> None:
    async with _client(timeout_s=0.05) as client:
        with pytest.raises(CallTimedOutError) as late:
            await client.call("slow", {})
        assert late.value.layer == "API shop"
        deadline = asyncio.get_running_loop().time() + 0.02
        with pytest.raises(CallTimedOutError) as late:
            await client.call("slow", {}, deadline=deadline)
        assert late.value.layer == "caller"
        with pytest.raises(CallTimedOutError):
            await client.call("slow", {}, deadline=deadline)


async def test_a_server_that_is_down_was_not_sent_the_call() -> None:
    async with HttpClient() as http:
        client = ApiClient(http, _api("http://127.0.0.1:1"), ENVIRONMENT)
        with pytest.raises(AgentUnreachableError) as lost:
            await client.call("getItem", {"id": "1"})
    assert not lost.value.sent
    assert "http://127.0.0.1:1/v1" in lost.value.remedy


async def test_the_guard_keeps_a_document_from_private_addresses() -> None:
    async with serve_app(APP) as url, HttpClient(allow_private=False) as http:
        client = ApiClient(http, _api(url), ENVIRONMENT)
        with pytest.raises(AgentUnreachableError, match="not public") as refused:
            await client.call("whoami", {})
    assert not refused.value.sent
    assert "private addresses" in refused.value.remedy


async def test_secrets_are_in_no_error() -> None:
    async with HttpClient() as http:
        client = ApiClient(http, _api("http://127.0.0.1:1"), ENVIRONMENT)
        with pytest.raises(AgentUnreachableError) as lost:
            await client.call("getItem", {"id": "1"})
    assert "s3cret" not in f"{lost.value.message}{lost.value.remedy}{lost.value.data}"


async def test_an_unknown_skill_and_a_wrong_argument_are_refused_before_anything_is_sent() -> None:
    async with HttpClient() as http:
        client = ApiClient(http, _api("http://127.0.0.1:1"), ENVIRONMENT)
        with pytest.raises(UnknownSkillError) as unknown:
            await client.call("getItems", {})
        assert "getItem" in unknown.value.near
        with pytest.raises(InvalidParametersError, match="unknown field 'ID'"):
            await client.call("getItem", {"id": "1", "ID": "2"})


OTHER: dict[str, Any] = {
    "/object": {"get": {"operationId": "object", "responses": {"200": _json(ITEM)}}},
    "/list": {"get": {"operationId": "list", "responses": {"200": _json(ITEM)}}},
    "/array": {
        "get": {"operationId": "array", "responses": {"200": _json({"type": "array", "items": ITEM})}}
    },
    "/ref": {
        "get": {
            "operationId": "ref",
            "responses": {"200": _json({"$ref": "#/components/schemas/Item"})},
        }
    },
}
ANSWERS = {"object": {"id": 7}, "list": [1], "array": [{"id": "a"}, {}], "ref": {}}


@pytest.mark.parametrize("strict", [False, True])
async def test_a_response_that_differs_from_the_document_is_a_warning_or_if_strict_an_error(
    strict: bool,
) -> None:
    routes = [
        Route(f"/{name}", lambda request, value=value: JSONResponse(value)) for name, value in ANSWERS.items()
    ]
    content = orjson.dumps(document(OTHER, schemas={"Item": ITEM}))

    async def load() -> bytes:
        return content

    listed = asyncio.Event()
    async with serve_app(Starlette(routes=routes)) as url, HttpClient() as http:
        apis = ImportedApis({}, Pins())
        apis.subscribe(lambda _, health, reason: listed.set() if health == "healthy" else None)
        await apis.configure({"shop": ApiSpec("shop", "shop.json", load, server=url, strict=strict)}, http)
        async with asyncio.timeout(60):
            await listed.wait()
        (listing,) = (await apis.read_all()).listings
        dispatcher = Dispatcher("hub", ScriptedLookup([listing]), lambda _: apis)
        done = {name: await dispatcher.dispatch(make_call(name, {})) for name in ANSWERS}
        await apis.aclose()
    if strict:
        assert {type(one.error) for one in done.values()} == {OutputInvalidError}
        return
    assert {name: one.value for name, one in done.items()} == ANSWERS | {"list": {"result": [1]}}
    for name, one in done.items():
        (warning,) = one.warnings
        assert "the response differs from the API's document" in warning, name
        schema = next(skill for skill in listing.record.skills if skill.id == name).output_schema
        assert compile_schema(schema or False, "output").is_valid(one.value)
