"""Changed tools of imports in the reply of ``list_imports``: bounded, whatever a server offers."""

from __future__ import annotations

from typing import Any

import orjson

from retinue.hub.imports import MAX_CHANGES, MAX_WAITING, ImportState, render_import
from retinue.mesh.pins import describe_change


def make_tool(name: str, lines: int, text: str = "one") -> dict[str, Any]:
    properties = {f"field{n}": {"type": "string", "description": text} for n in range(lines // 4)}
    return {"name": name, "description": text, "inputSchema": {"type": "object", "properties": properties}}


def test_a_tool_of_a_hundred_thousand_lines_is_not_compared() -> None:
    before, after = make_tool("huge", 100_000), make_tool("huge", 100_000, "two")
    found = describe_change(before, after)
    assert found.endswith("now: too many to compare here")


def test_changes_of_one_import_are_bounded_and_counted() -> None:
    waiting = {
        f"tool{n}": (make_tool(f"tool{n}", 400), make_tool(f"tool{n}", 400, "x" * 3_000)) for n in range(80)
    }
    row = render_import(ImportState("server", "mcp", is_ready=True, waiting=waiting))
    assert row["waiting_count"] == 80
    assert 0 < len(row["waiting"]) < MAX_WAITING
    assert len(orjson.dumps(row)) < 1.1 * MAX_CHANGES + 100_000
