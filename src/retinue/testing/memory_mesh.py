"""The client of a mesh over agents of this process, for tests of programs: no hub, no sockets, no files.

>>> import asyncio
>>> from retinue import Agent
>>> agent = Agent("word-agent")
>>> @agent.skill
... def count_words(text: str) -> int:
...     '''Counts the words of a text.'''
...     return len(text.split())
>>> async def program(mesh):
...     hits = await mesh.find("count words")
...     return await mesh.call(hits[0].skill, text="one two")
>>> async def main():
...     async with connect_agents(agent) as mesh:
...         return await program(mesh)
>>> asyncio.run(main())
2
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from retinue.authoring.agent import Agent
from retinue.authoring.local import LocalFirst, LocalInvoker, LocalLookup, OwnSkillsFirst
from retinue.client.limits import TIMEOUT_S
from retinue.client.mesh_client import MeshClient
from retinue.client.mesh_connection import MeshConnection
from retinue.core.call import LOCAL, Answer, Call, Outcome
from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.core.json_values import check_encodable
from retinue.core.record import HUB_NAME, Listing, Skill
from retinue.hub.hub_agent import MeshView, Workflows, hub_agent
from retinue.hub.orchestration.conversations import NamedConversations
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.directory.sources import Give, Reading, Source
from retinue.mesh.dispatch import Calls, Dispatcher
from retinue.mesh.exams import ExamBook
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.observing.call_figures import CallFigures, TrackRecord
from retinue.mesh.search.ranking import SkillSearch
from retinue.mesh.search.text_index import MemoryTextIndex
from retinue.testing.memory_artifacts import MemoryArtifacts
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.caller import MemoryCache
from retinue.workflows.dispatch_caller import DispatchCaller
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.library import Library
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.run_progress import RunProgress

if TYPE_CHECKING:
    from retinue.client.updates import QuestionHandler

SOURCE = "agents"

_CALLER = replace(LOCAL, scopes=LOCAL.scopes - {"private"})
"""A program with the token of the mesh; it does not see private skills."""


@asynccontextmanager
async def connect_agents(
    *agents: Agent,
    timeout_s: float = TIMEOUT_S,
    on_question: QuestionHandler | None = None,
) -> AsyncIterator[MeshConnection]:
    """The client that `retinue.connect` makes, over ``agents`` and with the skills of a hub in this process.

    The calls take the path of those to a hub, with all checks. Runs are in memory and end with the block.
    Workflows are definitions and the built-in ones; schedules, imports and models are not there.
    """
    source = _AgentSource(agents)
    directory = Directory(MemoryListings(), [source])
    search = SkillSearch(
        MemoryTextIndex(),
        directory.find_listing,
        find_entry=directory.find_entry,
        find_skill=directory.find_skill,
    )
    directory.subscribe(lambda change: search.note(change.entry.id))
    artifacts = MemoryArtifacts()
    own = _OwnAgents(artifacts)
    lookup = LocalFirst(directory, own)
    dispatcher = Dispatcher(HUB_NAME, lookup, lookup.invoker_of, queries=own)
    for agent in agents:
        own.add(agent, dispatcher)
    lookup.add_invoker(SOURCE, own)
    events = dispatcher.admission.events
    figures = CallFigures(catch_up=events.flush)
    events.subscribe_later(figures.observe)
    track = TrackRecord(figures, dispatcher.agent_stats)
    progress = RunProgress()
    caller = DispatchCaller(
        dispatcher,
        lookup,
        dispatcher.admission,
        agent=HUB_NAME,
        directory=directory,
        track=track,
        search=search,
        progress=progress,
    )
    cache = MemoryCache()
    sessions: dict[str, Mapping[str, Any]] = {}
    try:
        tools = Tools(caller, cache, artifacts=artifacts, open_sessions=lambda: runs.open_sessions())
        async with MemoryRuns(Interpreter(tools).run) as runs:
            hub = hub_agent(
                MeshView(
                    directory=directory,
                    lookup=lookup,
                    search=search,
                    history=SearchHistory(
                        directory.find_skill, directory.find_named, list_named=directory.list_named
                    ),
                    exams=ExamBook(),
                    caller=caller,
                    track=track,
                ),
                Workflows(
                    orchestrator=Orchestrator(runs),
                    library=Library(),
                    clear_steps=cache.clear,
                    progress=progress,
                ),
                NamedConversations(_reader(sessions), sessions.__setitem__),
                version=version("retinue"),
            ).agent
            hub_agents = {hub.name: hub}
            lookup.add(LocalLookup(hub_agents), LocalInvoker(hub_agents, dispatcher, dispatcher.timeouts))
            await directory.ensure_fresh()
            client = MeshClient(_AsProgram(dispatcher), None, endpoint="client", is_in_memory=True)
            yield MeshConnection(client, timeout_s=timeout_s, on_question=on_question, artifacts=artifacts)
    finally:
        await directory.aclose()


def _reader(sessions: Mapping[str, Mapping[str, Any]]) -> Any:
    return sessions.get


class _AsProgram:
    """The calls of a program, with its rights."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        try:
            check_encodable(call.arguments)  # as a client does that sends them
        except RetinueError as error:
            return Outcome(call.id, call.skill, "failed", agent=call.agent, error=error)
        return await self._calls.dispatch(replace(call, principal=_CALLER), channel or NullChannel())


class _AgentSource(Source):
    """Lists agents of this process."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.name = SOURCE
        self._agents = {agent.name: agent for agent in agents}
        if len(self._agents) < len(agents):
            raise InvalidSettingError("agents", "two agents have one name", remedy="rename one of them")

    async def read_all(self, give: Give | None = None, *, thorough: bool = True) -> Reading:
        return Reading(tuple(map(self._list, self._agents)))

    async def read_key(self, key: str) -> Sequence[Listing]:
        return (self._list(key),) if key in self._agents else ()

    def _list(self, name: str) -> Listing:
        return Listing(record=self._agents[name].record(), source=SOURCE, key=name, reachable=True)


class _OwnAgents:
    """Runs the skills of the agents; each agent sees its own private skills."""

    def __init__(self, artifacts: MemoryArtifacts) -> None:
        self._artifacts = artifacts
        self._invokers: dict[str, LocalInvoker] = {}

    def add(self, agent: Agent, mesh: Dispatcher) -> None:
        """Add an agent, whose calls go through ``mesh``."""
        named = {agent.name: agent}
        lookup = LocalLookup(named)
        inside = Dispatcher(agent.name, lookup, lambda listing: invoker, admission=mesh.admission)
        calls = OwnSkillsFirst(lookup, inside, mesh)
        invoker = LocalInvoker(named, calls, mesh.timeouts, artifacts=self._artifacts)
        self._invokers[agent.name] = invoker

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        return await self._invokers[listing.record.name].invoke(listing, skill, call, admitted, channel)
