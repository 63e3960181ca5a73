"""The hub's skill ``find_skills``: finds skills by id, words or agent, filtered by version and labels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from typing import Annotated, Any

import orjson
import structlog
from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_short_skill_row, render_skill_row
from retinue.core.call import Principal
from retinue.core.errors import InvalidParametersError, Problem, RetinueError, StateError
from retinue.core.record import Candidate, Listing, ListingKey, Skill
from retinue.mesh.directory.choice import describe_trust, list_groups
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import select_candidates, visible_candidates
from retinue.mesh.directory.versions import folder_of, version_preference
from retinue.mesh.entry import Entry
from retinue.mesh.exams import ExamBook
from retinue.mesh.history.learned_ranking import LearnedRanking, ScoreParts
from retinue.mesh.history.search_history import SearchHistory, find_run_id
from retinue.mesh.permissions import Access, AgentView, decide_lists, is_listed, is_seen
from retinue.mesh.search.agents import explain_place
from retinue.mesh.search.ranking import Found, SkillSearch, rank_skills
from retinue.mesh.search.words import stem_words

Json = dict[str, Any]
Offer = tuple[Candidate, Skill]

_MAX_SORTED = 5_000
"""Entries that are sorted for one list; more of them are found by a walk in their order, in pages."""

_MAX_UNINDEXED = 500
"""Maximum number of listings searched without an index: about 50 ms."""

_MAX_TAKERS = 5

MAX_SHORT_BYTES = 6_000
"""A reply without schemas, as compact JSON: about 1,500 tokens of a model."""

_log = structlog.get_logger("retinue.search")


def add_search_skills(
    agent: Agent,
    directory: Directory,
    search: SkillSearch,
    access: Access,
    history: SearchHistory,
    exams: ExamBook,
) -> None:
    """Add the skill ``find_skills``; ``access`` decides which agents a caller sees."""
    finder = _Finder(directory, search, history, exams)

    @agent.skill(expose=True, read_only=True)
    async def find_skills(
        ctx: Context,
        query: Annotated[str, Field(description="In words; empty for all")] = "",
        skill: Annotated[str | None, Field(description="Its id")] = None,
        agent: Annotated[str | None, Field(description="Only this agent")] = None,
        version: Annotated[str | None, Field(description="Such as >=1.2,<2")] = None,
        labels: Annotated[dict[str, str] | None, Field(description="* = any value")] = None,
        why: Annotated[str | None, Field(description="Why this agent's place")] = None,
        limit: Annotated[int, Field(ge=1, le=1000)] = 5,
        detailed: Annotated[bool, Field(description="With schemas")] = False,
    ) -> Json:
        """Finds skills by words, by id or by agent, best first."""
        scopes, view = ctx.principal.scopes, access.view_of(ctx.principal)
        reply: Json = {}
        if why is not None and (skill is not None or not query.strip()):
            raise InvalidParametersError([Problem("why", "explains a search by words; give query, no skill")])
        if skill is not None:
            offering = await directory.resolve_skill(
                skill, scopes, version_range=version, agent=agent, view=view
            )
            chosen = select_candidates(offering, labels=labels)
            offers, more = (
                finder.open_offers([(entry, skill) for entry in chosen[:limit]]),
                len(chosen) - limit,
            )
        else:
            await directory.ensure_fresh()
            within, is_wish = None, False
            narrowed = view is not None or agent is not None or version is not None or bool(labels)
            if query.strip():
                if narrowed:
                    within = await finder.narrow(agent, version, labels, view)
                offers, reply, is_wish = await finder.find(query, ctx.principal, within, limit, why, view)
                more = len(offers) - limit
            elif narrowed:
                offers, more = await finder.list_narrowed(agent, version, labels, view, scopes, limit)
            else:
                offers, more = finder.list_first(scopes, limit)
        await decide_lists(view, offers)
        offers = [(entry, offer) for entry, offer in offers if is_listed(view, entry, offer)]
        if query.strip() and skill is None:
            listed = [(entry, offer.id) for entry, offer in offers[:limit] if isinstance(entry, Entry)]
            is_wish, run = is_wish or not offers, find_run_id(ctx.run_step)
            search_id = history.note_search(ctx.principal, query, listed, is_wish=is_wish, run=run)
            reply |= {"search": search_id} if search_id is not None and listed else {}
        learned = reply.pop("learned", ())
        if learned and detailed:
            names = {(finder.name_of(entry), offer.id) for entry, offer in offers[:limit]}
            reply["learned"] = [row for row in learned if (row["agent"], row["skill"]) in names]
        answer: Json = {
            "skills": [finder.render(entry, offer, detailed=detailed) for entry, offer in offers[:limit]],
            "more": max(0, more),
            **reply,
            "missing": list_missing(directory, view),
        }
        return answer if detailed else shorten_reply(answer)


class _Finder:
    """Finds skills in the directory, by words through the search index."""

    def __init__(
        self, directory: Directory, search: SkillSearch, history: SearchHistory, exams: ExamBook
    ) -> None:
        self._exams = exams
        self._directory = directory
        self._search = search
        self._history = history

    def render(self, entry: Candidate, skill: Skill, *, detailed: bool) -> Json:
        """The row of a skill."""
        row = (render_skill_row if detailed else render_short_skill_row)(entry, skill)
        return {**row, "agent": self.name_of(entry)}

    def name_of(self, entry: Candidate) -> str:
        """The name of an agent; of agents of one name in two teams the full name, which calls need."""
        return self._directory.name_of(entry) if folder_of(entry.id) else entry.name

    async def narrow(
        self,
        agent: str | None = None,
        version: str | None = None,
        labels: Mapping[str, str] | None = None,
        view: AgentView | None = None,
    ) -> Set[ListingKey]:
        """The listings of the enabled agents of this name, version and labels that the caller sees."""
        if agent is None:
            return await self._directory.select(view, version_range=version, labels=labels)
        seen = [entry for entry in self._directory.list_tagged(agent) if is_seen(view, entry.name)]
        chosen = select_candidates(seen, agent=agent, version_range=version, labels=labels)
        return frozenset(entry.id for entry in chosen)

    def list_first(self, scopes: frozenset[str], limit: int) -> tuple[list[Offer], int]:
        """The first visible skills of all agents, and how many more there are."""
        first = _list_skills(self._directory.list_visible(scopes, limit), scopes)
        count, _, _ = self._directory.count_skills(scopes)
        return self.open_offers(first[:limit]), count - limit

    async def list_narrowed(
        self,
        agent: str | None,
        version: str | None,
        labels: Mapping[str, str] | None,
        view: AgentView | None,
        scopes: frozenset[str],
        limit: int,
    ) -> tuple[list[Offer], int]:
        """The first visible skills of the agents of `narrow`, and how many more there are."""
        within = await self.narrow(agent, version, labels, view)
        first: list[tuple[Entry, str]] = []
        count = 0
        async for page in self._pages_of(within):
            for entry in page:
                count += entry.count_skills(scopes)
            if len(first) < limit:
                first += _list_skills(page, scopes)
        return self.open_offers(first[:limit]), count - limit

    async def _pages_of(self, within: Set[ListingKey]) -> AsyncIterator[list[Entry]]:
        """The agents of these listings, in the order of the directory."""
        if len(within) > _MAX_SORTED:
            async for page in self._directory.iterate_pages():
                yield [entry for entry in page if entry.id in within]
        else:
            entries = [entry for i in within if (entry := self._directory.find_entry(i)) is not None]
            ordered = self._directory.sort_entries(entries)
            yield [entry for entry in ordered if self._directory.represents_agent(entry)]

    def open_offers(self, wanted: Sequence[tuple[Entry, str]]) -> list[Offer]:
        """Resolve pairs of agent and skill id; vanished skills are skipped."""
        offers = ((entry, self._directory.find_skill(entry, skill_id)) for entry, skill_id in wanted)
        return [(entry, offer) for entry, offer in offers if offer is not None]

    async def find(
        self,
        query: str,
        principal: Principal,
        within: Set[ListingKey] | None,
        limit: int,
        why: str | None,
        view: AgentView | None,
    ) -> tuple[list[Offer], Json, bool]:
        """The skills that match a query, further fields of the reply, and whether the query is a wish."""
        represents_agent = self._directory.represents_agent
        scopes, learn = principal.scopes, self._history.learn_for(principal, query)
        try:
            ranking = self._search.find_skills(
                query, scopes, limit=limit, within=within, accept=represents_agent, learn=learn
            )
        except StateError as error:
            # a full or damaged disk makes the search slower and less precise, but does not end it
            _log.warning("text index unusable", error=error.message)
            listings = await self._list_by_name(query, within)
            return [*rank_skills(query, listings, scopes)], {"warning": error.message}, False
        fit_row = _render_fit(ranking)
        if why is not None:
            named = self._directory.get(why, view=view)
            explained = explain_place(
                query, named, scopes, self._search, within=within, accept=represents_agent, learn=learn
            )
            reasons = [*explained.reasons, describe_trust(named)]
            if (exam := self._exams.find(named)) is not None:
                reasons.append(f"it {exam.describe(with_problems='mesh' in scopes)}")
            if explained.skill is not None:
                reasons.append(self._name_takers(explained.skill, scopes, view))
                parts = _find_parts(learn, named.id, explained.skill, explained.score)
                reasons.append(parts.describe(explained.skill))
            fit_row["why"] = {**asdict(explained), "agent": self.name_of(named), "reasons": tuple(reasons)}
        fit_row["learned"] = [
            {"agent": self.name_of(hit.entry), "skill": hit.skill.id, **parts.as_json()}
            | {"text": parts.describe(hit.skill.id)}
            for hit in ranking.hits
            for parts in [_find_parts(learn, hit.entry.id, hit.skill.id, hit.score)]
        ]
        if view is not None:
            fit_row.pop("did_you_mean", None)  # words of hidden agents count in it
        # of equal hits the version that a call without a range gets is first
        hits = sorted(ranking.hits, key=lambda hit: version_preference(hit.entry), reverse=True)
        hits.sort(key=lambda hit: (hit.entry.deprecated, -round(hit.score, 9), *_place(hit.entry)))
        return [(hit.entry, hit.skill) for hit in hits], fit_row, ranking.is_wish

    def _name_takers(self, skill_id: str, scopes: frozenset[str], view: AgentView | None) -> str:
        """A sentence about the agents that a call of this skill goes to if it names none."""
        offering = visible_candidates(view, self._directory.find_by_skill(skill_id, scopes))
        _, first = next(list_groups(offering), (None, ()))
        names = ", ".join(self._directory.name_of(entry) for entry in first[:_MAX_TAKERS])
        more = f" and {len(first) - _MAX_TAKERS} more" if len(first) > _MAX_TAKERS else ""
        return f"a call of {skill_id} that names no agent goes to {names or 'nobody'}{more}"

    async def _list_by_name(self, query: str, within: Set[ListingKey] | None) -> list[Listing]:
        """Listings to search without an index; of many, those with a word of the query in a name."""
        ids = within if within is not None else await self.narrow()
        entries = [entry async for page in self._pages_of(ids) for entry in page]
        if len(entries) > _MAX_UNINDEXED:
            stems = [stem for stem, _ in stem_words(query)]
            entries = [
                entry
                for entry in entries
                if any(stem in name.lower() for name in _names(entry) for stem in stems)
            ]
        return self._directory.open_all(entries[:_MAX_UNINDEXED])


def _find_parts(learn: LearnedRanking | None, agent: ListingKey, skill_id: str, score: float) -> ScoreParts:
    """The parts of the score of a skill; that of its card is the whole one where no call counts."""
    parts = None if learn is None else learn.parts.get((agent, skill_id))
    return ScoreParts(score, 0.0, 0.0, 0.0) if parts is None else parts


def _list_skills(entries: Iterable[Entry], scopes: frozenset[str]) -> list[tuple[Entry, str]]:
    return [(entry, skill_id) for entry in entries for skill_id in entry.list_skills(scopes)]


def shorten_reply(reply: Json) -> Json:
    """The reply within `MAX_SHORT_BYTES`: the last rows are left out and counted in ``more``."""
    rows: list[Json] = reply["skills"]
    size = len(orjson.dumps(reply))
    while size > MAX_SHORT_BYTES and len(rows) > 1:
        size -= len(orjson.dumps(rows.pop())) + 1
        reply["more"] += 1
    return reply


def _place(entry: Entry) -> tuple[bool, bool, str, str]:
    return not entry.enabled, entry.reachable is False, entry.source, entry.key


def _names(entry: Entry) -> tuple[str, ...]:
    return entry.name, *entry.skills


def _render_fit(fit: Found) -> Json:
    """The number of further hits, how well the best one matches, and a spelling suggestion."""
    row: Json = {
        "more": fit.more,
        "fit": {"score": round(fit.fit.score, 3), "likely": fit.fit.is_likely},
    }
    if fit.did_you_mean is not None:
        row["did_you_mean"] = fit.did_you_mean
    if fit.gap is not None:
        row["gap"] = fit.gap
    return row


def list_missing(directory: Directory, view: AgentView | None) -> list[Json]:
    """The sources and cards that could not be read; they are part of every list.

    A caller that does not see every agent gets sources only, because a key would name an agent.
    """
    return [
        {"source": problem.source, "key": problem.key, "error": _render_error(problem.error)}
        for problem in directory.problems()
        if view is None or problem.key is None
    ]


def _render_error(error: RetinueError) -> str:
    return f"{error.message} ({error.remedy})" if error.remedy else error.message
