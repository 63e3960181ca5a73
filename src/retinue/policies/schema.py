"""The Cedar schema of the namespace ``Retinue``, against which every policy is checked strictly.

A policy is checked alone, with the arguments that it reads as optional attributes of the types that it
expects. So it must ask for an argument with ``has`` before it reads it: a policy that errs is skipped by the
engine, and a forbid that is skipped forbids nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import cedarpy

from retinue.policies.entities import ADD_IMPORT, ANSWER, NAMESPACE, PUBLISH, START
from retinue.policies.reads import Path, ValueType

_TEXT = {"type": "String"}
_BOOLEAN = {"type": "Boolean"}
_AGENT = {"type": "Entity", "name": "Agent"}
_TYPES: Mapping[ValueType, Any] = {
    "present": _BOOLEAN,
    "integer": {"type": "Long"},
    "decimal": {"type": "Extension", "name": "decimal"},
    "text": _TEXT,
    "boolean": _BOOLEAN,
    "integers": {"type": "Set", "element": {"type": "Long"}},
    "texts": {"type": "Set", "element": _TEXT},
}

_FACTS: Mapping[str, Any] = {
    "endpoint": _TEXT,
    "origin": {"type": "Entity", "name": "Caller"},
    "now": {"type": "Extension", "name": "datetime"},
    "depth": {"type": "Long"},
    "chain": {"type": "Set", "element": _AGENT},
    "trusted": _BOOLEAN,
    "run": _BOOLEAN,
    "can_ask": _BOOLEAN,
    "sources": {"type": "Set", "element": _AGENT},
    "foreign": {"type": "Set", "element": _AGENT},
    "hour": {"type": "Long"},
    "weekday": {"type": "Long"},
    "calls_left": {"type": "Long", "required": False},
    "tokens_left": {"type": "Long", "required": False},
    "dollars_left": {"type": "Extension", "name": "decimal", "required": False},
}
"""The attributes of the context of a call besides ``args``; what is left of a budget only where one is."""

_ITEMS = ("Skill", "Resource", "Prompt")
_CALLER = {"name": _TEXT, "scopes": {"type": "Set", "element": _TEXT}}
_SKILL = {
    **dict.fromkeys(("name", "version", "source", "trust", "visibility"), _TEXT),
    **dict.fromkeys(("read_only", "destructive", "idempotent", "open_world", "runs_code"), _BOOLEAN),
    "agent": _AGENT,
    "labels": {"type": "Set", "element": _TEXT},
}


def find_errors(
    policy: Mapping[str, Any], reads: Mapping[Path, ValueType], *, is_owners: bool = False
) -> list[str]:
    """The errors of one policy in its JSON form; [] for a valid one.

    They are sorted, because the engine's order varies. ``is_owners`` tells that the policy is about owner
    actions.
    """
    bodies = {"templates": {}, "staticPolicies": {"policy": policy}, "templateLinks": []}
    text = cedarpy.policies_from_json_str(json.dumps(bodies))
    result = cedarpy.validate_policies(text, json.dumps(make_schema(reads, is_owners=is_owners)))
    return sorted(_plain(error.error) for error in result.errors)


def make_schema(reads: Mapping[Path, ValueType], *, is_owners: bool = False) -> dict[str, Any]:
    """The schema in which a call has these arguments; with ``is_owners`` that of the owner actions.

    These are apart, so that a policy that names no action may read what all items have.
    """
    context = _record({**_FACTS, "args": _arguments(reads)})
    types = {
        "Group": {},
        "Tag": {},
        "Source": {},
        "Agent": {"memberOfTypes": ["Group"], "shape": _record(_CALLER)},
        "Caller": {"memberOfTypes": ["Group"], "shape": _record(_CALLER)},
        **{kind: {"memberOfTypes": ["Agent", "Tag", "Source"], "shape": _record(_SKILL)} for kind in _ITEMS},
    }
    if is_owners:
        types["Artifact"] = {"shape": _record({"name": _TEXT})}
        types["Approval"] = {"memberOfTypes": ["Agent"], "shape": _record({"name": _TEXT, "agent": _AGENT})}
        types["Import"] = {"shape": _record({"name": _TEXT, "kind": _TEXT, "place": _TEXT})}
        types["Workflow"] = {"shape": _record({"name": _TEXT, "inline": _BOOLEAN})}
        empty = _record({})
        actions = {
            PUBLISH.id: _action(empty, ["Artifact"], parent=None),
            ANSWER.id: _action(empty, ["Approval"], parent=None),
            ADD_IMPORT.id: _action(empty, ["Import"], parent=None),
            START.id: _action(empty, ["Workflow"], parent=None),
        }
        return {NAMESPACE: {"entityTypes": types, "actions": actions}}
    return {
        NAMESPACE: {
            "entityTypes": types,
            "actions": {
                "use": {},
                "call": _action(context, ["Skill"]),
                "read": _action(context, ["Resource"]),
                "prompt": _action(context, ["Prompt"]),
                "list": _action(_record({}), _ITEMS),
            },
        }
    }


def _action(context: dict[str, Any], items: Sequence[str], parent: str | None = "use") -> dict[str, Any]:
    applies = {"principalTypes": ["Caller", "Agent"], "resourceTypes": list(items), "context": context}
    return {"memberOf": [{"id": parent}] if parent else [], "appliesTo": applies}


def _record(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Record", "attributes": dict(attributes)}


def _arguments(reads: Mapping[Path, ValueType]) -> dict[str, Any]:
    root = _record({})
    for path, kind in reads.items():
        place = root
        for name in path[:-1]:
            place = place["attributes"].setdefault(name, {**_record({}), "required": False})
        place["attributes"][path[-1]] = {**_TYPES[kind], "required": False}
    return root


def _plain(error: str) -> str:
    """The error without the name that the policy has in the check."""
    return error.replace("for policy `policy0`, ", "")
