"""Prints the findings of a workflow's checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retinue.cli.output import clean, warn

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession

Json = dict[str, Any]


async def warn_of_findings(session: CommandSession, file: str, text: str) -> None:
    """Warn of what the running hub finds in a definition that was stored; without a hub, of nothing."""
    from retinue.storage.state import find_hub_url

    if find_hub_url(session.state) is None:
        return
    async with session.client() as client:
        reply = await client.get("check_workflow", {"text": text})
    for finding in (*reply["problems"], *reply["warnings"]):
        refused = "; a run is refused until then" if finding.get("blocks_run") else ""
        warn(f"{render_place(file, finding)}: {clean(finding['message'])}{render_remedy(finding)}{refused}")


def render_place(file: str, problem: Json) -> str:
    """``FILE:LINE:COLUMN`` of a problem, as far as the place is known."""
    parts = [str(problem[key]) for key in ("line", "column") if problem.get(key)]
    return ":".join([file, *parts])


def render_remedy(problem: Json) -> str:
    """The remedy of a problem behind a dash; "" without one."""
    return f" — {clean(problem['remedy'])}" if problem.get("remedy") else ""
