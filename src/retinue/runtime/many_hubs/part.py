"""The exchange with the other hubs and workers of a database as a part."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.mesh.directory.directory import Directory
from retinue.mesh.health.probe_sharing import ProbeSharing
from retinue.oci.client.http_registry import HttpRegistry
from retinue.parts.part import FirstReading, Opened, Part
from retinue.parts.process import Kind, Process, Tables
from retinue.runtime.many_hubs.exchange import MeshExchange, Topic
from retinue.runtime.many_hubs.registries import RegistryChanges
from retinue.runtime.many_hubs.tokens import SharedTokens
from retinue.runtime.many_hubs.verdicts import Findings, HealthChanges
from retinue.runtime.mesh import Registries
from retinue.runtime.parts.upkeep import name_place
from retinue.runtime.serving import in_background
from retinue.settings import Settings
from retinue.storage.mesh_news import MeshNews


class ManyHubsPart(Part):
    """Shares probes, changes of cards and tokens with the others on one Postgres database."""

    name = "many-hubs"
    kinds = frozenset({"hub", "worker"})
    needs = (ProbeSharing,)
    runs_after = (FirstReading,)
    is_required = True

    def is_wanted(self, tables: Tables, kind: Kind) -> bool:
        url = tables.get(Settings).database
        return url is not None and url.startswith("postgres")

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        url = process.tables.get(Settings).database or ""
        member = f"{process.kind}-{uuid.uuid4().hex[:12]}"
        news = MeshNews(url, member, process.kind, process.url)
        sharing, agent_stats = process.get(ProbeSharing), process.dispatcher.agent_stats

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            directory = process.get(Directory)
            names = process.get(Registries).by_name
            shared = [name for name, registry in names.items() if isinstance(registry, HttpRegistry)]
            cards = RegistryChanges(directory, shared)
            topics: list[Topic] = [
                Findings(sharing, agent_stats),
                HealthChanges(directory, agent_stats, sharing, name_place()),
                cards,
            ]
            works = [cards.read_pending()]
            if process.kind == "hub":
                tokens = SharedTokens(news, process.state.keys, process.state.mesh_key())
                topics.append(tokens)
                works.append(tokens.watch())
            works.append(MeshExchange(member, news, sharing, topics).run())
            async with in_background(*works, name="many hubs"):
                yield

        yield Opened(running=running)
