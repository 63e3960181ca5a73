"""Renders rejections of the security middleware: error responses, OAuth challenges, resource metadata.

A rejection has the response format of the endpoint behind the middleware: JSON-RPC at ``/execute`` and at the
paths of A2A, ``{"detail": …}`` elsewhere.

When an authorization server is configured, each 401 points to ``GET /.well-known/oauth-protected-resource``,
from which MCP clients find that server (RFC 6750, RFC 9728; MCP 2025-11-25, "Authorization"). The metadata
needs no token. It is the same for every path, so it does not reveal which agents exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from retinue.core.artifact_links import PATH as ARTIFACTS_PATH
from retinue.core.errors import AccessError, InsufficientScopeError, RetinueError
from retinue.web.codec.error_info import render_details
from retinue.web.codec.jsonrpc import INTERNAL_ERROR, render_error
from retinue.web.error_table import CONTENT_TYPE_NOT_SUPPORTED, a2a_fault, execute_fault, rest_fault

METADATA_PATH = "/.well-known/oauth-protected-resource"
JWKS_PATH = "/.well-known/jwks.json"
DISCOVERY_PATHS = ("/.well-known/oauth-", "/.well-known/openid-configuration", JWKS_PATH)
"""Path prefixes at which OAuth clients look for the authorization server (RFC 8414, RFC 9728, OpenID).

These clients have no token yet: a missing document must yield 404, not 401.
"""

REGISTRY_PATH = "/v2/"

MAX_PATH_LENGTH = 500

_AGENT_PATH = re.compile(r"/agents/[^/]+/?")

_LINGER_BYTES = 64 * 1024 * 1024
_LINGER_S = 5.0
_UNAUTHORIZED = 401
_BARE_CHALLENGE = (b"www-authenticate", b"Bearer")


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The endpoints of a process as an OAuth protected resource.

    ``url`` is the public base url; None means the one in the request. ``scopes`` are those a client may
    request.
    """

    authorization_servers: Sequence[str]
    scopes: Sequence[str]
    url: str | None = None

    def metadata(self, base: str, path: str) -> dict[str, Any]:
        """The metadata document of the endpoint at ``path`` ("" = the whole process)."""
        return {
            "resource": self._base(base) + _quote_path(path),
            "authorization_servers": list(self.authorization_servers),
            "scopes_supported": list(self.scopes),
            "bearer_methods_supported": ["header"],
        }

    def challenge(self, base: str, path: str, error: AccessError, *, token_sent: bool) -> str:
        """The ``WWW-Authenticate`` header of a rejection at ``path``.

        Without a token in the request it names no error, only the scope to request (RFC 6750, section 3.1).
        """
        resource_path = "" if path == "/" else _quote_path(path)
        parameters = {"resource_metadata": self._base(base) + METADATA_PATH + resource_path}
        if isinstance(error, InsufficientScopeError):
            parameters |= {"error": "insufficient_scope", "scope": " ".join(error.scopes)}
        elif token_sent:
            parameters["error"] = "invalid_token"
        else:
            parameters["scope"] = self.scopes[0]
        if "error" in parameters:
            parameters["error_description"] = _to_quotable(error.message)
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())

    def _base(self, base: str) -> str:
        return (self.url or base).rstrip("/")


def add_challenge(send: Send, challenge: Callable[[], str | None]) -> Send:
    """Wrap ``send``: a bare ``Bearer`` challenge in a 401 of the endpoint is replaced by the full one."""

    async def send_challenged(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == _UNAUTHORIZED:
            full = (challenge() or "Bearer").encode()
            message["headers"] = [
                (name, full if (name, value) == _BARE_CHALLENGE else value)
                for name, value in message["headers"]
            ]
        await send(message)

    return send_challenged


class Rejection:
    """One error response in place of the endpoint's; it may be sent before the request body has ended."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self.is_sent = False

    async def send_unless_rejected(self, message: Message) -> None:
        """Forward a message of the endpoint, unless the rejection was sent."""
        if not self.is_sent:
            self._started = True
            await self._send(message)

    async def answer(self, error: RetinueError, *, drain: bool, challenge: str | None = None) -> None:
        """Send the rejection, unless the endpoint's response has begun.

        With ``drain``, keep reading the request for a while: a client that reads only after sending
        everything then sees the response instead of a connection reset.
        """
        self.is_sent = True
        if self._started:
            return
        fault = rest_fault(error)
        if self._scope["path"].endswith("/execute"):
            body = render_error(None, *execute_fault(error))
        elif self._scope["method"] == "POST" and is_a2a_path(self._scope["path"]):
            body = _render_a2a(error)
        else:
            body = orjson.dumps(fault.body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        extra = dict(fault.headers)
        if challenge is not None:
            extra["www-authenticate"] = challenge
        headers += [(name.encode(), value.encode()) for name, value in extra.items()]
        if drain:
            headers.append((b"connection", b"close"))
        await self._send({"type": "http.response.start", "status": fault.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": drain})
        if drain:
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _linger(self) -> None:
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return


def metadata_routes(resource: ProtectedResource | None) -> list[BaseRoute]:
    """The routes of the metadata document; none without an authorization server."""
    if resource is None:
        return []

    async def answer(request: Request) -> Response:
        path = request.path_params.get("path", "")
        if len(path) > MAX_PATH_LENGTH:
            return JSONResponse({"detail": f"the path is longer than {MAX_PATH_LENGTH} characters"}, 404)
        # not request.url: urlsplit remembers the last 128 urls, each up to limits.head_bytes long
        base = f"{request.scope['scheme']}://{request.headers['host']}"
        resource_path = f"/{path}" if path else ""
        headers = {"cache-control": "max-age=300", "access-control-allow-origin": "*"}
        return JSONResponse(resource.metadata(base, resource_path), headers=headers)

    paths = (METADATA_PATH, METADATA_PATH + "/{path:path}")
    return [Route(path, answer, methods=["GET"]) for path in paths]


def keys_route(read_key: Callable[[], Mapping[str, Any]]) -> Route:
    """The route of the public key that signs cards, as JWK set; it needs no token."""

    async def answer(request: Request) -> Response:
        key = await asyncio.to_thread(read_key)
        headers = {"cache-control": "max-age=300", "access-control-allow-origin": "*"}
        return JSONResponse({"keys": [dict(key)]}, headers=headers)

    return Route(JWKS_PATH, answer, methods=["GET"])


def is_registry_path(path: str) -> bool:
    """Whether a path belongs to the registry endpoint."""
    return path.startswith(REGISTRY_PATH) or path == REGISTRY_PATH.rstrip("/")


def is_a2a_path(path: str) -> bool:
    """Whether a POST at this path is A2A: the root, or an agent of the hub."""
    return path == "/" or _AGENT_PATH.fullmatch(path) is not None


def _render_a2a(error: RetinueError) -> bytes:
    code, _, message, facts = a2a_fault(error)
    is_own = code != CONTENT_TYPE_NOT_SUPPORTED
    details = (
        render_details(error.type.upper(), facts) if is_own else render_details("CONTENT_TYPE_NOT_SUPPORTED")
    )
    return render_error(None, INTERNAL_ERROR if code is None else code, message, details)


def is_upload_path(path: str) -> bool:
    """Whether bodies at this path are uploads to the registry, which are streamed to disk."""
    return path.startswith(REGISTRY_PATH) and "/blobs/uploads/" in path


def is_streamed_path(path: str) -> bool:
    """Whether bodies at this path are streamed to disk: artifacts, and uploads to the registry."""
    return path == ARTIFACTS_PATH or is_upload_path(path)


def _quote_path(path: str) -> str:
    return quote(path, safe="/:@!$&'()*+,;=~-._")


def _to_quotable(text: str) -> str:
    """Keep only the characters allowed in a quoted value (RFC 6750, section 3)."""
    return "".join(c for c in text if " " <= c <= "~" and c not in '"\\')
