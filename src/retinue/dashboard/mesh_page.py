"""The page of the mesh: hub, sources, imports, nodes, KOI edges and peers as a picture and as tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.drawings.shapes import (
    Box,
    Graph,
    draw_dots,
    place_layers,
    place_spiral,
)
from retinue.dashboard.drawings.step_levels import write_counts
from retinue.dashboard.drawings.traffic_map import count_flows, draw_traffic
from retinue.dashboard.figures import RECENT_S, measure_period
from retinue.dashboard.frame import PageFrame
from retinue.dashboard.recent_calls import RecentCalls

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

    def __init__(self, hub: HubSkills, frame: PageFrame, recent: RecentCalls) -> None:
        self._hub = hub
        self._recent = recent
        self._frame = frame

    async def show(self, request: Request, principal: Principal) -> Response:
        """The page as a response."""
        agents = list((await self._hub.read(principal, "map_agents"))["agents"])
        mesh, imports, traffic, period_s = None, list[Json](), None, RECENT_S
        if "mesh" in principal.scopes:
            mesh = await self._hub.read(principal, "show_mesh")
            imports = (await self._hub.read(principal, "list_imports"))["imports"]
            async with self._recent.lock:
                calls = await self._recent.read(principal)
                period_s = measure_period(calls, time.time())
                flows = count_flows(calls)
                del calls
            traffic = draw_traffic(flows, agents, request.query_params.get("source"), period_s)
        context = {
            "agents": len(agents),
            "groups": _group(agents),
            "mesh": mesh,
            "sources": [] if mesh is None else list(filter(_is_listed, mesh["sources"])),
            "unused": [] if mesh is None else [row["name"] for row in mesh["sources"] if not _is_listed(row)],
            "imports": imports[:MAX_ROWS],
            "more": {
                "imports": max(0, len(imports) - MAX_ROWS),
                "nodes": 0 if mesh is None else max(0, len(mesh["nodes"]) - MAX_ROWS),
                "koi": 0 if mesh is None else max(0, len(mesh["koi"]) - MAX_ROWS),
            },
            "graph": None if mesh is None else draw_mesh(mesh, list(filter(_needs_a_look, imports))),
            "traffic": traffic,
            "period_s": period_s,
            # a small mesh has a box for each agent on the map
            "has_dots": traffic is None or bool(traffic.sources),
            "opened": request.query_params.get("source"),
            "max_rows": MAX_ROWS,
        }
        flow_rows = [] if traffic is None else [asdict(flow) for flow in traffic.rows]
        data = {"agents": agents, "mesh": mesh, "imports": imports, "calls": flow_rows, "period_s": period_s}
        return self._frame.render("mesh.html", request, context, "mesh", data=data)


def draw_mesh(mesh: Json, imports: Sequence[Json]) -> Graph:
    """Draw the hub in the middle, nodes of its network and database on the left, its sources on the right."""
    hub = Box("hub", "this hub", str(mesh["hub"]["url"] or "").partition("://")[2], "done")
    others = [node for node in mesh["nodes"] if not node["is_own"]]
    sources = list(filter(_is_listed, mesh["sources"]))
    left = [
        *_limit("node", "nodes", (_node_box(node) for node in others)),
        *_limit("koi", "KOI edges", map(_koi_box, mesh["koi"])),
        *_limit("peer", "peers", (Box(f"peer {url}", _host(url), "search peer") for url in mesh["peers"])),
    ]
    right = [
        *_limit("source", "sources", map(_source_box, sources)),
        *_limit("import", "imports", map(_import_box, imports)),
    ]
    edges = [(box.id, hub.id) for box in left] + [
        (f"source {row['via']}" if row.get("via") else hub.id, row["id"]) for row in _targets(right)
    ]
    return place_layers([*left, hub, *right], edges, BOX_WIDTH)


def _needs_a_look(one: Json) -> bool:
    """Whether an import is drawn around the hub; the map of calls has the others."""
    return not one["connected"] or bool(one.get("waiting"))


def _is_listed(source: Json) -> bool:
    """Whether a source says something: most hubs have no imports, APIs or models."""
    return bool(source["agents"]) or source["kind"] == "registry" or not source["connected"]


def _targets(right: Iterable[Box]) -> Iterable[Json]:
    """The boxes on the right; an import hangs at the source of all imports."""
    nodes = list(right)
    has_source = any(box.id == "source imports" for box in nodes)
    for box in nodes:
        yield {"id": box.id, "via": "imports" if has_source and box.id.startswith("import ") else None}


def _limit(kind: str, plural: str, boxes: Iterable[Box]) -> list[Box]:
    """At most `MAX_BOXES`, silent ones first; the rest is one box with their number."""
    ordered = sorted(boxes, key=lambda box: box.status != "failed")
    if len(ordered) <= MAX_BOXES:
        return ordered
    rest = len(ordered) - MAX_BOXES + 1
    return [*ordered[: MAX_BOXES - 1], Box(f"{kind} …", f"{rest} more {plural}", "in the table below")]


def _node_box(node: Json) -> Box:
    return Box(f"node {node['name']}", str(node["name"]), f"node, {node['running']} runs", "done")


def _koi_box(member: Json) -> Box:
    arrow = "subscribed to" if member["direction"] == "in" else "subscriber"
    status = "done" if member["status"] == "approved" else "waiting"
    return Box(f"koi {member['name']} {member['direction']}", str(member["name"]), f"KOI, {arrow}", status)


def _source_box(source: Json) -> Box:
    detail = write_counts(source["agents"]) or "no agents"
    return Box(
        f"source {source['name']}", _host(source["name"]), detail, "done" if source["connected"] else "failed"
    )


def _import_box(row: Json) -> Box:
    status = "failed" if not row["connected"] else "waiting" if row.get("waiting") else "done"
    detail = {"failed": "import, not connected", "waiting": "import, changed tools"}.get(status, "import")
    return Box(f"import {row['name']}", str(row["name"]), detail, status)


def _host(name: Any) -> str:
    return str(name).partition("://")[2] or str(name)


def _group(agents: Sequence[Json]) -> list[Json]:
    """The agents of each source as dots, silent ones last; these are named, too."""
    by_source: dict[str, list[Json]] = {}
    for agent in agents:
        by_source.setdefault(str(agent.get("source", "")), []).append(agent)
    groups = []
    for source, members in sorted(by_source.items()):
        members.sort(key=lambda member: member["status"] not in _HEALTHY)
        size = 24 + 11.0 * (len(members) + 6) ** 0.5 * 2
        dots = place_spiral([(member["name"], member["status"]) for member in members], size / 2)
        broken = [member for member in members if member["status"] not in _HEALTHY]
        counts: dict[str, int] = {}
        for member in members:
            counts[member["status"]] = counts.get(member["status"], 0) + 1
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
