"""The page of the mesh: hub, sources, imports, nodes, KOI edges and peers as a picture and as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.drawings import (
    Box,
    Graph,
    draw_dots,
    place_layers,
    place_spiral,
)
from retinue.dashboard.frame import PageFrame
from retinue.dashboard.step_levels import write_counts

MAX_BOXES = 12
"""Boxes of one kind in the picture; the tables have more."""

BOX_WIDTH = 240
"""Pixels of a box: wider than a step's, because hosts and addresses are longer than names of steps."""

MAX_ROWS = 100
"""Rows of one table."""

MAX_LINKS = 30
"""Agents of one source that are named because they do not answer."""

_HEALTHY = ("available", "unknown")


class MeshPage:
    """The page ``/ui/mesh``. Who is no user of the mesh sees the agents only."""

    def __init__(self, hub: HubSkills, frame: PageFrame) -> None:
        self._hub = hub
        self._frame = frame

    async def show(self, request: Request, principal: Principal) -> Response:
        """The page as a response."""
        agents = list((await self._hub.read(principal, "map_agents"))["agents"])
        mesh, imports = None, list[Json]()
        if "mesh" in principal.scopes:
            mesh = await self._hub.read(principal, "show_mesh")
            imports = (await self._hub.read(principal, "list_imports"))["imports"]
        context = {
            "agents": len(agents),
            "groups": _group(agents),
            "mesh": mesh,
            "imports": imports[:MAX_ROWS],
            "more": {
                "imports": max(0, len(imports) - MAX_ROWS),
                "nodes": 0 if mesh is None else max(0, len(mesh["nodes"]) - MAX_ROWS),
                "koi": 0 if mesh is None else max(0, len(mesh["koi"]) - MAX_ROWS),
            },
            "graph": None if mesh is None else draw_mesh(mesh, imports),
            "max_rows": MAX_ROWS,
        }
        return self._frame.render("mesh.html", request, context, "mesh")


def draw_mesh(mesh: Json, imports: Sequence[Json]) -> Graph:
    """Draw the hub in the middle, nodes of its network and database on the left, its sources on the right."""
    hub = Box("hub", "this hub", str(mesh["hub"]["url"] or "").partition("://")[2], "done")
    others = [one for one in mesh["nodes"] if not one["is_own"]]
    # most hubs have no imports, APIs or models: their sources are in the table only
    sources = [one for one in mesh["sources"] if _is_used(one) or not one["connected"]]
    left = [
        *_limit("node", "nodes", (_node_box(one) for one in others)),
        *_limit("koi", "KOI edges", map(_koi_box, mesh["koi"])),
        *_limit("peer", "peers", (Box(f"peer {url}", _host(url), "search peer") for url in mesh["peers"])),
    ]
    right = [
        *_limit("source", "sources", map(_source_box, sources)),
        *_limit("import", "imports", map(_import_box, imports)),
    ]
    edges = [(one.id, hub.id) for one in left] + [
        (f"source {one['via']}" if one.get("via") else hub.id, one["id"]) for one in _targets(right)
    ]
    return place_layers([*left, hub, *right], edges, BOX_WIDTH)


def _is_used(source: Json) -> bool:
    return bool(source["agents"]) or source["kind"] == "registry"


def _targets(right: Iterable[Box]) -> Iterable[Json]:
    """The boxes on the right; an import hangs at the source of all imports."""
    nodes = list(right)
    has_source = any(one.id == "source imports" for one in nodes)
    for one in nodes:
        yield {"id": one.id, "via": "imports" if has_source and one.id.startswith("import ") else None}


def _limit(kind: str, plural: str, boxes: Iterable[Box]) -> list[Box]:
    """At most `MAX_BOXES`, silent ones first; the rest is one box with their number."""
    ordered = sorted(boxes, key=lambda one: one.status != "failed")
    if len(ordered) <= MAX_BOXES:
        return ordered
    rest = len(ordered) - MAX_BOXES + 1
    return [*ordered[: MAX_BOXES - 1], Box(f"{kind} …", f"{rest} more {plural}", "in the table below")]


def _node_box(one: Json) -> Box:
    return Box(f"node {one['name']}", str(one["name"]), f"node, {one['running']} runs", "done")


def _koi_box(one: Json) -> Box:
    arrow = "subscribed to" if one["direction"] == "in" else "subscriber"
    status = "done" if one["status"] == "approved" else "waiting"
    return Box(f"koi {one['name']} {one['direction']}", str(one["name"]), f"KOI, {arrow}", status)


def _source_box(one: Json) -> Box:
    detail = write_counts(one["agents"]) or "no agents"
    return Box(f"source {one['name']}", _host(one["name"]), detail, "done" if one["connected"] else "failed")


def _import_box(one: Json) -> Box:
    status = "failed" if not one["connected"] else "waiting" if one.get("waiting") else "done"
    detail = {"failed": "import, not connected", "waiting": "import, changed tools"}.get(status, "import")
    return Box(f"import {one['name']}", str(one["name"]), detail, status)


def _host(name: Any) -> str:
    return str(name).partition("://")[2] or str(name)


def _group(agents: Sequence[Json]) -> list[Json]:
    """The agents of each source as dots, silent ones last; these are named, too."""
    by_source: dict[str, list[Json]] = {}
    for agent in agents:
        by_source.setdefault(str(agent.get("source", "")), []).append(agent)
    groups = []
    for source, members in sorted(by_source.items()):
        members.sort(key=lambda one: one["status"] not in _HEALTHY)
        size = 24 + 11.0 * (len(members) + 6) ** 0.5 * 2
        dots = place_spiral([(one["name"], one["status"]) for one in members], size / 2)
        broken = [one for one in members if one["status"] not in _HEALTHY]
        counts: dict[str, int] = {}
        for one in members:
            counts[one["status"]] = counts.get(one["status"], 0) + 1
        groups.append(
            {
                "name": source,
                "size": round(size),
                "paths": draw_dots(dots),
                "counts": counts,
                "broken": broken[:MAX_LINKS],
                "more": max(0, len(broken) - MAX_LINKS),
            }
        )
    return groups
