"""Builds the entities of a call or a read: the caller, what it asks for, and what these are members of.

The ids in policies are ``Retinue::Skill::"AGENT/SKILL"``, ``Retinue::Resource::"AGENT/URI"``,
``Retinue::Prompt::"AGENT/NAME"``, ``Retinue::Agent::"NAME"`` and ``Retinue::Caller::"ID"``, where ID is the
id of a principal in access lists: ``local``, ``anonymous``, ``token:NAME``, ``jwt:SUBJECT``. All ids are in
the Unicode form NFC. A slash in the name of an agent is written ``%2F``, so that no two items have one id.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from retinue.core.call import Principal
from retinue.core.record import Candidate, Hints, Item, Prompt, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.versions import folder_of
from retinue.mesh.permissions import matches
from retinue.policies.reads import EntityId

NAMESPACE = "Retinue"
CALLER, AGENT, SKILL, RESOURCE, PROMPT, TAG, SOURCE, GROUP, ACTION = (
    f"{NAMESPACE}::{kind}"
    for kind in ("Caller", "Agent", "Skill", "Resource", "Prompt", "Tag", "Source", "Group", "Action")
)
USE = EntityId(ACTION, "use")
CALL, LIST = EntityId(ACTION, "call"), EntityId(ACTION, "list")
READ, GET_PROMPT = EntityId(ACTION, "read"), EntityId(ACTION, "prompt")
ARTIFACT, APPROVAL, IMPORT, WORKFLOW = (
    f"{NAMESPACE}::{kind}" for kind in ("Artifact", "Approval", "Import", "Workflow")
)
PUBLISH, ANSWER = EntityId(ACTION, "publish"), EntityId(ACTION, "answer")
ADD_IMPORT, START = EntityId(ACTION, "import"), EntityId(ACTION, "start")
OWNER_ACTIONS = frozenset({PUBLISH.id, ANSWER.id, ADD_IMPORT.id, START.id})
"""What is done to the mesh itself; these are no part of the action ``use``."""

_CALLERS = frozenset({"local", "anonymous", "mesh", "stdio", "run"})
"""Ids of principals that are no agents; the others have a prefix, such as ``token:``."""

_FOREIGN = frozenset(trust.name.lower() for trust in Trust if trust >= Trust.IMPORTED)

Groups = Mapping[str, Sequence[str]]
"""The members of each group, as globs of the ids of principals."""


@dataclass(frozen=True, slots=True)
class TeamScope:
    """A team that brings policies, and the names of its agents and imports, which its policies bind.

    ``name`` begins the ids of its policies; ``team`` is the name of the team, "" where it is ``name``.
    """

    name: str
    agents: frozenset[str]
    team: str = ""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, as policies see it. ``groups`` are those of its tokens, None if they are unknown."""

    id: EntityId
    scopes: tuple[str, ...]
    groups: tuple[str, ...] | None = ()
    team: str = ""
    """The team of an agent, "" if it is not known: then policies of teams bind it by its name."""

    @classmethod
    def of(cls, principal: Principal, groups: tuple[str, ...] | None = ()) -> Caller:
        team = "" if principal.through else principal.team  # else that of the agent between
        return cls(name_principal(principal.id), tuple(sorted(principal.scopes)), groups, team)

    def list_groups(self, groups: Groups) -> list[EntityId]:
        """The groups of the caller: those of the table ``groups``, and those of its tokens."""
        own = [EntityId(GROUP, normalize(name)) for name in self.groups or ()]
        return [*_list_groups(self.id, groups), *own]

    def render(self, groups: Groups) -> dict[str, Any]:
        """The entity with its groups."""
        attributes = {"name": self.id.id, "scopes": list(self.scopes)}
        return _render(self.id, attributes, self.list_groups(groups))


@dataclass(frozen=True, slots=True)
class Resource:
    """A skill, a resource or a prompt of an agent, as policies see it.

    A resource and a prompt have the attributes of a skill that only reads; ``name`` is the URI of a resource.
    """

    id: EntityId
    agent: EntityId
    parents: tuple[EntityId, ...]
    attributes: tuple[tuple[str, str | bool | tuple[str, ...]], ...]
    team: str = ""
    """The team of the agent, "" if it is not known: then policies of teams bind it by its name."""

    @classmethod
    def of(cls, agent: Candidate, item: Item) -> Resource:
        trust, labels = agent.trust.name.lower(), agent.labels
        resource = cls.make(agent.name, agent.version, agent.source, trust, item, labels)
        team = folder_of(agent.id)
        return replace(resource, team=team) if team else resource

    @classmethod
    def make(
        cls,
        agent: str,
        version: str | None,
        source: str,
        trust: str,
        item: Item,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> Resource:
        if isinstance(item, Skill):
            kind, item_id, hints, tags = SKILL, normalize(item.id), item.hints, item.tags
        else:
            kind, name = (PROMPT, item.name) if isinstance(item, Prompt) else (RESOURCE, item.uri)
            item_id, tags = normalize(name), ()
            hints = Hints(read_only=True, idempotent=True, open_world=trust in _FOREIGN)
        name = normalize(agent)
        owner = EntityId(AGENT, name)
        return cls(
            EntityId(kind, f"{name.replace('/', '%2F')}/{item_id}"),
            owner,
            (
                owner,
                EntityId(SOURCE, normalize(source)),
                *(EntityId(TAG, normalize(tag)) for tag in tags),
            ),
            (
                ("name", item_id),
                ("version", version or ""),
                ("source", source),
                ("trust", trust),
                ("visibility", item.visibility),
                ("read_only", hints.read_only),
                ("destructive", hints.destructive),
                ("idempotent", hints.idempotent),
                ("open_world", hints.open_world),
                ("runs_code", hints.runs_code),
                ("labels", tuple(normalize(f"{name}={value}") for name, value in sorted(labels.items()))),
            ),
        )

    @property
    def entities(self) -> tuple[EntityId, EntityId]:
        """The skill, resource or prompt, and its agent."""
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
    *(
        {"uid": action._asdict(), "attrs": {}, "parents": [USE._asdict()]}
        for action in (CALL, LIST, READ, GET_PROMPT)
    ),
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


def read_zone(name: str) -> tzinfo:
    """The time zone of this name; raises ValueError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ValueError(f"{name[:80]!r} is no time zone: write its name, as in Europe/Berlin") from None


def render_time(now: datetime, zone: tzinfo) -> dict[str, Any]:
    """The time of a call in a zone, as facts of its context; Monday is day 1."""
    local = now.astimezone(zone)
    return {"hour": local.hour, "weekday": local.isoweekday()}


_MOST_LEFT = 2**63 - 1
_MOST_DOLLARS = 9e14
"""The engine counts decimals to 922,337,203,685,477."""


def render_budgets(calls: int | None, tokens: int | None, dollars: float | None) -> dict[str, Any]:
    """What a chain may still spend, as facts of its context; without what has no limit.

    More than the engine can count is told as the most that it can.
    """
    facts: dict[str, Any] = {}
    if calls is not None:
        facts["calls_left"] = min(calls, _MOST_LEFT)
    if tokens is not None:
        facts["tokens_left"] = min(tokens, _MOST_LEFT)
    if dollars is not None:
        exact = f"{min(max(dollars, 0.0), _MOST_DOLLARS):.4f}"
        facts["dollars_left"] = {"__extn": {"fn": "decimal", "arg": exact}}
    return facts


def _list_groups(entity: EntityId, groups: Groups) -> list[EntityId]:
    return [EntityId(GROUP, name) for name, globs in groups.items() if matches(entity.id, globs)]


def _render(uid: EntityId, attributes: Mapping[str, Any], parents: Sequence[EntityId] = ()) -> dict[str, Any]:
    return {
        "uid": uid._asdict(),
        "attrs": attributes,
        "parents": [parent._asdict() for parent in dict.fromkeys(parents)],
    }
