"""The page of the mesh: hub, sources, imports, nodes, KOI edges and peers as a picture and as tables."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from retinue.core.call import Principal
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.attention import HEALTHY, count_statuses
from retinue.dashboard.drawings.shapes import (
    Box,
    Graph,
    draw_dots,
    place_layers,
    place_spiral,
)
from retinue.dashboard.drawings.step_levels import write_counts
from retinue.dashboard.drawings.traffic_map import Flow, count_flows, draw_traffic
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

MAX_AGENTS = 1_000
"""Agents that the page has rows of; of a larger mesh it knows the others by number."""

MAX_DOTS = 2_000
"""Dots of one source; beyond, a dot stands for several agents."""


class MeshPage:
    """The page ``/ui/mesh``. Who is no user of the mesh sees the agents only."""

    def __init__(self, hub: HubSkills, frame: PageFrame, recent: RecentCalls) -> None:
        self._hub = hub
        self._recent = recent
        self._frame = frame

    async def show(self, request: Request, principal: Principal) -> Response:
        """The page as a response."""
        opened = request.query_params.get("source")
        mesh, imports, traffic, period_s = None, list[Json](), None, RECENT_S
        flows: Sequence[Flow] = ()
        if "mesh" in principal.scopes:
            mesh = await self._hub.read(principal, "show_mesh")
            imports = (await self._hub.read(principal, "list_imports"))["imports"]
            async with self._recent.lock:
                calls = await self._recent.read(principal)
                period_s = measure_period(calls, time.time())
                flows = count_flows(calls)
                del calls
        mapped = await self._map(principal, flows, opened)
        agents, count = mapped["agents"], count_statuses(mapped).total()
        if mesh is not None:
            sizes = {source: sum(counts.values()) for source, counts in mapped["sources"].items()}
            traffic = draw_traffic(flows, agents, opened, period_s, sizes)
        context = {
            "agents": count,
            "groups": [draw_group(name, counts, agents) for name, counts in mapped["sources"].items()],
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
            "opened": opened,
            "max_rows": MAX_ROWS,
        }
        flow_rows = [] if traffic is None else [asdict(flow) for flow in traffic.rows]
        data = {**mapped, "mesh": mesh, "imports": imports, "calls": flow_rows, "period_s": period_s}
        return self._frame.render("mesh.html", request, context, "mesh", data=data)

    async def _map(self, principal: Principal, flows: Sequence[Flow], opened: str | None) -> Json:
        """Agents by source and status, and rows of those that are drawn or named."""
        called = list(dict.fromkeys(flow.target for flow in flows))[:MAX_AGENTS]
        mapped = await self._hub.read(principal, "map_agents", {"limit": MAX_AGENTS, "names": called})
        if opened not in mapped["sources"] or len(mapped["agents"]) < MAX_AGENTS:
            return mapped
        within = {"limit": MAX_AGENTS, "names": called, "source": opened}
        more = (await self._hub.read(principal, "map_agents", within))["agents"]
        held = {(row["name"], row["source"]) for row in mapped["agents"]}
        rows = [row for row in more if (row["name"], row["source"]) not in held]
        return {**mapped, "agents": [*mapped["agents"], *rows]}


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


def draw_group(source: str, counts: Mapping[str, int], agents: Sequence[Json]) -> Json:
    """The agents of a source as dots, silent ones last; those of them that have a row are named, too."""
    per_dot = max(1, math.ceil(sum(counts.values()) / MAX_DOTS))
    ordered = sorted(counts.items(), key=lambda item: (item[0] not in HEALTHY, item[0]))
    statuses = [("", status) for status, count in ordered for _ in range(math.ceil(count / per_dot))]
    size = 24 + 11.0 * (len(statuses) + 6) ** 0.5 * 2
    silent = sum(count for status, count in counts.items() if status not in HEALTHY)
    broken = [row for row in agents if row["source"] == source and row["status"] not in HEALTHY][:MAX_LINKS]
    return {
        "name": source,
        "size": round(size),
        "paths": draw_dots(place_spiral(statuses, size / 2)),
        "per_dot": per_dot,
        "counts": dict(ordered),
        "broken": broken,
        "more": silent - len(broken),
    }
