"""Replays past calls against another set of policies: what it would deny or ask, and what nobody can tell.

A set may read what the audit does not have, such as an argument that no policy read before. A call is then
decided only if what is unknown cannot matter: a policy that is certain denies it, or the uncertain ones do
not apply to it whatever the unknown facts were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from typing import Any, Literal, NamedTuple, get_args

from retinue.approvals.records import SCOPE
from retinue.core.call import LOCAL, Principal
from retinue.core.record import HUB_NAME, Skill
from retinue.policies.decision import CallFacts, Engine
from retinue.policies.entities import CALL, Caller, Resource, entity_value, name_principal, render_time
from retinue.policies.gate import OWNERS_SKILLS
from retinue.policies.history.past_calls import Past, PastCall, SkillKey
from retinue.policies.history.uncertain import Fact, find_unknown, weaken
from retinue.policies.obligations import CountedBy
from retinue.policies.policy_set import Effect, Policy, PolicySet

Verdict = Literal["allow", "redact", "limit", "limited", "approve", "cannot_tell", "deny"]
"""A call that is counted has ``limit``, and ``limited`` where it would have been one too many."""

Change = Literal["same", "denied", "asked", "limited", "redacted", "allowed", "cannot_tell"]

MAX_ROWS = 200
"""Rows of a report; further ones are counted."""

_KEPT = 5_000
_SUBJECT = "jwt:"
_KNOWN = frozenset(
    {"name", "scopes", "endpoint", "now", "hour", "weekday", "depth", "chain", "trusted", "run", "origin"}
)
"""The facts besides arguments and attributes of the skill that rows tell; others cannot be replayed."""


class KnownSkill(NamedTuple):
    """A skill of the mesh as it is now; ``is_same`` = its agent's listing is the one that was called."""

    resource: Resource
    is_same: bool


class Replayed(NamedTuple):
    """What a set decides about a past call; ``reason`` says why it cannot tell, or why it denies."""

    verdict: Verdict
    policies: tuple[str, ...] = ()
    reason: str = ""
    limits: tuple[Policy, ...] = ()


_ORDER: tuple[Verdict, ...] = ("deny", "cannot_tell", "approve", "limited", "limit", "redact", "allow")

_NOT_RECORDED = frozenset({"sources", "foreign", "can_ask", "calls_left", "tokens_left", "dollars_left"})
"""Facts of the context that no row of the audit has."""

_OPEN_EFFECTS: Mapping[str, tuple[Effect, ...]] = {
    "deny": ("permit",),
    "approve": ("deny",),
    "limit": ("deny", "approve"),
    "redact": ("deny", "approve", "limit"),
    "allow": ("deny", "approve", "limit", "redact"),
}
"""The effects of policies that may not be decided, and would change a certain decision."""

_CHANGES: Mapping[Verdict, Change] = {
    "deny": "denied",
    "approve": "asked",
    "limited": "limited",
    "limit": "allowed",
    "redact": "redacted",
    "allow": "allowed",
    "cannot_tell": "cannot_tell",
}


@dataclass(slots=True, eq=False)
class Replay:
    """Decides about past calls by one set; policies with ``@mode("watch")`` count as the others do.

    ``skills`` are those of the mesh now; one that is in no listing has unknown tags and hints.
    ``find_groups`` gives the groups that the tokens of a caller name now. ``zone`` is that of hours and days.
    """

    policies: PolicySet
    skills: Mapping[SkillKey, KnownSkill]
    find_groups: Callable[[str], tuple[str, ...] | None] = lambda caller: ()
    zone: tzinfo = UTC
    assumed: int = 0
    """Calls that were decided by the hints and tags that their skill has now, in another card."""
    _groups: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    _counts: dict[tuple[str, ...], deque[float]] = field(default_factory=dict)
    _engines: dict[tuple[str, ...], Engine] = field(default_factory=dict)
    _weakened: dict[tuple[str, str], Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        enforced = [replace(policy, is_watched=False) for policy in self.policies.policies]
        self.policies = replace(self.policies, policies=tuple(enforced))

    def decide(self, call: PastCall) -> Replayed:
        """What the set would have decided; both the caller and the agent that it calls through count."""
        known = self.skills.get(call.key)
        resource = known.resource if known is not None else _guess(call.key)
        self.assumed += known is not None and not known.is_same
        callers = [call.caller, *([call.through] if call.through else [])]
        decisions = [self._decide(call, caller, resource, is_known=known is not None) for caller in callers]
        strictest = min(decisions, key=lambda decision: _ORDER.index(decision.verdict))
        limits = {policy.id: policy for decision in decisions for policy in decision.limits}
        if strictest.verdict != "limit":
            return strictest
        return self._count(strictest, call, list(limits.values()))

    def _count(self, replayed: Replayed, call: PastCall, limits: Sequence[Policy]) -> Replayed:
        """The decision about a call that is counted; calls are replayed in the order of their times."""
        counted: list[deque[float]] = []
        at = call.began_at.timestamp()
        facts: dict[CountedBy, str] = {
            "principal": call.caller,
            "origin": call.origin or "",
            "skill": f"{call.key.agent}/{call.key.skill}",
        }
        for policy in limits:
            if policy.limit is None:
                continue
            key = (policy.id, *(facts[name] for name in policy.limit.by))
            times = self._counts.setdefault(key, deque())
            while times and times[0] <= at - policy.limit.window_s:
                times.popleft()
            if len(times) >= policy.limit.calls:
                return Replayed("limited", (policy.id,), policy.limit.text)
            counted.append(times)
        for times in counted:
            times.append(at)
        return replayed

    def _decide(self, call: PastCall, caller_id: str, resource: Resource, *, is_known: bool) -> Replayed:
        unknown = call.find_unknown()

        def explain(fact: Fact) -> str:
            if fact.name == "args":
                return call.hides_argument(fact.path, is_value=fact.is_value)
            if fact.name == "skill":
                return "" if is_known else "unknown, because no listing has this version of the skill now"
            if fact.name == "groups":
                return "unknown" if None in (groups, origin_groups) else ""
            if fact.name in _NOT_RECORDED:
                return "not recorded"
            if fact.name not in _KNOWN:
                return "not recorded"
            return "not in rows of this age" if fact.name in unknown else ""

        groups = call.groups if caller_id.startswith(_SUBJECT) and caller_id == call.caller else ()
        groups = groups or self._find_groups(caller_id)
        origin_groups = groups if call.origin == caller_id else self._find_groups(call.origin or "")
        caller = Caller.of(Principal(caller_id, "token", frozenset(call.scopes or ())), groups or ())
        certain: list[Policy] = []
        uncertain: list[tuple[Policy, str]] = []
        for policy in self._select(resource, caller, is_known=is_known):
            problem = find_unknown(policy, explain)
            if not problem:
                certain.append(policy)
            elif self._may_apply(policy, explain, call, caller, resource):
                uncertain.append((policy, problem))
        facts = replace(self._read_facts(call, caller, resource, certain), origin_groups=origin_groups or ())
        decision = self._engine(certain).decide(facts)
        ids = tuple(policy.id for policy in decision.policies)
        if decision.verdict == "deny" and (ids or decision.problem):
            return Replayed("deny", ids, decision.problem)
        open_effects = _OPEN_EFFECTS[decision.verdict]
        open_policies = [(policy, problem) for policy, problem in uncertain if policy.effect in open_effects]
        if open_policies:
            first, problem = open_policies[0]
            names = tuple(policy.id for policy, _ in open_policies)
            return Replayed("cannot_tell", names, f"{first.id}: {problem}")
        if decision.verdict == "deny":
            return Replayed("deny", ids, "no policy permits it")
        return Replayed(decision.verdict, ids, limits=decision.select("limit"))

    def _find_groups(self, caller: str) -> tuple[str, ...] | None:
        if caller.startswith(_SUBJECT):
            return None  # the JWT of its call named them
        if caller not in self._groups:
            self._groups[caller] = self.find_groups(caller)
        return self._groups[caller]

    def _select(self, resource: Resource, caller: Caller, *, is_known: bool) -> list[Policy]:
        if is_known:
            return self._engine(self.policies.policies).select(resource, CALL, caller)
        containers = resource.list_containers(self.policies.groups)
        return [
            policy
            for policy in self.policies.policies
            if policy.concerns_action(CALL.id)
            and (policy.concerns(resource, containers, caller) or _may_contain(policy))
        ]

    def _may_apply(
        self,
        policy: Policy,
        explain: Callable[[Fact], str],
        call: PastCall,
        caller: Caller,
        resource: Resource,
    ) -> bool:
        """Whether a policy that reads unknown facts applies to the call for some of their values."""
        weakened = weaken(policy, explain)
        key = (policy.id, weakened.body.text)
        engine = self._weakened.get(key)
        if engine is None:
            if len(self._weakened) >= _KEPT:
                self._weakened.clear()
            engine = self._weakened[key] = Engine(
                replace(self.policies, policies=(weakened,), default="allow")
            )
        return engine.decide(self._read_facts(call, caller, resource, [weakened])).verdict != "allow"

    def _engine(self, policies: Sequence[Policy]) -> Engine:
        key = tuple(policy.id for policy in policies)
        engine = self._engines.get(key)
        if engine is None:
            if len(self._engines) >= _KEPT:
                self._engines.clear()
            engine = self._engines[key] = Engine(replace(self.policies, policies=tuple(policies)))
        return engine

    def _read_facts(
        self, call: PastCall, caller: Caller, resource: Resource, policies: Iterable[Policy]
    ) -> CallFacts:
        names = {name for policy in policies for name in policy.facts}
        now = call.began_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        facts: dict[str, Any] = {
            "endpoint": call.endpoint,
            "now": {"__extn": {"fn": "datetime", "arg": now}},
            "depth": call.depth,
            "chain": [entity_value(name_principal(name)) for name in call.chain or ()],
            "trusted": bool(call.trusted),
            "run": bool(call.run),
            **render_time(call.began_at, self.zone),
        }
        context = {name: facts[name] for name in names if name in facts}
        origin = call.origin or "" if "origin" in names else None
        return CallFacts(caller, resource, CALL, call.render_arguments(), context, origin)


def is_decided(call: PastCall, relays: frozenset[str]) -> bool:
    """Whether policies decide about such a call: not about relays of the hub, nor the owner's answers."""
    return not (call.key.agent == HUB_NAME and call.key.skill in relays | OWNERS_SKILLS)


def is_of_owner(call: PastCall) -> bool:
    """Whether the owner has called a skill that no policy forbids to an owner."""
    is_owner = call.caller == LOCAL.id or SCOPE in (call.scopes or ())
    return is_owner and call.key.agent == HUB_NAME and call.key.skill in OWNERS_SKILLS


@dataclass(slots=True)
class _Group:
    """Calls of one caller and skill that are decided alike."""

    count: int = 0
    example: str = ""
    last_at: str = ""


@dataclass(slots=True, eq=False)
class ReplayReport:
    """Counts what a replay decides, and groups the calls that it decides otherwise."""

    counts: dict[Change, int] = field(default_factory=lambda: dict.fromkeys(get_args(Change), 0))
    reasons: dict[str, int] = field(default_factory=dict)
    _groups: dict[tuple[Any, ...], _Group] = field(default_factory=dict)

    def add(self, call: PastCall, replayed: Replayed) -> None:
        change = _compare(call.past, replayed.verdict)
        self.counts[change] += 1
        if change == "cannot_tell":
            self.reasons[replayed.reason] = self.reasons.get(replayed.reason, 0) + 1
        if change == "same":
            return
        skill = f"{call.key.agent}/{call.key.skill}"
        key = (change, call.caller, skill, call.past, replayed.policies, replayed.reason)
        group = self._groups.setdefault(key, _Group())
        group.count += 1
        at = call.began_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        if at >= group.last_at:
            group.last_at, group.example = at, call.id

    def as_json(self) -> dict[str, Any]:
        """Counts, why some calls cannot be told, and the groups, those with most calls first."""
        order: tuple[Change, ...] = ("denied", "asked", "limited", "redacted", "cannot_tell", "allowed")
        ordered = sorted(self._groups.items(), key=lambda item: (order.index(item[0][0]), -item[1].count))
        keys = ("change", "caller", "skill", "before", "policies", "reason")
        rows = [
            {
                **dict(zip(keys, key, strict=True)),
                "policies": list(key[4]),
                "calls": group.count,
                "last_at": group.last_at,
                "example": group.example,
            }
            for key, group in ordered[:MAX_ROWS]
        ]
        return {
            "counts": dict(self.counts),
            "reasons": dict(sorted(self.reasons.items(), key=lambda item: -item[1])[:MAX_ROWS]),
            "rows": rows,
            "further_rows": max(0, len(ordered) - MAX_ROWS),
        }


def _compare(past: Past, verdict: Verdict) -> Change:
    # a call that is only counted runs as before
    return "same" if past == ("allow" if verdict == "limit" else verdict) else _CHANGES[verdict]


def _guess(key: SkillKey) -> Resource:
    """The resource of a skill of which only the names are known."""
    return Resource.make(key.agent, key.version, "", "", Skill(key.skill))


def _may_contain(policy: Policy) -> bool:
    resource = policy.body.resource
    entity = resource.get("entity") or resource.get("in", {}).get("entity")
    return entity is not None and entity["type"].rpartition("::")[2] in ("Tag", "Source")
