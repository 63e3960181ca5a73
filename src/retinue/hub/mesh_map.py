"""What the mesh consists of, without cards: its agents by source and status, its processes and sources.

The hub's skill ``show_mesh`` is here, and what ``map_agents`` lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_status, status_of
from retinue.core.record import HUB_NAME, ListingKey
from retinue.hub.resources import decide_and_keep
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, AgentView, is_seen
from retinue.mesh.slices import run_in_slices
from retinue.parts.network_links import NetworkLinks

Json = dict[str, Any]

MAX_LISTED = 200
"""Nodes of one kind; beyond that only their number is told."""


_KOI = "koi"
"""The part whose links have a key of their own, as before other parts could tell theirs."""


@dataclass(frozen=True, slots=True)
class RunNode:
    """A process that executes runs, by its lease in the database; ``running`` = its outermost runs."""

    name: str
    running: int
    is_own: bool = False


async def _no_nodes() -> Sequence[RunNode]:
    return ()


@dataclass(slots=True)
class MeshParts:
    """The processes and sources around the hub's process: its ``url``, ``registries`` by source name, and
    peers.

    ``peers`` are the registries and catalogs that a search is passed on to.
    """

    url: str | None = None
    registries: Sequence[str] = ()
    peers: Sequence[str] = ()
    read_nodes: Callable[[], Awaitable[Sequence[RunNode]]] = _no_nodes
    links: NetworkLinks = field(default_factory=NetworkLinks)


def add_mesh_skill(agent: Agent, directory: Directory, access: Access, parts: MeshParts) -> None:
    """Add ``show_mesh``; agents that the caller does not see are not counted.

    A caller that is limited to some agents is told no nodes, links, peers and other sources, whose
    addresses may be internal.
    """

    @agent.skill(read_only=True)
    async def show_mesh(ctx: Context) -> Json:
        """Shows the hub, its sources with agents by health, nodes that execute runs, KOI edges and peers."""
        await directory.ensure_fresh()
        view = access.view_of(ctx.principal)
        health: dict[str, Counter[str]] = {}
        if view is None:
            health = _count_all(directory)
        else:
            async for page in directory.iterate_pages():
                for entry in page:
                    if is_seen(view, entry.name):
                        health.setdefault(entry.source, Counter())[status_of(entry)] += 1
        failures = directory.source_failures()
        sources = []
        is_limited = bool(ctx.principal.agents)
        for name in sorted(health if is_limited else {*failures, *health}):
            error = failures.get(name)
            row: Json = {"name": name, "kind": "registry" if name in parts.registries else name}
            row |= {"connected": error is None, "agents": dict(health.get(name, {}))}
            sources.append(row if error is None else {**row, "reason": error.message})
        nodes: Sequence[RunNode] = () if is_limited else await parts.read_nodes()
        links = {} if is_limited else parts.links.list_all()
        shown = {part: [asdict(link) for link in listed[:MAX_LISTED]] for part, listed in links.items()}
        mesh: Json = {
            "hub": {"name": HUB_NAME, "url": parts.url},
            "sources": sources,
            "nodes": [asdict(node) for node in nodes[:MAX_LISTED]],
            "koi": shown.pop(_KOI, []),
            "peers": [] if is_limited else list(parts.peers),
            "more": sum(max(0, len(listed) - MAX_LISTED) for listed in (nodes, *links.values())),
        }
        return {**mesh, "networks": shown} if shown else mesh


async def map_agents(
    directory: Directory,
    view: AgentView | None,
    scopes: frozenset[str],
    *,
    limit: int | None = None,
    source: str | None = None,
    names: Collection[str] = (),
) -> Json:
    """The reply of ``map_agents``: the number of agents of each source by status, and a row of each agent.

    With a ``limit`` the rows are those of the agents that do not answer or are disabled, then those of
    ``names``, then others. ``source`` limits the rows, and not the numbers. Without a view this takes no walk
    over all agents.
    """
    if view is None and limit is not None:
        counts, chosen = _count_all(directory), await _choose(directory, limit, source, names)
    else:
        counts, seen = {}, await _list_seen(directory, view, scopes)
        await run_in_slices(_count(seen, counts))
        of_source = [entry for entry in seen if source in (None, entry.source)]
        chosen = of_source if limit is None else _sort_out(of_source, names)[:limit]
    rows: list[Json] = []
    await run_in_slices(map(rows.append, map(_render_row, chosen)))
    return {"agents": rows, "sources": {name: dict(count) for name, count in sorted(counts.items())}}


def _render_row(entry: Entry) -> Json:
    row: Json = {"name": entry.name, "status": status_of(entry), "source": entry.source}
    return {**row, "reason": entry.last_error} if entry.last_error else row


def _count_all(directory: Directory) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for facts, count in directory.count_facts().items():
        if count:
            status = render_status(facts.health, is_enabled=facts.enabled)
            counts.setdefault(facts.source, Counter())[status] += count
    return counts


def _count(entries: Sequence[Entry], counts: dict[str, Counter[str]]) -> Iterator[None]:
    for entry in entries:
        counts.setdefault(entry.source, Counter())[status_of(entry)] += 1
        yield


async def _list_seen(directory: Directory, view: AgentView | None, scopes: frozenset[str]) -> list[Entry]:
    seen: list[Entry] = []
    async for page in directory.iterate_pages():
        shown = [entry for entry in page if is_seen(view, entry.name)]
        seen += await decide_and_keep(directory, shown, view, scopes)
    return seen


async def _choose(
    directory: Directory, limit: int, source: str | None, names: Collection[str]
) -> Sequence[Entry]:
    """The first agents in the order of `map_agents`, by index."""
    chosen = {entry.id: entry for entry in directory.list_failing(limit, source)}
    for name in names:
        entry = directory.find_named(name)
        if entry is not None and source in (None, entry.source):
            chosen.setdefault(entry.id, entry)
    async for page in _iterate_source(directory, source):
        if len(chosen) >= limit:
            break
        for entry in page:
            chosen.setdefault(entry.id, entry)
    return list(chosen.values())[:limit]


async def _iterate_source(directory: Directory, source: str | None) -> AsyncIterator[Sequence[Entry]]:
    """The pages of the directory, or those of one source."""
    async for page in directory.iterate_pages(None if source is None else ListingKey(source, "")):
        yield [entry for entry in page if source in (None, entry.source)]
        if source is not None and page and page[-1].source != source:
            return


def _sort_out(entries: Sequence[Entry], names: Collection[str]) -> list[Entry]:
    """The entries in the order of `map_agents`."""
    named = set(names)

    def rank(entry: Entry) -> int:
        if status_of(entry) not in ("available", "unknown"):
            return 0
        return 1 if entry.name in named else 2

    return sorted(entries, key=rank)
