"""Sessions of browsers: one-time links, sign-in with a token, and the cookie in front of the token checks.

A session stands for a token: each request with its cookie gets that token as its ``Authorization`` header, so
the token's rights, expiry and revocation apply. Sessions survive a restart of the hub. The cookie is
HttpOnly and SameSite=Strict. `SecurityMiddleware` rejects requests of other web origins, and `is_own_page`
wants a browser's proof for each action.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import quote

from cachetools import TTLCache
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retinue.storage.browser_sessions import SessionFile
from retinue.web.sealed_tokens import open_token, seal_token
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


_PURPOSE = "dashboard session "

_CLOCK_SKEW_S = 60.0
"""A session that begins later than this by the clock of the machine is not taken."""

SESSION = "retinue.session"
"""The key of the ASGI scope that says how the session of a request stands."""

SessionState = Literal["none", "valid", "ended"]


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A verified token, and the id of its principal."""

    token: bytes
    caller: str


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session: its token is encrypted with a key of the session's id and the mesh key."""

    caller: str
    begun_at: float
    sealed: str


class BrowserSessions:
    """The sessions and unused one-time links of one hub, each made with a verified token.

    Sessions are stored in ``file`` under the digest of their id. Only a browser that sends the id, and a hub
    with the mesh ``key``, can read the token. ``clock`` gives seconds since 1970.
    """

    def __init__(
        self,
        key: bytes | None = None,
        file: SessionFile | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key or secrets.token_bytes(32)
        self._file = file
        self._clock = clock
        self._links: TTLCache[str, SignedIn] = TTLCache(MAX_LINKS, LINK_S, timer=time.monotonic)
        self._sessions: dict[str, StoredSession] = {}
        self._tokens: dict[str, bytes] = {}
        for row in () if file is None else file.read():
            with suppress(KeyError, TypeError, ValueError):
                stored = StoredSession(str(row["caller"]), float(row["begun_at"]), str(row["sealed"]))
                self._sessions[str(row["digest"])] = stored

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
        for digest in [digest for digest, held in self._sessions.items() if not self._is_current(held)]:
            self._drop(digest)
        own = [digest for digest, held in self._sessions.items() if held.caller == caller]
        for digest in own[: max(0, len(own) - SESSIONS_OF_A_CALLER + 1)]:
            self._drop(digest)
        for digest in list(self._sessions)[: max(0, len(self._sessions) - MAX_SESSIONS + 1)]:
            self._drop(digest)
        digest = _digest(session)
        sealed = seal_token(token, self._key, _PURPOSE + session)
        self._sessions[digest], self._tokens[digest] = StoredSession(caller, self._clock(), sealed), token
        self._store()
        return session

    def find(self, session: str) -> bytes | None:
        """The token of a session; None if it has ended."""
        digest = _digest(session)
        stored = self._sessions.get(digest)
        if stored is None or not self._is_current(stored):
            return None
        token = self._tokens.get(digest)
        if token is None:
            token = open_token(stored.sealed, self._key, _PURPOSE + session)
            if token is not None:
                self._tokens[digest] = token
        return token

    def end(self, session: str) -> None:
        """End a session, also for a hub that starts later."""
        digest = _digest(session)
        if digest in self._sessions:
            self._drop(digest)
            self._store()

    def _is_current(self, stored: StoredSession) -> bool:
        return -_CLOCK_SKEW_S <= self._clock() - stored.begun_at < SESSION_S

    def _drop(self, digest: str) -> None:
        self._sessions.pop(digest, None)
        self._tokens.pop(digest, None)

    def _store(self) -> None:
        if self._file is not None:
            self._file.write({"digest": key, **asdict(session)} for key, session in self._sessions.items())


def _digest(session: str) -> str:
    return sha256(session.encode()).hexdigest()


def read_state(scope: Scope) -> SessionState:
    """How the session of a request stands: ``ended`` = the browser sent one that this hub does not know."""
    state: SessionState = scope.get(SESSION, "none")
    return state


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
        cookie = read_cookie(headers)
        token = None if not cookie else self._sessions.find(cookie)
        state: SessionState = "none" if not cookie else "ended" if token is None else "valid"
        scope = {**scope, SESSION: state}
        is_open = scope["path"].startswith(OPEN_PREFIXES)
        if token is not None and not is_open and b"authorization" not in headers:
            scope["headers"] = [*scope["headers"], (b"authorization", b"Bearer " + token)]
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
