"""Calls of steps over the dispatch path: the Caller of every process that runs workflows.

The origin of a run is stored in the run (`render_origin`), so that a resumed run calls with the same trace
and the same rights. A step with a role asks the agents of the directory that have it, best first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from retinue.core.call import Call, Hop, Outcome, Principal, new_id
from retinue.core.errors import (
    AgentUnreachableError,
    LookupFailedError,
    NobodyWillingError,
    RoleNotOfferedError,
    SkillNotOfferedError,
    UnknownAgentError,
)
from retinue.core.record import (
    QUERY_CAPABILITIES,
    Candidate,
    Listing,
    ListingKey,
    Skill,
    render_deprecation,
)
from retinue.core.usage import NO_SOURCES
from retinue.mesh.admission import Admission
from retinue.mesh.asking.fanout import Answers, ask_agents
from retinue.mesh.asking.query import Query, make_query
from retinue.mesh.channel import NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_index import list_folders
from retinue.mesh.directory.routing import (
    RoleOffer,
    Strategy,
    first,
    is_named,
    list_offers,
    order_candidates,
    parse_role,
    rank_by_score,
)
from retinue.mesh.directory.versions import folder_of, is_same_repository, mark_standby, name_version
from retinue.mesh.dispatch import Calls, Lookup
from retinue.mesh.exams import ExamBook
from retinue.mesh.guard.trace_guard import OutgoingCall, new_trace, next_hop
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.call_figures import TrackRecord
from retinue.mesh.permissions import Access, AgentView, is_seen, may_call, may_send
from retinue.mesh.search.ranking import SkillSearch
from retinue.thinking.completion import COMPLETE
from retinue.thinking.condensing import is_condensing
from retinue.thinking.toolbox import is_glob, split_pattern
from retinue.workflows.caller import Choice, SkillOffer, Wanted
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.records import RUN_CALLER, WHOLE_REACH, Origin, Reach
from retinue.workflows.skill_offers import SkillOfEntry, SkillOffers, list_once, make_offer

MAX_ASKED = 100
"""Agents that a step asks first: as many as a parallel step may call."""

_CALLS_OF_A_QUESTION = 8
"""Further calls that an agent may make to answer."""

_OPENED = 200
"""Listings that are read whole while others wait: some 20 ms."""


class RoleChoice:
    """Lists agents by role for workflows; only the cards of agents with the role are read."""

    def __init__(
        self,
        directory: Directory,
        strategy: Strategy = first,
        track: TrackRecord | None = None,
        exams: ExamBook | None = None,
    ) -> None:
        self._exams = exams or ExamBook()
        self._directory = directory
        self._strategy = strategy
        self._track = track

    async def list_role(
        self, role: str, agents: Sequence[str], scopes: frozenset[str], view: AgentView | None = None
    ) -> Sequence[Choice]:
        """As ``Caller.list_role``, within the view of the caller."""
        role = parse_role(role)
        await self._directory.ensure_fresh(for_call=True)
        seen = [entry for entry in self._directory.list_with_role(role, scopes) if is_seen(view, entry.name)]
        entries = mark_standby(seen)
        if not agents:
            # of the versions of an agent, the newest has the role; a deprecated agent if no other has it
            entries = [entry for entry in entries if not entry.standby] or entries
            entries = [entry for entry in entries if self._exams.may_choose(entry)]
        listings: list[Listing] = []
        for start in range(0, len(entries), _OPENED):
            if start:
                await asyncio.sleep(0)
            listings += self._directory.open_all(entries[start : start + _OPENED])
        offers = list_offers(listings, role, scopes, self._strategy, self._track)
        offering = [offer.listing for offer in offers]
        if agents:
            return [_choose(self._find(agent, role, offers, scopes, view), offering) for agent in agents]
        # an agent that the caller may not call is no choice, unless it is named
        available = [offer for offer in offers if offer.is_available and may_call(offer.skill, scopes)]
        if not available:
            raise RoleNotOfferedError(role)
        return [_choose(offer, offering) for offer in available]

    def _find(
        self,
        agent: str,
        role: str,
        offers: Iterable[RoleOffer],
        scopes: frozenset[str],
        view: AgentView | None,
    ) -> RoleOffer:
        offer_found = next((offer for offer in offers if is_named(offer.listing, agent)), None)
        if offer_found is not None:
            return offer_found
        known = self._directory.find_named(agent, view=view)
        if known is not None and self._directory.represents_agent(known):
            raise RoleNotOfferedError(role, agent)
        if away := self._directory.find_away(agent, role, scopes, view):
            raise away
        raise UnknownAgentError(agent, near=self._directory.suggest_names(agent, view))


def _choose(offer: RoleOffer, candidates: Iterable[Candidate]) -> Choice:
    choice = _make_choice(
        _name_among(candidates, offer.listing), offer.listing, offer.skill.id, offer.listing
    )
    return replace(choice, score=offer.score, available=offer.is_available)


def _make_choice(name: str, candidate: Candidate, skill_id: str, listing: Listing | None) -> Choice:
    """The choice of a skill of a candidate, which ``name`` means alone."""
    skill = None if listing is None else listing.record.find_skill(skill_id)
    return Choice(
        agent=name,
        skill=skill_id,
        version=candidate.version,
        url=candidate.url,
        input_schema=None if skill is None else skill.input_schema,
        output_schema=None if skill is None else skill.output_schema,
        warning="" if listing is None else render_deprecation(listing.record),
        listing=candidate.id,
        keeps_keys=listing is not None and listing.keeps_keys,
        is_repeatable=skill is not None and skill.is_repeatable,
        context_window=None if listing is None else listing.record.context_window,
    )


_CHANNEL = NullChannel()

_MAX_HOP = 200
"""Characters of a run's name in the path of a trace, which takes 256."""


class DispatchCaller:
    """Chooses through the directory and calls through the dispatcher, one hop below the run's origin.

    Both see only the agents that ``access`` shows to the caller on whose behalf the run works.
    """

    def __init__(
        self,
        calls: Calls,
        lookup: Lookup,
        admission: Admission,
        *,
        agent: str,
        directory: Directory,
        strategy: Strategy = first,
        access: Access | None = None,
        track: TrackRecord | None = None,
        progress: RunProgress | None = None,
        search: SkillSearch | None = None,
        history: SearchHistory | None = None,
        exams: ExamBook | None = None,
    ) -> None:
        self._exams = exams or ExamBook()
        self._offers = SkillOffers(directory, search, history, exams)
        self._progress = progress or RunProgress()
        self._access = access or Access()
        self._calls = calls
        self._lookup = lookup
        self._roles = RoleChoice(directory, strategy, track, exams)
        self._directory = directory
        self._track = track
        self._guard = admission.guard
        self._limits = admission.limits
        self._agent = agent
        self._strategy = strategy

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Choice:
        choice, _, _ = await self._choose(skill, agent, version_range, scopes, caller, reach)
        return choice

    async def _choose(
        self,
        skill: str,
        agent: str | None,
        version_range: str | None,
        scopes: frozenset[str],
        caller: str,
        reach: Reach,
    ) -> tuple[Choice, str, Skill | None]:
        """The choice, the plain name of its agent, and the skill."""
        view = self._view(caller, scopes, reach)
        candidates = await self._lookup.resolve_skill(
            skill, scopes, version_range=version_range, agent=agent, view=view
        )
        if reach.send is not None:
            candidates = tuple(
                candidate for candidate in candidates if may_send(reach.send, candidate.name, skill)
            )
            if not candidates:
                raise SkillNotOfferedError(skill)
        if agent is None and self._exams.policy == "require":
            candidates = self._exams.select(candidates, skill)
        ordered: Sequence[Candidate] = order_candidates(candidates, self._strategy, skill)
        if agent is None:
            ordered = rank_by_score(ordered, self._find_listing, skill, self._track)
        chosen = ordered[0]
        listing = await self._lookup.open(chosen)
        if version_range is not None or agent is not None:
            # the name must mean this version also among those that were not asked for
            team = folder_of(chosen.id)
            named = f"{chosen.name}@{team}" if team else chosen.name
            candidates = await self._lookup.resolve_skill(skill, scopes, agent=named)
            name = self._name_in_mesh(candidates, chosen)
        else:
            name = _name_among(candidates, chosen)
        choice = _make_choice(name, chosen, skill, listing)
        return choice, chosen.name, None if listing is None else listing.record.find_skill(skill)

    async def list_offers(self, patterns: Sequence[str], origin: Origin, limit: int) -> Sequence[SkillOffer]:
        view = self._view_of(origin)
        offers: list[SkillOffer] = []
        for pattern in patterns:
            if is_glob(pattern):
                skills = await self._offers.list_matching(pattern, origin.scopes, view, limit)
                offers += [self._make_offer(offered) for offered in skills]
                continue
            agent, skill = split_pattern(pattern)
            try:
                choice, name, offer = await self._choose(
                    skill, agent, None, origin.scopes, origin.caller, origin.reach
                )
            except (LookupFailedError, AgentUnreachableError):
                continue
            if offer is None or may_call(offer, origin.scopes):
                offers.append(make_offer(choice, name, offer))
        return list_once(
            [offer for offer in offers if may_send(origin.reach.send, offer.agent, offer.skill)]
        )[:limit]

    async def find_skills(
        self, what: str, origin: Origin, limit: int, *, run_id: str = ""
    ) -> Sequence[SkillOffer]:
        view, principal = self._view_of(origin), _principal(origin.caller, origin.scopes, origin.reach)
        skills = await self._offers.find(what, principal, view, limit, run_id=run_id)
        offers = [self._make_offer(skill) for skill in skills]
        return [offer for offer in offers if may_send(origin.reach.send, offer.agent, offer.skill)]

    def _view_of(self, origin: Origin) -> AgentView | None:
        return self._view(origin.caller, origin.scopes, origin.reach)

    def _view(self, caller: str, scopes: frozenset[str], reach: Reach) -> AgentView | None:
        """The agents that a run of this caller reaches."""
        return self._access.view_of(_principal(caller, scopes, reach))

    def _make_offer(self, one: SkillOfEntry) -> SkillOffer:
        name = self._directory.name_of(one.entry)
        return make_offer(_make_choice(name, one.entry, one.skill.id, one.listing), one.entry.name, one.skill)

    def _find_listing(self, candidate: Candidate) -> Listing | None:
        return self._directory.find_listing(candidate.id)

    async def list_role(
        self,
        role: str,
        agents: Sequence[str] = (),
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Sequence[Choice]:
        return await self._roles.list_role(role, agents, scopes, self._view(caller, scopes, reach))

    async def list_willing(self, wanted: Wanted, origin: Origin) -> Sequence[Choice]:
        if wanted.role is not None:
            choices = await self.list_role(
                wanted.role, wanted.agents, origin.scopes, origin.caller, origin.reach
            )
        else:
            choices = await self._list_offering(wanted, origin)
        return await find_willing(choices, wanted, partial(self._ask, origin))

    async def _list_offering(self, wanted: Wanted, origin: Origin) -> Sequence[Choice]:
        """The agents that offer the skill, in the order in which `choose` would try them."""
        skill = wanted.skill or ""
        view = self._view_of(origin)
        candidates = await self._lookup.resolve_skill(
            skill,
            origin.scopes,
            version_range=wanted.version_range,
            agent=wanted.agents[0] if wanted.agents else None,
            view=view,
        )
        if not wanted.agents and self._exams.policy == "require":
            candidates = self._exams.select(candidates, skill)
        ordered: Sequence[Candidate] = order_candidates(candidates, self._strategy, skill)
        ordered = rank_by_score(ordered, self._find_listing, skill, self._track)
        choices: list[Choice] = []
        for candidate in [candidate for candidate in ordered if not candidate.standby][:MAX_ASKED] or ordered[
            :1
        ]:
            listing = await self._lookup.open(candidate)
            offer = None if listing is None else listing.record.find_skill(skill)
            if offer is None or not may_call(offer, origin.scopes):
                continue
            choices.append(_make_choice(self._name_in_mesh(candidates, candidate), candidate, skill, listing))
        return choices

    async def _ask(self, origin: Origin, query: Query, agent: str, timeout_s: float) -> Outcome:
        left = origin.calls_left
        calls_left = _CALLS_OF_A_QUESTION if left is None else min(left, _CALLS_OF_A_QUESTION)
        trace = next_hop(
            origin.trace or new_trace(),
            Hop(self._agent, "ask"),
            calls_left=calls_left,
            seconds_left=timeout_s,
        )
        if origin.allowance is not None or trace.extension is not None:
            # an answer about capabilities needs no model
            trace = trace.with_allowance(None if origin.allowance is None else origin.allowance.portion(0, 1))
        principal = _principal(origin.caller, origin.scopes, origin.reach)
        deadline = asyncio.get_running_loop().time() + timeout_s
        call = Call(
            id=new_id(),
            skill=QUERY_CAPABILITIES,
            arguments=query.as_payload(),
            principal=principal,
            endpoint="workflow",
            trace=trace,
            agent=agent,
            deadline=deadline,
        )
        with OutgoingCall(trace, guard=self._guard):
            return await self._calls.dispatch(call, _CHANNEL)

    async def call(
        self,
        choice: Choice,
        skill: str,
        arguments: Any,
        *,
        run_id: str,
        path: str,
        idempotency_key: str,
        timeout_s: float,
        origin: Origin,
    ) -> Outcome:
        outgoing = next_hop(
            origin.trace or new_trace(),
            Hop(self._agent, f"run {run_id}"[:_MAX_HOP]),
            calls_left=origin.calls_left,
            seconds_left=timeout_s,
        )
        if origin.allowance is not None or outgoing.extension is not None:
            outgoing = outgoing.with_allowance(origin.allowance)
        if origin.sources != NO_SOURCES:
            # imported here, because only policies read sources
            from retinue.mesh.guard.sources import with_sources

            outgoing = with_sources(outgoing, origin.sources)
        name = choice.agent.partition("@")[0]
        if not (may_send(origin.reach.send, name, skill) and is_seen(self._view_of(origin), name)):
            # the access lists may have changed since the choice
            return Outcome(idempotency_key, skill, "refused", error=UnknownAgentError(name))
        principal = _principal(origin.caller, origin.scopes, origin.reach)
        listing = self._find_here(choice)
        call = Call(
            id=idempotency_key,
            skill=skill,
            arguments=arguments,
            principal=principal,
            endpoint="workflow",
            trace=outgoing,
            agent=choice.agent if listing is not None else await self._name_here(choice, skill, principal),
            deadline=asyncio.get_running_loop().time() + timeout_s,
            idempotency_key=idempotency_key,
            run_step=f"{run_id}/{path}",
            listing=listing,
        )
        self._limits.steps_in_flight += 1
        try:
            with OutgoingCall(outgoing, guard=self._guard):
                if skill == COMPLETE and not is_condensing(path):
                    with self._progress.keep_text(run_id, path) as channel:
                        return await self._calls.dispatch(call, channel)
                is_shown = self._progress.watched and not is_condensing(path)
                channel = self._progress.open_channel(run_id, path) if is_shown else _CHANNEL
                return await self._calls.dispatch(call, channel)
        finally:
            self._limits.steps_in_flight -= 1

    def _find_here(self, choice: Choice) -> ListingKey | None:
        """The listing of the choice; None where another process chose it and means another agent by it."""
        entry = None if choice.listing is None else self._directory.find_entry(choice.listing)
        is_same = entry is not None and entry.url == choice.url and is_named(entry, choice.agent)
        return choice.listing if is_same else None

    async def _name_here(self, choice: Choice, skill: str, principal: Principal) -> str:
        """The name of the chosen agent in this process, because its source has another name on another
        machine.
        """
        name = choice.agent.partition("@")[0]
        try:
            view = self._access.view_of(principal)
            candidates = await self._lookup.resolve_skill(skill, principal.scopes, agent=name, view=view)
        except LookupFailedError:
            return choice.agent
        same = next((candidate for candidate in candidates if candidate.url == choice.url), None)
        if same is None:
            return choice.agent
        return self._name_in_mesh(candidates, same)

    def _name_in_mesh(self, candidates: Iterable[Candidate], chosen: Candidate) -> str:
        """As `_name_among`, but with its team also where no agent of another team was asked for."""
        team = folder_of(chosen.id)
        if team and list_folders(self._directory.list_named(chosen.name)):
            return f"{chosen.name}@{team}"
        return _name_among(candidates, chosen)


AskAgent = Callable[[Query, str, float], Awaitable[Outcome]]
"""Asks one agent a question, for so many seconds."""


async def find_willing(choices: Sequence[Choice], wanted: Wanted, ask: AskAgent) -> Sequence[Choice]:
    """The choices whose agents say yes, best first; equal ones keep their order. Raises NobodyWillingError.

    Each is asked for the skill that would be called, so agents of one role may have different ones.
    """
    by_skill: dict[str, list[Choice]] = {}
    for choice in choices:
        by_skill.setdefault(choice.skill, []).append(choice)

    async def ask_some(skill: str, some: Sequence[Choice]) -> Answers:
        query = make_query(list(dict.fromkeys((skill, *wanted.capabilities))))
        return await ask_agents(
            [choice.agent for choice in some],
            query,
            lambda agent: ask(query, agent, wanted.timeout_s),
            timeout_s=wanted.timeout_s,
        )

    answered = await asyncio.gather(*(ask_some(skill, some) for skill, some in by_skill.items()))
    yes = {answer.agent: answer for answers in answered for answer in answers.answers if answer.yes}
    willing = [choice for choice in choices if choice.agent in yes]
    if not willing:
        silent = [f"{silence.agent}: {silence.reason}" for answers in answered for silence in answers.silent]
        silent_names = {silence.agent for answers in answered for silence in answers.silent}
        no = [f"{choice.agent} said no" for choice in choices if choice.agent not in silent_names]
        raise NobodyWillingError(wanted.skill or wanted.role or "", [*no, *silent])
    # without the name, which ends the rank: equal answers keep the order of the choice
    return sorted(willing, key=lambda choice: yes[choice.agent].rank[:-1])


def _principal(caller: str, scopes: frozenset[str], reach: Reach) -> Principal:
    """The caller in a run: the principal that started it, with the scopes and the limits of the run."""
    return Principal(caller, "run", scopes, reach.agents, reach.through, reach.send, team=reach.team)


def _name_among(candidates: Iterable[Candidate], chosen: Candidate) -> str:
    """The name that means this agent alone among those found: with its version or its source if needed."""
    same_name = [candidate for candidate in candidates if candidate.name == chosen.name]
    if all(candidate.id == chosen.id for candidate in same_name):
        return chosen.name
    if all(is_same_repository(candidate, chosen) for candidate in same_name):
        return name_version(chosen, same_name)
    return f"{chosen.name}@{folder_of(chosen.id) or chosen.source}"
