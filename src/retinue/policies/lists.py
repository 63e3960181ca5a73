"""Decides which items of agents are in lists: once for all items that the policies cannot tell apart.

A list of tools asks about each of its items, and an evaluation by the engine takes about 50 µs. The decision
about a list depends on the caller, on the policies whose scope fits the item, and on the attributes that
these policies read, so items that are equal in these have one decision. Policies that differ only in the
item, agent or tag of their scope count as equal, because they are asked only about items that these hold.
Policies without conditions are decided here, because their scopes are all there is to them: a forbid denies
whatever the others say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from retinue.core.record import Candidate, Hints, Item, Prompt, Skill
from retinue.policies.decision import CallFacts, Engine
from retinue.policies.entities import GROUP, LIST, PROMPT, RESOURCE, SKILL, TAG, Caller, Resource, normalize
from retinue.policies.policy_set import Policy
from retinue.policies.reads import EntityId

_KEPT = 20_000
"""Decisions that are kept for the next lists."""

_DECIDING = ("permit", "deny")
_ITEM_TYPES = frozenset({SKILL, RESOURCE, PROMPT})
_HINTS = frozenset(hint.name for hint in fields(Hints))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The policies that concern an item: those without conditions, and the others.

    ``attributes`` of the item are what conditions read, None if they use the item itself, so that each item
    has its own decision. ``rules`` are the conditional policies without the entity of their scope.
    """

    plain: tuple[Policy, ...]
    conditional: tuple[Policy, ...]
    attributes: tuple[str, ...] | None
    names_groups: bool
    rules: tuple[str, ...] = ()

    @classmethod
    def make(cls, policies: Sequence[Policy]) -> _Cut:
        conditional = tuple(policy for policy in policies if policy.body.has_conditions)
        plain = tuple(policy for policy in policies if not policy.body.has_conditions)
        names_groups = any(entity.type == GROUP for policy in policies for entity in policy.reads.entities)
        names: set[str] = set()
        for policy in conditional:
            if policy.body.item_attributes is None:
                return cls(plain, conditional, None, names_groups)
            names.update(policy.body.item_attributes)
        rules = tuple(sorted({policy.body.rule for policy in conditional}))
        return cls(plain, conditional, tuple(sorted(names)), names_groups, rules)


@dataclass(frozen=True, slots=True)
class _AgentFacts:
    """What policies may read of an agent; ``numbers`` are those of the policies whose scope holds it."""

    prefix: str
    values: Mapping[str, Any]
    numbers: frozenset[int]


@dataclass(slots=True, eq=False)
class ListDecisions:
    """The decisions about lists by one set of policies."""

    engine: Engine
    _policies: tuple[Policy, ...] = ()
    _everywhere: frozenset[int] = frozenset()
    _items: dict[EntityId, set[int]] = field(default_factory=dict)
    _containers: dict[EntityId, set[int]] = field(default_factory=dict)
    _kinds: frozenset[str] = frozenset()
    _agents: dict[tuple[Any, ...], _AgentFacts] = field(default_factory=dict)
    _cuts: dict[frozenset[int], _Cut] = field(default_factory=dict)
    _decided: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policies = self.engine.policies.policies
        # obligations bind what is listed when it is used
        self._policies = tuple(
            policy
            for policy in policies
            if policy.concerns_action(LIST.id) and policy.effect in _DECIDING and not policy.is_watched
        )
        everywhere: set[int] = set()
        for number, policy in enumerate(self._policies):
            entity = policy.scope_entity
            if entity is None:
                everywhere.add(number)
            elif entity.type in _ITEM_TYPES:
                self._items.setdefault(entity, set()).add(number)
            elif policy.body.resource["op"] != "==":
                self._containers.setdefault(entity, set()).add(number)
        self._everywhere = frozenset(everywhere)
        self._kinds = frozenset(entity.type for entity in (*self._items, *self._containers))

    def decide(self, caller: Caller, agent: Candidate, item: Item) -> bool:
        """Whether an item of an agent is in the lists of a caller."""
        agent_facts = self._find_agent(agent)
        numbers = self._select(agent_facts, item)
        cut = self._cuts.get(numbers)
        if cut is None:
            if len(self._cuts) >= _KEPT:
                self._cuts.clear()
            cut = self._cuts[numbers] = _Cut.make([self._policies[number] for number in sorted(numbers)])
        if caller.groups is None and cut.names_groups:
            return False  # as a call would be denied
        permits = self._decide_plainly(caller, cut, _kind_of(item)) if cut.plain else self._default
        if permits is None or not cut.conditional:
            return bool(permits)
        key: tuple[Any, ...]
        if cut.attributes is None:
            key = (caller, numbers, permits, Resource.of(agent, item))
        else:
            values = tuple([_read(agent_facts, item, name) for name in cut.attributes])
            key = (caller, cut.rules, permits, _kind_of(item), values)
        decision = self._decided.get(key)
        if decision is None:
            if len(self._decided) >= _KEPT:
                self._decided.clear()
            decision = self._decided[key] = self._ask(caller, agent, item, cut, permits)
        return decision

    def forget(self) -> None:
        """Drop what is kept for further lists."""
        for kept in (self._agents, self._cuts, self._decided):
            kept.clear()

    @property
    def _default(self) -> bool:
        return self.engine.policies.default == "allow"

    def _ask(self, caller: Caller, agent: Candidate, item: Item, cut: _Cut, permits: bool) -> bool:
        facts = CallFacts(caller, Resource.of(agent, item), LIST)
        return self.engine.decide_by(cut.conditional, facts, permits=permits).verdict != "deny"

    def _decide_plainly(self, caller: Caller, cut: _Cut, kind: str) -> bool | None:
        """Whether policies without conditions permit, None where they deny."""
        groups = caller.list_groups(self.engine.policies.groups)
        effects = {policy.effect for policy in cut.plain if _fits(policy, caller, groups, kind)}
        return None if "deny" in effects else self._default or "permit" in effects

    def _find_agent(self, agent: Candidate) -> _AgentFacts:
        labels = tuple(sorted(agent.labels.items()))
        key = (agent.name, agent.version, agent.source, agent.trust, labels)
        facts = self._agents.get(key)
        if facts is None:
            if len(self._agents) >= _KEPT:
                self._agents.clear()
            resource = Resource.of(agent, Skill(""))
            containers = resource.list_containers(self.engine.policies.groups)
            numbers = frozenset(
                number for entity in containers for number in self._containers.get(entity, ())
            )
            values = {**dict(resource.attributes), "agent": resource.agent}
            facts = self._agents[key] = _AgentFacts(resource.id.id, values, numbers | self._everywhere)
        return facts

    def _select(self, facts: _AgentFacts, item: Item) -> frozenset[int]:
        """The numbers of the policies whose scope holds the item."""
        numbers, kind = facts.numbers, _kind_of(item)
        if kind in self._kinds:
            named = self._items.get(EntityId(kind, facts.prefix + normalize(_name_of(item))))
            numbers = numbers if named is None else numbers | named
        if TAG in self._kinds and isinstance(item, Skill):
            for tag in item.tags:
                numbers |= self._containers.get(EntityId(TAG, normalize(tag)), set())
        return numbers


def _kind_of(item: Item) -> str:
    return SKILL if isinstance(item, Skill) else PROMPT if isinstance(item, Prompt) else RESOURCE


def _name_of(item: Item) -> str:
    return item.id if isinstance(item, Skill) else item.name if isinstance(item, Prompt) else item.uri


def _read(facts: _AgentFacts, item: Item, attribute: str) -> Any:
    """The value of an attribute that policies read; equal values are equal to the policies."""
    if attribute == "name":
        return normalize(_name_of(item))
    if attribute == "visibility":
        return item.visibility
    if attribute in _HINTS:
        # those of what is read depend on the trust alone
        return getattr(item.hints, attribute) if isinstance(item, Skill) else facts.values["trust"]
    return facts.values[attribute]  # the others are those of the agent


def _fits(policy: Policy, caller: Caller, groups: Sequence[EntityId], kind: str) -> bool:
    """Whether the scopes of a policy fit a caller and the kind of an item; the item fits its entity."""
    typed = policy.body.resource.get("entity_type")
    if typed is not None and typed != kind:
        return False
    scope = policy.body.principal
    if scope.get("entity_type") not in (None, caller.id.type):
        return False
    entity = scope.get("entity") or scope.get("in", {}).get("entity")
    if entity is None:
        return True
    named = EntityId(entity["type"], entity["id"])
    return named == caller.id or (scope["op"] != "==" and named in groups)
