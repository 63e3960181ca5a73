"""Logins at imported MCP servers: stored tokens for the hub, and their renewal.

One file for each import, in the folder of keys and readable for its owner only, holds the tokens, their
client and the facts of the authorization server. `retinue imports login` writes it
(`runtime.imports.browser_login`), the hub reads and renews it. The SDK makes the requests of the OAuth
flow; they are sent by this program's own HTTP client, with its checks of addresses and sizes.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import structlog

from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.settings import environment
from retinue.storage.files import replace_file, storage_errors
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.transport import HttpResponse

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import OAuthClientProvider

REQUEST_TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 1024 * 1024
LOOK_S = 0.5
"""Seconds between two looks whether a login was replaced."""

RENEW_BEFORE_S = 30.0
"""A token is renewed so long before it expires."""

CLIENT_NAME = "Retinue"
PROTOCOL_VERSION = "2025-11-25"
_HOP_HEADERS = frozenset({"host", "content-length", "connection", "accept-encoding", "user-agent"})

_SCOPES = re.compile(r"[\x20\x21\x23-\x5b\x5d-\x7e]{1,1000}")
"""Scopes as RFC 6749 spells them."""

_log = structlog.get_logger("retinue.imports")


@dataclass(frozen=True, slots=True)
class Login:
    """The login at the server at ``url``; the mappings are the JSON forms of the SDK's models."""

    url: str
    tokens: Mapping[str, Any]
    client: Mapping[str, Any]
    authorization_server: Mapping[str, Any] | None = None
    resource: Mapping[str, Any] | None = None
    expires_at: float | None = None
    """In seconds since 1970; None if the server did not say."""

    client_secret: str | None = None
    """The secret of a client that a person has registered, as in the settings: ``${VARIABLE}``."""

    @property
    def authorization(self) -> str:
        """The value of the header."""
        return f"Bearer {self.tokens['access_token']}"

    def is_stale(self, now: float) -> bool:
        """Whether the token has expired, or is about to."""
        return self.expires_at is not None and now > self.expires_at - RENEW_BEFORE_S


def logins_folder(state: State) -> Path:
    """Where the logins are kept."""
    return state.keys / "imports"


class LoginFile:
    """The file of one import; a login at another url counts as none."""

    def __init__(self, state: State, name: str, url: str) -> None:
        self._path = logins_folder(state) / f"{name}.json"
        self._url = url
        self._read_at: tuple[int, int] | None = None
        self._found: Login | None = None
        self._looked = float("-inf")

    def read(self, *, now: bool = True) -> Login | None:
        """The login; without ``now`` as it was within the last half second, which a call need not wait for.

        An unreadable file counts as none.
        """
        if not now and time.monotonic() - self._looked < LOOK_S:
            return self._found
        self._looked = time.monotonic()
        try:
            seen = self._path.stat()
            if (stamp := (seen.st_mtime_ns, seen.st_ino)) != self._read_at:
                login = Login(**json.loads(self._path.read_bytes()))
                self._found, self._read_at = login if login.url == self._url else None, stamp
        except FileNotFoundError:
            self._found = self._read_at = None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("login not read", file=str(self._path), error=type(error).__name__)
            self._found = self._read_at = None
        return self._found

    def add_scopes(self, scopes: str) -> str:
        """The scopes of the login and these, separated by spaces. Raises InvalidSettingError."""
        if not _SCOPES.fullmatch(scopes):
            raise InvalidSettingError(
                "scope", f"it is {scopes[:100]!r}", remedy="separate scopes by spaces, without quotes"
            )
        login = self.read()
        known = "" if login is None else str(login.tokens.get("scope") or "")
        return " ".join(dict.fromkeys([*known.split(), *scopes.split()]))

    def write(self, login: Login) -> None:
        """Replace the login. Raises StateError."""
        folder = self._path.parent
        with storage_errors(self._path):
            for place in (folder.parent, folder):
                place.mkdir(mode=0o700, exist_ok=True)
            fields = {name: getattr(login, name) for name in Login.__slots__}
            replace_file(self._path, json.dumps(fields).encode(), mode=0o600)

    def forget(self) -> None:
        """Remove the login. Raises StateError."""
        with storage_errors(self._path):
            self._path.unlink(missing_ok=True)


class ImportLogin:
    """Gives the transport of one import its ``Authorization`` header."""

    def __init__(self, file: LoginFile, http: HttpClient) -> None:
        self._file = file
        self._http = http
        self._renewing = asyncio.Lock()

    async def authorize(self, refused: str | None = None) -> str | None:
        """The header, or None without a login; ``refused`` is the header that the server rejected, or "".

        A stale or refused token is renewed once for all calls that wait. If that fails, a stale one is used
        until the server refuses it: perhaps only the clock was set. None for a refused one.
        """
        login = self._file.read(now=refused is not None)
        if login is None or (login.authorization != refused and not login.is_stale(time.time())):
            return None if login is None else login.authorization
        async with self._renewing:
            now = self._file.read()
            if now is not None and now.authorization != login.authorization:
                return now.authorization
            renewed = await self._renew(login)
            if renewed is None:
                return None if login.authorization == refused else login.authorization
            return renewed.authorization

    async def _renew(self, login: Login) -> Login | None:
        if not login.tokens.get("refresh_token"):
            return None
        try:
            renewed = await renew(login, self._http)
        except RetinueError as error:
            _log.warning("login not renewed", url=login.url, error=error.message)
            return None
        if renewed is None:
            return None
        is_new = renewed.authorization != login.authorization
        if is_new or self._file.read() == login:
            self._file.write(renewed)
        return renewed if is_new else None


async def renew(login: Login, http: HttpClient) -> Login | None:
    """The login with new tokens, or without its refresh token if the authorization server refuses that.

    None if there is no new token for another reason. Raises CallTimedOutError.
    """
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata, OAuthMetadata, OAuthToken, ProtectedResourceMetadata

    keep = Memory(login)
    metadata = OAuthClientMetadata.model_validate({"redirect_uris": ["http://127.0.0.1/callback"]})
    provider = OAuthClientProvider(login.url, metadata, keep)
    context = provider.context
    if login.authorization_server is not None:
        context.oauth_metadata = OAuthMetadata.model_validate(login.authorization_server)
    if login.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(login.resource)
    context.token_expiry_time = 1.0
    replies: list[HttpResponse] = []
    async for request, _ in drive(provider, http, probe_request(login.url, {}), on_reply=replies.append):
        # the renewed token is kept now; the request that needs it is sent by the transport itself
        if str(request.url) == login.url:
            break
    if keep.tokens is None or keep.tokens == OAuthToken.model_validate(login.tokens):
        if not any(map(_is_refused_grant, replies)):
            return None
        tokens = {key: value for key, value in login.tokens.items() if key != "refresh_token"}
        return replace(login, tokens=tokens)
    return replace(login, tokens=_plain(keep.tokens), expires_at=expiry_of(keep.tokens))


def client_of(login: Login) -> dict[str, Any]:
    """The OAuth client of a login, with its secret."""
    if login.client_secret is None:
        return dict(login.client)
    return {**login.client, "client_secret": resolve_secret(login.client_secret, environment())}


def resolve_secret(secret: str, own: Mapping[str, str]) -> str:
    """The secret with the variables of ``own`` in place of their names."""
    return Template(secret).safe_substitute(own)


def _is_refused_grant(reply: HttpResponse) -> bool:
    """Whether the token endpoint says that the refresh token is valid no more (RFC 6749, 5.2)."""
    try:
        problem = json.loads(reply.body) if reply.status in (400, 401) else None
    except ValueError:
        return False
    return isinstance(problem, dict) and problem.get("error") == "invalid_grant"


class Memory:
    """The SDK's storage of one flow."""

    def __init__(self, login: Login | None = None, client: Mapping[str, Any] | None = None) -> None:
        from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

        registration = client_of(login) if login is not None else client
        self.tokens = None if login is None else OAuthToken.model_validate(login.tokens)
        self.client = (
            None if registration is None else OAuthClientInformationFull.model_validate(registration)
        )

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


def login_of(provider: OAuthClientProvider, keep: Memory, url: str) -> Login:
    """The results of a completed flow."""
    context = provider.context
    return Login(
        url,
        _plain(keep.tokens),
        _plain(keep.client),
        _plain(context.oauth_metadata),
        _plain(context.protected_resource_metadata),
        expiry_of(keep.tokens),
    )


def _plain(model: Any) -> Any:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def expiry_of(tokens: Any) -> float | None:
    """When tokens that were given just now expire."""
    return None if tokens is None or tokens.expires_in is None else time.time() + tokens.expires_in


def probe_request(url: str, headers: Mapping[str, str]) -> httpx2.Request:
    """The request that the server answers with 401: the first of a session."""
    import httpx2

    params = {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "retinue", "version": "1"},
    }
    return httpx2.Request(
        "POST",
        url,
        json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        headers={
            **headers,
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": PROTOCOL_VERSION,
        },
    )


async def drive(
    provider: OAuthClientProvider,
    http: HttpClient,
    first: httpx2.Request,
    *,
    scope: str | None = None,
    on_reply: Callable[[HttpResponse], None] = lambda _reply: None,
) -> AsyncGenerator[tuple[httpx2.Request, int]]:
    """Send the requests of a flow by ``http``; yields each before it is sent, with its number from 0.

    ``scope`` replaces the scopes that the server names in its refusal of ``first``, which the SDK asks for.
    Leaving the loop ends the flow. Raises CallTimedOutError, TransportError and the errors of the SDK.
    """
    import logging

    import httpx2

    # its messages may quote what a server answered to a token request
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)
    flow = provider.async_auth_flow(first)
    number = 0
    try:
        request = await anext(flow)
        while True:
            yield request, number
            body = await request.aread()
            reply = await http.request(
                request.method,
                str(request.url),
                headers={key: value for key, value in request.headers.items() if key not in _HOP_HEADERS},
                body=body or None,
                timeout_s=REQUEST_TIMEOUT_S,
                max_response_bytes=MAX_RESPONSE_BYTES,
                what="a login",
            )
            on_reply(reply)
            headers = {key.lower(): value for key, value in reply.headers.items()}
            if scope is not None and number == 0 and reply.status == 401:
                others = headers.get("www-authenticate", "").removeprefix("Bearer")
                headers["www-authenticate"] = f'Bearer scope="{scope}",{others}'
            answered = httpx2.Response(reply.status, headers=headers, content=reply.body, request=request)
            request = await flow.asend(answered)
            number += 1
    except StopAsyncIteration:
        return
    finally:
        await flow.aclose()
