"""The relay's view of one agent: without schemas for the dispatch path, without hidden tools for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from retinue.core.errors import InvalidRequestError, UnknownSkillError
from retinue.core.record import (
    AgentRecord,
    Candidate,
    Listing,
    ListingKey,
    Prompt,
    Resource,
    Skill,
    is_visible,
)
from retinue.mcp.codec.messages import Message
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


LISTS: Mapping[str, tuple[str, str]] = {
    "tools/list": ("tools", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
    "prompts/list": ("prompts", "name"),
}
"""The lists of an agent: the field of the result, and the field of a row that names its item."""


def read_item(message: Message) -> Resource | Prompt | None:
    """The resource or prompt that a message asks for; None for other methods.

    Raises InvalidRequestError for one without a name.
    """
    params = message.params
    if message.method in ("resources/read", "resources/subscribe"):
        named, is_prompt = params.get("uri"), False
    elif message.method == "prompts/get":
        named, is_prompt = params.get("name"), True
    elif message.method == "completion/complete":
        ref = params.get("ref")
        ref = ref if isinstance(ref, dict) else {}
        is_prompt = ref.get("type") == "ref/prompt"
        named = ref.get("name" if is_prompt else "uri")
    else:
        return None
    if not isinstance(named, str):
        raise InvalidRequestError(f"the params of {message.method} name nothing as a string")
    return Prompt(named) if is_prompt else Resource(named, named)


def read_arguments(message: Message) -> dict[str, Any]:
    """The arguments of a prompt, or those that are known with the one to complete."""
    params = message.params
    arguments = params.get("arguments")
    if message.method == "completion/complete":
        context, argument = params.get("context"), params.get("argument")
        arguments = context.get("arguments") if isinstance(context, dict) else None
        if isinstance(argument, dict):
            known = arguments if isinstance(arguments, dict) else {}
            arguments = {**known, str(argument.get("name")): argument.get("value")}
    return arguments if isinstance(arguments, dict) else {}


def narrow_list(
    final: Final, method: str, listing: Listing, scopes: frozenset[str], view: AgentView | None
) -> Final:
    """The response to a list without the items that card and policies hide from this caller.

    An agent without visibility of its own may list them. A tool that the card lacks is judged by its name
    alone, because the agent may have added it since.
    """
    field, key = LISTS[method]
    hides = view is not None and view.lists is not None
    hidden = {skill.id for skill in listing.record.skills if not is_visible(skill.visibility, scopes)}
    if not (hides or (hidden and field == "tools")):
        return final
    document = orjson.loads(parse_event(final.raw).data if final.is_event else final.raw)
    result = document.get("result")
    rows = result.get(field) if isinstance(result, dict) else None
    if not isinstance(rows, list):
        return final

    def is_shown(row: Any) -> bool:
        name = row.get(key) if isinstance(row, dict) else None
        if not isinstance(name, str):
            return True
        if field == "tools":
            skill = listing.record.find_skill(name) or Skill(name)
            return name not in hidden and is_listed(view, listing, skill)
        item = Prompt(name) if field == "prompts" else Resource(name, name)
        return is_listed(view, listing, item)

    shown = [row for row in rows if is_shown(row)]
    if len(shown) == len(rows):
        return final
    result[field] = shown
    body = orjson.dumps(document)
    raw = render_event(body) if final.is_event else body
    return replace(final, raw=raw, message=body if final.message else b"")
