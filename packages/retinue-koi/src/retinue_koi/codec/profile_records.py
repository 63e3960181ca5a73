"""Codec of agent records and personality profiles: one agent in two forms (specification 8.3).

`cards.personality_profile` renders a record. A profile that has no trait ``retinue`` is not of a mesh; its
skills are exposed, since seed 003 has no lists of exposure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retinue.cards import personality_profile
from retinue.cards.personality_profile import BLOCK, FREE_INPUT, KOI, ShownPersonality
from retinue.cards.retinue_block import BlockError, parse_block
from retinue.core.foreign_text import strip_values
from retinue.core.record import AgentRecord, Endpoint, Skill, Trait, Visibility, is_visible
from retinue_koi.codec.orn import KoiNetNode
from retinue_koi.codec.personality import PersonalityProfile, PersonalityTrait

KOI_NET = "koi-net"
"""The protocol of the endpoint of a KOI node."""

_ADDED_KEYS = frozenset({"input_schema", "output_schema"})


def render_profile(
    record: AgentRecord,
    node_rid: KoiNetNode,
    *,
    base_url: str | None = None,
    mcp_url: str | None = None,
    with_block: bool = True,
) -> PersonalityProfile:
    """The profile of a record as callers see it that see everything but private skills.

    Without the block it is a profile as seed 003 writes it, for records whose skills are all exposed.
    Raises ValueError for a name or version that no RID can hold.
    """
    content = personality_profile.render_profile(
        record, str(node_rid), base_url=base_url, mcp_url=mcp_url, with_block=with_block
    )
    # the RID of a node may be longer than one that is read from a text
    return PersonalityProfile.model_validate({**content, "node_rid": node_rid})


def parse_profile(profile: PersonalityProfile) -> AgentRecord:
    """The record of a profile. A block that is malformed is left out; everything else is read."""
    skills: list[Skill] = []
    traits: list[Trait] = []
    block: dict[str, Any] | None = None
    facts: dict[str, Any] = {}
    for trait in profile.traits:
        if trait.is_callable:
            if all(skill.id != trait.name for skill in skills):
                skills.append(_parse_skill(trait))
                if trait.value is not None:
                    traits.append(_parse_fact(trait, skill_id=trait.name))
        elif trait.name == BLOCK and isinstance(trait.value, dict):
            block = trait.value
        else:
            facts[trait.name] = trait.value
            traits.append(_parse_fact(trait))
    endpoints = [Endpoint(KOI, profile.mcp_url)] if profile.mcp_url else []
    endpoints += [Endpoint(KOI_NET, profile.base_url)] if profile.base_url else []
    description = facts.get("description")
    extra = profile.model_extra or {}
    record = AgentRecord(
        name=profile.rid.name,
        version=profile.rid.version,
        description=description if isinstance(description, str) else "",
        topics=_read_topics(facts.get("topics")),
        scores=_read_scores(facts.get("scores")),
        endpoints=tuple(endpoints),
        skills=tuple(skills),
        traits=tuple(traits),
        extra={KOI: extra} if extra else {},
    )
    if block is None:
        return record
    marked = replace(record, skills=tuple(replace(skill, visibility="mesh") for skill in skills))
    try:
        read = parse_block(marked, {key: value for key, value in block.items() if key != "traits"})
    except BlockError:
        return record
    # where it answers is what the profile says; the block adds only /execute
    execute = [endpoint for endpoint in read.endpoints if endpoint.protocol == "execute"]
    return replace(
        read,
        endpoints=(*execute, *endpoints),
        traits=tuple(trait for trait in read.traits if not _is_repeated(trait, read)),
    )


def show_profile(profile: PersonalityProfile, scopes: frozenset[str]) -> PersonalityProfile:
    """The profile without the callable traits that callers with these scopes do not see."""
    visibilities = _visibilities_of(profile)
    if visibilities is None:
        return profile if is_visible("exposed", scopes) else _without(profile, lambda name: True)
    if all(is_visible(visibilities(trait.name), scopes) for trait in profile.traits if trait.is_callable):
        return profile
    return _without(profile, lambda name: not is_visible(visibilities(name), scopes))


def shown_personality(profile: PersonalityProfile) -> ShownPersonality:
    """The profile as lists of agents and tools show it, without hidden characters, because models read it."""
    return ShownPersonality(profile.rid.name, strip_values(profile.model_dump()))


def _read_topics(value: Any) -> tuple[str, ...]:
    is_topics = isinstance(value, list) and all(isinstance(topic, str) for topic in value)
    return tuple(value) if is_topics else ()


def _read_scores(value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict) or not value:
        return None
    numbers = all(isinstance(item, int | float) and not isinstance(item, bool) for item in value.values())
    return dict(value) if numbers else None


def _visibilities_of(profile: PersonalityProfile) -> Any:
    block = profile.get_trait(BLOCK)
    if block is None or block.is_callable or not isinstance(block.value, dict):
        return None
    named = block.value.get("skills")
    skills: Mapping[str, Any] = named if isinstance(named, dict) else {}

    def visibility(name: str) -> Visibility:
        facts = skills.get(name)
        visibility = facts.get("visibility") if isinstance(facts, dict) else None
        return visibility if visibility in ("private", "exposed") else "mesh"

    return visibility


def _without(profile: PersonalityProfile, is_hidden: Any) -> PersonalityProfile:
    kept = [trait for trait in profile.traits if not (trait.is_callable and is_hidden(trait.name))]
    hidden = {trait.name for trait in profile.traits if trait.is_callable and is_hidden(trait.name)}
    for position, trait in enumerate(kept):
        if (
            trait.name == BLOCK
            and isinstance(trait.value, dict)
            and isinstance(trait.value.get("skills"), dict)
        ):
            skills = {name: facts for name, facts in trait.value["skills"].items() if name not in hidden}
            kept[position] = trait.model_copy(update={"value": {**trait.value, "skills": skills}})
    return profile.model_copy(update={"traits": kept})


def _parse_skill(trait: PersonalityTrait) -> Skill:
    extra = {name: value for name, value in (trait.model_extra or {}).items() if name not in _ADDED_KEYS}
    return Skill(
        id=trait.name,
        description=trait.description,
        input_schema=FREE_INPUT if (schema := trait.find_schema("input_schema")) is None else schema,
        output_schema=trait.find_schema("output_schema"),
        visibility="exposed",
        extra={KOI: extra} if extra else {},
    )


def _parse_fact(trait: PersonalityTrait, skill_id: str | None = None) -> Trait:
    extra = dict(trait.model_extra or {}) if skill_id is None else {}
    return Trait(
        name=trait.name,
        description=trait.description,
        type=trait.type,
        value=trait.value,
        skill_id=skill_id,
        extra={KOI: extra} if extra else {},
    )


def _is_repeated(trait: Trait, record: AgentRecord) -> bool:
    """Whether a plain trait only repeats the record's description, topics or scores."""
    if trait.skill_id is not None or trait.extra or trait.description != f"{trait.name} trait":
        return False
    repeated = {
        "description": record.description,
        "topics": list(record.topics),
        "scores": dict(record.scores or {}),
    }
    return trait.name in repeated and trait.value == repeated[trait.name] and bool(trait.value)
