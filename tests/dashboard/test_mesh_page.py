"""The picture of the mesh: readable with many of each kind, and those that do not answer are in it."""

from __future__ import annotations

from typing import Any

from retinue.dashboard.drawings.shapes import draw_dots, place_spiral
from retinue.dashboard.mesh_page import MAX_BOXES, MAX_DOTS, MAX_LINKS, draw_group, draw_mesh

Json = dict[str, Any]


def make_mesh(count: int) -> Json:
    return {
        "hub": {"name": "retinue", "url": "http://hub:9000"},
        "sources": [
            {
                "name": f"http://registry-{n}:5000",
                "kind": "registry",
                "connected": n != count - 1,
                "agents": {"available": 500},
            }
            for n in range(count)
        ],
        "nodes": [{"name": f"host-{n}", "running": n, "is_own": n == 0} for n in range(count)],
        "koi": [
            {"name": f"koi-{n}", "url": "", "direction": "in", "status": "approved"} for n in range(count)
        ],
        "peers": [f"http://peer-{n}/" for n in range(count)],
    }


def make_import(n: int, *, connected: bool = True) -> Json:
    return {"name": f"server-{n}", "kind": "mcp", "connected": connected}


def test_peers_stand_left_of_the_hub_sources_right_and_imports_behind_their_source() -> None:
    mesh = make_mesh(2)
    mesh["sources"].append(
        {"name": "imports", "kind": "imports", "connected": True, "agents": {"available": 1}}
    )
    graph = draw_mesh(mesh, [make_import(1)])
    places = {node.id: node.x for node in graph.nodes}
    assert set(places) == {
        "hub",
        "node host-1",
        "koi koi-0 in",
        "koi koi-1 in",
        "peer http://peer-0/",
        "peer http://peer-1/",
        "source http://registry-0:5000",
        "source http://registry-1:5000",
        "source imports",
        "import server-1",
    }
    assert places["node host-1"] < places["hub"] < places["source imports"] < places["import server-1"]
    assert len(graph.lines) == len(places) - 1


def test_of_many_of_a_kind_those_that_do_not_answer_are_drawn_and_the_rest_is_one_box() -> None:
    graph = draw_mesh(make_mesh(100), [make_import(n, connected=n % 50 > 0) for n in range(100)])
    assert len(graph.nodes) <= 5 * MAX_BOXES + 1
    ids = {node.id for node in graph.nodes}
    assert {"source http://registry-99:5000", "import server-0", "import server-50"} <= ids
    assert "89 more sources" in {node.label for node in graph.nodes}


def test_sources_that_are_not_in_use_are_not_drawn() -> None:
    mesh = make_mesh(0)
    mesh["sources"] = [{"name": "models", "kind": "models", "connected": True, "agents": {}}]
    assert [node.id for node in draw_mesh(mesh, []).nodes] == ["hub"]


def test_dots_of_one_status_are_one_path() -> None:
    dots = place_spiral([(str(n), "available" if n else "unavailable") for n in range(500)], 200)
    paths = draw_dots(dots)
    assert {status: path.count("M") for status, path in paths.items()} == {"available": 499, "unavailable": 1}
    assert sum(map(len, paths.values())) < 10_000


def test_a_dot_stands_for_several_agents_of_a_large_source_and_few_silent_ones_have_a_dot() -> None:
    counts = {"available": 100_000, "unavailable": 40}
    rows = [{"name": f"a{n}", "status": "unavailable", "source": "s"} for n in range(40)]
    group = draw_group("s", counts, rows)
    assert group["per_dot"] > 1
    dots = {status: path.count("M") for status, path in group["paths"].items()}
    assert dots["unavailable"] == 1
    assert MAX_DOTS / 2 < sum(dots.values()) <= MAX_DOTS + len(counts)
    assert (len(group["broken"]), group["more"]) == (MAX_LINKS, 10)
    small = draw_group("s", {"available": 3, "unavailable": 1}, rows[:1])
    assert (small["per_dot"], small["more"]) == (1, 0)
    assert {status: path.count("M") for status, path in small["paths"].items()} == {
        "available": 3,
        "unavailable": 1,
    }
