"""Agents that were listed moments ago and withdrew their own card: they restart, or were stopped.

For `AWAY_S` a call to one of them fails with "is away since 3 s", which may be retried, instead of an unknown
agent or skill. An agent that a person removed is unknown at once: only the agent's own process announces that
it withdraws its card.
"""

from __future__ import annotations

from collections.abc import Callable

from cachetools import TTLCache

from retinue.core.errors import AgentAwayError
from retinue.core.record import ListingKey
from retinue.mesh.directory.versions import is_version_named, parse_version_range
from retinue.mesh.entry import Entry, Scopes
from retinue.mesh.permissions import AgentView, is_seen

AWAY_S = 600.0
"""How long an agent that withdrew its card is known as away."""

_ANNOUNCED_S = 60.0
"""How long an announced withdrawal is expected."""

_KEPT = 1_000


class AwayAgents:
    """The agents that withdrew their cards; ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._announced: TTLCache[str, bool] = TTLCache(_KEPT, _ANNOUNCED_S, timer=clock)
        self._away: TTLCache[ListingKey, tuple[Entry, float]] = TTLCache(_KEPT, AWAY_S, timer=clock)

    def announce(self, digest: str) -> None:
        """Expect that the card with this digest is withdrawn by its own process."""
        self._announced[digest] = True

    def removed(self, entry: Entry) -> None:
        """Record that a listing was removed; the agent is away if that was announced."""
        if entry.digest is not None and self._announced.pop(entry.digest, False):
            self._away[entry.id] = (entry, self._clock())

    def added(self, entry: Entry) -> None:
        """Record that a listing was added; no agent of its name is away any more."""
        if self._away:
            for listing_id in [one for one, (held, _) in self._away.items() if held.name == entry.name]:
                del self._away[listing_id]

    def find(
        self,
        scopes: Scopes,
        view: AgentView | None,
        *,
        skill_id: str | None = None,
        agent: str | None = None,
        version_range: str | None = None,
    ) -> AgentAwayError | None:
        """The error where an agent that is away, and that the caller sees, would satisfy the look-up."""
        for entry, since in self._away.values():
            if (
                is_seen(view, entry.name)
                and entry.enabled
                and (skill_id is None or entry.offers(skill_id, scopes))
                and (agent is None or _is_named(entry, agent))
                and (version_range is None or parse_version_range(version_range).fits(entry.version))
            ):
                return AgentAwayError(entry.name, entry.url or "(no url)", self._clock() - since)
        return None


def _is_named(entry: Entry, agent: str) -> bool:
    name, _, mark = agent.partition("@")
    return entry.name in (agent, name) and (
        not mark or mark == entry.source or is_version_named(entry.version, mark)
    )
