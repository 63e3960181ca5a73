"""The parts with which a served agent executes its own runs while no hub runs."""

from __future__ import annotations

from collections.abc import Sequence

from retinue.parts.part import Part
from retinue.runtime.loading.targets import Target


def list_own_runs(target: Target) -> Sequence[Part]:
    """The part for an agent in Markdown; none for other agents."""
    if not target.has_runs:
        return []
    # imported here, because other agents need nothing of it
    from retinue.runtime.commands.own_mesh import open_own_mesh
    from retinue.runtime.parts.own_runs import OwnRunsPart

    return [OwnRunsPart(open_own_mesh)]
