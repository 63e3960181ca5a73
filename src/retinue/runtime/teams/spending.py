"""What the models of a team have spent of its budget today, from the counters that enforce it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.llm.team_budget import TeamBudget, TeamLimits
from retinue.storage.state import State
from retinue.team.package import Team


def read_team_spending(state: State, team: Team) -> dict[str, Any]:
    """The limits of a team for one day (UTC), and what is spent and reserved; {} for one without a budget.

    Raises StateDamagedError.
    """
    table = team.definition.budget
    limits = {"max_tokens_per_day": table.max_tokens_per_day, "max_cost_per_day": table.max_cost_per_day}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    if not limits:
        return {}
    own = TeamLimits(team.name, table.max_tokens_per_day, table.max_cost_per_day)
    return {**limits, **TeamBudget(state.budget_of_team(team.name), own, lapse_s=0.0).read_today()}


def render_spending(spending: Mapping[str, Any]) -> str:
    """The budget of a team as people read it: each limit, and what is spent and reserved of it."""
    parts = []
    if (most := spending.get("max_cost_per_day")) is not None:
        held = spending["cost_usd_reserved"]
        part = f"${spending['cost_usd']:.4f} of ${most:g}"
        parts.append(part + (f" (${held:.4f} reserved)" if held else ""))
    if (most := spending.get("max_tokens_per_day")) is not None:
        held = spending["tokens_reserved"]
        part = f"{spending['tokens']:,} of {most:,} tokens"
        parts.append(part + (f" ({held:,} reserved)" if held else ""))
    return ", ".join(parts) + f" on {spending['date']} (UTC)"
