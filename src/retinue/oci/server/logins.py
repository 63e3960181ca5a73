"""Logins at the registry endpoint: challenges, the token endpoint, and the scopes of its tokens.

Clients in Go send user and password with each request (Basic). Others, such as oras-py, first exchange them
for a token of a scope at ``GET /v2/token`` (Docker "Token Authentication Specification"). A token has no more
rights than the credentials from which it was made, and a request outside its scope is rejected.
"""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from starlette.requests import Request
from starlette.responses import Response

from retinue.oci.server.responses import API_VERSION, JSON_TYPE, Handler, RegistryErrorResponse
from retinue.web.addresses import base_of
from retinue.web.codec.registry_scope import (
    ACTIONS,
    ALL,
    BASIC_CHALLENGE,
    CATALOG,
    Scopes,
    is_within,
    parse_scopes,
    scope_of,
)
from retinue.web.registry_tokens import LIFETIME_S, RegistryTokens, is_registry_token
from retinue.web.security import identity_of, read_token

_READER_ACTIONS = frozenset({"pull"})


def may_write(request: Request) -> bool:
    """Whether the request carries a token of the mesh itself, the only kind that may write.

    Agents in the state's registry are called with a mesh token. The holder of an issued token must not
    obtain one by publishing a card with a url of its own.
    """
    principal = identity_of(request.scope).principal
    return principal.kind == "mesh" and "mesh" in principal.scopes


class RegistryLogins:
    """The logins of one registry endpoint; without ``tokens`` it supports Basic only."""

    def __init__(self, tokens: RegistryTokens | None = None) -> None:
        self.tokens = tokens

    def challenge(self, request: Request, error: str = "") -> dict[str, str]:
        """The header that asks the client of a request for a login; ``error`` is a code of RFC 6750."""
        if self.tokens is None:
            return {"www-authenticate": BASIC_CHALLENGE}
        base = base_of(request.scope, request.headers["host"].encode("latin-1"))
        text = self.tokens.challenge(base, request.method, request.scope["path"], error)
        return {"www-authenticate": text}

    def within_scope(self, handler: Handler) -> Handler:
        """Wrap a handler: reject a request outside the scopes of the registry token that it carries.

        A mount needs ``pull`` of the repository from which it copies.
        """
        if self.tokens is None:
            return handler

        async def check(request: Request) -> Response:
            scopes = self._scopes_of(request)
            if scopes is not None:
                method, path = request.method, request.scope["path"]
                source = request.query_params.get("from")
                is_mounted = source is None or is_within("GET", f"/v2/{source}/blobs/", scopes)
                if not (is_within(method, path, scopes) and is_mounted):
                    wanted = scope_of(method, path)
                    raise RegistryErrorResponse(
                        "DENIED",
                        f"the scope of this token does not include {wanted or 'this path'}",
                        self.challenge(request, "insufficient_scope"),
                    )
            return await handler(request)

        return check

    async def issue(self, request: Request) -> Response:
        """GET /v2/token?service=…&scope=…: a token for the caller, restricted to what it may do."""
        assert self.tokens is not None
        requested = parse_scopes(request.query_params.getlist("scope"))
        granted = _grant(requested, ACTIONS if may_write(request) else _READER_ACTIONS)
        headers = identity_of(request.scope).headers
        own = read_token(headers.get(b"authorization"), request.scope["path"])
        token, made_at = self.tokens.issue(own or b"", granted)
        body = {
            "token": token,
            "access_token": token,
            "expires_in": LIFETIME_S,
            "issued_at": datetime.fromtimestamp(made_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        no_store = {"cache-control": "no-store"}
        return Response(orjson.dumps(body), headers={**API_VERSION, **no_store}, media_type=JSON_TYPE)

    def _scopes_of(self, request: Request) -> Scopes | None:
        """The scopes of the token of a request; None for credentials without scopes."""
        token = read_token(identity_of(request.scope).headers.get(b"authorization"), request.scope["path"])
        if token is None or self.tokens is None or not is_registry_token(token):
            return None
        return self.tokens.open(token).scopes


def _grant(requested: Scopes, allowed: frozenset[str]) -> dict[str, frozenset[str]]:
    """The granted part of the requested scopes; a scope without any action is left out."""
    granted = {}
    for resource, actions in requested.items():
        if resource == CATALOG:
            granted[resource] = actions & ALL
        elif resource.startswith("repository:"):
            granted[resource] = (ACTIONS if actions & ALL else actions) & allowed
    return {resource: actions for resource, actions in granted.items() if actions}
