"""Lists open matters for a person: questions and missing code of runs, changed imports, failing agents and
sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retinue.core.call import Principal
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.figures import find_waiting

MAX_RUNS = 10
"""Running runs whose steps are read for questions; the newest ones."""

MAX_SHOWN = 20
"""Rows of each kind."""

_BROKEN = ("unavailable", "unreachable", "degraded", "disabled")


@dataclass(frozen=True, slots=True)
class Attention:
    """The entries under "Needs a person"; ``unread_runs`` were not searched for questions.

    ``without_code`` are runs of workflows in Python whose code no node has.
    """

    questions: Sequence[Json] = ()
    without_code: Sequence[Json] = ()
    changes: Sequence[Json] = ()
    agents: Sequence[Json] = ()
    sources: Sequence[Json] = ()
    unread_runs: int = 0
    more: int = 0
    """Rows that are left out."""

    def __bool__(self) -> bool:
        return bool(self.questions or self.without_code or self.changes or self.agents or self.sources)


async def find_attention(
    hub: HubSkills, principal: Principal, agents: Sequence[Json], running: Sequence[Json]
) -> Attention:
    """Find it among the rows of ``map_agents`` and of the running runs; runs and imports for members only."""
    broken = [agent for agent in agents if agent["status"] in _BROKEN]
    if "mesh" not in principal.scopes:
        return Attention(agents=broken[:MAX_SHOWN], more=max(0, len(broken) - MAX_SHOWN))
    questions: list[Json] = []
    for run in running[:MAX_RUNS]:
        shown = await hub.read(principal, "show_run", {"run": run["run"]})
        questions += [{**run, "step": step} for step in find_waiting(shown["steps"])]
    without_code = [run for run in running if "missing_code" in run]
    imports = (await hub.read(principal, "list_imports"))["imports"]
    changes = [row for row in imports if row.get("waiting")]
    listed = await hub.read(principal, "list_agents", {"limit": 1, "detailed": True})
    sources = list(listed["missing"])
    return Attention(
        questions[:MAX_SHOWN],
        without_code[:MAX_SHOWN],
        changes[:MAX_SHOWN],
        broken[:MAX_SHOWN],
        sources[:MAX_SHOWN],
        unread_runs=max(0, len(running) - MAX_RUNS),
        more=sum(
            max(0, len(rows) - MAX_SHOWN) for rows in (questions, without_code, changes, broken, sources)
        ),
    )
