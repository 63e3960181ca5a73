"""The hub's skill about imports: the state of each connection, and the tools that wait for acceptance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.mesh.permissions import Access, is_seen
from retinue.mesh.pins import Tool, describe_change

Json = dict[str, Any]

MAX_WAITING = 50
"""Tools of one import in the reply; the rest is counted."""

MAX_DIFF_LINES = 200
MAX_LINE = 2_000
"""Characters of one line of a change; a description is one line of JSON."""

MAX_CHANGES = 500_000
"""Characters of the changes of one import; the tools behind that are counted only."""


@dataclass(frozen=True, slots=True)
class ImportState:
    """One import of this hub: ``kind`` is the protocol, ``reason`` why it is not connected.

    ``waiting`` are the tools that differ from the accepted ones: by name the accepted form, None for a new
    tool, and the offered one. ``left_out`` are tools that cannot be called, each with the reason.
    """

    name: str
    kind: str
    is_ready: bool
    reason: str = ""
    waiting: Mapping[str, tuple[Tool | None, Tool]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    """The name of its agent without that of its team; "" where it is ``name``."""


ReadImports = Callable[[], Iterable[ImportState]]


def add_import_skill(agent: Agent, read_imports: ReadImports, access: Access) -> None:
    """Add ``list_imports``. It does not show commands of servers, because they may hold secrets."""

    @agent.skill(read_only=True)
    async def list_imports(ctx: Context) -> Json:
        """Lists the imported servers: connected or why not, and changed tools that a person must accept."""
        view = access.view_of(ctx.principal)
        return {
            "imports": [
                render_import(connection)
                for connection in read_imports()
                if is_seen(view, connection.agent or connection.name)
            ]
        }


def render_import(state: ImportState) -> Json:
    """One row of the reply, with the changes of its tools up to `MAX_CHANGES` characters."""
    row: Json = {"name": state.name, "kind": state.kind, "connected": state.is_ready}
    if not state.is_ready:
        row["reason"] = state.reason
    if state.left_out:
        left_out = islice(state.left_out.items(), MAX_WAITING)
        row["left_out"] = [{"tool": name, "reason": reason} for name, reason in left_out]
    if state.waiting:
        row["waiting"], room = [], MAX_CHANGES
        for name, (before, after) in sorted(state.waiting.items())[:MAX_WAITING]:
            change = _describe(before, after)
            room -= len(change)
            if room < 0:
                break
            row["waiting"].append({"tool": name, "new": before is None, "change": change})
        row["waiting_count"] = len(state.waiting)
    return row


def _describe(before: Tool | None, after: Tool) -> str:
    """The change as a diff; long lines are cut, and say so."""
    lines = describe_change(before, after, MAX_DIFF_LINES).split("\n")
    return "\n".join(
        line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}… {len(line) - MAX_LINE:,} more characters"
        for line in lines
    )
