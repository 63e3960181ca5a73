"""Decides about calls by a set of policies.

Rules are permits and forbids, and decide first. Obligations are forbids with an effect, and are read after an
allow. Whatever keeps a policy from being evaluated denies the call: the engine skips a policy that errs, and
answers as if it were not there.

| rules | obligations | decision |
|---|---|---|
| an error | | deny |
| deny | | deny |
| allow | an error | deny |
| allow | approve, and any other | approve |
| allow | limit, and redact or none | limit |
| allow | redact | redact |
| allow | none | allow |

The decision has the name of the strictest obligation; all that apply are met.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import cedarpy
import orjson

from retinue.mesh.permissions import matches
from retinue.policies.entities import (
    ACTIONS,
    AGENT,
    CALL,
    GROUP,
    LIST,
    PROMPT,
    RESOURCE,
    SKILL,
    Caller,
    Resource,
    entity_value,
    name_origin,
    normalize,
)
from retinue.policies.policy_set import OBLIGATIONS, Effect, Policy, PolicySet
from retinue.policies.reads import EntityId, Path, ValueType
from retinue.policies.values import UnmappableError, project

_BUILT_IN = json.dumps(
    {
        "effect": "permit",
        "principal": {"op": "All"},
        "action": {"op": "All"},
        "resource": {"op": "All"},
        "conditions": [],
    }
)
"""Permits everything that no policy forbids."""

_BUILT_IN_ID = "retinue:default"
MANY = 100
"""Policies whose handle takes 3 ms to make; that of more is made in a thread."""

_KEPT = 2_000
"""Cut sets, and entities of calls, that are kept for the next call."""

Verdict = Literal["allow", "redact", "limit", "approve", "deny"]
"""From the mildest to the strictest."""

_STRICTEST_FIRST: tuple[Verdict, ...] = ("approve", "limit", "redact")
"""The verdicts of obligations."""

_STRICTNESS: Mapping[Verdict, int] = {verdict: place for place, verdict in enumerate(get_args(Verdict))}


@dataclass(frozen=True, slots=True)
class Decision:
    """What policies decide about one call. ``policies`` are those that decided.

    ``problem`` says why they could not be evaluated, "" if they could. ``would_be`` is the verdict that the
    watched policies would have led to, None where it is the same.
    """

    verdict: Verdict
    policies: tuple[Policy, ...] = ()
    problem: str = ""
    would_be: Decision | None = None

    def select(self, effect: Effect) -> tuple[Policy, ...]:
        """The policies with an effect among those that decided."""
        return tuple(policy for policy in self.policies if policy.effect == effect)

    def combine(self, other: Decision) -> Decision:
        """The decision about a call that both must permit: the stricter one, with all obligations."""
        first, second = sorted((self, other), key=lambda each: _STRICTNESS[each.verdict], reverse=True)
        if first.verdict == "deny" or second.verdict == "allow":
            return replace(first, would_be=first.would_be or second.would_be)
        policies = {policy.id: policy for policy in (*first.policies, *second.policies)}
        return replace(first, policies=tuple(policies.values()), would_be=first.would_be or second.would_be)


ALLOWED = Decision("allow")

_PANIC = "PanicException"
"""The class of a fault in the engine, which is no Exception, and which no module exports."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The facts of one call; ``context`` has those facts that some policy reads, by their names.

    ``origin`` is the id of the principal that began the chain of calls, "" where the chain does not tell,
    None where no policy reads it. ``origin_groups`` are the groups of its tokens, None if they are unknown.
    ``is_direct`` = no agent calls for the caller; the yes for similar calls counts for such calls only.
    """

    caller: Caller
    resource: Resource
    action: EntityId = CALL
    arguments: Any = None
    context: Mapping[str, Any] = field(default_factory=dict)
    origin: str | None = None
    origin_groups: tuple[str, ...] | None = ()
    is_direct: bool = True


@dataclass(frozen=True, slots=True)
class _Rules:
    """Policies that are decided together, with the built-in permit where it belongs to them."""

    policies: Mapping[str, Policy]
    handle: cedarpy.PolicySet

    @classmethod
    def make(cls, policies: Sequence[Policy], *, permits: bool) -> _Rules:
        bodies = {policy.id: policy.body.text for policy in policies}
        if permits:
            bodies[_BUILT_IN_ID] = _BUILT_IN
        members = ",".join(f"{json.dumps(name)}:{body}" for name, body in bodies.items())
        text = f'{{"templates":{{}},"staticPolicies":{{{members}}},"templateLinks":[]}}'
        handle = cedarpy.PolicySet.from_json_str(text, release_gil=len(policies) > MANY)
        return cls({policy.id: policy for policy in policies}, handle)

    def evaluate(self, request: dict[str, Any], entities: cedarpy.Entities) -> Decision:
        """Allow or deny."""
        answer = cedarpy.is_authorized(request, self.handle, entities)
        errors = answer.diagnostics.errors
        if errors or answer.decision is cedarpy.Decision.NoDecision:
            return Decision("deny", problem="; ".join(errors) or "the policies were not evaluated")
        reasons = answer.diagnostics.reasons
        policies = tuple(
            self.policies[policy_id] for policy_id in sorted(reasons) if policy_id in self.policies
        )
        return Decision("allow" if answer.decision is cedarpy.Decision.Allow else "deny", policies)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The policies that may apply to one skill and action."""

    rules: _Rules | None
    obligations: _Rules | None
    arguments: Mapping[Path, ValueType]
    facts: frozenset[str] = frozenset()
    names_groups: bool = False
    conflict: str = ""
    approved: tuple[tuple[Policy, _Rules], ...] = ()

    @classmethod
    def make(cls, policies: Sequence[Policy], *, permits: bool) -> _Cut:
        arguments: dict[Path, ValueType] = {}
        conflict = ""
        # each is evaluated alone, so that none changes what other policies decide
        yes = [policy for policy in policies if policy.effect == "approved"]
        policies = [policy for policy in policies if policy.effect != "approved"]
        for policy in policies:
            for path, kind in policy.reads.arguments.items():
                known = arguments.get(path, "present")
                if "present" not in (known, kind) and known != kind:
                    conflict = f"policies read {'.'.join(path)} as {known} and as {kind} ({policy.id})"
                if path not in arguments or known == "present":
                    arguments[path] = kind
        arguments, clash = _drop_records(arguments)
        rules = [policy for policy in policies if policy.effect not in OBLIGATIONS]
        obligations = [policy for policy in policies if policy.effect in OBLIGATIONS]
        return cls(
            None if permits and not rules else _Rules.make(rules, permits=permits),
            _Rules.make(obligations, permits=True) if obligations else None,
            arguments,
            frozenset(name for policy in policies for name in policy.facts),
            any(entity.type == GROUP for policy in policies for entity in policy.reads.entities),
            conflict or clash,
            tuple((policy, _Rules.make([policy], permits=False)) for policy in yes) if obligations else (),
        )

    def decide(self, facts: CallFacts, entities: cedarpy.Entities) -> Decision:
        if self.rules is None and self.obligations is None:
            return ALLOWED
        if self.conflict:
            return Decision("deny", problem=self.conflict)
        if "sources" in self.facts and "sources" not in facts.context:
            problem = "policies read context.sources, and the chain of this call does not tell all of them"
            return Decision("deny", problem=problem)
        if "origin" in self.facts and not facts.origin:
            problem = "policies read context.origin, and the chain of this call does not tell who began it"
            return Decision("deny", problem=problem)
        if self.names_groups and None in (facts.caller.groups, facts.origin_groups):
            who = facts.caller.id.id if facts.caller.groups is None else facts.origin
            problem = f"policies name groups, and the groups of {who} are not known to this process"
            return Decision("deny", problem=problem)
        try:
            context = dict(facts.context)
            if facts.origin:
                context["origin"] = entity_value(name_origin(facts.origin))
            if facts.action != LIST:
                context["args"] = project(facts.arguments, self.arguments)
        except UnmappableError as error:
            return Decision("deny", self._find_readers(error), problem=str(error))
        request = {
            "principal": facts.caller.id._asdict(),
            "action": facts.action._asdict(),
            "resource": facts.resource.id._asdict(),
            "context": context,
        }
        decision = ALLOWED if self.rules is None else self.rules.evaluate(request, entities)
        if decision.verdict == "deny" or self.obligations is None:
            return decision
        obliged = self.obligations.evaluate(request, entities)
        if obliged.verdict == "allow" or obliged.problem:
            return obliged if obliged.problem else decision
        policies = self._apply_approved(obliged.policies, facts, request, entities)
        effects = {policy.effect for policy in policies}
        strictest: Verdict = next((verdict for verdict in _STRICTEST_FIRST if verdict in effects), "allow")
        return Decision(strictest, policies)

    def _apply_approved(
        self,
        obliged: tuple[Policy, ...],
        facts: CallFacts,
        request: Mapping[str, Any],
        entities: cedarpy.Entities,
    ) -> tuple[Policy, ...]:
        """The obligations without the questions that a person has answered, with the answers in their place.

        Who gave a yes must be an approver of the policy that asks.
        """
        asking = [policy for policy in obliged if policy.effect == "approve"]
        if not asking or not self.approved or not facts.is_direct:
            return obliged
        if not isinstance(facts.arguments, Mapping):
            return obliged
        answers = [
            policy
            for policy, rules in self.approved
            if facts.arguments.keys() <= policy.named_arguments
            and _is_permitted(policy, rules, facts, request, entities)
        ]
        approved_by = {
            policy.id: answer
            for policy in asking
            for answer in answers
            if may_approve(answer.by, policy.approvers, facts.caller.id.id)
        }
        used = {answer.id: answer for answer in approved_by.values()}
        return (*(policy for policy in obliged if policy.id not in approved_by), *used.values())

    def _find_readers(self, error: UnmappableError) -> tuple[Policy, ...]:
        """The policies that read arguments of the skill, one of which has the problem."""
        sets = [policy_set for policy_set in (self.rules, self.obligations) if policy_set is not None]
        return tuple(
            policy
            for policy_set in sets
            for policy in policy_set.policies.values()
            if any(str(error).startswith(".".join(path)) for path in policy.reads.arguments)
        )


def _is_permitted(
    policy: Policy, rules: _Rules, facts: CallFacts, request: Mapping[str, Any], entities: cedarpy.Entities
) -> bool:
    """Whether the yes of a person counts for a call; arguments of other types are another call."""
    try:
        arguments = project(facts.arguments, policy.reads.arguments)
    except UnmappableError:
        return False
    context = {**request["context"], "args": arguments}
    return rules.evaluate({**request, "context": context}, entities).verdict == "allow"


def may_approve(by: str, approvers: Sequence[str], caller: str) -> bool:
    """Whether ``by`` may answer the question of a policy about a call of ``caller``; the owner always may."""
    if by == "owner":
        return True
    if not approvers:
        return by != caller
    return any(matches(name, tuple(approvers)) for name in (by, *(("caller",) if by == caller else ())))


def _drop_records(reads: Mapping[Path, ValueType]) -> tuple[dict[Path, ValueType], str]:
    """The reads without records that some policy reads below; and a conflict, "" for none.

    A policy that asks whether there is a record needs no value of its own, because the record is passed.
    """
    kept: dict[Path, ValueType] = {}
    conflict = ""
    records = {path[:length]: path for path in reads for length in range(1, len(path))}
    for path, kind in reads.items():
        longer = records.get(path)
        if longer is None:
            kept[path] = kind
        elif kind != "present":
            conflict = f"policies read {'.'.join(path)} as {kind} and {'.'.join(longer)} as {reads[longer]}"
    return kept, conflict


@dataclass(frozen=True, slots=True)
class _SkillPolicies:
    """The policies of one skill and action: those that decide, with the watched ones, and what they read."""

    enforced: _Cut
    with_watched: _Cut | None
    facts: frozenset[str]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be evaluated."""
        cut = self.enforced
        return cut.rules is None and cut.obligations is None and self.with_watched is None


def _find_agent(policy: Policy) -> str | None:
    """The agent that the scope of a policy names, as in the ids of items; None for possibly several."""
    entity = policy.scope_entity
    if entity is None:
        return None
    if entity.type == AGENT:
        return _quote(entity.id)
    return entity.id.partition("/")[0] if entity.type in (SKILL, RESOURCE, PROMPT) else None


def _quote(agent: str) -> str:
    """The name of an agent as it stands in the ids of its items."""
    return agent.replace("/", "%2F")


RunInThread = Callable[[Callable[[], object]], Awaitable[object]]
"""Calls a function in a thread."""

_CutKey = tuple[Resource, EntityId, Caller | None]
"""What is called, how, and the caller if it has policies of its own."""


@dataclass(slots=True, eq=False)
class Engine:
    """Decides by one set of policies; handles of the engine are kept for each skill and caller."""

    policies: PolicySet
    _cuts: dict[_CutKey, _SkillPolicies] = field(default_factory=dict)
    _shared: dict[tuple[str, ...], _SkillPolicies] = field(default_factory=dict)
    _parts: dict[tuple[object, ...], _Cut] = field(default_factory=dict)
    _callers: dict[tuple[Caller, Caller | None], cedarpy.Entities] = field(default_factory=dict)
    _entities: dict[tuple[Caller, Resource, Caller | None], cedarpy.Entities] = field(default_factory=dict)
    reads_sources: bool = field(init=False)
    """Whether some policy reads what chains of calls have taken in, so that it is recorded."""
    reads_channel: bool = field(init=False)
    """Whether some policy reads whether the client of a call can ask its person."""
    masked_agents: frozenset[str] | None = field(init=False)
    """The agents, as in ids of items, whose values some policy may mask; None for any agent."""
    bound_agents: frozenset[str] = field(init=False)
    """The agents of teams whose policies bind their calls."""

    def __post_init__(self) -> None:
        policies = self.policies.policies
        self.reads_sources = any(not policy.facts.isdisjoint(("sources", "foreign")) for policy in policies)
        self.reads_channel = any("can_ask" in policy.facts for policy in policies)
        self.bound_agents = frozenset(name for policy in policies for name in policy.agents or ())
        masking = [policy for policy in policies if policy.effect == "redact" and not policy.is_watched]
        names = [_find_agent(policy) for policy in masking]
        self.masked_agents = None if None in names else frozenset(name for name in names if name)

    def forget(self) -> None:
        """Drop what is kept for further decisions, because other policies are in force."""
        for kept in (self._cuts, self._shared, self._parts, self._callers, self._entities):
            kept.clear()

    def masks(self, agent: str) -> bool:
        """Whether some policy may mask values of an agent."""
        return self.masked_agents is None or _quote(normalize(agent)) in self.masked_agents

    @property
    def narrows_lists(self) -> bool:
        """Whether some policy concerns lists, or they are empty by default."""
        return self.policies.default == "deny" or any(
            policy.concerns_action(LIST.id) and not policy.is_watched for policy in self.policies.policies
        )

    @property
    def is_large(self) -> bool:
        """Whether `prepare` may be of use."""
        return len(self.policies.policies) > MANY

    async def prepare(
        self, resource: Resource, action: EntityId, callers: Sequence[Caller], run: RunInThread
    ) -> None:
        """Make the handles for a skill while other calls run, if many policies concern it.

        The engine reads 1,000 policies in 25 ms, and keeps what it has read.
        """
        for caller in callers:
            bound = self.find_bound(caller)
            if (resource, action, bound) not in self._cuts:
                selected = self.select(resource, action, bound)
                if len(selected) > MANY:
                    # the decision takes the handles from the shared ones
                    await run(partial(self._share, selected))

    def decide(self, facts: CallFacts) -> Decision:
        """The decision about one call."""
        cut = self._cut(facts.resource, facts.action, facts.caller)
        if cut.is_empty:
            return ALLOWED
        decision = self._decide(cut.enforced, facts)
        if cut.with_watched is None:
            return decision
        try:
            other = self._decide(cut.with_watched, facts)
        except Exception as error:  # noqa: BLE001 - a watched policy never fails a call
            other = Decision("deny", problem=f"{type(error).__name__}: {error}")
        if other.verdict == decision.verdict:
            return decision
        return Decision(decision.verdict, decision.policies, decision.problem, other)

    def decide_by(self, policies: Sequence[Policy], facts: CallFacts, *, permits: bool) -> Decision:
        """The decision by these policies alone, which concern the call; ``permits`` = the default permits."""
        key = (permits, *(policy.id for policy in policies))
        cut = self._parts.get(key)
        if cut is None:
            if len(self._parts) >= _KEPT:
                self._parts.clear()
            cut = self._parts[key] = _Cut.make(policies, permits=permits)
        return self._decide(cut, facts)

    def _decide(self, cut: _Cut, facts: CallFacts) -> Decision:
        if cut.rules is None and cut.obligations is None:
            return ALLOWED
        try:
            entities = self._render(facts)
        except TypeError as error:  # half of a surrogate pair in a name has no form in UTF-8
            return Decision("deny", problem=f"a name in the call is no Unicode text: {error}")
        try:
            return cut.decide(facts, entities)
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            return Decision("deny", problem=f"the engine of policies failed: {str(error)[:200]}")

    def reads_of(self, resource: Resource, action: EntityId, caller: Caller) -> frozenset[str]:
        """The facts of the context, besides arguments, that policies about this skill and caller read."""
        return self._cut(resource, action, caller).facts

    def select(self, resource: Resource, action: EntityId, caller: Caller | None = None) -> list[Policy]:
        """The policies that may apply to a skill and an action; those of a team also for its ``caller``."""
        containers = resource.list_containers(self.policies.groups)
        return [
            policy
            for policy in self.policies.policies
            if policy.concerns_action(action.id) and policy.concerns(resource, containers, caller)
        ]

    def _cut(self, resource: Resource, action: EntityId, caller: Caller) -> _SkillPolicies:
        bound = self.find_bound(caller)
        cut = self._cuts.get((resource, action, bound))
        if cut is None:
            cut = self._share(self.select(resource, action, bound))
            self._keep((resource, action, bound), cut)
        return cut

    def find_bound(self, caller: Caller) -> Caller | None:
        """The caller, with its team only, if it has policies of its own, as only agents of teams have."""
        is_bound = caller.id.type == AGENT and caller.id.id in self.bound_agents
        return Caller(caller.id, (), (), caller.team) if is_bound else None

    def _keep(self, key: _CutKey, cut: _SkillPolicies) -> None:
        if len(self._cuts) >= _KEPT:
            self._cuts.clear()
        self._cuts[key] = cut

    def _share(self, selected: Sequence[Policy]) -> _SkillPolicies:
        """The handles of these policies, which most skills of a mesh have in common."""
        names = tuple(policy.id for policy in selected)
        cut = self._shared.get(names)
        if cut is None:
            permits = self.policies.default == "allow"
            enforced = [policy for policy in selected if not policy.is_watched]
            watched = None if len(enforced) == len(selected) else _Cut.make(selected, permits=permits)
            facts = frozenset(name for policy in selected for name in policy.facts)
            cut = _SkillPolicies(_Cut.make(enforced, permits=permits), watched, facts)
            if len(self._shared) >= _KEPT:
                self._shared.clear()
            self._shared[names] = cut
        return cut

    def _render(self, facts: CallFacts) -> cedarpy.Entities:
        caller, resource = facts.caller, facts.resource
        origin = Caller(name_origin(facts.origin), (), facts.origin_groups) if facts.origin else None
        entities = self._entities.get((caller, resource, origin))
        if entities is None:
            if len(self._entities) >= _KEPT:
                self._entities.clear()
            callers = self._render_callers(caller, origin)
            # an agent that calls itself is in the entities already
            others = [entity for entity in resource.entities if entity != caller.id]
            rendered = [resource.render(entity, self.policies.groups) for entity in others]
            text = orjson.dumps(rendered).decode()
            entities = self._entities[caller, resource, origin] = callers.with_added_json_str(text)
        return entities

    def _render_callers(self, caller: Caller, origin: Caller | None) -> cedarpy.Entities:
        """The entities of a caller and the actions, to which those of a skill are added for each call."""
        entities = self._callers.get((caller, origin))
        if entities is None:
            if len(self._callers) >= _KEPT:
                self._callers.clear()
            callers = [caller] if origin is None else [caller, origin]
            rendered = [principal.render(self.policies.groups) for principal in callers]
            # a caller that begins the chain is one entity
            by_id = {tuple(entity["uid"].values()): entity for entity in reversed(rendered)}
            text = orjson.dumps([*by_id.values(), *ACTIONS]).decode()
            entities = self._callers[caller, origin] = cedarpy.Entities.from_json_str(text)
        return entities
