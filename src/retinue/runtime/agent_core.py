"""The core of an agent's process: its dispatcher, and the mesh for its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.mesh.admission import Admission, ProcessLimits
from retinue.mesh.artifacts import ArtifactStore
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import TraceGuard, TraceSigner
from retinue.mesh.idempotency import OutcomeCache
from retinue.mesh.observing.events import EventBus, log_lines
from retinue.mesh.permissions import Access, AccessRule
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.parts.process import Echo, Kind, Process
from retinue.parts.shown_agents import OwnAgent
from retinue.runtime.access import agent_rule
from retinue.runtime.factories import (
    guard_settings,
    limit_settings,
    named_registries,
    registry_sources,
    state_artifacts,
    timeout_settings,
)
from retinue.runtime.joined_mesh import AgentCalls, JoinedMesh, LimitedCalls
from retinue.runtime.launch import Start
from retinue.runtime.loading.artifacts import JoinedArtifacts
from retinue.runtime.loading.targets import Target
from retinue.runtime.observing.telemetry import span_opener
from retinue.settings import Settings, environment
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.outcome_store import OutcomeStore
from retinue.storage.state import HUB_VARIABLE, State
from retinue.web.http_client import HttpClient


@dataclass(frozen=True, slots=True)
class OwnTeam:
    """The team of an agent, and the names of all agents and imports of that team."""

    name: str
    agents: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> OwnTeam:
        """The team in the text ``TEAM=NAME,NAME``."""
        name, _, agents = text.partition("=")
        return cls(name, frozenset(agents.split(",")))

    def render(self) -> str:
        """The text that `parse` reads."""
        return f"{self.name}={','.join(sorted(self.agents))}"


@asynccontextmanager
async def open_agent(
    kind: Kind, target: Target, hub_url: str | None, start: Start, *, team: OwnTeam | None = None
) -> AsyncIterator[Process]:
    """The core of an agent's process: its dispatcher, and the mesh as it may call it.

    A name of its own ``team`` means the agent or import of that team, whatever other teams have that name.
    """
    settings, state, agent = start.settings, start.state, target.agent
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient(allow_private=settings.allow_private_urls))
        registries = named_registries(settings, LayoutRegistry(state.registry), http, state)
        sources = registry_sources(settings, registries, state)
        mesh = await stack.enter_async_context(JoinedMesh.open(settings, state, http, sources, hub_url))
        if team is not None:
            mesh.own_team = team.name
            mesh.own_agents = {name: f"{name}@{team.name}" for name in team.agents}
        rule = agent_rule(settings, agent.name, target.access)
        allowed = mesh if rule.send is None else LimitedCalls(mesh, agent.name, rule.send, mesh)
        # an agent of another team may have this name
        stored = OutcomeStore(state, agent.name if team is None else f"{agent.name}@{team.name}")
        stack.callback(stored.close)
        own = state_artifacts(settings, state, http)
        stack.callback(own.close)
        artifacts = JoinedArtifacts(own, state, hub_url, http)
        dispatcher = _make_dispatcher(agent, start, allowed, mesh.peers.signer, rule, stored, artifacts)
        stack.callback(dispatcher.admission.events.flush)
        shown = OwnAgent(agent, dispatcher.access, start.url)
        process = start.make_process(kind, agent, dispatcher, shown, mesh.peers, mesh.lookup)
        process.add(AgentCalls, AgentCalls(allowed))
        process.add(JoinedMesh, mesh)
        process.add(StateArtifacts, own)
        yield process


def _make_dispatcher(
    agent: Agent,
    start: Start,
    allowed: JoinedMesh | LimitedCalls,
    signer: TraceSigner,
    rule: AccessRule,
    stored: OutcomeStore,
    artifacts: ArtifactStore,
) -> Dispatcher:
    """The dispatcher of one agent's process; ``rule`` holds the allowed callers."""
    settings = start.settings
    events = EventBus()
    events.subscribe_batches(log_lines)
    guard = TraceGuard(guard_settings(settings.trace), signer=signer)
    return local_dispatcher(
        agent,
        mesh=allowed,
        servers=allowed,
        artifacts=artifacts,
        access=Access({agent.name: rule}),
        url=start.url,
        outcomes=OutcomeCache(stored=stored),
        admission=Admission(guard, ProcessLimits(limit_settings(settings.limits)), events),
        timeouts=timeout_settings(settings.timeouts),
        open_span=span_opener(agent.name, environment()),
    )


def attach_model(target: Target, settings: Settings, state: State, echo: Echo) -> None:
    """Open the model that answers for a character, and say what an agent in Markdown lacks.

    Nothing for other agents. Raises InvalidSettingError.
    """
    if target.has_runs and HUB_VARIABLE not in environment():
        # an agent that a hub starts gets no key, so it cannot tell which models the hub has
        from retinue.runtime.models import explain_no_tools

        if lines := explain_no_tools(settings, state, environment()):
            echo(f"{target.agent.name} needs a model that takes tools, and this machine has none:")
            for line in lines:
                echo(line)
            echo("  a model agent elsewhere in the mesh serves as well: retinue agents --role execute")
    if target.model is not None:
        # imported here, because other agents need nothing of it
        from retinue.runtime.models import answer_as_character

        answer_as_character(target.agent, settings, state, target.model)
