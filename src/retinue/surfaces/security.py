"""What stands before every door: Host, Origin, media type, size and token checks, as pure ASGI.

DESIGN 7. The danger is a web page in the user's browser: it can reach a loopback port, so a request
is taken only when its Host is ours (DNS rebinding), its Origin is ours (cross-site requests) and its
body has a media type that no page sends without asking (plain forms). Refusals speak the form of the
door, JSON-RPC at ``/execute`` and ``{"detail": …}`` elsewhere, under their own HTTP status.
BaseHTTPMiddleware was not used: it runs the request in another task and buffers what streams.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.core.call import ANONYMOUS, Principal
from retinue.core.errors import (
    InsufficientScopeError,
    InvalidSettingError,
    NotAllowedError,
    NotAuthenticatedError,
    RetinueError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from retinue.protocols.rights import apply_rights
from retinue.surfaces.challenges import DISCOVERY_PATHS, ProtectedResource, challenging
from retinue.surfaces.hosts import fold, host_name, is_address, is_loopback, names_socket
from retinue.surfaces.refusal import REGISTRY_PATH, Refusal, is_registry

Headers = Mapping[bytes, bytes]

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UPLOAD_BYTES = 64 * 1024 * 1024

LOCAL_TOKEN = Principal("local", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
"""Whoever sends the state's ``keys/local.token``: the command line, children, a connected client."""

_VISITOR = "retinue.visitor"
_WANTED = NotAuthenticatedError("another token is wanted here")
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_SMALL_BODY_BYTES = 64 * 1024
_MAX_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Who is let in.

    ``host`` is the address bound to; ``hosts`` are further names under which clients reach it, and
    ``origins`` web pages that may (``scheme://host[:port]``). ``any_media_type`` are path prefixes
    that read media types of their own. Without ``anonymous`` everything but
    ``/health`` and ``DISCOVERY_PATHS`` wants a token.
    ``max_upload_bytes`` bounds content on its way into the registry, which is not held in memory.
    ``resource`` is what OAuth clients are told of these doors.
    """

    host: str = "127.0.0.1"
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    max_upload_bytes: int = MAX_UPLOAD_BYTES
    any_media_type: tuple[str, ...] = (REGISTRY_PATH, "/hooks/registry")
    anonymous: bool = True
    resource: ProtectedResource | None = None


class TokenReader(Protocol):
    """Knows the tokens of one kind (``drivers.tokens``, ``drivers.jwt_tokens``, ``drivers.mesh_bearer``)."""

    async def read(self, token: bytes, place: str) -> Principal | None:
        """Who sends this token; None where it is of another kind.

        ``place`` is the Host header, lower case, where it means the socket at which the request came in,
        else "". Raises an AccessError that says why it is not taken.
        """


class Tokens:
    """The bearer tokens of this process, kept as SHA-256 only."""

    def __init__(self, tokens: Mapping[str, Principal] | None = None) -> None:
        self._known = [(sha256(token.encode()).digest(), who) for token, who in (tokens or {}).items()]

    def find(self, token: bytes) -> Principal | None:
        """Who sends this token; every known one is compared, so that time tells nothing."""
        given = sha256(token).digest()
        found = None
        for digest, principal in self._known:
            if hmac.compare_digest(digest, given):
                found = principal
        return found


@dataclass(frozen=True, slots=True)
class Visitor:
    """What the checks learnt of one request: who it is, and its headers by lower-case name."""

    principal: Principal
    headers: Headers


def visitor_of(scope: Scope) -> Visitor:
    """What ``Doorkeeper`` learnt of this request; raises LookupError when none stood before the door."""
    visitor = scope.get("state", {}).get(_VISITOR)
    if visitor is None:
        raise LookupError("no Doorkeeper stands before this door")
    return cast(Visitor, visitor)


def check_bind(host: str, *, has_auth: bool, insecure_ok: bool = False) -> None:
    """Refuse to open a door to the network without a lock (InvalidSettingError)."""
    if not (is_loopback(host) or has_auth or insecure_ok):
        raise InvalidSettingError(
            "host",
            f"{host or 'every address'} is open to other machines, and nobody would be asked for a token",
            remedy="set auth.anonymous = false and give out tokens (retinue token new); bind 127.0.0.1; "
            "or accept it with --insecure-bind",
        )


class Doorkeeper:
    """ASGI middleware that lets a request through to ``app`` or answers it with the reason why not."""

    def __init__(
        self,
        app: ASGIApp,
        settings: DoorSettings | None = None,
        tokens: Tokens | None = None,
        readers: Sequence[TokenReader] = (),
    ) -> None:
        self._app = app
        self._settings = settings or DoorSettings()
        self._tokens = tokens or Tokens()
        self._readers = tuple(readers)
        self._names = frozenset(map(fold, self._settings.hosts)) - _ANY_ADDRESS
        self._hosts = {fold(host) for host in (self._settings.host, *self._settings.hosts)} - _ANY_ADDRESS
        # Whoever names us by address has asked no name server, so nobody can have answered for us.
        self._any_address = self._settings.host in _ANY_ADDRESS
        self._origins = {origin.rstrip("/").lower() for origin in self._settings.origins}
        self._known_hosts: set[bytes | None] = set()
        # what no door refuses for its size
        self._small_bytes = min(self._settings.max_body_bytes, self._settings.max_upload_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No door speaks WebSocket; without an answer the server turns it down.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self._check_place(scope, headers)
            if self._settings.anonymous and b"authorization" not in headers:
                principal = ANONYMOUS
            else:
                principal = await self.authenticate(headers, scope["path"], scope.get("server"))
            self._check_body(scope, headers)
        except RetinueError as error:
            challenge = self._challenge(scope, headers, error)
            await Refusal(scope, receive, send).answer(
                error, drain=_may_be_long(headers), challenge=challenge
            )
            return
        scope.setdefault("state", {})[_VISITOR] = Visitor(principal, headers)
        if self._settings.resource is not None:
            send = challenging(send, lambda: self._challenge(scope, headers, _WANTED))
        if b"transfer-encoding" in headers:
            await self._pass_counted(scope, receive, send)
        else:
            # With a Content-Length the server itself holds the client to it.
            await self._app(scope, receive, send)

    async def authenticate(
        self, headers: Headers, path: str = "/", server: Sequence[Any] | None = None
    ) -> Principal:
        """Who sends this request to the socket ``server``; raises NotAuthenticatedError for an unknown token,
        or for none at all where one is wanted, and what a reader of tokens raises."""
        authorization = headers.get(b"authorization")
        token = None
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            token = authorization[7:].strip()
        elif authorization is not None and is_registry(path):
            token = _read_password(authorization) or None
        if token is not None:
            return apply_rights(await self._find(token, headers, server), headers)
        if self._settings.anonymous or path == "/health" or path.startswith(DISCOVERY_PATHS):
            return ANONYMOUS
        raise NotAuthenticatedError("a bearer token is wanted here", remedy="ask whoever runs it for a token")

    async def _find(self, token: bytes, headers: Headers, server: Sequence[Any] | None) -> Principal:
        found = self._tokens.find(token)
        if found is not None:
            return found
        host = headers.get(b"host", b"")
        place = host.decode("latin-1").lower() if names_socket(host, server, self._names) else ""
        for reader in self._readers:
            found = await reader.read(token, place)
            if found is not None:
                return found
        raise NotAuthenticatedError(
            "this token is not known here",
            remedy="send the token in keys/local.token of the state folder, or one of: retinue token new",
        )

    def _challenge(self, scope: Scope, headers: Headers, error: RetinueError) -> str | None:
        """What an OAuth client is told beside the refusal of its token, or of its coming without one."""
        resource = self._settings.resource
        if resource is None or not isinstance(error, NotAuthenticatedError | InsufficientScopeError):
            return None
        base = f"{scope.get('scheme', 'http')}://{headers.get(b'host', b'').decode('latin-1')}"
        return resource.challenge(base, scope["path"], error, token_sent=b"authorization" in headers)

    def _check_place(self, scope: Scope, headers: Headers) -> None:
        host = headers.get(b"host")
        if host not in self._known_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own_origin(origin, host):
            raise NotAllowedError(
                "this web page may not ask here", remedy="add its origin to doors.origins in retinue.toml"
            )
        if headers.get(b"sec-fetch-site") == b"cross-site" and not (
            origin is not None or _is_navigation(scope, headers)
        ):
            raise NotAllowedError("a page of another site may not ask here")

    def _check_host(self, host: bytes | None) -> None:
        name = host_name(host)
        if not name or not (self._is_own_host(name) or (self._any_address and is_address(name))):
            raise NotAllowedError(
                f"the Host header {name or '(none)'!r} is not one of this server's names",
                remedy="add it to doors.hosts in retinue.toml, or use the address printed at the start",
            )
        if len(self._known_hosts) < _MAX_REMEMBERED:
            self._known_hosts.add(host)

    def _is_own_host(self, name: str) -> bool:
        return name in self._hosts or is_loopback(name)

    def _is_own_origin(self, origin: bytes, host: bytes | None) -> bool:
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        try:
            parts = urlsplit(text)
            name = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme not in ("http", "https"):
            return False
        return (
            self._is_own_host(name) or text == f"{parts.scheme}://{(host or b'').decode('latin-1').lower()}"
        )

    def _check_body(self, scope: Scope, headers: Headers) -> None:
        length = headers.get(b"content-length")
        if length is not None and not (length.isdigit() and int(length) <= self._small_bytes):
            self._check_length(scope, length)
        media_type = headers.get(b"content-type")
        if media_type == b"application/json":
            return
        if scope["method"] not in _WITH_BODY or scope["path"].startswith(self._settings.any_media_type):
            return
        if media_type is None:
            if b"origin" not in headers and b"sec-fetch-site" not in headers:
                return
            found = "no media type"
        else:
            found = media_type.partition(b";")[0].strip().lower().decode("latin-1")
            if found == "application/json" or (found.startswith("application/") and found.endswith("+json")):
                return
        raise UnsupportedMediaTypeError(
            f"this door reads application/json, not {found}", remedy="send content-type: application/json"
        )

    def _check_length(self, scope: Scope, length: bytes) -> None:
        if not length.isdigit() or int(length) > self._limit_bytes(scope):
            raise self._too_large(scope)

    def _limit_bytes(self, scope: Scope) -> int:
        path: str = scope["path"]
        upload = path.startswith(REGISTRY_PATH) and "/blobs/uploads/" in path
        return self._settings.max_upload_bytes if upload else self._settings.max_body_bytes

    def _too_large(self, scope: Scope) -> TooLargeError:
        return TooLargeError("the body", self._limit_bytes(scope))

    async def _pass_counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a body of unknown length through, and cut it off where it passes the cap."""
        refusal = Refusal(scope, receive, send)
        left = self._limit_bytes(scope)

        async def receive_counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0 and not refusal.given:
                await refusal.answer(self._too_large(scope), drain=message.get("more_body", False))
            return {"type": "http.disconnect"} if refusal.given else message

        try:
            await self._app(scope, receive_counted, refusal.send_unless_given)
        except Exception:
            # Whatever the door made of a body that ended early, its caller has been answered.
            if not refusal.given:
                raise


def _may_be_long(headers: Headers) -> bool:
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not length.isdigit() or int(length) > _SMALL_BODY_BYTES


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """Somebody followed a link to us: harmless, because no GET of ours changes anything."""
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _read_password(authorization: bytes) -> bytes:
    """The password of Basic credentials, whatever the user's name; empty when it is none.

    skopeo answers a challenge with an empty name and password when it was given none: that is nobody.
    """
    scheme, _, packed = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(packed.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
