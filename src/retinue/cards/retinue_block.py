"""Codec of the ``retinue`` object: the facts of a record without a field in other cards.

The pallet card has it at its top level, the A2A card as the parameters of an extension. It contains only
values that differ from the defaults, and is absent when there are none, so that a plain card stays as its
author wrote it. Unknown keys are kept in ``extra["retinue"]`` of the record or the skill. This module does no
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from retinue.core.json_values import name_shape
from retinue.core.record import AgentRecord, Endpoint, Skill, Visibility, is_visible

DIALECT = "retinue"
VERSION = 1

_RECORD_KEYS = frozenset(
    {
        "title",
        "provider",
        "endpoints",
        "traits",
        "resources",
        "prompts",
        "topics",
        "scores",
        "context_window",
        "languages",
        "resource_globs",
        "security",
        "deprecated",
        "weight",
    }
)
_SKILL_KEYS = frozenset(
    {"title", "tags", "similes", "examples", "roles", "visibility", "hints", "timeout_s", "channel", "listed"}
)


T = TypeVar("T", AgentRecord, Skill)


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    """The reader of a record, built once; building it takes longer than starting a short command."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


class BlockError(ValueError):
    """The block is malformed; the message names the field, the shape found and the remedy."""


def parse_block(record: AgentRecord, block: Any) -> AgentRecord:
    """``record`` with the facts of the block about it and its skills; raises BlockError."""
    facts = dict(_mapping(block, DIALECT))
    if facts.get("v") == VERSION:
        # The known keys of a later version are read; its version number is kept as an unknown key.
        del facts["v"]
    named = dict(_mapping(facts.pop("skills", {}), f"{DIALECT}.skills"))
    skills = tuple(
        _apply(skill, _SKILL_KEYS, named.pop(skill.id), f"{DIALECT}.skills.{skill.id}", id=skill.id)
        if skill.id in named
        else skill
        for skill in record.skills
    )
    if named:
        facts["skills"] = named
    return replace(_apply(record, _RECORD_KEYS, facts, DIALECT, name=record.name), skills=skills)


def parse_skill_block(skill: Skill, block: Any) -> Skill:
    """As `parse_block`, for one skill."""
    named = _mapping(_mapping(block, DIALECT).get("skills", {}), f"{DIALECT}.skills")
    if skill.id not in named:
        return skill
    return _apply(skill, _SKILL_KEYS, named[skill.id], f"{DIALECT}.skills.{skill.id}", id=skill.id)


def render_block(record: AgentRecord, *, scopes: frozenset[str]) -> dict[str, Any]:
    """The facts of ``record`` beyond its plain card that a reader with these scopes may see; {} = none."""
    shown = list_shown_skills(record, scopes)
    hidden = {skill.id for skill in record.skills} - {skill.id for skill in shown}
    globs = record.resource_globs
    block = _dump(
        replace(
            record,
            endpoints=() if _follow_from_url(record.endpoints) else record.endpoints,
            traits=tuple(trait for trait in record.traits if trait.skill_id not in hidden),
            resources=tuple(
                resource for resource in record.resources if _is_shown(resource.visibility, scopes)
            ),
            prompts=tuple(prompt for prompt in record.prompts if _is_shown(prompt.visibility, scopes)),
            # The names of private resources are private as well.
            resource_globs={"expose": globs["expose"]} if globs and globs.get("expose") else None,
        ),
        _RECORD_KEYS,
    )
    left = dict(record.extra.get(DIALECT, {}))
    skills = {
        skill.id: facts
        for skill in shown
        if (facts := {**_dump(skill, _SKILL_KEYS), **skill.extra.get(DIALECT, {})})
    }
    skills.update({name: facts for name, facts in left.pop("skills", {}).items() if name not in hidden})
    if skills:
        block["skills"] = skills
    return {"v": VERSION, **block, **left} if block or left else {}


def list_shown_skills(record: AgentRecord, scopes: frozenset[str]) -> tuple[Skill, ...]:
    """The skills that a card shows to a reader with these scopes; never private ones."""
    return tuple(skill for skill in record.skills if _is_shown(skill.visibility, scopes))


def _is_shown(visibility: Visibility, scopes: frozenset[str]) -> bool:
    # Private skills never leave their process, even for a reader with the scope.
    return visibility != "private" and is_visible(visibility, scopes)


def _follow_from_url(endpoints: tuple[Endpoint, ...]) -> bool:
    return len(endpoints) == 1 and endpoints[0] == Endpoint("execute", endpoints[0].url)


def _apply(described: T, keys: frozenset[str], facts: Any, at: str, **identity: str) -> T:
    facts = _mapping(facts, at)
    known = {key: value for key, value in facts.items() if key in keys and value is not None}
    left = {key: value for key, value in facts.items() if key not in known}
    if known:
        try:
            read = _adapter(type(described)).validate_json(orjson.dumps({**identity, **known}), strict=True)
        except ValidationError as error:
            raise BlockError(_explain(error, at)) from None
        described = replace(described, **{key: getattr(read, key) for key in known})
    return replace(described, extra={**described.extra, DIALECT: left}) if left else described


def _dump(thing: AgentRecord | Skill, keys: frozenset[str]) -> dict[str, Any]:
    dumped: dict[str, Any] = _adapter(type(thing)).dump_python(
        thing, mode="json", include=set(keys), exclude_defaults=True
    )
    return dumped


def _explain(error: ValidationError, at: str) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join((at, *(str(part) for part in first["loc"])))
    return f"{field} is {name_shape(first['input'])}: {first['msg'].lower()}"


def _mapping(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BlockError(f"{at} is {name_shape(value)}; make it an object, or leave it out")
    return value
