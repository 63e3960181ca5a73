"""Builds the entities of a call: the caller, the skill, and what they are members of.

The ids in policies are ``Retinue::Skill::"AGENT/SKILL"``, ``Retinue::Agent::"NAME"`` and
``Retinue::Caller::"ID"``, where ID is the id of a principal in access lists: ``local``, ``anonymous``,
``token:NAME``, ``jwt:SUBJECT``. All ids are in the Unicode form NFC. A slash in the name of an agent is
written ``%2F``, so that two skills never have one id.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Principal
from retinue.core.record import Listing, Skill
from retinue.mesh.permissions import matches
from retinue.policies.reads import EntityId

NAMESPACE = "Retinue"
CALLER, AGENT, SKILL, TAG, SOURCE, GROUP, ACTION = (
    f"{NAMESPACE}::{kind}" for kind in ("Caller", "Agent", "Skill", "Tag", "Source", "Group", "Action")
)
USE = EntityId(ACTION, "use")
CALL, LIST = EntityId(ACTION, "call"), EntityId(ACTION, "list")

_CALLERS = frozenset({"local", "anonymous", "mesh", "stdio", "run"})
"""Ids of principals that are no agents; the others have a prefix, such as ``token:``."""

Groups = Mapping[str, Sequence[str]]
"""The members of each group, as globs of the ids of principals."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, as policies see it."""

    id: EntityId
    scopes: tuple[str, ...]

    @classmethod
    def of(cls, principal: Principal) -> Caller:
        return cls(name_principal(principal.id), tuple(sorted(principal.scopes)))

    def render(self, groups: Groups) -> dict[str, Any]:
        """The entity with its groups."""
        attributes = {"name": self.id.id, "scopes": list(self.scopes)}
        return _render(self.id, attributes, _list_groups(self.id, groups))


@dataclass(frozen=True, slots=True)
class Resource:
    """A skill of an agent, as policies see it."""

    id: EntityId
    agent: EntityId
    parents: tuple[EntityId, ...]
    attributes: tuple[tuple[str, str | bool], ...]

    @classmethod
    def of(cls, listing: Listing, skill: Skill) -> Resource:
        return cls.make(listing.name, listing.version, listing.source, listing.trust.name.lower(), skill)

    @classmethod
    def make(cls, agent: str, version: str | None, source: str, trust: str, skill: Skill) -> Resource:
        name, hints = normalize(agent), skill.hints
        owner = EntityId(AGENT, name)
        skill_id = normalize(skill.id)
        return cls(
            EntityId(SKILL, f"{name.replace('/', '%2F')}/{skill_id}"),
            owner,
            (
                owner,
                EntityId(SOURCE, normalize(source)),
                *(EntityId(TAG, normalize(tag)) for tag in skill.tags),
            ),
            (
                ("name", skill_id),
                ("version", version or ""),
                ("source", source),
                ("trust", trust),
                ("visibility", skill.visibility),
                ("read_only", hints.read_only),
                ("destructive", hints.destructive),
                ("idempotent", hints.idempotent),
                ("open_world", hints.open_world),
                ("runs_code", hints.runs_code),
            ),
        )

    @property
    def entities(self) -> tuple[EntityId, EntityId]:
        """The skill and its agent."""
        return self.id, self.agent

    def list_containers(self, groups: Groups) -> tuple[EntityId, ...]:
        """All that the skill is a member of: its parents, and the groups of its agent."""
        return (*self.parents, *_list_groups(self.agent, groups))

    def render(self, entity: EntityId, groups: Groups) -> dict[str, Any]:
        """One of `entities`; the agent with its groups."""
        if entity == self.agent:
            attributes = {"name": self.agent.id, "scopes": []}
            return _render(self.agent, attributes, _list_groups(self.agent, groups))
        return _render(self.id, {**dict(self.attributes), "agent": entity_value(self.agent)}, self.parents)


ACTIONS = [
    {"uid": USE._asdict(), "attrs": {}, "parents": []},
    *({"uid": action._asdict(), "attrs": {}, "parents": [USE._asdict()]} for action in (CALL, LIST)),
]
"""The actions are entities too: without them ``action in Retinue::Action::"use"`` would match nothing."""


def name_principal(principal_id: str) -> EntityId:
    """The entity of a principal: an agent has its name as id, another caller an id with a prefix."""
    name = normalize(principal_id)
    return EntityId(CALLER if name in _CALLERS or ":" in name else AGENT, name)


def name_origin(principal_id: str) -> EntityId:
    """The entity of the principal that began a chain; always a caller, because a schema has one type."""
    return EntityId(CALLER, normalize(principal_id))


def normalize(name: str) -> str:
    """The form NFC, in which all ids are compared; most names are ASCII."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def entity_value(entity: EntityId) -> dict[str, Any]:
    """The entity as a value of an attribute or of the context."""
    return {"__entity": {"type": entity.type, "id": entity.id}}


def _list_groups(entity: EntityId, groups: Groups) -> list[EntityId]:
    return [EntityId(GROUP, name) for name, globs in groups.items() if matches(entity.id, globs)]


def _render(uid: EntityId, attributes: Mapping[str, Any], parents: Sequence[EntityId] = ()) -> dict[str, Any]:
    return {
        "uid": uid._asdict(),
        "attrs": attributes,
        "parents": [parent._asdict() for parent in dict.fromkeys(parents)],
    }
