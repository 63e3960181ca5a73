"""The dispatch path's view of one agent behind the relay: this listing, no other, and no schema of it."""

from __future__ import annotations

from dataclasses import replace

from retinue.core.errors import RetinueError, UnknownSkillError
from retinue.core.record import AgentRecord, Listing, ListingKey, Skill
from retinue.mesh.access import AgentView, is_seen
from retinue.mesh.dispatch import Lookup
from retinue.mesh.entry import Candidate
from retinue.mesh.visibility import is_visible
from retinue.protocols.mcp.names import safe_names


class BareListings:
    """Listings with one skill each and no schema, made once for as long as a listing is what it is."""

    def __init__(self, keep: int = 1000) -> None:
        self._keep = keep
        self._made: dict[tuple[ListingKey, str], tuple[Listing, Listing]] = {}

    def get(self, listing: Listing, skill: Skill) -> Listing:
        """The listing with this skill alone, its schemas left to the agent."""
        key = (listing.id, skill.id)
        made = self._made.get(key)
        if made is not None and made[0] is listing:
            return made[1]
        bare = replace(skill, input_schema=None, output_schema=None)
        found = replace(listing, record=replace(listing.record, skills=(bare,)))
        if len(self._made) >= self._keep:
            self._made.clear()
        self._made[key] = (listing, found)
        return found


class PinnedLookup:
    """Finds skills of one listing; one that its card does not show is asked for once more at its source.

    A session lives in one process, so no other agent may take its calls. The agent checks arguments and
    results itself, and says so in its own words; a second check here would only say it in others.
    """

    def __init__(self, lookup: Lookup, listing: Listing, bare: BareListings) -> None:
        self._lookup = lookup
        self._bare = bare
        self._listing = listing
        self._found: Listing | None = None

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Listing, ...]:
        """The listing; raises UnknownSkillError, for a hidden skill as for a missing one."""
        listing: Listing | None = self._listing
        skill = find_tool(self._listing.record, skill_id, scopes)
        if skill is None:
            listing = await self._lookup.reread(self._listing)
            skill = None if listing is None else find_tool(listing.record, skill_id, scopes)
        if listing is None or skill is None or not is_seen(view, listing.name):
            raise UnknownSkillError(skill_id)
        return (self._take(listing, skill),)

    async def open(self, candidate: Candidate) -> Listing | None:
        return self._found if self._found is not None and candidate.id == self._found.id else None

    async def reread(self, listing: Candidate) -> Listing | None:
        newer = await self._lookup.reread(self._listing)
        skill = None
        if newer is not None and self._found is not None:
            skill = newer.record.find_skill(self._found.record.skills[0].id)
        return None if newer is None or skill is None else self._take(newer, skill)

    def _take(self, listing: Listing, skill: Skill) -> Listing:
        self._found = self._bare.get(listing, skill)
        return self._found

    def mark_reachable(self, listing: Candidate) -> None:
        self._lookup.mark_reachable(listing)

    def mark_degraded(self, listing: Candidate, reason: str) -> None:
        self._lookup.mark_degraded(listing, reason)

    def mark_unreachable(self, listing: Candidate, error: RetinueError | str) -> None:
        self._lookup.mark_unreachable(listing, error)


def find_tool(record: AgentRecord, name: str, scopes: frozenset[str]) -> Skill | None:
    """The skill that a client of these scopes means by a tool's name: its id, or the alias it is shown."""
    skill = record.find_skill(name)
    if skill is not None:
        return skill if is_visible(skill, scopes) else None
    seen = {one.id: one for one in record.skills if is_visible(one, scopes)}
    return next((seen[one] for one, alias in safe_names(seen).items() if alias == name), None)
