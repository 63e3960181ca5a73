"""The pages for signing in and out: a form for a token, and the links of ``retinue dashboard``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from retinue.core.call import Principal
from retinue.core.errors import RetinueError
from retinue.dashboard.frame import Page, PageFrame, read_entries
from retinue.dashboard.sessions import ROOT, BrowserSessions, read_cookie, set_cookie
from retinue.web.addresses import prefix_of
from retinue.web.security import identity_of

Verify = Callable[[bytes], Awaitable[Principal]]
"""The principal of a token; raises AccessError."""

Note = Callable[[Scope, str, str | None, RetinueError | None], None]
"""Records a sign-in of a caller at a path, or the error that refused it."""


class SignInPages:
    """The pages that begin and end sessions."""

    def __init__(self, sessions: BrowserSessions, frame: PageFrame, verify: Verify, note: Note) -> None:
        self._note = note
        self._sessions = sessions
        self._frame = frame
        self._verify = verify

    def list_forms(self) -> dict[str, Page]:
        """The pages with a form, by path."""
        return {f"{ROOT}/sign-in": self._sign_in, f"{ROOT}/link/{{code}}": self._follow_link}

    def list_actions(self) -> dict[str, Page]:
        """The actions of forms, by path."""
        return {f"{ROOT}/sign-out": self._sign_out}

    def list_routes(self) -> list[Route]:
        """The route at which commands get one-time links."""
        return [Route(f"{ROOT}/links", self._make_link, methods=["POST"])]

    async def _sign_in(self, request: Request, principal: Principal) -> Response:
        target = request.query_params.get("to", "/")
        if not target.startswith("/") or target.startswith(("//", "/\\")):
            target = "/"
        problem = ""
        if request.method == "POST":
            token = (await read_entries(request)).get("token", "").strip().encode()
            try:
                who = await self._verify(token)
            except RetinueError as error:
                problem = error.message
                self._note(request.scope, f"{ROOT}/sign-in", None, error)
            else:
                self._note(request.scope, f"{ROOT}/sign-in", who.id, None)
                return self._begin(request, self._sessions.begin(token, who.id), target)
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
        identity = identity_of(request.scope)
        authorization = identity.headers.get(b"authorization", b"")
        token = authorization[7:].strip()
        # the security checks let any other scheme pass as anonymous
        if identity.principal.kind == "anonymous" or not token:
            return JSONResponse({"detail": "send the token that the browser is to have"}, 401)
        return JSONResponse({"path": self._sessions.make_link(token, identity.principal.id)})

    async def _follow_link(self, request: Request, principal: Principal) -> Response:
        """Sign in by a link: a page with a button, because a foreign page can lead a browser to any link.

        A browser that is signed in with another token stays so.
        """
        code = request.path_params["code"]
        link = self._sessions.find_link(code)
        if link is None:
            return self._refuse_link(request)
        current = await self._find_current(request)
        if current is not None and current[0] == link.token:
            return RedirectResponse("/", 303)
        if current is not None:
            context = {
                "error": f"This browser is signed in as {current[1]}, and the link is for {link.caller}.",
                "remedy": "Sign out first, then open the link again.",
            }
            return self._frame.render("failure.html", request, context, "", 409)
        if request.method != "POST":
            return self._frame.render("link.html", request, {"code": code, "who": link.caller}, "")
        session = self._sessions.use_link(code)
        if session is None:
            return self._refuse_link(request)
        self._note(request.scope, f"{ROOT}/link", link.caller, None)
        return self._begin(request, session, "/")

    def _refuse_link(self, request: Request) -> Response:
        context = {"error": "This link was used already, or is too old.", "remedy": "retinue dashboard"}
        return self._frame.render("failure.html", request, context, "", 403)

    async def _find_current(self, request: Request) -> tuple[bytes, str] | None:
        """The token and the caller of the session that the browser has; None without a valid one."""
        cookie = read_cookie(identity_of(request.scope).headers)
        token = None if cookie is None else self._sessions.find(cookie)
        if token is None:
            return None
        try:
            return token, (await self._verify(token)).id
        except RetinueError:
            return None

    def _begin(self, request: Request, session: str, target: str) -> Response:
        response = RedirectResponse(target, 303)
        _store(response, request, session)
        return response


def _store(response: Response, request: Request, session: str) -> None:
    """Store a session in the browser, "" to remove it; other services of a proxy do not get the cookie."""
    # not request.url: urlsplit remembers the last 128 urls, each up to limits.head_bytes long
    is_secure = request.scope["scheme"] == "https"
    response.headers["set-cookie"] = set_cookie(session, secure=is_secure, prefix=prefix_of(request.scope))
