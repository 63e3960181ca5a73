"""ASGI middleware in front of every endpoint: checks Host, Origin, media type, body size and token.

The main threat is a web page in the user's browser, which can reach a loopback port. A request is accepted
only when its Host is one of this server's names (DNS rebinding), its Origin is allowed (cross-site requests)
and its body has a media type that a page cannot send without a preflight request (plain forms).

Starlette's BaseHTTPMiddleware is not used, because it runs the request in another task and buffers streams
(specification 12.1).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.core.artifact_links import PATH as ARTIFACTS_PATH
from retinue.core.call import ANONYMOUS, Principal
from retinue.core.errors import (
    InsufficientScopeError,
    InvalidRequestError,
    InvalidSettingError,
    NotAllowedError,
    NotAuthenticatedError,
    OutOfMemoryError,
    RetinueError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from retinue.core.quick_dataclass import quick_dataclass
from retinue.web.addresses import (
    base_of,
    fold,
    host_name,
    is_address,
    is_loopback,
    names_socket,
    port_of,
)
from retinue.web.codec.peer_requests import apply_rights
from retinue.web.codec.registry_scope import BASIC_CHALLENGE
from retinue.web.registry_tokens import TOKEN_PATH, RegistryTokens, is_registry_token
from retinue.web.rejections import (
    DISCOVERY_PATHS,
    REGISTRY_PATH,
    ProtectedResource,
    Rejection,
    add_challenge,
    is_registry_path,
    is_upload_path,
)

if TYPE_CHECKING:
    from retinue.mesh.admission import ProcessLimits

Headers = Mapping[bytes, bytes]

PROBE_PATHS = frozenset({"/health", "/ready"})
"""The paths of probes, which need no token."""

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UPLOAD_BYTES = 64 * 1024 * 1024

LOCAL_TOKEN = Principal("local", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
"""The sender of the state token ``keys/local.token``: command line, child process, connected client."""

OWNER_TOKEN = replace(LOCAL_TOKEN, scopes=LOCAL_TOKEN.scopes | {"approves"})
"""The sender of ``keys/owner.token``, which no child process and no connected client gets."""

_IDENTITY = "retinue.identity"
_TOKEN_REQUIRED = NotAuthenticatedError("this request needs another token")
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared, not bound
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_SINGLE = frozenset(
    {
        b"authorization",
        b"content-length",
        b"content-range",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"origin",
        b"traceparent",
        b"transfer-encoding",
    }
)
_SINGLE_PREFIXES = (b"mcp-", b"sec-fetch-", b"x-openstarry-", b"x-retinue-")
_READ_PATHS = frozenset({"/search", REGISTRY_PATH.rstrip("/")})
_READ_ENDS = (
    "/agent-card",
    "/agent-card.json",
    "/agent.json",
    "/ai-catalog.json",
    "/openapi.json",
    "/resources/list",
    "/tools/list",
)
_SMALL_BODY_BYTES = 64 * 1024
_MAX_REMEMBERED = 64
_UNLIMITED = 2**63


@dataclass(frozen=True, slots=True)
class PathExceptions:
    """The paths that parts of a process take out of a check; fields as in `SecuritySettings`."""

    open_paths: frozenset[str] = frozenset()
    open_prefixes: tuple[str, ...] = ()
    any_media_type: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Which requests are accepted.

    ``host`` is the bind address; ``hosts`` are further names under which clients reach the server,
    ``origins`` the web origins (``scheme://host[:port]``) that may send requests. ``any_media_type`` lists
    path prefixes whose endpoints check the media type themselves. Without ``anonymous``, every path needs a
    token, except ``open_paths``, ``DISCOVERY_PATHS`` and paths that begin with one of ``open_prefixes``.
    ``max_upload_bytes`` limits registry uploads, which are streamed to disk. ``resource`` describes the
    endpoints to OAuth clients.
    """

    host: str = "127.0.0.1"
    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    max_upload_bytes: int = MAX_UPLOAD_BYTES
    any_media_type: tuple[str, ...] = ()
    anonymous: bool = True
    open_prefixes: tuple[str, ...] = ()
    resource: ProtectedResource | None = None
    open_paths: frozenset[str] = PROBE_PATHS


class TokenReader(Protocol):
    """Verifies the tokens of one kind (`issued_tokens`, `jwt_tokens`, `mesh_tokens`)."""

    async def read(self, token: bytes, place: str) -> Principal | None:
        """The principal of a token; None when it is a token of another kind.

        ``place`` is the Host header in lower case if it names the socket of the request, else "".
        Raises AccessError with the reason when the token is rejected.
        """


class Tokens:
    """Fixed bearer tokens of this process, stored as SHA-256 only."""

    def __init__(self, tokens: Mapping[str, Principal] | None = None) -> None:
        self._known = [(sha256(token.encode()).digest(), who) for token, who in (tokens or {}).items()]

    def find(self, token: bytes) -> Principal | None:
        """The principal of a token. All known tokens are compared, so that timing reveals nothing."""
        sent = sha256(token).digest()
        owner = None
        for digest, principal in self._known:
            if hmac.compare_digest(digest, sent):
                owner = principal
        return owner


@quick_dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Result of the checks of one request: its principal, and its headers by lower-case name."""

    principal: Principal
    headers: Headers


def identity_of(scope: Scope) -> RequestIdentity:
    """The identity that `SecurityMiddleware` stored. Raises LookupError when the request did not pass it."""
    identity = scope.get("state", {}).get(_IDENTITY)
    if identity is None:
        raise LookupError("the endpoint is not behind SecurityMiddleware")
    return cast(RequestIdentity, identity)


def is_read_path(path: str) -> bool:
    """Whether requests of this path list or read without a call: searches, catalogs, cards, the registry."""
    is_rest = path.endswith(_READ_ENDS) or "/resources/read/" in path
    return is_rest or path in _READ_PATHS or path.startswith((REGISTRY_PATH, ARTIFACTS_PATH))


def check_bind(host: str, *, has_auth: bool, insecure_ok: bool = False) -> None:
    """Raise InvalidSettingError for a bind address that other machines reach without authentication."""
    if not (is_loopback(host) or has_auth or insecure_ok):
        raise InvalidSettingError(
            "host",
            f"{host or 'every address'} is reachable from other machines, and no token is required",
            remedy="set auth.anonymous = false and issue tokens (retinue token new); or bind 127.0.0.1; "
            "or allow it with --insecure-bind",
        )


class SecurityMiddleware:
    """ASGI middleware that forwards a request to ``app``, or rejects it with the reason."""

    def __init__(
        self,
        app: ASGIApp,
        settings: SecuritySettings | None = None,
        tokens: Tokens | None = None,
        readers: Sequence[TokenReader] = (),
    ) -> None:
        self._app = app
        self._tokens = tokens or Tokens()
        self._readers = tuple(readers)
        self._registry_tokens: RegistryTokens | None = None
        self._limits: ProcessLimits | None = None
        self._note: Callable[[str, str, str | None, RetinueError | None], None] | None = None
        self._front: ASGIApp | None = None
        self._front_paths: frozenset[str] = frozenset()
        self._front_prefixes: tuple[str, ...] = ()
        self.configure(settings or SecuritySettings())

    @property
    def remembered_hosts(self) -> int:
        """How many accepted Host headers are kept, so that they are not checked again."""
        return len(self._known_hosts)

    @property
    def accepts_anonymous(self) -> bool:
        """Whether requests need no token."""
        return self._settings.anonymous

    def configure(self, settings: SecuritySettings) -> None:
        """Apply other settings to the next requests."""
        self._settings = settings
        self._names = frozenset(map(fold, self._settings.hosts)) - _ANY_ADDRESS
        self._hosts = {fold(host) for host in (self._settings.host, *self._settings.hosts)} - _ANY_ADDRESS
        # A client that uses an address made no DNS query, so DNS rebinding is impossible.
        self._any_address = self._settings.host in _ANY_ADDRESS
        self._origins = {origin.rstrip("/").lower() for origin in self._settings.origins}
        self._known_hosts: set[bytes | None] = set()
        # bodies up to this size are accepted on every path
        self._small_bytes = min(self._settings.max_body_bytes, self._settings.max_upload_bytes)

    def watch_access(self, note: Callable[[str, str, str | None, RetinueError | None], None]) -> None:
        """Call ``note`` with address, path, caller and error of each rejected token and each sign-in."""
        self._note = note

    def note_access(self, scope: Scope, path: str, caller: str | None, error: RetinueError | None) -> None:
        """Tell of a sign-in of ``caller``, or of a token that was rejected with ``error``."""
        if self._note is not None:
            address = (scope.get("client") or ("",))[0]
            self._note(address, path, caller, error)

    def accept_registry_tokens(self, tokens: RegistryTokens) -> None:
        """Accept these tokens at paths of the registry, and name their endpoint in its challenges."""
        self._registry_tokens = tokens

    def limit_reads(self, limits: ProcessLimits) -> None:
        """Count each request that reads and runs no skill in the rate of its caller."""
        self._limits = limits

    def put_in_front(self, app: ASGIApp, paths: Collection[str], prefixes: Sequence[str]) -> None:
        """Route the requests of these paths to ``app``, which calls `check` itself."""
        self._front, self._front_paths, self._front_prefixes = app, frozenset(paths), tuple(prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._front is not None and scope["type"] == "http":
            path = scope["path"]
            if path in self._front_paths or path.startswith(self._front_prefixes):
                await self._front(scope, receive, send)
                return
        await self.check(scope, receive, send)

    async def check(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject it."""
        if scope["type"] != "http":
            # No endpoint supports WebSocket; the server rejects it when the application does not respond.
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            if len(headers) != len(scope["headers"]):
                _check_repeated(scope["headers"])
            self._check_place(scope, headers)
            if self._settings.anonymous and b"authorization" not in headers:
                principal = ANONYMOUS
            else:
                principal = await self.authenticate(headers, scope["path"], scope.get("server"))
            self._check_body(scope, headers)
            limits = self._limits
            if limits is not None and limits.is_rated and is_read_path(scope["path"]):
                limits.take(principal.id)
        except RetinueError as error:
            if isinstance(error, NotAuthenticatedError) and b"authorization" in headers:
                self.note_access(scope, scope["path"], None, error)
            challenge = self._challenge(scope, headers, error)
            await Rejection(scope, receive, send).answer(
                error, drain=_may_be_long(headers), challenge=challenge
            )
            return
        scope.setdefault("state", {})[_IDENTITY] = RequestIdentity(principal, headers)
        if self._settings.resource is not None:
            send = add_challenge(send, lambda: self._challenge(scope, headers, _TOKEN_REQUIRED))
        try:
            if b"transfer-encoding" in headers:
                await self._pass_counted(scope, receive, send)
            else:
                # The server itself enforces a Content-Length.
                await self._app(scope, receive, send)
        except OutOfMemoryError as error:
            # Endpoints raise it while they read the body, so no response has begun.
            await Rejection(scope, receive, send).answer(error, drain=False)

    async def authenticate(
        self, headers: Headers, path: str = "/", server: Sequence[Any] | None = None
    ) -> Principal:
        """Find the principal of a request that arrived at the socket ``server`` (address and port).

        Raises NotAuthenticatedError for an unknown or missing token, and what token readers raise.
        """
        token = read_token(headers.get(b"authorization"), path)
        if token is not None and is_registry_token(token):
            token = self._unseal(token, path)
        if token is not None:
            return apply_rights(await self._find(token, headers, server), headers)
        is_open = path in self._settings.open_paths or path.startswith(
            (*DISCOVERY_PATHS, *self._settings.open_prefixes)
        )
        if self._settings.anonymous or is_open:
            return ANONYMOUS
        raise NotAuthenticatedError(
            "this server requires a bearer token", remedy="ask its operator for a token"
        )

    def _unseal(self, token: bytes, path: str) -> bytes | None:
        """The token inside a token of the registry, None for nobody's.

        On other paths, and where another token of the registry is asked for, the token stays as it is. So a
        token of the registry opens only the registry.
        """
        tokens = self._registry_tokens
        if tokens is None or path == TOKEN_PATH or not is_registry_path(path):
            return token
        return tokens.open(token).token or None

    async def _find(self, token: bytes, headers: Headers, server: Sequence[Any] | None) -> Principal:
        principal = self._tokens.find(token)
        if principal is not None:
            return principal
        host = headers.get(b"host", b"")
        place = host.decode("latin-1").lower() if names_socket(host, server, self._names) else ""
        for reader in self._readers:
            principal = await reader.read(token, place)
            if principal is not None:
                return principal
        raise NotAuthenticatedError(
            "this server does not know this token",
            remedy="send the token in keys/local.token of its state folder, or one from: retinue token new",
        )

    def _challenge(self, scope: Scope, headers: Headers, error: RetinueError) -> str | None:
        """The challenge of an authentication or scope error, if it is more than ``Bearer``.

        At the registry it is that of the distribution spec, else that of the authorization server, if any.
        """
        if not isinstance(error, NotAuthenticatedError | InsufficientScopeError):
            return None
        token_sent, host = b"authorization" in headers, headers.get(b"host", b"")
        if is_registry_path(scope["path"]):
            if not isinstance(error, NotAuthenticatedError):
                return None
            if self._registry_tokens is None:
                return BASIC_CHALLENGE
            code = "invalid_token" if token_sent else ""
            return self._registry_tokens.challenge(base_of(scope, host), scope["method"], scope["path"], code)
        resource = self._settings.resource
        if resource is None:
            return None
        base = f"{scope.get('scheme', 'http')}://{host.decode('latin-1')}"
        return resource.challenge(base, scope["path"], error, token_sent=token_sent)

    def _check_place(self, scope: Scope, headers: Headers) -> None:
        host = headers.get(b"host")
        if host not in self._known_hosts:
            self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own_origin(origin, host, scope.get("server")):
            raise NotAllowedError(
                "requests from this web origin are not allowed",
                remedy="add the origin to doors.origins in retinue.toml",
            )
        if headers.get(b"sec-fetch-site") == b"cross-site" and not (
            origin is not None or _is_navigation(scope, headers)
        ):
            raise NotAllowedError("cross-site requests are not allowed")

    def _check_host(self, host: bytes | None) -> None:
        name = host_name(host)
        if not name or not (self._is_own_host(name) or (self._any_address and is_address(name))):
            raise NotAllowedError(
                f"the Host header {name or '(none)'!r} is not a name of this server",
                remedy="add it to doors.hosts in retinue.toml, or use the address printed at start-up",
            )
        if len(self._known_hosts) < _MAX_REMEMBERED:
            self._known_hosts.add(host)

    def _is_own_host(self, name: str) -> bool:
        return name in self._hosts or is_loopback(name)

    def _is_own_origin(self, origin: bytes, host: bytes | None, server: Sequence[Any] | None) -> bool:
        """Whether a page comes from this server, as its own names and port say, or is configured.

        A page served from another port of this machine is foreign.
        """
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        scheme, mark, place = text.partition("://")
        if not mark or scheme not in ("http", "https") or host is None:
            return False
        if place == host.decode("latin-1").lower():
            return True
        name = host_name(place.encode("latin-1"))
        port = server[1] if server is not None else None
        return self._is_own_host(name) and port_of(place.encode("latin-1"), scheme) == port

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
            body_type = "a body without media type"
        else:
            body_type = media_type.partition(b";")[0].strip().lower().decode("latin-1")
            if body_type == "application/json" or (
                body_type.startswith("application/") and body_type.endswith("+json")
            ):
                return
        raise UnsupportedMediaTypeError(
            f"this endpoint accepts application/json, not {body_type}",
            remedy="send content-type: application/json",
        )

    def _check_length(self, scope: Scope, length: bytes) -> None:
        if not length.isdigit() or int(length) > self._limit_bytes(scope):
            raise self._too_large(scope)

    def _limit_bytes(self, scope: Scope) -> int:
        settings = self._settings
        if scope["path"] == ARTIFACTS_PATH:
            return _UNLIMITED  # the endpoint has a limit of its own
        return settings.max_upload_bytes if is_upload_path(scope["path"]) else settings.max_body_bytes

    def _too_large(self, scope: Scope) -> TooLargeError:
        return TooLargeError("the body", self._limit_bytes(scope))

    async def _pass_counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a body of unknown length, and reject the request when it exceeds the limit."""
        rejection = Rejection(scope, receive, send)
        left = self._limit_bytes(scope)

        async def receive_counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0 and not rejection.is_sent:
                await rejection.answer(self._too_large(scope), drain=message.get("more_body", False))
            return {"type": "http.disconnect"} if rejection.is_sent else message

        try:
            await self._app(scope, receive_counted, rejection.send_unless_rejected)
        except Exception:
            # The body ended early because the request was rejected; the client has its response.
            if not rejection.is_sent:
                raise


def _check_repeated(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise InvalidRequestError for a header that is read as one value and was sent twice.

    A proxy may have judged the other one.
    """
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and (name in _SINGLE or name.startswith(_SINGLE_PREFIXES)):
            raise InvalidRequestError(
                f"the header {name.decode('latin-1')} was sent more than once", remedy="send it once"
            )
        seen.add(name)


def _may_be_long(headers: Headers) -> bool:
    length = headers.get(b"content-length", b"0")
    return b"transfer-encoding" in headers or not length.isdigit() or int(length) > _SMALL_BODY_BYTES


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """Whether the user followed a link: harmless, because no GET endpoint changes state."""
    return (
        scope["method"] in ("GET", "HEAD")
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def read_token(authorization: bytes | None, path: str) -> bytes | None:
    """The token in an Authorization header: after ``Bearer``, at the registry also as a password; or None."""
    if authorization is None:
        return None
    if authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip()
    return _read_password(authorization) or None if is_registry_path(path) else None


def _read_password(authorization: bytes) -> bytes:
    """The password of Basic credentials with any user name; empty for other schemes.

    skopeo without credentials answers a challenge with empty ones, which count as anonymous.
    """
    scheme, _, packed = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(packed.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
