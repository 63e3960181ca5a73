"""Tells callers in lists which skills ask a person, whatever the arguments are.

Only policies count that read nothing else than the skill and who calls, because a list knows no more. So a
skill that is not marked may ask as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from retinue.core.record import Candidate, Skill
from retinue.policies.decision import CallFacts, Engine
from retinue.policies.entities import CALL, Caller, Resource
from retinue.policies.policy_set import Policy
from retinue.policies.reads import EntityId

NOTE = "[asks a person first]"
"""The prefix of the description of such a skill."""

_KNOWN = frozenset({"origin"})
"""The facts of a call that a list knows, if the caller calls itself."""

_KEPT = 20_000


@dataclass(slots=True, eq=False)
class AskingPolicies:
    """The policies of one set that ask without reading arguments; answers are kept for the next lists."""

    engine: Engine
    policies: tuple[Policy, ...]
    _asks: dict[tuple[Caller, Caller, Resource], bool] = field(default_factory=dict)
    _numbers: dict[EntityId | None, list[int]] = field(default_factory=dict)
    """The numbers of the policies by the entity of their scope, because each tool of a list asks for them."""

    @classmethod
    def of(cls, engine: Engine) -> AskingPolicies:
        policies = tuple(
            policy
            for policy in engine.policies.policies
            if policy.effect == "approve"
            and not policy.is_watched
            and not policy.reads.arguments
            and policy.facts <= _KNOWN
            and policy.concerns_action(CALL.id)
        )
        asking = cls(engine, policies)
        for number, policy in enumerate(policies):
            asking._numbers.setdefault(policy.scope_entity, []).append(number)
        return asking

    def asks(self, caller: Caller, origin: Caller, agent: Candidate, skill: Skill) -> bool:
        """Whether a call of this skill asks a person; ``origin`` is for whom it is made."""
        resource = Resource.of(agent, skill)
        key = (caller, origin, resource)
        known = self._asks.get(key)
        if known is None:
            if len(self._asks) >= _KEPT:
                self._asks.clear()
            known = self._asks[key] = self._decide(caller, origin, resource)
        return known

    def forget(self) -> None:
        """Drop what is kept for further lists."""
        self._asks.clear()

    def _decide(self, caller: Caller, origin: Caller, resource: Resource) -> bool:
        containers = resource.list_containers(self.engine.policies.groups)
        scopes = (None, resource.id, *containers)
        numbers = sorted({number for scope in scopes for number in self._numbers.get(scope, ())})
        concerned = [
            policy
            for policy in map(self.policies.__getitem__, numbers)
            if policy.concerns(resource, containers, caller)
        ]
        if not concerned:
            return False
        reads_origin = any("origin" in policy.facts for policy in concerned)
        name = origin.id.id if reads_origin else None
        facts = CallFacts(caller, resource, CALL, {}, {}, name, origin.groups)
        return self.engine.decide_by(concerned, facts, permits=True).verdict == "approve"


@dataclass(frozen=True, slots=True)
class AskingSkills:
    """What lists tell one caller; equal for one caller and set of policies.

    ``callers`` has the agent that calls for it, too; a person is asked where policies about either ask.
    """

    callers: tuple[Caller, ...]
    policies: AskingPolicies

    def __call__(self, agent: Candidate, skill: Skill) -> str:
        origin = self.callers[0]
        asks = any(self.policies.asks(caller, origin, agent, skill) for caller in self.callers)
        return NOTE if asks else ""
