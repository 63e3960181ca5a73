"""Renders agents for the tools of seed 002: status, capabilities, metrics, fitness for a task.

Reported scores are the configured ones. The figures of an agent's calls are in ``metrics``, ``proven`` and
the reasons, and take part in the automatic choice (`mesh.observing.call_figures`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from retinue.cards.rows import render_capabilities, render_metrics
from retinue.core.call import Principal
from retinue.core.record import Candidate, Listing, Skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import CAPABILITIES, find_role_skill, parse_role
from retinue.mesh.directory.versions import mark_standby
from retinue.mesh.exams import ExamBook
from retinue.mesh.observing.call_figures import TrackRecord
from retinue.mesh.permissions import Access, decide_lists, is_listed, is_seen, may_call

Json = dict[str, Any]
AgentStatus = Literal["available", "busy", "unavailable", "unknown"]

GOOD, FAIR = 0.7, 0.4
"""From these scores on an agent is good, or fair, at a role."""

_OPENED = 200
"""Listings that are read whole while others wait."""


@dataclass(frozen=True, slots=True)
class Member:
    """An agent as one caller sees it; ``skill`` and ``score`` are those of the role that was asked for."""

    listing: Listing
    status: AgentStatus
    reason: str | None = None
    skill: Skill | None = None
    score: float | None = None

    @property
    def name(self) -> str:
        return self.listing.name


@dataclass(frozen=True, slots=True)
class Fitness:
    """How well an agent fits a task: reasons for it, and warnings."""

    member: Member
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


class Roster:
    """Tells of the agents that a caller sees."""

    def __init__(
        self, directory: Directory, track: TrackRecord, access: Access, exams: ExamBook | None = None
    ) -> None:
        self._exams = exams or ExamBook()
        self._directory = directory
        self._track = track
        self._access = access

    def describe(self, listing: Listing) -> tuple[AgentStatus, str | None]:
        """The status of an agent, and the reason where it is not simply available."""
        if not listing.enabled:
            return "unavailable", "disabled"
        if listing.health == "unreachable":
            return "unavailable", listing.last_error or "it does not answer"
        if listing.health == "unknown":
            return "unknown", listing.last_error or "it was neither called nor probed yet"
        if self._track.is_busy(listing):
            return "busy", f"{self._track.agent_stats.of(listing).in_flight} calls in flight"
        return "available", listing.last_error

    def render_row(self, listing: Listing, *, with_metrics: bool) -> Json:
        """One agent with the keys of the seed (L-20), and the reason where it is not available."""
        status, reason = self.describe(listing)
        row: Json = {"name": listing.name, "status": status}
        if capabilities := render_capabilities(listing.record):
            row["capabilities"] = capabilities
        if reason is not None:
            row["reason"] = reason
        if with_metrics and (metrics := self.find_metrics(listing.name)):
            row["metrics"] = metrics
        return row

    def find_exam(self, listing: Listing, *, with_problems: bool) -> Json | None:
        """The result of the agent's entrance exam; None while no agents are examined."""
        result = self._exams.find(listing)
        return None if result is None else result.render(with_problems=with_problems)

    def may_choose(self, listing: Candidate) -> bool:
        """Whether a call that names no agent may go to this one."""
        return self._exams.may_choose(listing)

    def find_metrics(self, agent: str) -> Json | None:
        """The figures of an agent's calls; None without a call."""
        stats = self._track.figures.find(agent)
        return render_metrics(stats) if stats.calls else None

    async def list_with_role(self, role: str, principal: Principal) -> list[Member]:
        """The agents that have a role, in either spelling, the newest version of each; best first.

        Agents that take calls come first, then by score. Raises UnknownRoleError.
        """
        role = parse_role(role)
        await self._directory.ensure_fresh()
        view = self._access.view_of(principal)
        seen = [
            entry
            for entry in self._directory.list_with_role(role, principal.scopes)
            if is_seen(view, entry.name)
        ]
        entries = [entry for entry in mark_standby(seen) if not entry.standby] or seen
        members: list[Member] = []
        for start in range(0, len(entries), _OPENED):
            if start:
                await asyncio.sleep(0)
            opened = self._directory.open_all(entries[start : start + _OPENED])
            offers = [
                (listing, find_role_skill(listing.record, role, principal.scopes)) for listing in opened
            ]
            await decide_lists(view, [(listing, skill) for listing, skill in offers if skill is not None])
            for listing, skill in offers:
                if skill is None or not is_listed(view, listing, skill):
                    continue
                status, reason = self.describe(listing)
                if not may_call(skill, principal.scopes):
                    status, reason = "unavailable", f"its skill {skill.id} runs code, which wants a token"
                scores = listing.record.scores or {}
                members.append(Member(listing, status, reason, skill, scores.get(CAPABILITIES[role])))
        members.sort(key=lambda member: (member.status == "unavailable", -(member.score or 0.0), member.name))
        return members

    async def recommend(
        self, role: str, principal: Principal, *, language: str | None = None, context_size: float = 0
    ) -> list[Fitness]:
        """The agents with a role: by score, then by fewer warnings, then by the figures of calls (L-23)."""
        role = parse_role(role)
        members = await self.list_with_role(role, principal)
        best = max((member.score or 0.0 for member in members if member.status != "unavailable"), default=0.0)
        fits = [self._judge(member, role, best, language, context_size) for member in members]

        def rank(fit: Fitness) -> tuple[bool, float, int, float]:
            weight = self._track.weigh(fit.member.listing, fit.member.score)
            gone = fit.member.status == "unavailable"
            return gone, -(fit.member.score or 0.0), len(fit.warnings), -weight

        return sorted(fits, key=rank)

    def render_recommendation(self, fit: Fitness) -> Json:
        """The row of a recommendation (L-23); ``proven`` holds the figures of calls."""
        row: Json = {
            "agent": fit.member.name,
            "score": fit.member.score or 0.0,
            "reasons": list(fit.reasons),
            "warnings": list(fit.warnings),
        }
        proven = self.find_metrics(fit.member.name)
        return row if proven is None else row | {"proven": proven}

    def _judge(
        self, member: Member, role: str, best: float, language: str | None, context_size: float
    ) -> Fitness:
        record = member.listing.record
        capability = CAPABILITIES[role]
        reasons: list[str] = []
        warnings: list[str] = []
        score = member.score or 0.0
        if member.score is None:
            warnings.append(f"No {capability} score is configured")
        elif score == best and score >= FAIR:
            reasons.append(f"Best {capability} capability")
        elif score >= FAIR:
            reasons.append(f"{'Good' if score >= GOOD else 'Fair'} {capability} capability")
        else:
            warnings.append(f"Low {capability} capability")
        if language and record.languages:
            spoken = next((name for name in record.languages if name.lower() == language.lower()), None)
            if spoken is not None:
                reasons.append(f"Supports {spoken}")
            else:
                warnings.append(f"Does not declare {language}")
        if context_size and record.context_window is not None and record.context_window < context_size:
            warnings.append("Lower context window than required")
        stats = self._track.figures.find(member.name)
        if stats.calls:
            reasons.append(f"Succeeded in {stats.calls - stats.failures} of {stats.calls} calls")
        if member.status in ("busy", "unavailable"):
            warnings.append(f"{member.status.capitalize()}: {member.reason}")
        return Fitness(member, tuple(reasons), tuple(warnings))


def describe_choice(role: str, agent: str, ranked: Sequence[Fitness]) -> str | None:
    """Why an agent has a role, as one line; None for an agent that is not in the list."""
    choice = next((fit for fit in ranked if fit.member.name == agent), None)
    if choice is None or not choice.reasons:
        return None
    return f"{role}: {agent}, {choice.reasons[0][0].lower()}{choice.reasons[0][1:]}"


def describe_missing(members: Mapping[str, Sequence[Member]]) -> str:
    """The agents with these roles that take no calls, each with its reason."""
    reasons = {member.name: member.reason for row in members.values() for member in row}
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
