"""Remembers for ten minutes the agents that withdrew their own card."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from retinue.core.errors import AgentUnreachableError
from retinue.mesh.entry import Entry, Scopes
from retinue.mesh.permissions import AgentView, is_seen

KEPT_S = 600.0
"""How long an agent that withdrew its card is remembered (specification 7.11)."""

MAX_KEPT = 1_000


class AwayAgents:
    """The agents that are away, by name; ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._away: dict[str, tuple[Entry, float]] = {}

    def add(self, entry: Entry) -> None:
        """Remember an agent that has just withdrawn its card."""
        self._away.pop(entry.name, None)
        self._away[entry.name] = (entry, self._clock())
        if len(self._away) > MAX_KEPT:
            del self._away[next(iter(self._away))]

    def forget(self, name: str) -> None:
        """Remember an agent no longer: it is back, or somebody removed it."""
        self._away.pop(name, None)

    def find_error(
        self, skill_id: str, scopes: Scopes, *, agent: str | None, view: AgentView | None
    ) -> AgentUnreachableError | None:
        """The error of a call of this skill, if an agent that the caller may see is away; else None."""
        for entry, since in self._list_current():
            named = agent is None or entry.name == agent.partition("@")[0]
            if named and entry.enabled and entry.offers(skill_id, scopes) and is_seen(view, entry.name):
                return AgentUnreachableError.away(entry.name, entry.url, self._clock() - since)
        return None

    def find_error_of_role(
        self, role: str, scopes: Scopes, *, agent: str, view: AgentView | None
    ) -> AgentUnreachableError | None:
        """The error of a call in this role, if ``agent`` has it, may be seen by the caller and is away."""
        for entry, since in self._list_current():
            named = entry.name == agent.partition("@")[0]
            if named and entry.enabled and entry.has_role(role, scopes) and is_seen(view, entry.name):
                return AgentUnreachableError.away(entry.name, entry.url, self._clock() - since)
        return None

    def _list_current(self) -> Iterator[tuple[Entry, float]]:
        over = self._clock() - KEPT_S
        for name in [name for name, (_, since) in self._away.items() if since < over]:
            del self._away[name]
        yield from self._away.values()
