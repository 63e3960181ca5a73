"""The shared frame around each page, and the fields of a submitted form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from retinue.core.call import Principal
from retinue.core.errors import InvalidRequestError, NotAllowedError, RetinueError
from retinue.dashboard.rendering import render_data, render_page
from retinue.dashboard.sessions import ROOT, is_own_page, read_state
from retinue.web.addresses import prefix_of
from retinue.web.disconnect import read_body
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

PAGE = 50
"""Rows of one page of a list."""

MAX_ARGUMENTS_CHARACTERS = 1_000_000
"""Characters of the arguments of a call to approve: a person reads all of them, folded if they are long."""

Page = Callable[[Request, Principal], Awaitable[Response]]
Answer = Callable[[Request], Awaitable[Response]]


class PageFrame:
    """Renders pages of the hub at ``url`` with navigation and the name of the visitor.

    ``processes`` is the number of processes that serve the hub.
    """

    def __init__(self, url: str, version: str, processes: int = 1) -> None:
        self.url = url
        self._version = version
        self._processes = processes

    def render(
        self,
        template: str,
        request: Request,
        context: Mapping[str, Any],
        section: str,
        status: int = 200,
        *,
        data: Mapping[str, Any] | None = None,
    ) -> Response:
        """A page as a response; ``section`` is the entry of the navigation that it belongs to.

        A request for JSON gets ``data``, if the page has any.
        """
        if data is not None and wants_json(request):
            return render_data(data, status)
        identity, prefix = identity_of(request.scope), quote(prefix_of(request.scope))
        shared = {
            "section": section,
            "caller": identity.principal.id,
            "is_signed_in": read_state(request.scope) == "valid",
            "has_session_ended": read_state(request.scope) == "ended",
            "version": self._version,
            "processes": self._processes,
            "query": dict(request.query_params),
            "has_data": data is not None,
            "home": prefix + "/",
            "root": prefix + ROOT,
        }
        return render_page(template, {**shared, **context}, status)

    def serve(self, page: Page) -> Answer:
        """A page whose failure is a page too; POST requests must come from a page of this server."""

        async def answer(request: Request) -> Response:
            identity = identity_of(request.scope)
            try:
                if request.method == "POST" and not is_own_page(identity.headers):
                    raise NotAllowedError("only pages of this server may do this")
                return await page(request, identity.principal)
            except RetinueError as error:
                fault = rest_fault(error)
                context = {"error": error.message, "remedy": error.remedy}
                return self.render("failure.html", request, context, "", fault.status, data=context)

        return answer


def wants_json(request: Request) -> bool:
    """Whether a request asks for the data of a page: by ``?format=json``, or by its header ``Accept``."""
    accept = request.headers.get("accept", "")
    by_header = "application/json" in accept and "text/html" not in accept
    return request.method == "GET" and (request.query_params.get("format") == "json" or by_header)


def read_number(request: Request, name: str) -> int:
    """A number of a page's query, 0 where it is missing or none."""
    digits = request.query_params.get(name, "")
    return int(digits) if digits.isdecimal() and len(digits) <= 15 else 0


def lead_to(*parts: str) -> Response:
    """A redirect to a page below the root, after an action; each part is one segment of its path."""
    return RedirectResponse("/".join((ROOT, *(quote(part, safe="") for part in parts))), 303)


def describe_error(error: RetinueError) -> str:
    """The message and the remedy of a failed action."""
    return f"{error.message} ({error.remedy})" if error.remedy else error.message


async def read_entries(request: Request) -> dict[str, str]:
    """The fields of a submitted form."""
    body = await read_body(request.receive)
    try:
        return dict(parse_qsl((body or b"").decode(), keep_blank_values=True, max_num_fields=1_000))
    except ValueError:
        raise InvalidRequestError("the form cannot be read") from None
