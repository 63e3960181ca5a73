"""Lists open matters for a person: calls to approve, questions and missing code of runs, changed imports,
failing agents and sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from retinue.core.call import Principal
from retinue.dashboard.asking import HubSkills, Json
from retinue.dashboard.figures import find_waiting

MAX_RUNS = 10
"""Running runs whose steps are read for questions; the newest ones."""

MAX_SHOWN = 20
"""Rows of each kind."""

HEALTHY = ("available", "unknown")
"""The states of agents that need nobody."""


@dataclass(frozen=True, slots=True)
class Attention:
    """The entries under "Needs a person"; ``unread_runs`` were not searched for questions.

    ``approvals`` are calls that wait for a yes or no; ``questions`` are the other ones of runs.
    ``without_code`` are runs of workflows in Python whose code no node has.
    """

    approvals: Sequence[Json] = ()
    questions: Sequence[Json] = ()
    without_code: Sequence[Json] = ()
    changes: Sequence[Json] = ()
    agents: Sequence[Json] = ()
    sources: Sequence[Json] = ()
    unread_runs: int = 0
    more: int = 0
    """Rows that are left out."""

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def count(self) -> int:
        """The entries, shown and left out."""
        rows = (self.approvals, self.questions, self.without_code, self.changes, self.agents, self.sources)
        return sum(map(len, rows)) + self.more


async def find_attention(
    hub: HubSkills, principal: Principal, mapped: Json, running: Sequence[Json]
) -> Attention:
    """Find it in the reply of ``map_agents`` and in the running runs; runs and imports for members only."""
    broken = [agent for agent in mapped["agents"] if agent["status"] not in HEALTHY]
    statuses = count_statuses(mapped)
    silent = sum(count for status, count in statuses.items() if status not in HEALTHY)
    # of more agents than have a row only the number is known
    unlisted = max(0, silent - min(len(broken), MAX_SHOWN))
    if "mesh" not in principal.scopes:
        return Attention(agents=broken[:MAX_SHOWN], more=unlisted)
    approvals = (await hub.read(principal, "list_approvals", {"state": "open"}))["approvals"]
    listed_ids = {row["approval"] for row in approvals}
    questions: list[Json] = []
    for run in running[:MAX_RUNS]:
        shown = await hub.read(principal, "show_run", {"run": run["run"]})
        waiting = [step for step in find_waiting(shown["steps"]) if step.get("approval") not in listed_ids]
        questions += [{**run, "step": step} for step in waiting]
    without_code = [run for run in running if "missing_code" in run]
    imports = (await hub.read(principal, "list_imports"))["imports"]
    changes = [row for row in imports if row.get("waiting")]
    listed = await hub.read(principal, "list_agents", {"limit": 1, "detailed": True})
    sources = list(listed["missing"])
    return Attention(
        approvals[:MAX_SHOWN],
        questions[:MAX_SHOWN],
        without_code[:MAX_SHOWN],
        changes[:MAX_SHOWN],
        broken[:MAX_SHOWN],
        sources[:MAX_SHOWN],
        unread_runs=max(0, len(running) - MAX_RUNS),
        more=unlisted
        + sum(
            max(0, len(rows) - MAX_SHOWN) for rows in (approvals, questions, without_code, changes, sources)
        ),
    )


def count_statuses(mapped: Json) -> Counter[str]:
    """How many agents are in each state, in a reply of ``map_agents``."""
    statuses: Counter[str] = Counter()
    for counts in mapped["sources"].values():
        statuses.update(counts)
    return statuses
