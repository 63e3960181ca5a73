"""Chooses between two digests of a team that serve beside each other, once for each chain of calls.

An agent of a team is published under a tag that names the digest, so two digests of it are two listings of
one repository. While a rollout runs, lists and look-ups show one digest of the team. The other one is
disabled, and only `Rollouts` gives it calls. A chain chooses by the hash of its trace id when it enters the
hub. The choice travels in the signed trace. A process without a rollout has no `Rollouts`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from cachetools import LRUCache

from retinue.core.call import Call, TraceContext, TraceExtension
from retinue.core.errors import SkillNotOfferedError, UnknownAgentError
from retinue.core.record import Candidate, ListingKey
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.directory.routing import select_candidates, visible_candidates
from retinue.mesh.entry import Entry, Scopes
from retinue.mesh.permissions import AgentView

CHOSEN = "teams"
"""The key of the chosen digests in a trace: an object from team to mark."""

WHOLE = 100
"""The weight in per cent at which all new chains go to the new digest."""

_TAG_INFIX = "-team-"
_MARK_LENGTH = 12
_KEPT_CHAINS = 10_000


def mark_of(digest: str) -> str:
    """The beginning of a digest ``sha256:…`` that stands for it in tags and traces."""
    return digest.removeprefix("sha256:")[:_MARK_LENGTH]


def team_tag(version: str, digest: str) -> str:
    """The tag of the cards of a digest of a team: a version, because registries are read by version."""
    return f"v{version}{_TAG_INFIX}{mark_of(digest)}"


def read_mark(tag: str | None) -> str:
    """The mark of the digest that a tag names; "" for any other tag."""
    return (tag or "").rpartition(_TAG_INFIX)[2] if _TAG_INFIX in (tag or "") else ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One team that changes its digest; ``old`` and ``new`` are marks of digests.

    ``weight`` is the share in per cent of the new chains that the new digest gets. ``has_failed`` = chains
    that chose the new digest go on with the old one. ``is_return`` = the old digest was about to
    replace the new one, which has never stopped; so chains that began before both rollouts are its own.
    """

    team: str
    old: str
    new: str
    weight: int
    has_failed: bool = False
    is_return: bool = False

    @property
    def unchosen(self) -> str:
        """The digest of chains that began before the rollout."""
        return self.new if self.is_return else self.old

    @property
    def front(self) -> str:
        """The digest that lists and look-ups show."""
        return self.new if self.weight >= WHOLE else self.old

    def choose(self, chain: str) -> str:
        """The digest of the chain with this trace id; a chain of the new one keeps it at a higher weight."""
        share = int.from_bytes(sha256(f"{self.team}\0{chain}".encode()).digest()[:8], "big") / 2**64
        return self.new if share * WHOLE < self.weight else self.old


@dataclass(frozen=True, slots=True)
class OtherCalls:
    """A product of the leading process of a hub: the calls in flight in its other processes.

    ``count`` gives those that agents of a digest answer, by the mark of the digest.
    """

    count: Callable[[str], Awaitable[int]]


class Rollouts:
    """The rollouts that a process takes part in.

    ``enable`` enables or disables a listing in the directory, whose changes are told by `note`.
    ``is_member`` says whether an agent whose tag names a digest is of that digest, because anybody who
    publishes can write such a tag.
    """

    def __init__(
        self,
        enable: Callable[[Entry, bool], None],
        is_member: Callable[[Entry], bool] = lambda entry: True,
        *,
        keep: int = _KEPT_CHAINS,
    ) -> None:
        self._enable = enable
        self._is_member = is_member
        self._rollouts: tuple[Rollout, ...] = ()
        self._members: dict[str, dict[ListingKey, Entry]] = {}
        self._chosen: LRUCache[tuple[str, str], str] = LRUCache(keep)
        self._entered: LRUCache[tuple[str, str], str] = LRUCache(keep)

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """What is rolled out now."""
        return self._rollouts

    def configure(self, rollouts: Sequence[Rollout], held: Sequence[Entry]) -> None:
        """Follow these rollouts; ``held`` are all entries of the directory."""
        self._rollouts = tuple(rollouts)
        self._members = {mark: {} for rollout in rollouts for mark in (rollout.old, rollout.new)}
        for entry in held:
            self._take(entry)

    def note(self, change: ListingChange) -> None:
        """Take a change of the directory; a listing that must not be seen is disabled at once."""
        entry = change.entry
        if change.kind != "removed":
            self._take(entry)
        elif (members := self._members.get(read_mark(entry.tag))) is not None:
            members.pop(entry.id, None)

    def list_members(self, mark: str) -> Sequence[Entry]:
        """The listings of a digest that takes part in a rollout."""
        return tuple(self._members.get(mark, {}).values())

    def mark(self, call: Call) -> TraceContext:
        """The trace of a call with the digests that its chain has chosen."""
        trace = call.trace
        known = _read_chosen(trace)
        chosen = {rollout.team: self.digest_of(rollout, call) for rollout in self._rollouts}
        for team, mark in chosen.items():
            self._chosen[team, trace.id] = mark
            self._entered[team, call.id] = mark
        return _with_chosen(trace, known, chosen)

    def digest_at_entrance(self, rollout: Rollout, call: Call) -> str:
        """The mark of the digest that a call was sent to first, also if the other one answered it."""
        return self._entered.get((rollout.team, call.id)) or self.digest_of(rollout, call)

    def follow(self, trace: TraceContext, candidate: Candidate) -> TraceContext:
        """The trace of a call to an agent; a chain that it takes over goes on with its digest."""
        mark = read_mark(candidate.id.tag)
        for rollout in self._rollouts:
            if mark in (rollout.old, rollout.new) and self._find_choice(rollout, trace) not in (None, mark):
                self._chosen[rollout.team, trace.id] = mark
                return _with_chosen(trace, _read_chosen(trace), {rollout.team: mark})
        return trace

    def mark_run(self, trace: TraceContext) -> TraceContext:
        """The trace of a run that starts, with the digests of its chain, or those that lists show."""
        return _with_chosen(trace, _read_chosen(trace), self.read_choice(trace))

    def begin(self, trace: TraceContext) -> TraceContext:
        """The trace of a chain that begins with a run, with the digests that it chooses by its hash."""
        chosen = {
            rollout.team: rollout.old if rollout.has_failed else rollout.choose(trace.id)
            for rollout in self._rollouts
        }
        return _with_chosen(trace, _read_chosen(trace), chosen)

    def list_choices(self, trace: TraceContext) -> list[TraceContext]:
        """The trace with each digest that a chain may have, first with those that lists show."""
        fronts = {rollout.team: rollout.front for rollout in self._rollouts}
        others = [
            {**fronts, rollout.team: mark}
            for rollout in self._rollouts
            for mark in (rollout.old, rollout.new)
            if mark != rollout.front and not (rollout.has_failed and mark == rollout.new)
        ]
        return [_with_chosen(trace, _read_chosen(trace), chosen) for chosen in (fronts, *others)]

    def read_choice(self, trace: TraceContext) -> dict[str, str]:
        """The digest of each team that the chain of a trace has chosen, else the one that lists show."""
        chosen: dict[str, str] = {}
        for rollout in self._rollouts:
            mark = self._find_choice(rollout, trace) or rollout.front
            chosen[rollout.team] = rollout.old if rollout.has_failed else mark
        return chosen

    def _find_choice(self, rollout: Rollout, trace: TraceContext) -> str | None:
        mark = _read_chosen(trace).get(rollout.team) or self._chosen.get((rollout.team, trace.id))
        return mark if mark in (rollout.old, rollout.new) else None

    def digest_of(self, rollout: Rollout, call: Call) -> str:
        """The mark of the digest that the chain of a call has chosen, or chooses now.

        A chain that entered the mesh before the rollout, or a run, has no choice and keeps the old digest. An
        exam asks the very agent that it has chosen.
        """
        trace = call.trace
        mark = self._find_choice(rollout, trace)
        if mark is None:
            named_mark = "" if call.listing is None else read_mark(call.listing.tag)
            if call.principal.kind != "run":
                began_before = trace.trusted and trace.depth > 0
                mark = rollout.unchosen if began_before else rollout.choose(trace.id)
            elif not trace.depth and named_mark in (rollout.old, rollout.new):
                mark = named_mark
            else:
                mark = rollout.unchosen
        return rollout.old if rollout.has_failed else mark

    def find_mark(self, team: str, call: Call) -> str | None:
        """The mark of the digest that a call gets of a team; None for one that does not change its digest."""
        changing = (rollout for rollout in self._rollouts if rollout.team == team)
        return next((self.digest_of(rollout, call) for rollout in changing), None)

    def find_hidden(
        self,
        skill: str,
        scopes: Scopes,
        agent: str | None,
        version_range: str | None,
        view: AgentView | None,
    ) -> tuple[Entry, ...]:
        """The agents that no list shows, for look-ups that find no other; `choose` drops those of others."""
        return tuple(
            entry
            for rollout in self._rollouts
            for mark in (rollout.old, rollout.new)
            if mark != rollout.front
            for entry in self._list_offering(mark, skill, scopes, agent, version_range, view)
        )

    def choose(
        self, candidates: tuple[Candidate, ...], call: Call, view: AgentView | None
    ) -> tuple[Candidate, ...]:
        """The candidates of a call, those of teams in the digest of the chain.

        The agents of the old digest stay as standby for a chain of the new one, and those of the new one for
        a chain of the old one after the rollout. Others of the team leave. Raises SkillNotOfferedError and
        UnknownAgentError where none is left.
        """
        for rollout in self._rollouts:
            marks = (rollout.old, rollout.new)
            shown = [candidate for candidate in candidates if read_mark(candidate.id.tag) in marks]
            if not shown and call.listing is not None:
                continue
            mark = self.digest_of(rollout, call)
            own = self._list_for(mark, call, view)
            if call.listing is not None:
                own = [entry for entry in own if entry.name == shown[0].name]
            if not own:
                candidates = tuple(
                    candidate
                    for candidate in candidates
                    if read_mark(candidate.id.tag) not in {*marks} - {rollout.front}
                )
                continue
            other = rollout.old if mark == rollout.new else rollout.new
            is_safe = mark == rollout.new or rollout.weight >= WHOLE
            spare = self._list_for(other, call, view) if is_safe else ()
            names = {entry.name for entry in own}
            standby = [replace(entry, standby=True) for entry in spare if entry.name in names]
            others = [candidate for candidate in candidates if candidate not in shown]
            at = candidates.index(shown[0]) if shown else len(candidates)
            before = [candidate for candidate in candidates[:at] if candidate not in shown]
            candidates = (*before, *own, *others[len(before) :], *standby)
        if not candidates:
            raise SkillNotOfferedError(call.skill) if call.agent is None else UnknownAgentError(call.agent)
        return candidates

    def _list_for(self, mark: str, call: Call, view: AgentView | None) -> list[Entry]:
        scopes = call.principal.scopes
        return self._list_offering(mark, call.skill, scopes, call.agent, call.version_range, view)

    def _list_offering(
        self,
        mark: str,
        skill: str,
        scopes: Scopes,
        agent: str | None,
        version_range: str | None,
        view: AgentView | None,
    ) -> list[Entry]:
        members = tuple(
            replace(entry, enabled=True)
            for entry in self._members.get(mark, {}).values()
            if entry.offers(skill, scopes)
        )
        return list(
            select_candidates(visible_candidates(view, members), agent=agent, version_range=version_range)
        )

    def _take(self, entry: Entry) -> None:
        mark = read_mark(entry.tag)
        members = self._members.get(mark)
        if members is None or not self._is_member(entry):
            return
        members[entry.id] = entry
        is_shown = any(rollout.front == mark for rollout in self._rollouts)
        if entry.enabled is not is_shown:
            self._enable(entry, is_shown)


def _with_chosen(trace: TraceContext, known: Mapping[str, str], chosen: Mapping[str, str]) -> TraceContext:
    """A trace of this mesh with these digests; nobody would believe those of another one."""
    if not trace.trusted or all(known.get(team) == mark for team, mark in chosen.items()):
        return trace
    extension = trace.extension or TraceExtension()
    others = {**extension.others, CHOSEN: {**known, **chosen}}
    return trace.with_extension(TraceExtension(extension.allowance, others))


def _read_chosen(trace: TraceContext) -> Mapping[str, str]:
    """The digests that a signed trace names, by team."""
    if not trace.trusted or trace.extension is None:
        return {}
    chosen = trace.extension.others.get(CHOSEN)
    if not isinstance(chosen, Mapping):
        return {}
    return {team: mark for team, mark in chosen.items() if isinstance(mark, str)}
