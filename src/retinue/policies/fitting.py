"""Compares policies with the skills of a mesh: names that nothing has, arguments of other types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retinue.core.record import Listing, Skill
from retinue.core.text import suggest
from retinue.policies.entities import (
    AGENT,
    CALLER,
    GROUP,
    OWNER_ACTIONS,
    PROMPT,
    RESOURCE,
    SKILL,
    SOURCE,
    TAG,
    Caller,
    Resource,
)
from retinue.policies.policy_set import Policy, PolicySet
from retinue.policies.reads import EntityId, Path, ValueType

_JSON_TYPES: Mapping[ValueType, frozenset[str]] = {
    "integer": frozenset({"integer"}),
    "decimal": frozenset({"integer", "number"}),
    "text": frozenset({"string"}),
    "boolean": frozenset({"boolean"}),
    "integers": frozenset({"array"}),
    "texts": frozenset({"array"}),
}


class Finding(NamedTuple):
    """One thing of a policy that does not fit the mesh."""

    policy: str
    problem: str


@dataclass(slots=True)
class MeshFit:
    """Collects the skills of a mesh, listing by listing, and compares the policies with them."""

    policies: PolicySet
    _known: dict[str, set[str]] = field(default_factory=dict)
    _matched: set[str] = field(default_factory=set)
    _findings: dict[Finding, None] = field(default_factory=dict)

    def add(self, listing: Listing) -> None:
        """Compare the skills of one agent."""
        for skill in listing.record.skills:
            resource = Resource.of(listing, skill)
            for entity in (resource.id, *resource.parents):
                self._known.setdefault(entity.type, set()).add(entity.id)
            containers = resource.list_containers(self.policies.groups)
            for policy in self.policies.policies:
                # a team binds the calls of its agents, too
                caller = None if policy.agents is None else _any_agent_of(policy)
                if policy.concerns(resource, containers, caller):
                    self._matched.add(policy.id)
                    if _names_skills(policy):
                        self._compare(policy, resource.id, skill)

    def list_findings(self) -> list[Finding]:
        """The findings, in the order of the policies."""
        findings = list(self._findings)
        covering = [rule for rule in self.policies.policies if not rule.body.has_conditions]
        earlier_ids: set[str] = set()
        for policy in self.policies.policies:
            findings += [
                Finding(policy.id, problem)
                for entity in sorted(policy.reads.entities)
                if (problem := self._find_unknown(entity))
            ]
            if policy.id not in self._matched and _concerns_skills(policy):
                findings.append(Finding(policy.id, "it concerns no skill of this mesh"))
            if policy.effect == "permit" and self.policies.default == "allow":
                findings.append(
                    Finding(
                        policy.id, "a permit changes nothing while policy.default is allow; write a forbid"
                    )
                )
            findings += [
                Finding(
                    policy.id, f"{other.id} {_COVERED.get(policy.effect, 'forbids all that it asks about')}"
                )
                for other in covering
                # of two that are equal, the second is told
                if _covers(other, policy) and (other.id in earlier_ids or not _covers(policy, other))
            ]
            earlier_ids.add(policy.id)
        order = {policy.id: number for number, policy in enumerate(self.policies.policies)}
        return sorted(dict.fromkeys(findings), key=lambda finding: order[finding.policy])

    def _find_unknown(self, entity: EntityId) -> str:
        if entity.type == GROUP:
            names = set(self.policies.groups)
        elif entity.type in (SKILL, AGENT, TAG, SOURCE):
            names = self._known.get(entity.type, set())
        elif entity.type == CALLER and ":" not in entity.id and entity.id not in _CALLERS:
            return f"{entity.id!r} is no id of a caller; write token:NAME, jwt:SUBJECT, local or anonymous"
        else:
            return ""
        if entity.id in names:
            return ""
        kind = entity.type.rpartition("::")[2].lower()
        near = suggest(entity.id, names, limit=1)
        if kind == "group" and not near:
            return ""  # a token or a JWT may name it
        return f"no {kind} is named {entity.id!r}" + (f"; did you mean {near[0]!r}?" if near else "")

    def _compare(self, policy: Policy, resource: EntityId, skill: Skill) -> None:
        for path, expected in policy.reads.arguments.items():
            problem = _find_misfit(skill.input_schema, path, expected)
            if problem:
                self._findings[Finding(policy.id, f"{resource.id}: {problem}")] = None


def _any_agent_of(policy: Policy) -> Caller:
    """An agent of the team of a policy."""
    return Caller(EntityId(AGENT, min(policy.agents or (), default="")), (), (), policy.team)


_CALLERS = frozenset({"local", "anonymous", "mesh", "stdio"})


def _concerns_skills(policy: Policy) -> bool:
    """Whether the policy is about skills; resources and prompts of agents are not in their cards."""
    scope = policy.body.resource
    named = scope.get("entity_type") or (scope.get("entity") or {}).get("type")
    return named not in (RESOURCE, PROMPT) and any(map(policy.concerns_action, ("call", "list")))


def _names_skills(policy: Policy) -> bool:
    """Whether the policy is about one skill, so that its arguments are known."""
    return bool(policy.body.resource["op"] == "==")


def _find_misfit(schema: Any, path: Path, expected: ValueType) -> str:
    """Why the skill has no such argument, or one of another type; "" where it fits or the schema is open."""
    for depth, name in enumerate(path):
        if not isinstance(schema, Mapping) or "$ref" in schema:
            return ""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return ""
        if name not in properties:
            if schema.get("additionalProperties") is not False and depth:
                return ""
            near = suggest(name, properties, limit=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"it has no argument {'.'.join(path[: depth + 1])}{hint}"
        schema = properties[name]
    types = schema.get("type") if isinstance(schema, Mapping) else None
    named = (
        {types}
        if isinstance(types, str)
        else {type_name for type_name in types or () if isinstance(type_name, str)}
    )
    fitting = _JSON_TYPES.get(expected)
    if not named or fitting is None or named & fitting:
        if expected == "integer" and "number" in named:
            return f'{".".join(path)} is a number: compare it with decimal("1.0")'
        return ""
    return f"{'.'.join(path)} is {' or '.join(sorted(named))}, and the policy reads {expected}"


def _covers(rule: Policy, other: Policy) -> bool:
    """Whether a forbid without conditions denies every call that the other policy concerns."""
    if rule.effect != "deny" or rule.is_watched or rule.body.has_conditions:
        return False
    if rule is other or rule.agents not in (None, other.agents):
        return False
    if any(map(other.concerns_action, OWNER_ACTIONS)):
        return False
    used = filter(other.concerns_action, ("call", "read", "prompt", "list"))
    principal = rule.body.principal
    return (
        (principal["op"] == "All" or principal == other.body.principal)
        and all(map(rule.concerns_action, used))
        and (rule.body.resource == other.body.resource or _holds(rule, other))
    )


def _holds(rule: Policy, other: Policy) -> bool:
    """Whether the scope of a rule is all resources, or the agent of the item that the other one names."""
    if rule.body.resource["op"] == "All":
        return True
    agent, item = rule.scope_entity, other.scope_entity
    if agent is None or item is None or (agent.type, rule.body.resource["op"]) != (AGENT, "in"):
        return False
    return item.type in (SKILL, RESOURCE, PROMPT) and item.id.startswith(f"{agent.id.replace('/', '%2F')}/")


_COVERED = {
    "permit": "forbids all that it permits",
    "approved": "forbids all that it permits",
    "deny": "forbids all that it forbids",
}
