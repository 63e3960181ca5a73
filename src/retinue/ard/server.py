"""The endpoints of ARD at a hub: ``GET /.well-known/ai-catalog.json`` and ``POST /search``.

Both show a caller the same items as other endpoints: agents of its view, skills of its scopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from retinue.ard.codec.catalog import (
    A2A_TYPE,
    CATALOG_PATH,
    CatalogEntry,
    Publisher,
    referral_entry,
    render_catalog,
    render_entries,
)
from retinue.ard.codec.search import (
    INCOMPLETE_HEADER,
    VISITED_HEADER,
    Search,
    matches,
    merge,
    parse_search,
    parse_visited,
    render_results,
)
from retinue.ard.federation import FederatedResults, Upstreams, scale
from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, RetinueError
from retinue.core.record import Listing
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, AgentView, decide_listings, is_seen, narrow_record
from retinue.mesh.search.ranking import SkillSearch
from retinue.web.error_table import rest_fault
from retinue.web.security import identity_of

MAX_CATALOG = 1_000
"""Agents in the catalog; the others are found by search."""

_OPENED_AT_ONCE = 50
"""Listings that are opened before other tasks run, at about 100 µs each."""

MAX_HITS = 500
"""Skills that a search looks at, of all agents."""

_CODES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RATE_LIMIT_EXCEEDED"}


class DiscoveryEndpoint:
    """The catalog and the search of one hub."""

    def __init__(
        self,
        directory: Directory,
        search: SkillSearch,
        access: Access,
        publisher: Publisher,
        upstreams: Upstreams,
    ) -> None:
        self._directory = directory
        self._search = search
        self._access = access
        self._publisher = publisher
        self._upstreams = upstreams

    def routes(self) -> list[Route]:
        return [
            Route(CATALOG_PATH, self._show_catalog, methods=["GET"]),
            Route("/search", self._answer_search, methods=["POST"]),
            Route("/explore", _refuse_explore, methods=["POST"]),
        ]

    async def _show_catalog(self, request: Request) -> Response:
        entries = await self.list_entries(identity_of(request.scope).principal)
        headers = {"cache-control": "private, max-age=60"}
        # a thousand agents take `json` ten times as long
        content = orjson.dumps(render_catalog(self._publisher, entries))
        return Response(content, headers=headers, media_type="application/json")

    async def _answer_search(self, request: Request) -> Response:
        try:
            search = parse_search(await request.body())
            caller = identity_of(request.scope).principal
            visited = parse_visited(request.headers.get(VISITED_HEADER))
            reply, answers = await self.search(search, caller, visited)
        except RetinueError as error:
            fault = rest_fault(error)
            status = 400 if isinstance(error, InvalidParametersError) else fault.status
            code = _CODES.get(status, "INTERNAL_ERROR")
            return JSONResponse({"error": {"code": code, "message": error.message}}, status, fault.headers)
        headers = {}
        if answers.missing:
            missing = [{"source": url, "error": reason} for url, reason in answers.missing.items()]
            headers[INCOMPLETE_HEADER] = orjson.dumps(missing).decode().encode("ascii", "replace").decode()
        return JSONResponse(reply, headers=headers)

    async def list_entries(self, caller: Principal) -> list[CatalogEntry]:
        """The entries of the agents that a caller sees, at most those of `MAX_CATALOG` agents."""
        await self._directory.ensure_fresh()
        view, entries, count = self._access.view_of(caller), list[CatalogEntry](), 0
        async for page in self._directory.iterate_pages():
            seen = [entry for entry in page if entry.enabled and is_seen(view, entry.name)]
            seen = seen[: MAX_CATALOG - count]
            for start in range(0, len(seen), _OPENED_AT_ONCE):
                listings = self._directory.open_all(seen[start : start + _OPENED_AT_ONCE])
                await decide_listings(view, listings)
                for listing in listings:
                    entries += self._render(listing, caller, view)
                    count += 1
                await asyncio.sleep(0)
            if count >= MAX_CATALOG:
                break
        return entries

    def _render(self, listing: Listing, caller: Principal, view: AgentView | None) -> list[CatalogEntry]:
        record = narrow_record(view, listing, listing.record)
        shown = listing if record is listing.record else replace(listing, record=record)
        return render_entries(shown, self._publisher, caller.scopes)

    async def search(
        self, search: Search, caller: Principal, visited: Sequence[str] = ()
    ) -> tuple[dict[str, object], FederatedResults]:
        """The reply to a search, and what others answered to it."""
        own = await self._search_own(search, caller)
        answers = FederatedResults()
        referrals = None
        if search.federation == "auto" and self._upstreams.may_ask(visited):
            answers = await self._upstreams.ask(search, visited)
        elif search.federation == "referrals":
            referrals = [referral_entry(url) for url in self._upstreams.urls]
        return render_results(search, merge([own, *answers.parts]), referrals), answers

    async def _search_own(self, search: Search, caller: Principal) -> list[CatalogEntry]:
        await self._directory.ensure_fresh()
        view = self._access.view_of(caller)

        def is_shown(entry: Entry) -> bool:
            return entry.enabled and is_seen(view, entry.name) and self._directory.represents_agent(entry)

        found = self._search.find_skills(search.text, caller.scopes, limit=MAX_HITS, accept=is_shown)
        scores: dict[object, int] = {}
        agents = []
        for hit in found.hits:
            if hit.entry.id not in scores:
                scores[hit.entry.id] = scale(hit.score, found.hits[0].score, found.fit)
                agents.append(hit.entry)
        results = []
        listings = self._directory.open_all(agents)
        await decide_listings(view, listings)
        for listing in listings:
            for entry in self._render(listing, caller, view):
                # one entry for an agent, unless the filter says in which form
                if ("type" in search.filter or entry["type"] == A2A_TYPE) and matches(entry, search.filter):
                    more = {"score": scores[listing.id], "source": f"{self._publisher.url}/"}
                    results.append({**entry, **more})
        return results


async def _refuse_explore(request: Request) -> Response:
    """Answer requests for facets, which are optional, with the status for unsupported (ARD 0.9, 7.3)."""
    problem = "this registry has no facets; use POST /search"
    return JSONResponse({"error": {"code": "UNIMPLEMENTED", "message": problem}}, 501)
