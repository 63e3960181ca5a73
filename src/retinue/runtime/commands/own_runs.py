"""The parts of an agent in Markdown: its file, and the runs that it executes itself while no hub runs."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.parts.part import Part
from retinue.runtime.loading.targets import Target


def list_markdown_parts(target: Target, hub_url: str | None = None) -> Sequence[Part]:
    """The parts for an agent in Markdown; none for other agents."""
    if not target.has_runs:
        return []
    # imported here, because other agents need nothing of it
    from retinue.runtime.commands.own_mesh import open_own_mesh
    from retinue.runtime.parts.markdown import MarkdownFilePart
    from retinue.runtime.parts.own_runs import OwnRunsPart

    return [OwnRunsPart(target.open_hub_skills or open_own_mesh), MarkdownFilePart(target, hub_url)]
