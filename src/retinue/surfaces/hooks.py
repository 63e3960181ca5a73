"""``POST /hooks/registry``: a registry says what was pushed or deleted in it (DESIGN 3, issue 4).

Answered before anything is read again: docker-registry sends its notifications one after the other, and
holds all others back until this one is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.core.errors import NotAuthenticatedError, RetinueError, TooLargeError, UnsupportedMediaTypeError
from retinue.protocols.oci.events import EVENTS_TYPE, EVENTS_TYPES, RegistryEvent, parse_events
from retinue.surfaces.faults import rest_fault
from retinue.surfaces.security import visitor_of

HOOK_PATH = "/hooks/registry"
HOOK_SCOPE = "hooks"
HOOK_TOKEN = Principal("registry", "token", frozenset({HOOK_SCOPE}))
"""Whoever sends the token of ``hooks.token_env``: it opens this door, and shows no skill."""

MAX_BODY_BYTES = 1024 * 1024

Take = Callable[[Sequence[RegistryEvent]], None]
"""Is given the events of one notification and returns at once; raises BusyError to be told again later."""


def hook_route(take: Take) -> Route:
    """The door; a ``Doorkeeper`` must stand before it.

    202 when something was noted, 200 when nothing in the notification matters here; 401 without a
    token, 400, 413 or 415 for what is no notification, 429 when too much is still to be read.
    """

    async def answer(request: Request) -> Response:
        try:
            _check_visitor(visitor_of(request.scope).principal)
            _check_media_type(request.headers.get("content-type", ""))
            events = parse_events(await _read_body(request))
            if events:
                take(events)
        except RetinueError as error:
            fault = rest_fault(error)
            return JSONResponse(fault.body, fault.status, fault.headers)
        return JSONResponse({"accepted": len(events)}, 202 if events else 200)

    return Route(HOOK_PATH, answer, methods=["POST"])


def _check_visitor(principal: Principal) -> None:
    if principal.kind != "mesh" and HOOK_SCOPE not in principal.scopes:
        raise NotAuthenticatedError(
            "a registry that notifies sends a token",
            remedy="send the token in keys/local.token of the state folder, or that of hooks.token_env",
        )


def _check_media_type(text: str) -> None:
    found = text.partition(";")[0].strip().lower()
    if found not in EVENTS_TYPES and found != "application/json":
        raise UnsupportedMediaTypeError(
            f"this door reads {EVENTS_TYPE}, not {found or 'something without a media type'}",
            remedy=f"send content-type: {EVENTS_TYPE}",
        )


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError("the notification", MAX_BODY_BYTES)
    return bytes(body)
