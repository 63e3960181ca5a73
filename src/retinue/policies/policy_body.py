"""The JSON form of one policy, kept as text.

A tree of objects for each of a thousand policies would lengthen each garbage collection by 50 ms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """A policy without annotations: its scopes, and the whole as JSON ``text``.

    ``item_attributes`` are those that its conditions read of the resource, None where they use the resource
    itself. Policies of an equal ``rule`` decide alike about the items of their scopes.
    """

    text: str
    principal: Mapping[str, Any]
    action: Mapping[str, Any]
    resource: Mapping[str, Any]
    has_conditions: bool
    item_attributes: tuple[str, ...] | None
    rule: str

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> PolicyBody:
        """The body of a policy in its JSON form."""
        names: set[str] = set()
        conditions = tree["conditions"]
        is_known = all(_find_attributes(part["body"], names) for part in conditions)
        kind = tree["resource"].get("entity_type")
        rule = json.dumps([tree["effect"], tree["principal"], kind, conditions], sort_keys=True)
        return cls(
            json.dumps(tree, sort_keys=True),
            tree["principal"],
            tree["action"],
            tree["resource"],
            bool(conditions),
            tuple(sorted(names)) if is_known else None,
            sha256(rule.encode()).hexdigest()[:32],
        )

    def parse(self) -> dict[str, Any]:
        """The JSON form."""
        tree: dict[str, Any] = json.loads(self.text)
        return tree


def _find_attributes(node: Any, names: set[str]) -> bool:
    """Note the attributes of the resource that an expression reads; False if it uses the resource itself."""
    if isinstance(node, list):
        return all(_find_attributes(element, names) for element in node)
    if not isinstance(node, Mapping):
        return True
    if node == {"Var": "resource"}:
        return False
    for operator in (".", "has"):
        inner = node.get(operator)
        if isinstance(inner, Mapping) and inner.get("left") == {"Var": "resource"} and "attr" in inner:
            names.add(inner["attr"])
            return True
    return all(_find_attributes(element, names) for element in node.values())
