"""The relay's view of one agent: without schemas for the dispatch path, without hidden tools for a client."""

from __future__ import annotations

from dataclasses import replace

import orjson

from retinue.core.errors import UnknownSkillError
from retinue.core.record import AgentRecord, Candidate, Listing, ListingKey, Skill, is_visible
from retinue.mcp.codec.tools import safe_names
from retinue.mcp.relay.response_writer import Final
from retinue.mesh.dispatch import Lookup
from retinue.mesh.permissions import AgentView, is_listed, is_seen
from retinue.web.codec.sse import parse_event, render_event


class BareListings:
    """Listings with one skill each and no schema; each is made once until its listing changes."""

    def __init__(self, keep: int = 1000) -> None:
        self._keep = keep
        self._made: dict[tuple[ListingKey, str], tuple[Listing, Listing]] = {}

    def get(self, listing: Listing, skill: Skill) -> Listing:
        """The listing with this skill alone, without its schemas: the agent checks them."""
        key = (listing.id, skill.id)
        made = self._made.get(key)
        if made is not None and made[0] is listing:
            return made[1]
        bare = replace(skill, input_schema=None, output_schema=None)
        shown = replace(listing, record=replace(listing.record, skills=(bare,)))
        if len(self._made) >= self._keep:
            self._made.clear()
        self._made[key] = (listing, shown)
        return shown


class PinnedLookup:
    """Finds skills of one listing. For a skill that its card lacks, the source is read once more.

    A session lives in one process, so no other agent may take its calls. The agent checks arguments and
    results itself; a second check here would only change the error text.
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

    async def find_offering(
        self,
        listing_id: ListingKey,
        skill_id: str,
        scopes: frozenset[str],
        *,
        view: AgentView | None = None,
    ) -> Listing | None:
        return None  # calls of a session name no listing

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


def find_tool(record: AgentRecord, name: str, scopes: frozenset[str]) -> Skill | None:
    """The skill that a client with these scopes means by a tool name: its id, or the alias in the list."""
    skill = record.find_skill(name)
    if skill is not None:
        return skill if is_visible(skill.visibility, scopes) else None
    seen = {skill.id: skill for skill in record.skills if is_visible(skill.visibility, scopes)}
    return next((seen[skill_id] for skill_id, alias in safe_names(seen).items() if alias == name), None)


def narrow_tools(final: Final, listing: Listing, scopes: frozenset[str], view: AgentView | None) -> Final:
    """The response to ``tools/list`` without the tools that card and policies hide from this caller.

    An agent without visibility of its own may list them. A tool that the card lacks stays, because the agent
    may have added it since, and a call finds out.
    """
    hidden = {
        skill.id
        for skill in listing.record.skills
        if not (is_visible(skill.visibility, scopes) and is_listed(view, listing, skill))
    }
    if not hidden:
        return final
    document = orjson.loads(parse_event(final.raw).data if final.is_event else final.raw)
    result = document.get("result")
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return final
    shown = [tool for tool in tools if not (isinstance(tool, dict) and tool.get("name") in hidden)]
    if len(shown) == len(tools):
        return final
    result["tools"] = shown
    body = orjson.dumps(document)
    raw = render_event(body) if final.is_event else body
    return replace(final, raw=raw, message=body if final.message else b"")
