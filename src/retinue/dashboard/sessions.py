"""Sessions of browsers: one-time links, sign-in with a token, and the cookie in front of the token checks.

A session stands for a token: each request with its cookie gets that token as its ``Authorization`` header, so
the token's rights, expiry and revocation apply. Sessions live in memory and end with the hub. The cookie is
HttpOnly and SameSite=Strict. `SecurityMiddleware` rejects requests of other web origins, and `is_own_page`
wants a browser's proof for each action.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from cachetools import TTLCache
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.web.security import Headers, SecurityMiddleware

ROOT = "/ui"
"""Where the paths of the dashboard begin."""

PAGES = ("/",)
PAGE_PREFIXES = (f"{ROOT}/",)
"""Paths of pages, and prefixes of them."""

OPEN_PREFIXES = (f"{ROOT}/static/", f"{ROOT}/sign-in", f"{ROOT}/link/")
"""Prefixes of the paths that need no token: style and scripts, and the ways to sign in."""

COOKIE = "retinue_session"

LINK_S = 60.0
SESSION_S = 12 * 3600.0
MAX_LINKS = 1_000
MAX_SESSIONS = 10_000
LINKS_OF_A_CALLER = 10
SESSIONS_OF_A_CALLER = 100
"""A caller that makes more loses its own oldest ones, and no other caller's."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A verified token, and the id of its principal."""

    token: bytes
    caller: str


class BrowserSessions:
    """The sessions and unused one-time links of one hub, each made with a verified token."""

    def __init__(self) -> None:
        self._links: TTLCache[str, SignedIn] = TTLCache(MAX_LINKS, LINK_S, timer=time.monotonic)
        self._sessions: TTLCache[str, SignedIn] = TTLCache(MAX_SESSIONS, SESSION_S, timer=time.monotonic)

    def make_link(self, token: bytes, caller: str) -> str:
        """The path of a link that signs in once, within `LINK_S`."""
        code = secrets.token_urlsafe(24)
        _make_room(self._links, caller, LINKS_OF_A_CALLER)
        self._links[code] = SignedIn(token, caller)
        return f"{ROOT}/link/{code}"

    def find_link(self, code: str) -> SignedIn | None:
        """The principal that a link signs in; None if it is unknown, used or too old."""
        return self._links.get(code)

    def use_link(self, code: str) -> str | None:
        """A new session by a link; None if it is unknown, used or too old."""
        signed_in = self._links.pop(code, None)
        return None if signed_in is None else self.begin(signed_in.token, signed_in.caller)

    def begin(self, token: bytes, caller: str) -> str:
        """A new session of a token."""
        session = secrets.token_urlsafe(32)
        _make_room(self._sessions, caller, SESSIONS_OF_A_CALLER)
        self._sessions[session] = SignedIn(token, caller)
        return session

    def find(self, session: str) -> bytes | None:
        """The token of a session; None if it has ended."""
        signed_in = self._sessions.get(session)
        return None if signed_in is None else signed_in.token

    def end(self, session: str) -> None:
        self._sessions.pop(session, None)


def _make_room(entries: TTLCache[str, SignedIn], caller: str, limit: int) -> None:
    """Drop the oldest entries of a caller until it has fewer than ``limit``."""
    own = [key for key in entries if (entry := entries.get(key)) is not None and entry.caller == caller]
    for key in own[: max(0, len(own) - limit + 1)]:
        entries.pop(key, None)


def read_cookie(headers: Headers) -> str | None:
    """The session's id in the cookie of a request."""
    cookies = SimpleCookie()
    try:
        cookies.load(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return None
    cookie = cookies.get(COOKIE)
    return None if cookie is None else cookie.value


def set_cookie(session: str, *, secure: bool, prefix: str = "") -> str:
    """The header that stores a session in the browser, "" to remove it; for paths below ``prefix`` only."""
    age = int(SESSION_S) if session else 0
    flags = "; Secure" if secure else ""
    return f"{COOKIE}={session}; Path={quote(prefix)}/; Max-Age={age}; HttpOnly; SameSite=Strict{flags}"


def is_own_page(headers: Headers) -> bool:
    """Whether a page of this server sent the request; `SecurityMiddleware` has compared ``Origin``."""
    site = headers.get(b"sec-fetch-site")
    return site == b"same-origin" if site is not None else headers.get(b"origin") not in (None, b"null")


class SessionMiddleware:
    """ASGI middleware in front of the security checks of pages: a session's cookie becomes its token.

    A page that needs a token leads to the sign-in page. `put_before` connects it with the checks.
    """

    def __init__(self, app: ASGIApp, sessions: BrowserSessions) -> None:
        self._app = app
        self._sessions = sessions

    @classmethod
    def put_before(cls, checks: SecurityMiddleware, sessions: BrowserSessions) -> None:
        """Let ``checks`` pass the requests of pages through the sessions first."""
        checks.put_in_front(cls(checks.check, sessions), PAGES, PAGE_PREFIXES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        token = None
        is_open = scope["path"].startswith(OPEN_PREFIXES)
        if not is_open and b"authorization" not in headers and (cookie := read_cookie(headers)) is not None:
            token = self._sessions.find(cookie)
        if token is not None:
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + token)]}
        is_navigation = scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b"")
        await self._app(scope, receive, _to_sign_in(scope, send) if is_navigation else send)


def _to_sign_in(scope: Scope, send: Send) -> Send:
    """Replaces a 401 by a redirect to the sign-in page."""
    is_replaced = False

    async def send_page(message: Message) -> None:
        nonlocal is_replaced
        if message["type"] == "http.response.start" and message["status"] == 401:
            is_replaced = True
            query = scope["query_string"].decode("latin-1")
            here = scope["path"] + (f"?{query}" if query else "")
            location = f"{ROOT}/sign-in?to={quote(here, safe='')}".encode()
            headers = [(b"location", location), (b"content-length", b"0"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 303, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        elif not is_replaced:
            await send(message)

    return send_page
