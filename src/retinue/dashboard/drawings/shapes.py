"""Computes drawings for SVG: steps of a workflow in layers, calls of a trace, agents of a source."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

NODE_WIDTH = 168
NODE_HEIGHT = 44
GAP_X = 56
GAP_Y = 18
MAX_NODES = 120
"""Nodes of one drawing; the rest is left out."""

_SWEEPS = 6
_FRAME, _TITLE = 12, 26
"""Pixels between a frame and its boxes, and above them."""
_PADDING = 20
_LABEL_PX, _DETAIL_PX = 7.4, 6.2
"""Pixels of a character on average, in the two sizes of text that a box has."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a drawing; its place is that of the upper left corner."""

    id: str
    label: str
    detail: str = ""
    status: str = ""
    x: float = 0.0
    y: float = 0.0
    is_folded: bool = False
    """Whether it stands for nodes that are drawn on a page of their own."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame around boxes, with a line of text above them; lengths in pixels."""

    label: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Graph:
    """Placed nodes, each `node_width` wide, and the paths of the lines between them; lengths in pixels."""

    nodes: Sequence[Box]
    lines: Sequence[str]
    width: float
    height: float
    node_width: int = NODE_WIDTH
    node_height: int = NODE_HEIGHT
    frames: Sequence[Frame] = ()
    offset: tuple[int, int] = (0, 0)
    """By how much the lines are to be moved."""

    @property
    def label_limit(self) -> int:
        """Characters of a label that fit into a box; its title has all of them."""
        return int((self.node_width - _PADDING) / _LABEL_PX)

    @property
    def detail_limit(self) -> int:
        """Characters of the line below the label that fit into a box."""
        return int((self.node_width - _PADDING) / _DETAIL_PX)


def place_layers(
    nodes: Sequence[Box], edges: Iterable[tuple[str, str]], node_width: int = NODE_WIDTH
) -> Graph:
    """Nodes from left to right: each right of all that lead to it, in an order with few crossings."""
    by_id = {node.id: node for node in nodes[:MAX_NODES]}
    links = [(a, b) for a, b in edges if a in by_id and b in by_id and a != b]
    layers = _make_layers(list(by_id), links)
    _order(layers, links)
    tallest = max(map(len, layers), default=0)
    placed: dict[str, Box] = {}
    for column, layer in enumerate(layers):
        top = (tallest - len(layer)) * (NODE_HEIGHT + GAP_Y) / 2
        for row, name in enumerate(layer):
            node = by_id[name]
            x, y = column * (node_width + GAP_X) + 4, top + row * (NODE_HEIGHT + GAP_Y) + 4
            placed[name] = replace(node, x=round(x, 1), y=round(y, 1))
    lines = [_line(placed[a], placed[b], node_width) for a, b in links]
    width = len(layers) * (node_width + GAP_X) - GAP_X + 8 if layers else 0
    height = tallest * (NODE_HEIGHT + GAP_Y) - GAP_Y + 8
    return Graph(list(placed.values()), lines, width, height, node_width)


def add_frames(graph: Graph, groups: Iterable[tuple[str, Collection[str]]]) -> Graph:
    """The graph with a frame around the boxes of each group (text, ids); the boxes move down for the text."""
    by_id = {node.id: node for node in graph.nodes}
    frames = []
    for label, names in groups:
        boxes = [by_id[name] for name in names if name in by_id]
        if boxes:
            left, top = min(box.x for box in boxes), min(box.y for box in boxes)
            right = max(box.x for box in boxes) + graph.node_width
            bottom = max(box.y for box in boxes) + graph.node_height
            frames.append(
                Frame(label, left - _FRAME, top, right - left + 2 * _FRAME, bottom - top + _TITLE + _FRAME)
            )
    if not frames:
        return graph
    nodes = [replace(node, x=node.x + _FRAME, y=node.y + _TITLE) for node in graph.nodes]
    frames = [replace(frame, x=frame.x + _FRAME) for frame in frames]
    return replace(
        graph,
        nodes=nodes,
        frames=frames,
        offset=(_FRAME, _TITLE),
        width=graph.width + 2 * _FRAME,
        height=graph.height + _TITLE + _FRAME,
    )


def _make_layers(names: Sequence[str], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Each node one layer right of the last that leads to it; a cycle is cut where it closes."""
    depth = dict.fromkeys(names, 0)
    for _ in range(len(names)):
        changed = False
        for a, b in links:
            if depth[b] < depth[a] + 1 <= len(names):
                depth[b], changed = depth[a] + 1, True
        if not changed:
            break
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    return [layer for layer in layers if layer]


def _order(layers: list[list[str]], links: Sequence[tuple[str, str]]) -> None:
    """Sort each layer by the mean place of its neighbours, from the left and from the right in turn."""
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for a, b in links:
        before.setdefault(b, []).append(a)
        after.setdefault(a, []).append(b)
    for sweep in range(_SWEEPS):
        neighbours = after if sweep % 2 else before
        for layer in reversed(layers) if sweep % 2 else layers:
            place = {name: (row + 0.5) / len(layer) for layer in layers for row, name in enumerate(layer)}
            means = {
                name: sum(place[n] for n in near) / len(near)
                if (near := neighbours.get(name))
                else place[name]
                for name in layer
            }
            layer.sort(key=means.__getitem__)


def _line(a: Box, b: Box, node_width: int) -> str:
    x1, y1 = a.x + node_width, a.y + NODE_HEIGHT / 2
    x2, y2 = b.x, b.y + NODE_HEIGHT / 2
    bend = (x2 - x1) / 2 if x2 > x1 else GAP_X
    return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"


@dataclass(frozen=True, slots=True)
class Bar:
    """One call of a trace: where its bar begins and how long it is, in per cent of the whole."""

    call: Mapping[str, Any]
    left: float
    width: float
    indent: int


def place_bars(calls: Sequence[Mapping[str, Any]]) -> tuple[list[Bar], float]:
    """The bars of a trace in the order of their start, and its length in milliseconds."""
    if not calls:
        return [], 0.0
    begin = min(call["started_at"] for call in calls)
    length = max(max(call["ended_at"] for call in calls) - begin, 1e-6)
    lowest = min(call["depth"] for call in calls)
    bars = [
        Bar(
            call,
            round((call["started_at"] - begin) / length * 100, 2),
            round(max((call["ended_at"] - call["started_at"]) / length * 100, 0.3), 2),
            min(call["depth"] - lowest, 12),
        )
        for call in calls
    ]
    return bars, length * 1000


@dataclass(frozen=True, slots=True)
class Dot:
    """One agent of a map."""

    name: str
    status: str
    x: float
    y: float


def place_spiral(agents: Sequence[tuple[str, str]], centre: float, spacing: float = 11.0) -> list[Dot]:
    """Agents (name, status) in a sunflower spiral: none overlaps, and the places stay as the list grows."""
    golden = math.pi * (3 - math.sqrt(5))
    return [
        Dot(
            name,
            status,
            round(centre + spacing * math.sqrt(number + 6) * math.cos(number * golden), 1),
            round(centre + spacing * math.sqrt(number + 6) * math.sin(number * golden), 1),
        )
        for number, (name, status) in enumerate(agents)
    ]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Small squares in rows, one for each status: a path for all squares of one status."""

    paths: Mapping[str, str]
    width: int
    height: int


def draw_tiles(statuses: Sequence[str], columns: int = 28, size: int = 12) -> Tiles:
    """A map of many steps in their order, from left to right and from the top down."""
    paths: dict[str, list[str]] = {}
    side = size - 2
    for number, status in enumerate(statuses):
        row, column = divmod(number, columns)
        square = f"M{column * size} {row * size}h{side}v{side}h-{side}z"
        paths.setdefault(status, []).append(square)
    rows = math.ceil(len(statuses) / columns)
    joined = {status: "".join(squares) for status, squares in paths.items()}
    return Tiles(joined, min(len(statuses), columns) * size, rows * size)


def draw_dots(dots: Sequence[Dot]) -> Mapping[str, str]:
    """A path for all dots of one status; with round ends, a line of no length is a dot."""
    paths: dict[str, list[str]] = {}
    for dot in dots:
        paths.setdefault(dot.status, []).append(f"M{dot.x:g} {dot.y:g}h0")
    return {status: "".join(parts) for status, parts in paths.items()}


def draw_sparkline(values: Sequence[float], width: int = 120, height: int = 28) -> str:
    """The path of a line through the values, scaled to the box."""
    if not values:
        return ""
    top = max(values) or 1.0
    step = width / max(1, len(values) - 1)
    points = [
        f"{n * step:.1f} {height - 1 - value / top * (height - 2):.1f}" for n, value in enumerate(values)
    ]
    return "M" + "L".join(points)
