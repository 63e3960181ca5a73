"""The pages for signing in and out: a form for a token, and the links of ``retinue dashboard``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.dashboard.frame import Page, PageFrame, read_entries
from retinue.dashboard.sessions import ROOT, BrowserSessions, read_cookie, set_cookie
from retinue.web.public_address import prefix_of
from retinue.web.security import identity_of

Verify = Callable[[bytes], Awaitable[Principal]]
"""The principal of a token; raises AccessError."""


class SignInPages:
    """The pages that begin and end sessions."""

    def __init__(self, sessions: BrowserSessions, frame: PageFrame, verify: Verify) -> None:
        self._sessions = sessions
        self._frame = frame
        self._verify = verify

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {f"{ROOT}/sign-in": self._sign_in}

    def list_actions(self) -> dict[str, Page]:
        """The actions of forms, by path."""
        return {f"{ROOT}/sign-out": self._sign_out}

    def list_routes(self) -> list[Route]:
        """The routes of one-time links."""
        return [
            Route(f"{ROOT}/links", self._make_link, methods=["POST"]),
            Route(f"{ROOT}/link/{{code}}", self._use_link, methods=["GET"]),
        ]

    async def _sign_in(self, request: Request, principal: Principal) -> Response:
        target = request.query_params.get("to", "/")
        if not target.startswith("/") or target.startswith(("//", "/\\")):
            target = "/"
        problem = ""
        if request.method == "POST":
            token = (await read_entries(request)).get("token", "").strip().encode()
            try:
                await self._verify(token)
            except RetinueError as error:
                problem = error.message
            else:
                return self._begin(request, self._sessions.begin(token), target)
        return self._frame.render(
            "sign_in.html", request, {"problem": problem, "to": target}, "", 403 if problem else 200
        )

    async def _sign_out(self, request: Request, principal: Principal) -> Response:
        session = read_cookie(identity_of(request.scope).headers)
        if session is not None:
            self._sessions.end(session)
        response = RedirectResponse("/", 303)
        _store(response, request, "")
        return response

    async def _make_link(self, request: Request) -> Response:
        """For ``retinue dashboard``: a link that signs a browser in with the token of this request."""
        authorization = identity_of(request.scope).headers.get(b"authorization", b"")
        token = authorization[7:].strip()
        if not token:
            return JSONResponse({"detail": "send the token that the browser is to have"}, 401)
        return JSONResponse({"path": self._sessions.make_link(token)})

    async def _use_link(self, request: Request) -> Response:
        session = self._sessions.use_link(request.path_params["code"])
        if session is None:
            context = {"error": "This link was used already, or is too old.", "remedy": "retinue dashboard"}
            return self._frame.render("failure.html", request, context, "", 403)
        return self._begin(request, session, "/")

    def _begin(self, request: Request, session: str, target: str) -> Response:
        response = RedirectResponse(target, 303)
        _store(response, request, session)
        return response


def _store(response: Response, request: Request, session: str) -> None:
    """Store a session in the browser, "" to remove it; other services of a proxy do not get the cookie."""
    # not request.url: urlsplit remembers the last 128 urls, each up to limits.head_bytes long
    is_secure = request.scope["scheme"] == "https"
    response.headers["set-cookie"] = set_cookie(session, secure=is_secure, prefix=prefix_of(request.scope))
