"""Codec of agent records as personality profiles, the JSON objects in which seed 003 shows an agent.

A skill is a callable trait of its id, with its schemas next to the seed's. Description, topics and scores
are plain traits of these names. The plain trait ``retinue`` holds the block of `cards.retinue_block`, with
the endpoint of ``/execute``, so that no fact is lost. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_URL, uuid5

from retinue.cards.retinue_block import list_shown_skills, render_block
from retinue.core.record import AgentRecord, Schema, Skill, Trait

KOI = "koi"
"""The protocol of the endpoint with ``/tools/call/{trait}``, and the key of what only profiles hold."""

FREE_INPUT: Schema = {"type": "object", "properties": {"input": {"type": "string"}}}
"""The input schema of a callable trait without one (specification 4, doubt 9)."""

BLOCK = "retinue"
DEFAULT_VERSION = "1.0"
MAX_RID_BYTES = 184
"""Maximum length in UTF-8: a KOI node names a file by the RID in base64, and file names end at 255 bytes."""

RESOURCE_TYPE = "agent_profile"
SEED_INPUT_SCHEMA = {"type": "string"}
"""The input schema of every tool in seed 003; ``inputSchema`` next to it is the schema of MCP."""

_ALL: frozenset[str] = frozenset({"mesh", "exposed"})


@dataclass(frozen=True, slots=True)
class ShownPersonality:
    """The profile of one agent as one caller sees it; ``content`` is its JSON object.

    An agent that ``is_away`` is marked as unavailable in lists of agents.
    """

    name: str
    content: Mapping[str, Any]
    is_away: bool = False

    def find_trait(self, name: str) -> Mapping[str, Any] | None:
        """The first trait of this name, or None."""
        return next((trait for trait in self.content["traits"] if trait["name"] == name), None)

    def render_resource(self) -> dict[str, Any]:
        """The agent as a resource of a list of agents."""
        resource = {
            "id": f"agent:{self.name}",
            "type": RESOURCE_TYPE,
            "description": f"Agent {self.name} personality profile",
            "url": self.content["mcp_url"],
        }
        return {**resource, "status": "unavailable"} if self.is_away else resource

    def render_content(self) -> dict[str, Any]:
        """The agent as the answer to ``/resources/read/agent:<name>``."""
        return {"id": f"agent:{self.name}", "type": RESOURCE_TYPE, "content": self.content}

    def render_tools(self, *, prefixed: bool = False, relative: bool = False) -> list[dict[str, Any]]:
        """The callable traits as tools; an agent lists its own tools with ``relative`` urls."""
        base = "" if relative else self.content["mcp_url"]
        return [
            {
                "name": f"{self.name}.{trait['name']}" if prefixed else trait["name"],
                "description": trait["description"],
                "input_schema": dict(SEED_INPUT_SCHEMA),
                "url": None
                if base is None
                else f"{base.rstrip('/')}/tools/call/{quote(trait['name'], safe='/:')}",
                "inputSchema": dict(object_schema(trait)),
            }
            for trait in self.content["traits"]
            if trait["is_callable"]
        ]


def object_schema(trait: Mapping[str, Any]) -> Schema:
    """The input schema of a callable trait, an object at its root."""
    schema = trait.get("input_schema")
    if not isinstance(schema, dict):
        return FREE_INPUT
    return schema if schema.get("type") == "object" else {"type": "object", "properties": {"input": schema}}


def personality_rid(name: str, version: str) -> str:
    """The RID of one version of an agent's personality, ``orn:agent.personality:<name>/<version>``.

    Raises ValueError for a name or version that is empty or contains a slash, and for a RID that is too long.
    """
    for field, value in (("name", name), ("version", version)):
        if not value or "/" in value:
            raise ValueError(
                f"{field} {value[:80]!r} of a personality is empty or has a slash; "
                "the RID is orn:agent.personality:<name>/<version>"
            )
    rid = f"orn:agent.personality:{name}/{version}"
    check_rid_length(rid)
    return rid


def check_rid_length(rid: str) -> None:
    """Raise ValueError for an identifier that is too long to be kept."""
    if len(rid) > MAX_RID_BYTES or len(rid.encode()) > MAX_RID_BYTES:
        raise ValueError(f"{rid[:40]!r}… has more than {MAX_RID_BYTES} bytes")


def node_rid_of_url(name: str, url: str) -> str:
    """The RID of the node of an agent that runs none: always the same for the same url."""
    return f"orn:koi-net.node:{name}+{uuid5(NAMESPACE_URL, url)}"


def render_profile(
    record: AgentRecord,
    node_rid: str,
    *,
    base_url: str | None = None,
    mcp_url: str | None = None,
    scopes: frozenset[str] = _ALL,
    with_block: bool = True,
) -> dict[str, Any]:
    """The profile of a record as callers with these scopes see it; raises ValueError as `personality_rid`.

    Without the block it is a profile as seed 003 writes it, for records whose skills are all exposed.
    """
    skills = list_shown_skills(record, scopes)
    # also the names of skills that are not shown: no fact may stand in their place
    taken = {BLOCK, *(skill.id for skill in record.skills)}
    facts = {trait.name: trait for trait in record.traits if trait.skill_id is None}
    traits = [_render_fact(trait) for trait in facts.values() if trait.name not in taken]
    values = {trait.skill_id: trait for trait in record.traits if trait.skill_id is not None}
    traits += [_render_skill(skill, values.get(skill.id)) for skill in skills]
    if with_block:
        names = {trait["name"] for trait in traits}
        for name, value in (
            ("description", record.description),
            ("topics", list(record.topics)),
            ("scores", dict(record.scores or {})),
        ):
            if value and name not in names:
                traits.append(_render_plain(name, value))
        traits.append(_render_plain(BLOCK, _render_block(record, scopes)))
    fields = {
        "rid": personality_rid(record.name, record.version or DEFAULT_VERSION),
        "node_rid": node_rid,
        "base_url": base_url,
        "mcp_url": mcp_url,
        "traits": traits,
    }
    return {**fields, **_others(record.extra.get(KOI, {}), fields)}


def _render_plain(name: str, value: Any) -> dict[str, Any]:
    return _render_trait(name, f"{name} trait", "", value)


def _render_fact(trait: Trait) -> dict[str, Any]:
    return _render_trait(
        trait.name, trait.description, trait.type, trait.value, added=trait.extra.get(KOI, {})
    )


def _render_skill(skill: Skill, value: Trait | None) -> dict[str, Any]:
    schemas = {"input_schema": skill.input_schema, "output_schema": skill.output_schema}
    added = {
        name: dict(schema) for name, schema in schemas.items() if schema is not None and schema != FREE_INPUT
    }
    return _render_trait(
        skill.id,
        skill.description,
        "" if value is None else value.type,
        None if value is None else value.value,
        is_callable=True,
        added={**added, **skill.extra.get(KOI, {})},
    )


def _render_trait(
    name: str,
    description: str,
    type_name: str,
    value: Any,
    *,
    is_callable: bool = False,
    added: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    fields = {
        "name": name,
        "description": description,
        "type": type_name or type(value).__name__,
        "value": value,
        "is_callable": is_callable,
    }
    return {**fields, **_others(added or {}, fields)}


def _others(added: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a profile or a trait has beyond the fields of every one."""
    return {key: value for key, value in added.items() if key not in fields}


def _render_block(record: AgentRecord, scopes: frozenset[str]) -> dict[str, Any]:
    block = render_block(replace(record, traits=()), scopes=scopes)
    block.pop("endpoints", None)
    execute = record.url
    return {"v": 1, **block, **({"endpoints": [{"protocol": "execute", "url": execute}]} if execute else {})}
