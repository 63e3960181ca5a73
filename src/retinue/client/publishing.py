"""Publishes workflows and agent cards in the registry of a hub."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from retinue.cards.pallet_card import parse_card
from retinue.client.hub_choice import HubChoice
from retinue.client.hub_skills import HubSkills
from retinue.core.errors import DefinitionError
from retinue.core.record import is_visible
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.auth import RegistryCredentials
from retinue.oci.registry import Registry, publish_card, publish_workflow
from retinue.web.http_client import HttpClient

_PUBLISHED_SCOPES = frozenset({"exposed", "mesh"})

_SOURCE = "workflow"
"""The name of the text in messages."""


class _TokenLogin:
    """Credentials of a hub that takes a token as the password."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def find(self, host: str) -> RegistryCredentials:
        return RegistryCredentials("retinue", self._token)


async def publish(hub: HubChoice, skills: HubSkills, artifact: str | Mapping[str, Any]) -> str:
    """Publish in the registry of ``hub`` and let it read its registries again; returns the reference."""
    credentials = None if hub.token is None else _TokenLogin(hub.token)
    async with HttpClient() as http:
        registry = HttpRegistry(hub.url, http, credentials=credentials)
        if isinstance(artifact, str) or "steps" in artifact:
            reference = await _publish_workflow(registry, skills, artifact)
        else:
            reference = await _publish_card(registry, orjson.dumps(dict(artifact)))
    await skills.read("refresh_agents")
    return reference


async def _publish_workflow(registry: Registry, skills: HubSkills, workflow: str | Mapping[str, Any]) -> str:
    text = workflow if isinstance(workflow, str) else orjson.dumps(dict(workflow)).decode()
    reply = await skills.read("check_workflow", {"text": text})
    for problem in reply["problems"]:
        raise DefinitionError(
            problem["message"],
            source=_SOURCE,
            line=problem["line"],
            column=problem["column"],
            remedy=problem["remedy"],
        )
    published = await publish_workflow(registry, reply["name"], text.encode(), created=datetime.now(UTC))
    return f"{published.repository}:{published.tag}"


async def _publish_card(registry: Registry, card: bytes) -> str:
    record = parse_card(card, reference="the card")
    published = await publish_card(
        registry,
        record.name,
        card,
        version=record.version,
        skills=[skill.id for skill in record.skills if is_visible(skill.visibility, _PUBLISHED_SCOPES)],
        created=datetime.now(UTC),
    )
    return f"{published.repository}:{published.tag}"
