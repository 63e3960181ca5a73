"""Finds the skill for a plain text that names none (specification 7.18).

With a language model it is ``orchestrate``. Else it is the skill that the search finds for the words, if it
takes one text and no other skill fits nearly as well. A skill that is marked as destructive is never chosen
by words alone.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import structlog

from retinue.authoring.agent import Agent
from retinue.core.call import Principal
from retinue.core.errors import LookupFailedError, StateError
from retinue.core.record import QUERY_CAPABILITIES, is_visible
from retinue.hub.orchestration.roster import Roster
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.permissions import Access, is_seen, may_call
from retinue.mesh.schema.text_place import find_text_place
from retinue.mesh.search.ranking import NOTHING, Found, SkillSearch
from retinue.parts.text_skills import SkillOption
from retinue.workflows.definitions.definition import DEFAULT_ROLE

ORCHESTRATE = "orchestrate"

MAX_OPTIONS = 20

RIVAL = 0.8
"""Another skill with this share of the best score fits nearly as well."""

_MAX_HITS = 10

_log = structlog.get_logger("retinue.search")


class HubTextSkills:
    """The skills for plain texts of a hub; ``agent`` is the hub's own."""

    def __init__(
        self,
        agent: Agent,
        directory: Directory,
        search: SkillSearch,
        roster: Roster,
        access: Access,
        history: SearchHistory,
    ) -> None:
        self._agent = agent
        self._directory = directory
        self._search = search
        self._roster = roster
        self._access = access
        self._history = history

    async def choose(self, text: str, caller: Principal) -> SkillOption | None:
        """The skill to which the text goes without a question; None where none is sure."""
        if not text.strip():
            return None
        orchestrate = self._find_own(ORCHESTRATE, caller)
        if orchestrate is not None and await self._has_model(caller):
            return orchestrate
        ranking = await self._find(text, caller)
        if not ranking.hits or not ranking.fit.is_likely:
            return None
        best = ranking.hits[0]
        # where earlier calls say nothing of the best hit, they do not make a rival of another one either
        scores = [hit.card if ranking.is_by_card else hit.score for hit in ranking.hits]
        rivals = zip(ranking.hits[1:], scores[1:], strict=True)
        if any(score >= RIVAL * scores[0] for hit, score in rivals if hit.skill.id != best.skill.id):
            return None
        skill = best.skill
        is_fit = (
            best.entry.enabled
            and self._roster.may_choose(best.entry)
            and best.entry.reachable is not False
            and may_call(skill, caller.scopes)
            and not skill.hints.destructive
            and find_text_place(skill.input_schema) is not None
        )
        return SkillOption(skill, self._directory.name_of(best.entry)) if is_fit else None

    async def list_options(self, text: str, caller: Principal) -> Sequence[SkillOption]:
        """The skills to choose from, those that fit the text first, at most `MAX_OPTIONS`."""
        ranking = await self._find(text, caller)
        own = [self._find_own(skill_id, caller) for skill_id in (ORCHESTRATE, "find_skills")]
        last = {option.skill.id: option for option in own if option is not None}
        options: dict[str, SkillOption] = {}
        for hit in ranking.hits:
            # of the agents with a skill of this id the best; a call by id goes to the hub's own first
            if hit.skill.id not in options:
                hub_skill = last.pop(hit.skill.id, None)
                options[hit.skill.id] = hub_skill or SkillOption(hit.skill, self._name(hit.entry))
        await self._fill(options, caller, limit=MAX_OPTIONS - len(last), without=last)
        options |= last
        return [option for option in options.values() if may_call(option.skill, caller.scopes)]

    async def find(self, skill_id: str, caller: Principal) -> SkillOption | None:
        """The skill of this id: the hub's own, else that of the agent that a call of it goes to."""
        own = self._find_own(skill_id, caller)
        if own is not None:
            return own
        try:
            candidates = await self._directory.resolve_skill(
                skill_id, caller.scopes, view=self._access.view_of(caller)
            )
        except LookupFailedError:
            return None
        listing = await self._directory.open(candidates[0])
        skill = None if listing is None else listing.record.find_skill(skill_id)
        return None if listing is None or skill is None else SkillOption(skill, listing.name)

    async def _has_model(self, caller: Principal) -> bool:
        """Whether a language model takes calls of this caller."""
        return any(
            member.status != "unavailable" and member.listing.record.labels.get("kind") == "model"
            for member in await self._roster.list_with_role(DEFAULT_ROLE, caller)
        )

    async def _find(self, text: str, caller: Principal) -> Found:
        await self._directory.ensure_fresh()
        view = self._access.view_of(caller)
        within = None
        if view is not None:
            # otherwise hidden agents would use up the limit
            within = await self._directory.select(view)
        try:
            ranking = self._search.find_skills(
                text,
                caller.scopes,
                limit=_MAX_HITS,
                within=within,
                accept=self._directory.represents_agent,
                learn=self._history.learn_for(caller, text),
            )
        except StateError as error:
            _log.warning("text index unusable", error=error.message)
            return NOTHING
        listed = [(hit.entry, hit.skill.id) for hit in ranking.hits]
        self._history.note_search(caller, text, listed, is_wish=ranking.is_wish)
        return ranking

    def _find_own(self, skill_id: str, caller: Principal) -> SkillOption | None:
        if not is_seen(self._access.view_of(caller), self._agent.name):
            return None
        skill = next((own for own in self._agent.skills if own.id == skill_id), None)
        if skill is None or not is_visible(skill.visibility, caller.scopes):
            return None
        return SkillOption(skill, self._agent.name)

    async def _fill(
        self, options: dict[str, SkillOption], caller: Principal, *, limit: int, without: Container[str]
    ) -> None:
        """Add skills of the directory up to a number of options; no further page is read then."""
        view = self._access.view_of(caller)
        async for page in self._directory.iterate_pages():
            for entry in page:
                if not (is_seen(view, entry.name) and entry.enabled):
                    continue
                for skill_id in entry.list_skills(caller.scopes):
                    if len(options) >= limit:
                        return
                    if skill_id in options or skill_id in without or skill_id == QUERY_CAPABILITIES:
                        continue
                    skill = self._directory.find_skill(entry, skill_id)
                    if skill is not None:
                        options[skill_id] = SkillOption(skill, self._name(entry))

    def _name(self, entry: Entry) -> str:
        return self._directory.name_of(entry)
