"""The REST routes of seed 003: of the coordinator (K-21) and of one agent (K-22).

They answer at ``/resources/list`` and so on, and under ``/koi-net`` and ``/mcp`` as well (specification 7; 4,
doubt 6). Replies are those of the seed, byte for byte; an error is ``{"detail": …}`` with the status of
`web.error_table`. ``POST /tools/call/{trait}`` is one call on the dispatch path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retinue.cards.personality_profile import RESOURCE_TYPE, ShownPersonality, object_schema
from retinue.core.call import Call, Principal, TraceContext, new_id
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidParametersError,
    NotCallableError,
    OutputInvalidError,
    Problem,
    RetinueError,
    UnknownAgentError,
    UnknownSkillError,
)
from retinue.core.json_values import decode_json
from retinue.mesh.dispatch import Calls
from retinue.mesh.slices import run_in_slices, sort_in_slices
from retinue.web.codec.trace import CALLS_USED_KEY, USAGE_KEY, parse_raw_trace_headers, render_usage
from retinue.web.disconnect import CancelOnDisconnect, read_body
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

PREFIXES = ("", "/koi-net", "/mcp")
"""Where the routes answer."""

ENDPOINT = "rest"
AGENT_ID = "agent:"

ListPersonalities = Callable[[Principal], Awaitable[Iterable[ShownPersonality]]]
"""The newest personality of each agent that a caller sees, with the traits that it sees."""

FindPersonality = Callable[[Principal, str | None], Awaitable[ShownPersonality | None]]
"""The personality of an agent of this name as a caller sees it; None = the name is not in the path."""

_Endpoint = Callable[[Request], Awaitable[Response]]
_NO_TRACE = TraceContext(id="")
_log = structlog.get_logger("retinue.koi")  # the name of the logger by which people filter these lines


def registry_routes(
    list_personalities: ListPersonalities,
    find_personality: FindPersonality | None = None,
    *,
    prefixes: Collection[str] = PREFIXES,
) -> list[Route]:
    """The three routes of a coordinator; ``find_personality`` finds one of the list without the others."""

    async def find_in_list(caller: Principal, name: str | None) -> ShownPersonality | None:
        listed = await list_personalities(caller)
        return next((personality for personality in listed if personality.name == name), None)

    find = find_personality or find_in_list

    async def read(request: Request) -> list[ShownPersonality]:
        personalities = await list_personalities(identity_of(request.scope).principal)
        return await sort_in_slices([*personalities], key=lambda personality: personality.name)

    async def list_resources(request: Request) -> Response:
        personalities = await read(request)
        return await _json_list("resources", (personality.render_resource() for personality in personalities))

    async def read_resource(request: Request) -> Response:
        name = _name_of(request)
        if name is None:
            return _missing("Resource not found")
        personality = await find(identity_of(request.scope).principal, name)
        if personality is None or personality.name != name:
            return _missing("Agent not found")
        return _json(personality.render_content())

    async def list_tools(request: Request) -> Response:
        personalities = await read(request)
        rendered = (personality.render_tools(prefixed=True) for personality in personalities)
        return await _json_list("tools", chain.from_iterable(rendered))

    return _routes(prefixes, list_resources, read_resource, list_tools)


def agent_routes(
    find_personality: FindPersonality,
    calls: Calls,
    *,
    prefixes: Collection[str] = PREFIXES,
    takes_arguments: Callable[[str], bool] = lambda trait: True,
    find_called: FindPersonality | None = None,
) -> list[Route]:
    """The four routes of an agent: the agent of this process, or the agent of the path ``{agent}``.

    A trait that takes no arguments, because it only has a value, ignores the body of a call. ``find_called``
    gives the personality for a call, with traits that are in no list.
    """

    async def read(request: Request) -> ShownPersonality | None:
        name = request.path_params.get("agent")
        return await find_personality(identity_of(request.scope).principal, name)

    async def list_resources(request: Request) -> Response:
        personality = await read(request)
        if personality is None:
            return _missing("Agent not found")
        name = personality.name
        own = {
            "id": f"{AGENT_ID}{name}",
            "type": RESOURCE_TYPE,
            "description": f"{name} agent personality",
            "url": f"/resources/read/{AGENT_ID}{name}",
        }
        return _json({"resources": [own]})

    async def read_resource(request: Request) -> Response:
        name = _name_of(request)
        if name is None:
            return _missing("Resource not found")
        personality = await read(request)
        if personality is None or personality.name != name:
            return _missing("Agent not found")
        return _json(personality.render_content())

    async def list_tools(request: Request) -> Response:
        personality = await read(request)
        return _json({"tools": [] if personality is None else personality.render_tools(relative=True)})

    return [
        *_routes(prefixes, list_resources, read_resource, list_tools),
        *call_routes(
            find_called or find_personality, calls, prefixes=prefixes, takes_arguments=takes_arguments
        ),
    ]


def call_routes(
    find_personality: FindPersonality,
    calls: Calls,
    *,
    prefixes: Collection[str] = PREFIXES,
    takes_arguments: Callable[[str], bool] = lambda trait: True,
) -> list[Route]:
    """The route of `agent_routes` that calls a trait."""
    call = _CallEndpoint(find_personality, calls, takes_arguments)
    return [Route(f"{prefix}/tools/call/{{trait:path}}", call, methods=["POST"]) for prefix in prefixes]


def _routes(
    prefixes: Collection[str], list_resources: _Endpoint, read_resource: _Endpoint, list_tools: _Endpoint
) -> list[Route]:
    """The routes that an agent and a coordinator have."""
    return [
        Route(f"{prefix}{path}", endpoint, methods=["GET"])
        for prefix in prefixes
        for path, endpoint in (
            ("/resources/list", list_resources),
            ("/resources/read/{id:path}", read_resource),
            ("/tools/list", list_tools),
        )
    ]


class _CallEndpoint:
    """``POST /tools/call/{trait}`` as an ASGI app: a call that its client may abandon."""

    def __init__(
        self, find_personality: FindPersonality, calls: Calls, takes_arguments: Callable[[str], bool]
    ) -> None:
        self._takes_arguments = takes_arguments
        self._find_personality = find_personality
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if body is None:
            return
        with CancelOnDisconnect(receive):
            answer: ASGIApp = await self._answer(scope, body)
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, body: bytes) -> Response:
        visitor = identity_of(scope)
        path: Mapping[str, Any] = scope["path_params"]
        name = path["trait"]
        personality = await self._find_personality(visitor.principal, path.get("agent"))
        if personality is None:
            return _missing("Agent not found")
        trait = personality.find_trait(name)
        if trait is None:
            return _missing(f"Trait {name} not found")
        try:
            if not trait["is_callable"]:
                raise NotCallableError(name)
            arguments = read_arguments(trait, body) if self._takes_arguments(name) else {}
        except RetinueError as error:
            return _failed(error)
        call = Call(
            id=new_id(),
            skill=name,
            arguments=arguments,
            principal=visitor.principal,
            endpoint=ENDPOINT,
            trace=parse_raw_trace_headers(visitor.headers) or _NO_TRACE,
            agent=personality.name,
        )
        try:
            outcome = await self._calls.dispatch(call)
        except Exception:  # noqa: BLE001 - a bug of ours: its text belongs in the log, not on the wire
            _log.exception("dispatch failed", call_id=call.id, trait=name)
            return _failed(ExecutionFailedError("internal error", remedy=f"see the log for call {call.id}"))
        headers = {CALLS_USED_KEY: str(outcome.calls_used)} if outcome.calls_used else {}
        if outcome.usage is not None:
            headers[USAGE_KEY] = render_usage(outcome.usage)
        if isinstance(outcome.error, UnknownSkillError | UnknownAgentError):
            # hidden from this caller, or gone since: both answer as a missing one
            return _missing(f"Trait {name} not found")
        if outcome.error is not None:
            return _failed(outcome.error, headers)
        try:
            return Response(orjson.dumps({"result": outcome.value}), headers=headers, media_type=_JSON)
        except TypeError as cause:
            return _failed(OutputInvalidError.not_json(name, "", str(cause)), headers)


_JSON = "application/json"


def read_arguments(trait: Mapping[str, Any], body: bytes) -> Any:
    """The arguments in the body of a call: an object, or a string for the only parameter.

    Raises InvalidParametersError and OutOfMemoryError.
    """
    if not body.strip():
        return {}
    try:
        arguments = decode_json(body)
    except orjson.JSONDecodeError as error:
        raise InvalidParametersError([Problem("", f"the body is not JSON: {error}")]) from error
    if isinstance(arguments, dict):
        return arguments
    if isinstance(arguments, str):
        return {_only_parameter(trait): arguments}
    kind = "null" if arguments is None else type(arguments).__name__
    raise InvalidParametersError([Problem("", f"the body is {kind}; send an object with the arguments")])


def _only_parameter(trait: Mapping[str, Any]) -> str:
    schema = object_schema(trait)
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or ()
    names = list(properties) if len(properties) == 1 else list(required)
    return str(names[0]) if len(names) == 1 else "input"


def _name_of(request: Request) -> str | None:
    """The name in ``agent:<name>``; None without that prefix."""
    resource: str = request.path_params["id"]
    return resource.removeprefix(AGENT_ID) if resource.startswith(AGENT_ID) else None


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)


async def _json_list(name: str, rows: Iterable[Any]) -> Response:
    """The response with one list, whose rows are rendered while others run, because a mesh has many."""
    rendered: list[bytes] = []
    await run_in_slices(map(rendered.append, map(orjson.dumps, rows)))
    return Response(b'{"%s":[%s]}' % (name.encode(), b",".join(rendered)), media_type=_JSON)


def _missing(detail: str) -> Response:
    return JSONResponse({"detail": detail}, 404)


def _failed(error: RetinueError, headers: Mapping[str, str] | None = None) -> Response:
    fault = rest_fault(error)
    return JSONResponse(fault.body, fault.status, {**fault.headers, **(headers or {})})
