"""Authentication at a registry: Basic, and Bearer tokens from the registry's token server.

`authorized` wraps any other flow. Credentials and tokens are sent only to the registry and its token server,
never to hosts that it redirects to (Docker "Token Authentication Specification" and its OAuth 2 extension;
RFC 9110, section 11).
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import orjson
from cachetools import LRUCache

from retinue.core.errors import RegistryLoginError
from retinue.oci.codec.exchange import Flow, RegistryRequest, Response, origin_of
from retinue.oci.codec.wire import parse_error
from retinue.web.codec import registry_scope

CLIENT_ID = "retinue"
DEFAULT_TOKEN_LIFE_S = 60.0
"""Lifetime of a token without ``expires_in`` (token specification)."""

MAX_TOKEN_BYTES = 256 * 1024
TOKENS_KEPT = 4096
_USED_OF_LIFE = 0.9
"""Share of its lifetime for which a token is used, so that none expires in transit."""

T = TypeVar("T")

_SCHEME = re.compile(r"[\s,]*([A-Za-z][A-Za-z0-9._~+-]*)(?=\s|,|$)")
_PARAMETER = re.compile(r'[\s,]*([A-Za-z][A-Za-z0-9_-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_TOKEN68 = re.compile(r"\s+[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """Credentials for one registry: user name and password, or an identity token."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str | None = field(default=None, repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge of a 401; ``scheme`` and parameter names are lower case."""

    scheme: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    expires_at: float


class RegistryLogin:
    """Authentication state for one registry: credentials, token server, tokens by scope."""

    def __init__(
        self,
        base_url: str,
        *,
        credentials: RegistryCredentials | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_url = base_url
        self._origin = origin_of(base_url)
        self._clock = clock
        self._basic = False
        self._server: Challenge | None = None
        self._tokens: LRUCache[str, _Token] = LRUCache(TOKENS_KEPT)
        self.credentials = credentials

    @property
    def is_required(self) -> bool:
        """Whether the registry has challenged a request."""
        return self._basic or self._server is not None

    def is_own(self, url: str) -> bool:
        """Whether a url belongs to the registry itself."""
        return "://" not in url or origin_of(url) == self._origin

    def sign(self, request: RegistryRequest, scope: str) -> RegistryRequest:
        """The request with the authorization that is known to work, if any."""
        header = None
        if self._basic and self.credentials is not None:
            header = self.credentials.basic
        elif (token := self._tokens.get(scope)) is not None and token.expires_at > self._clock():
            header = f"Bearer {token.value}"
        if header is None:
            return request
        return replace(request, headers={**request.headers, "authorization": header})

    def prepare(self, scope: str) -> Flow[None]:
        """Fetch the token of a scope in advance when the registry is known to require one."""
        token = self._tokens.get(scope)
        if self._server is not None and (token is None or token.expires_at <= self._clock()):
            yield from self._fetch_token(self._server, scope, scope)

    def answer(self, challenged: Response, scope: str, rejected: RegistryRequest) -> Flow[bool]:
        """Respond to a 401; True when the request is worth repeating.

        Of several challenges the first usable one is answered, as skopeo and crane do. ``rejected``
        is the request as sent: its authorization is not tried again. Raises RegistryLoginError when the
        token server issues no token.
        """
        who = self.credentials
        refused = rejected.headers.get("authorization")
        for challenge in parse_challenges(challenged.headers.get("www-authenticate", "")):
            if challenge.scheme == "bearer" and challenge.parameters.get("realm"):
                self._server = challenge
                yield from self._fetch_token(challenge, challenge.parameters.get("scope") or scope, scope)
                return True
            if challenge.scheme == "basic" and who is not None and (who.username or who.password):
                self._basic = True
                # a registry that offers tokens as well is not asked for one with a refused password
                return refused != who.basic
        return False

    def _fetch_token(self, server: Challenge, requested_scope: str, scope: str) -> Flow[None]:
        response = yield self._token_request(server, requested_scope)
        if response.status != 200:
            _, message = parse_error(response.body)
            reason = message or "no reason given"
            raise RegistryLoginError(
                self._base_url, f"its token server {response.registry} answered {response.status}: {reason}"
            )
        value, life_s = _parse_token(self._base_url, response)
        self._tokens[scope] = _Token(value, self._clock() + life_s * _USED_OF_LIFE)

    def _token_request(self, server: Challenge, requested_scope: str) -> RegistryRequest:
        """The token request; its realm is usually another host, as Docker specifies."""
        realm = server.parameters["realm"]
        parts = urlsplit(realm)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RegistryLoginError(self._base_url, f"its token server {realm[:80]!r} is not a url")
        if self._origin.startswith("https:") and parts.scheme != "https":
            raise RegistryLoginError(
                self._base_url, "its token server is not https, so the password would be sent unencrypted"
            )
        parameters = {
            "service": server.parameters.get("service", ""),
            "scope": requested_scope,
            "client_id": CLIENT_ID,
        }
        query = {key: value for key, value in parameters.items() if value}
        who = self.credentials
        if who is not None and who.identity_token is not None:
            form = {"grant_type": "refresh_token", **query, "refresh_token": who.identity_token}
            headers = {"content-type": "application/x-www-form-urlencoded"}
            return RegistryRequest(
                "POST", realm, headers, urlencode(form).encode(), MAX_TOKEN_BYTES, "a token", True
            )
        headers = {"authorization": who.basic} if who is not None and who.username else {}
        url = realm + ("&" if parts.query else "?") + urlencode(query)
        return RegistryRequest("GET", url, headers, max_response_bytes=MAX_TOKEN_BYTES, what="a token")


def authorized(flow: Flow[T], login: RegistryLogin) -> Flow[T]:
    """Wrap a flow: requests to the registry are authorized, and a 401 is answered at most once per request.

    Raises RegistryLoginError and what the flow raises.
    """
    try:
        request = next(flow)
        while True:
            response = yield from _ask(request, login)
            request = flow.send(response)
    except StopIteration as finished:
        value: T = finished.value
        return value


def _ask(request: RegistryRequest, login: RegistryLogin) -> Flow[Response]:
    if not login.is_own(request.url):
        return (yield request)
    if not login.is_required:
        # most registries never challenge: send the request unchanged
        signed = request
    else:
        scope = scope_of(request)
        yield from login.prepare(scope)
        signed = login.sign(request, scope)
    response = yield signed
    if response.status == 401:
        scope = scope_of(request)
        if (yield from login.answer(response, scope, signed)):
            response = yield login.sign(request, scope)
    return response


def scope_of(request: RegistryRequest) -> str:
    """The scope that docker-registry requires for a request; "" for ``/v2/`` itself."""
    return registry_scope.scope_of(request.method, urlsplit(request.url).path)


def parse_challenges(header: str) -> list[Challenge]:
    """Parse the challenges of a ``WWW-Authenticate`` header, in order; unreadable parts are skipped."""
    challenges: list[Challenge] = []
    at = 0
    while (scheme := _SCHEME.match(header, at)) is not None:
        at = scheme.end()
        parameters: dict[str, str] = {}
        if (token := _TOKEN68.match(header, at)) is not None:
            at = token.end()
        while (match := _PARAMETER.match(header, at)) is not None:
            quoted, plain = match[2], match[3]
            parameters[match[1].lower()] = plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
            at = match.end()
        challenges.append(Challenge(scheme[1].lower(), parameters))
    return challenges


def _parse_token(registry: str, response: Response) -> tuple[str, float]:
    try:
        answer = orjson.loads(response.body)
        value, life_s = answer.get("token") or answer.get("access_token"), answer.get("expires_in")
    except (ValueError, AttributeError):
        value, life_s = None, None
    if not isinstance(value, str) or _TOKEN.fullmatch(value) is None:
        raise RegistryLoginError(
            registry, f"the reply of its token server {response.registry} contains no token"
        )
    if not isinstance(life_s, int | float) or isinstance(life_s, bool) or life_s <= 0:
        life_s = DEFAULT_TOKEN_LIFE_S
    return value, float(life_s)
