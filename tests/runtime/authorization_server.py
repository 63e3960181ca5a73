"""An MCP server that asks for a login, and its authorization server, on sockets of this machine.

The two have addresses of their own, as most have. Attributes change what they do; ``requests`` counts what
came.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.mcp.upstream.foreign_server import make_server
from tests.serving import serve_app


class AuthorizationServer:
    """Registers clients, lets everybody in, gives and renews tokens."""

    def __init__(self) -> None:
        self.url = ""
        self.resource_url = ""
        self.requests: Counter[str] = Counter()
        self.registered: list[dict[str, Any]] = []
        self.clients = {"by-hand"}
        self.codes: dict[str, dict[str, str]] = {}
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.expires_in = 3600
        self.reads_client_metadata = False
        self.issuer: str | None = None
        """Another issuer in the metadata than the true one."""
        self.answer: dict[str, str] = {}
        """What the redirect says in place of the truth."""
        self.token_error: str | None = None
        self.scopes: dict[str, str] = {}
        """The scopes of each token."""
        self.wanted: Mapping[str, str] = {}
        """The scope that a tool wants, or a method."""
        self.resource: str | None = None
        """Another resource in the metadata than the true one."""
        self.moved_to: str | None = None
        """Where the MCP server sends every request on to, by a redirect."""
        self.token_moved_to: str | None = None
        """Where the token endpoint does."""
        self.methods: list[str] | None = ["S256"]
        """The methods of PKCE in the metadata; None = it does not name any."""
        self.registers = True
        self.revokes: str | None = "/revoke"
        """The path of the revocation endpoint; None = it has none."""
        self.revoked: list[dict[str, str]] = []
        self.named: str | None = None
        """Another authorization server in the metadata of the resource than the true one."""

    def app(self) -> Starlette:
        routes = [
            Route("/.well-known/oauth-authorization-server", self._metadata),
            Route("/register", self._register, methods=["POST"]),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
            Route("/revoke", self._revoke, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _metadata(self, request: Request) -> Response:
        self.requests["metadata"] += 1
        optional = {
            "code_challenge_methods_supported": self.methods,
            "registration_endpoint": f"{self.url}/register" if self.registers else None,
            "revocation_endpoint": self.revokes and f"{self.url}{self.revokes}",
        }
        return JSONResponse(
            {key: value for key, value in optional.items() if value is not None}
            | {
                "issuer": self.issuer or self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "response_types_supported": ["code"],
                "token_endpoint_auth_methods_supported": ["none"],
                "authorization_response_iss_parameter_supported": True,
                "client_id_metadata_document_supported": self.reads_client_metadata,
            }
        )

    async def _register(self, request: Request) -> Response:
        self.requests["register"] += 1
        if not self.registers:
            return Response("no", 404)
        wanted = await request.json()
        self.registered.append(wanted)
        client_id = f"client-{len(self.registered)}"
        self.clients.add(client_id)
        return JSONResponse({**wanted, "client_id": client_id}, 201)

    async def _authorize(self, request: Request) -> Response:
        self.requests["authorize"] += 1
        asked = dict(request.query_params)
        assert asked["code_challenge_method"] == "S256"
        assert asked["resource"] == f"{self.resource_url}/mcp"
        if asked["client_id"] not in self.clients:
            return Response("unknown client", 400)
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        found = {"code": code, "state": asked["state"], "iss": self.url} | self.answer
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(found)}")

    async def _revoke(self, request: Request) -> Response:
        form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
        self.revoked.append({**form, "authorization": request.headers.get("authorization", "")})
        self.access.discard(form["token"])
        self.refresh.discard(form["token"])
        return Response()

    async def _token(self, request: Request) -> Response:
        if self.token_moved_to is not None:
            return RedirectResponse(f"{self.token_moved_to}/token")  # 307: the same request, with its body
        form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
        kind = form["grant_type"]
        self.requests[kind] += 1
        if self.token_error is not None:
            return JSONResponse({"error": "invalid_grant", "error_description": self.token_error}, 400)
        assert form["resource"] == f"{self.resource_url}/mcp"
        if kind == "authorization_code":
            asked = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
            assert form["redirect_uri"] == asked["redirect_uri"]
        elif form["refresh_token"] not in self.refresh:
            return JSONResponse({"error": "invalid_grant"}, 400)
        self.refresh.discard(form.get("refresh_token", ""))
        access, refresh = f"secret-access-{secrets.token_hex(8)}", f"secret-refresh-{secrets.token_hex(8)}"
        self.access.add(access)
        # a renewed token has the scopes of the one before it
        old = form.get("refresh_token", "")
        self.scopes[access] = asked.get("scope", "") if kind == "authorization_code" else self.scopes[old]
        self.scopes[refresh] = self.scopes[access]
        self.refresh.add(refresh)
        return JSONResponse(
            {
                "access_token": access,
                "token_type": "Bearer",
                "expires_in": self.expires_in,
                "refresh_token": refresh,
            }
        )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, then what comes after it."""
    parts: list[Message] = [{"type": "http.request", "body": body}]

    async def read() -> Message:
        return parts.pop() if parts else await receive()

    return read


class _Guarded:
    """Lets only requests with a token of the authorization server through."""

    def __init__(self, app: ASGIApp, server: AuthorizationServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, server = Request(scope, receive), self._server
        if server.moved_to is not None and request.url.path == "/mcp":
            await RedirectResponse(f"{server.moved_to}/mcp")(scope, receive, send)
            return
        if request.url.path.startswith("/.well-known/oauth-protected-resource"):
            resource = server.resource or f"{server.resource_url}/mcp"
            found = {"resource": resource, "authorization_servers": [server.named or server.url]}
            await JSONResponse(found)(scope, receive, send)
            return
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token in server.access:
            body = await request.body()
            asked = json.loads(body) if body else {}
            called = asked.get("params", {}).get("name")
            missing = server.wanted.get(called or asked.get("method", ""))
            if missing is None or missing in server.scopes[token].split():
                await self._app(scope, _replay(body, receive), send)
                return
            challenge = {"www-authenticate": f'Bearer error="insufficient_scope", scope="{missing}"'}
            await JSONResponse({"error": "insufficient_scope"}, 403, challenge)(scope, receive, send)
            return
        server.requests["refused"] += 1
        url = f"{server.resource_url}/.well-known/oauth-protected-resource/mcp"
        challenge = {"www-authenticate": f'Bearer resource_metadata="{url}"'}
        await JSONResponse({"error": "invalid_token"}, 401, challenge)(scope, receive, send)


@asynccontextmanager
async def serve_with_login() -> AsyncIterator[AuthorizationServer]:
    """The two servers; ``resource_url`` and ``url`` are their addresses."""
    server = AuthorizationServer()
    guarded = _Guarded(make_server().streamable_http_app(), server)
    async with serve_app(server.app()) as server.url, serve_app(guarded) as server.resource_url:
        yield server


async def browse(page: str) -> tuple[int, str]:
    """What a browser does with the page of a login: status and text of the last answer."""
    async with aiohttp.ClientSession() as session, session.get(page) as reply:
        return reply.status, await reply.text()
