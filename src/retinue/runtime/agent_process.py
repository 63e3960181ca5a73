"""The process of one agent: its options, its core, and the list of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from retinue.mesh.permissions import Access
from retinue.parts.installed import list_parts_of
from retinue.parts.part import Part
from retinue.parts.process import Echo
from retinue.runtime.access import agent_rule
from retinue.runtime.agent_core import OwnTeam, attach_model, open_agent
from retinue.runtime.commands.own_runs import list_markdown_parts
from retinue.runtime.launch import Address, Core, Launch, ProcessIdentity, SettingsSource, Shared
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.agent_publication import AgentLinesPart, ListWatchPart, PublicationPart
from retinue.runtime.parts.artifacts import ArtifactsPart
from retinue.runtime.parts.author_hints import AuthorHintsPart
from retinue.runtime.parts.calls import CallsPart
from retinue.runtime.parts.mcp import AgentMcpPart
from retinue.runtime.parts.messages import MessagesPart
from retinue.runtime.parts.policies import PoliciesPart
from retinue.runtime.parts.protocols import (
    A2aPart,
    CardPart,
    ExecutePart,
    OpenApiPart,
    ProbesPart,
    RestPart,
)
from retinue.runtime.parts.storage import StoragePart
from retinue.runtime.run_process import prepared_state, run_process
from retinue.runtime.serving import FIRST_AGENT_PORT
from retinue.settings import Settings
from retinue.storage.state import State

ADDRESS = Address(port=FIRST_AGENT_PORT, search=True)
"""Where an agent listens without options: the first free port from 8001 on."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How one agent is served."""

    address: Address = ADDRESS
    publish: bool = True
    registry: str | None = None
    tag: str | None = None
    """None means the tag of the major version (`default_tag`)."""
    weight: int | None = None
    hub_url: str | None = None
    team: OwnTeam | None = None
    """The team of the agent, None for most."""
    shared: Shared | None = None
    """For one of several agents of this process."""


async def serve_agent(
    target: Target,
    options: ServeOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Serve until asked to stop; returns the exit code. At SIGHUP it reads its settings again.

    Raises PortInUseError, InvalidSettingError, RegistryError, StateError.
    """
    agent = target.agent
    if options.shared is None:
        attach_model(target, settings, state, echo)
    if options.weight is not None:
        agent.amend(weight=options.weight)

    def own_access(settings: Settings) -> Access:
        return Access({agent.name: agent_rule(settings, agent.name, target.access)})

    return await run_process(
        Launch(
            identity=ProcessIdentity("agent", agent.name, agent.name),
            source=SettingsSource(settings, reread),
            state=state,
            echo=echo,
            core=Core(
                hold_state=partial(prepared_state, state, echo),
                open=partial(open_agent, "agent", target, options.hub_url, team=options.team),
                access_of=own_access,
            ),
            parts=agent_parts(target, options, settings),
            address=options.address,
            shared=options.shared,
        )
    )


def agent_parts(target: Target, options: ServeOptions, settings: Settings) -> Sequence[Part]:
    """The parts of an agent's process, in the order in which they run."""
    folder = "" if options.team is None else options.team.name
    publication = (
        [PublicationPart(options.registry, options.tag, options.hub_url, folder)] if options.publish else []
    )
    return [
        PoliciesPart(folder),
        AgentLinesPart("retinue: {expose: true}" if target.has_runs else "@agent.skill(expose=True)"),
        AuthorHintsPart(has_functions=not target.has_runs),
        ExecutePart(),
        AgentMcpPart(),
        MessagesPart(),
        A2aPart(),
        CardPart(),
        RestPart(),
        OpenApiPart(),
        ProbesPart(),
        StoragePart(),
        ArtifactsPart(),
        CallsPart(),
        *publication,
        *list_markdown_parts(target, options.hub_url),
        ListWatchPart(target, options.hub_url),
        *list_parts_of("agent", settings.parts.off),
    ]
