"""Searches other ARD registries and catalogs: concurrently, within a time limit, without loops.

A search names the registries that it has passed through, and none is asked twice. A registry that does not
pass that on may ask this one again: a search that is under way here already is answered from the own index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
import structlog

from retinue.ard.codec.catalog import CATALOG_TYPE, CatalogEntry, as_listing, is_catalog_url, iterate_catalog
from retinue.ard.codec.search import (
    VISITED_HEADER,
    Federation,
    Search,
    matches,
    parse_results,
    render_search,
)
from retinue.core.errors import CallTimedOutError
from retinue.mesh.search.ranking import LIKELY_FROM, Fit, SkillSearch
from retinue.mesh.search.skill_texts import render_text
from retinue.mesh.search.text_index import MemoryTextIndex
from retinue.web.transport import HttpRequester, TransportError

MAX_REPLY_BYTES = 4 * 1024 * 1024
MAX_ENTRIES = 10_000
MAX_CATALOGS = 20
"""Documents that one configured catalog may lead to."""

_MESH = frozenset({"mesh"})

_log = structlog.get_logger("retinue.ard")


@dataclass(frozen=True, slots=True)
class FederatedResults:
    """The answers of others, and by URL the reasons of missing ones."""

    parts: list[list[CatalogEntry]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


class Upstreams:
    """The configured registries and catalogs: ``urls`` of registries, and of catalogs, ending with .json.

    ``own_id`` is that of this registry; a search passes through at most ``max_hops`` of them.
    """

    def __init__(
        self, http: HttpRequester, urls: Sequence[str], own_id: str, *, timeout_s: float, max_hops: int
    ) -> None:
        self.urls = tuple(urls)
        self.own_id = own_id
        self._http = http
        self._timeout_s = timeout_s
        self._max_hops = max_hops
        self._under_way: set[bytes] = set()

    def may_ask(self, visited: Sequence[str]) -> bool:
        """Whether others are asked: not in a loop, and not beyond the limit."""
        return bool(self.urls) and self.own_id not in visited and len(visited) < self._max_hops

    async def ask(self, search: Search, visited: Sequence[str]) -> FederatedResults:
        """Ask all at once; failed and late ones are named.

        No registry is asked while the same search is under way, because it may have come back.
        """
        if search.key in self._under_way:
            return FederatedResults(missing=dict.fromkeys(self.urls, "the same search is under way"))
        self._under_way.add(search.key)
        try:
            tasks = {url: asyncio.create_task(self._ask_one(url, search, visited)) for url in self.urls}
            try:
                await asyncio.wait(tasks.values(), timeout=self._timeout_s)
            finally:
                for task in tasks.values():
                    task.cancel()
                await asyncio.gather(*tasks.values(), return_exceptions=True)
        finally:
            self._under_way.discard(search.key)
        answers = FederatedResults()
        for url, task in tasks.items():
            if task.cancelled():
                answers.missing[url] = f"no answer within {self._timeout_s:g} s"
            elif (error := task.exception()) is None:
                answers.parts.append(task.result())
            elif isinstance(error, TransportError | CallTimedOutError | ValueError):
                answers.missing[url] = (
                    str(error).splitlines()[0][:200] if str(error) else type(error).__name__
                )
            else:
                raise error
        for url, reason in answers.missing.items():
            _log.warning("registry not searched", source=url, reason=reason)
        return answers

    async def _ask_one(self, url: str, search: Search, visited: Sequence[str]) -> list[CatalogEntry]:
        if is_catalog_url(url):
            return await self._search_catalog(url, search)
        passed = [*visited, self.own_id]
        # the last registry that is asked asks no other
        federation: Federation = "auto" if len(passed) < self._max_hops else "none"
        reply = await self._http.request(
            "POST",
            f"{url.rstrip('/')}/search",
            headers={"content-type": "application/json", VISITED_HEADER: ",".join(passed)},
            body=render_search(search, federation),
            timeout_s=self._timeout_s,
            max_response_bytes=MAX_REPLY_BYTES,
            what=url,
        )
        if reply.status != 200:
            raise ValueError(f"it answers with status {reply.status}")
        return parse_results(reply.body, url)

    async def _search_catalog(self, url: str, search: Search) -> list[CatalogEntry]:
        entries = await self._read_catalog(url)
        matching = [entry for entry in entries if matches(entry, search.filter)]
        return [
            {**entry, "score": score, "source": url} for entry, score in rank_entries(search.text, matching)
        ]

    async def _read_catalog(self, url: str) -> list[CatalogEntry]:
        """The entries of a catalog and of the catalogs that it names, each document once."""
        seen: set[str] = set()
        waiting, entries = [url], list[CatalogEntry]()
        while waiting and len(seen) < MAX_CATALOGS:
            place = waiting.pop(0)
            if place in seen:
                continue
            seen.add(place)
            reply = await self._http.request(
                "GET", place, timeout_s=self._timeout_s, max_response_bytes=MAX_REPLY_BYTES, what=place
            )
            if reply.status != 200:
                if place == url:
                    raise ValueError(f"it answers with status {reply.status}")
                continue
            for entry in iterate_catalog(orjson.loads(reply.body)):
                if entry["type"] == CATALOG_TYPE and "url" in entry:
                    waiting.append(entry["url"])
                elif len(entries) < MAX_ENTRIES:
                    entries.append(entry)
        return entries


def rank_entries(text: str, entries: Sequence[CatalogEntry]) -> list[tuple[CatalogEntry, int]]:
    """The entries that match a text, best first, with scores from 0 to 100."""
    held = {(listing := as_listing(entry)).id: (listing, entry) for entry in entries}
    index = MemoryTextIndex([render_text(listing) for listing, _ in held.values()])
    search = SkillSearch(index, lambda key: held[key][0] if key in held else None)
    ranking = search.find_skills(text, _MESH, limit=max(1, len(held)))
    return [
        (held[hit.entry.id][1], scale(hit.score, ranking.hits[0].score, ranking.fit)) for hit in ranking.hits
    ]


def scale(score: float, best: float, fit: Fit) -> int:
    """The score of ARD: how well the best result fits, and the others in proportion to it.

    Where the best result is not likely to fit, no score reaches that of one that is (`LIKELY_FROM`).
    """
    share = fit.score if fit.is_likely else min(fit.score, LIKELY_FROM - 0.01)
    return max(0, min(100, round(100 * share * score / best))) if best > 0 else 0
