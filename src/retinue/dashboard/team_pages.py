"""The page of teams: the digests of the state, and what one of them can do that another cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from retinue.approvals.records import SCOPE
from retinue.core.call import Principal
from retinue.core.errors import InsufficientScopeError, NotAuthenticatedError
from retinue.dashboard.asking import Json
from retinue.dashboard.frame import Page, PageFrame
from retinue.dashboard.sessions import ROOT

MAX_CHANGES = 1_000
"""Changes on one page; the JSON of the page has all of them."""

SIGNS = {"added": "+", "removed": "−", "changed": "~"}


@dataclass(frozen=True, slots=True)
class KnownTeams:
    """The digests of teams that a state has.

    ``list_digests`` gives an object for each, with ``team``, ``version``, ``digest`` and ``status``.
    ``compare`` gives the differences of two digests, as ``retinue diff --json`` prints them.
    """

    list_digests: Callable[[], Awaitable[list[Json]]]
    compare: Callable[[str, str], Awaitable[Json]]


class TeamPages:
    """The page ``/ui/teams``, for those who may approve, because it shows prompts and access lists."""

    def __init__(self, teams: KnownTeams | None, frame: PageFrame) -> None:
        self._teams = teams
        self._frame = frame

    def list_pages(self) -> dict[str, Page]:
        """The pages to read, by path."""
        return {} if self._teams is None else {f"{ROOT}/teams": self._show}

    async def _show(self, request: Request, principal: Principal) -> Response:
        """All digests, and the differences of two that the query names."""
        _check_owner(principal)
        assert self._teams is not None
        digests = await self._teams.list_digests()
        chosen = [request.query_params.get(key, "") for key in ("from", "to")]
        difference = await self._teams.compare(chosen[0], chosen[1]) if all(chosen) else None
        changes = [] if difference is None else difference["changes"]
        context = {
            "digests": digests,
            "before": chosen[0],
            "after": chosen[1],
            "difference": difference,
            "changes": changes[:MAX_CHANGES],
            "further": max(0, len(changes) - MAX_CHANGES),
            "signs": SIGNS,
        }
        data = {"teams": digests} if difference is None else difference
        return self._frame.render("teams.html", request, context, "teams", data=data)


def _check_owner(principal: Principal) -> None:
    if SCOPE in principal.scopes or principal.kind == "local":
        return
    if principal.kind == "anonymous":
        raise NotAuthenticatedError(
            "this page is for the owner of the mesh", remedy="sign in: retinue dashboard"
        )
    raise InsufficientScopeError(
        "teams are shown to a holder of the scope approves",
        scopes=(SCOPE,),
        remedy="use the command line of the owner: retinue diff",
    )
