"""Parts of an agent's process: printed lines, the publication of its card, the watch over its lists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from retinue.authoring.agent import Agent
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.card_publication import CardPublication
from retinue.runtime.factories import card_signer, configured_registry
from retinue.runtime.joined_mesh import notify_hub
from retinue.runtime.loading.reloading import watch_lists
from retinue.runtime.loading.targets import Target
from retinue.runtime.serving import end_task
from retinue.settings import Settings
from retinue.settings_tables import SignatureTable, TimeoutTable
from retinue.storage.mesh_key import joined_token
from retinue.storage.state import State

_FOLDER_CHECK_S = 2.0
_REGISTRY_CHECK_S = 15.0
"""Interval at which an agent checks that its card is still published."""


class AgentLinesPart(Part):
    """Prints where the agent answers, and its skills."""

    name = "agent-lines"
    kinds = frozenset({"agent"})
    is_required = True

    def __init__(self, how_to_expose: str) -> None:
        self._how_to_expose = how_to_expose

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        agent = process.agent

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            place = f"{process.own_url}{process.advertised}"
            process.echo(f"{agent.name} {agent.version or ''}".rstrip() + f" at {place}")
            process.echo(_describe_skills(agent, self._how_to_expose))
            yield

        yield Opened(running=running)


class PublicationPart(Part):
    """Publishes the agent's card while the process runs, tells the hub, and withdraws the card at the end."""

    name = "publication"
    kinds = frozenset({"agent"})
    gives = CardPublication
    is_required = True

    def __init__(self, registry: str | None, tag: str | None, hub_url: str | None, folder: str = "") -> None:
        self._registry = registry
        self._tag = tag
        self._folder = folder
        self._hub_url = hub_url

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        agent, state, tables = process.agent, process.state, process.tables
        place = self._find_registry(state)
        registry = configured_registry(place, tables.get(Settings), process.http, state)
        publication = CardPublication(
            registry,
            lambda: agent.record(process.url),
            self._tag,
            process.http,
            process.echo,
            probe_timeout_s=tables.get(TimeoutTable).probe_s,
            signer=await asyncio.to_thread(card_signer, tables.get(SignatureTable), state),
            folder=self._folder,
        )
        notify = partial(notify_hub, process.http, state, self._hub_url)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            async with AsyncExitStack() as stack:
                await publication.publish()
                # callbacks run in reverse order: first the card is withdrawn, then the hub is notified
                stack.push_async_callback(notify, withdrawn=agent.name)
                stack.push_async_callback(publication.withdraw)
                check_s = _FOLDER_CHECK_S if isinstance(registry, LayoutRegistry) else _REGISTRY_CHECK_S
                keeping = asyncio.create_task(publication.keep(check_s, notify))
                stack.push_async_callback(end_task, keeping)
                await notify()
                yield

        yield Opened(product=publication, running=running)

    def _find_registry(self, state: State) -> str:
        """The registry to publish to: the given one, else that of the joined hub, else the state's."""
        if self._registry is None and self._hub_url is not None and joined_token(state.keys, self._hub_url):
            return self._hub_url
        return self._registry or str(state.registry)


async def republish_card(publication: CardPublication, process: Process, hub_url: str | None) -> None:
    """Publish the card of the agent again, and tell the hub."""
    await publication.renew()
    await notify_hub(process.http, process.state, hub_url)


class ListWatchPart(Part):
    """Applies changes of the lists in ``agent.json``; the card shows what the mesh may see, so it follows."""

    name = "list-watch"
    kinds = frozenset({"agent", "stdio"})
    runs_after = (CardPublication,)
    is_required = True

    def __init__(self, target: Target, hub_url: str | None = None) -> None:
        self._target = target
        self._hub_url = hub_url

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        publication = process.find(CardPublication)

        async def republish() -> None:
            if publication is not None:
                await republish_card(publication, process, self._hub_url)

        on_change = None if publication is None else republish
        yield Opened(running=lambda: watch_lists(self._target, process.echo, on_change))


def _describe_skills(agent: Agent, how_to_expose: str) -> str:
    skills: Sequence[str] = [skill.id for skill in agent.skills if skill.visibility != "private"]
    exposed = [skill.id for skill in agent.skills if skill.visibility == "exposed"]
    count = f"{len(skills)} skill{'s' * (len(skills) != 1)}"
    line = f"{count} ({', '.join(skills) or 'none'}), {len(exposed)} exposed"
    if skills and not exposed:
        line += f"; expose one with {how_to_expose}"
    return line
