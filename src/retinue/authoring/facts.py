"""The facts of an agent as resources: its profile, and each plain trait (DESIGN 2, renderings)."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from retinue.core.call import Part
from retinue.core.record import AgentRecord, Resource
from retinue.protocols.pallet_card import render_card

PROFILE = "profile"
"""Name of the resource with everything that an agent says of itself; its uri is ``agent:<name>``."""

_JSON = "application/json"


def list_facts(record: AgentRecord) -> tuple[Resource, ...]:
    """The standard resources of an agent; seen by the mesh, unless its lists expose them."""
    profile = Resource(
        profile_uri(record), PROFILE, _JSON, "mesh", description=f"What {record.name} is and can do"
    )
    traits = (
        Resource(
            _trait_uri(record, one.name), f"trait:{one.name}", _JSON, "mesh", description=one.description
        )
        for one in record.traits
        if one.skill_id is None
    )
    return (profile, *traits)


def read_fact(record: AgentRecord, uri: str, scopes: frozenset[str]) -> tuple[Part, ...] | None:
    """What a standard resource says to a reader with these scopes; None for any other uri."""
    if uri == profile_uri(record):
        return (_as_json(uri, render_card(record, scopes=scopes)),)
    for trait in record.traits:
        if trait.skill_id is None and uri == _trait_uri(record, trait.name):
            said = {"name": trait.name, "description": trait.description, "type": trait.type}
            return (_as_json(uri, {**said, "value": trait.value}),)
    return None


def profile_uri(record: AgentRecord) -> str:
    """Where an agent's profile is read."""
    return f"agent:{quote(record.name)}"


def _trait_uri(record: AgentRecord, trait: str) -> str:
    return f"{profile_uri(record)}/traits/{quote(trait, safe='')}"


def _as_json(uri: str, value: object) -> Part:
    return Part.resource(uri, orjson.dumps(value).decode(), _JSON)
