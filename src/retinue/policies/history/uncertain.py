"""Finds what of a policy can be decided although some of the facts that it reads are unknown.

The conditions of a policy are weakened until they read known facts only: the weakened policy applies to every
call to which the policy applies, and perhaps to more. So a policy whose weakened form does not apply to a
call does not apply to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from retinue.policies.entities import GROUP, SOURCE, TAG
from retinue.policies.policy_body import PolicyBody
from retinue.policies.policy_set import Policy
from retinue.policies.reads import find_reads

Json = Mapping[str, Any]

_ALL = {"op": "All"}


class Fact(NamedTuple):
    """Something that a policy reads: ``args`` with the path of an argument, or the name of another fact.

    ``skill`` stands for all attributes and containers of the skill, besides its agent. ``is_value`` is False
    where a policy only asks whether there is a value.
    """

    name: str
    path: tuple[str, ...] = ()
    is_value: bool = True


Explain = Callable[[Fact], str]
"""Why a fact of a call is unknown; "" where it is known."""


def find_unknown(policy: Policy, explain: Explain) -> str:
    """The first fact that a policy reads and that is unknown, with the reason; "" where all are known."""
    facts = [fact for part in policy.body.parse()["conditions"] for fact in iterate_facts(part["body"])]
    if _names_containers(policy.body.resource):
        facts.append(Fact("skill"))
    if any(entity.type == GROUP for entity in policy.reads.entities):
        facts.append(Fact("groups"))
    facts += [Fact(name) for name in sorted(policy.facts - policy.reads.facts)]
    for fact in facts:
        if problem := explain(fact):
            name = ".".join(("args", *fact.path)) if fact.path else fact.name
            return f"{name} is {problem}"
    return ""


def weaken(policy: Policy, explain: Explain) -> Policy:
    """The policy as a forbid without the conditions that read unknown facts."""
    conditions, tree = [], policy.body.parse()
    for part in tree["conditions"]:
        is_when = part["kind"] == "when"
        body = _bound(part["body"], explain, upper=is_when)
        if body is not None:
            conditions.append({"kind": part["kind"], "body": body})
    resource = tree["resource"]
    if _names_containers(resource) and explain(Fact("skill")):
        resource = _ALL
    tree |= {"effect": "forbid", "conditions": conditions, "resource": resource}
    return replace(policy, effect="deny", body=PolicyBody.of(tree), reads=find_reads(tree), limit=None)


def iterate_facts(node: Any) -> Iterator[Fact]:
    """What an expression reads."""
    if isinstance(node, list):
        for inner in node:
            yield from iterate_facts(inner)
        return
    if not isinstance(node, Mapping):
        return
    for key in (".", "has"):
        if key in node and len(node) == 1:
            fact = _read_fact(node[key], is_value=key == ".")
            if fact is not None:
                yield fact
                return
    if node.get("Var") == "resource":
        # alone, as in ``resource in …``, which may ask for a tag
        yield Fact("skill")
        return
    for key, inner in node.items():
        if key != "Value":
            yield from iterate_facts(inner)


def _read_fact(operands: Json, *, is_value: bool) -> Fact | None:
    """The fact that an access to an attribute reads; None for one of something else."""
    names = [operands["attr"]]
    left = operands["left"]
    while "." in left:
        names.append(left["."]["attr"])
        left = left["."]["left"]
    names.reverse()
    variable = left.get("Var")
    if variable == "context":
        if names[0] == "args" and len(names) > 1:
            return Fact("args", tuple(names[1:]), is_value)
        return Fact(names[0])
    if variable == "resource":
        return Fact("skill" if names[0] not in ("agent", "name") else "name")
    return Fact(names[0]) if variable == "principal" else None


def _bound(node: Any, explain: Explain, *, upper: bool) -> Any:
    """An expression over known facts that is true whenever ``node`` is (``upper``), or only where it is.

    None = true (``upper``), or false.
    """
    if not any(explain(fact) for fact in iterate_facts(node)):
        return node
    ((operator, operands),) = node.items()
    if operator in ("&&", "||"):
        sides = [_bound(operands[side], explain, upper=upper) for side in ("left", "right")]
        known = [side for side in sides if side is not None]
        needs_both = (operator == "&&") != upper
        if not known or (needs_both and len(known) < 2):
            return None
        return known[0] if len(known) == 1 else {operator: {"left": known[0], "right": known[1]}}
    if operator == "!":
        inner = _bound(operands["arg"], explain, upper=not upper)
        return None if inner is None else {"!": {"arg": inner}}
    return None


def _names_containers(resource: Json) -> bool:
    """Whether the scope names something that only the listing of the agent tells."""
    entity = resource.get("entity") or resource.get("in", {}).get("entity")
    return entity is not None and entity["type"] in (TAG, SOURCE)
