"""The hub's skill ``show_mesh``: the processes and sources of the mesh, without the agents' cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_status, status_of
from retinue.core.record import HUB_NAME
from retinue.mesh.directory.directory import Directory
from retinue.mesh.permissions import Access, is_seen
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
            for facts, count in directory.count_facts().items():
                status = render_status(facts.health, is_enabled=facts.enabled)
                health.setdefault(facts.source, Counter())[status] += count
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
