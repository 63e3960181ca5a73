"""Resources and prompts of an agent of this process, as the source of the thin path."""

from __future__ import annotations

from typing import Protocol

from retinue.authoring.context import Context
from retinue.authoring.local import PASSED_ON, LocalAgent, LocalLookup, NoMesh, OwnSkillsFirst
from retinue.core.call import Call
from retinue.core.errors import ExecutionFailedError, RetinueError
from retinue.mesh.channel import Channel
from retinue.mesh.dispatch import Calls, Dispatcher, TimeoutSettings
from retinue.mesh.guards import Passage
from retinue.mesh.reading import Read, Reader, ReadRequest


class ReadableAgent(LocalAgent, Protocol):
    """What this room needs of an agent (``authoring.agent.Agent``)."""

    async def read(self, request: ReadRequest, context: Context) -> Read: ...


class LocalReads:
    """Reads from one agent; ``ctx.call`` of what is read goes on through ``mesh``."""

    def __init__(self, agent: ReadableAgent, mesh: Calls, timeouts: TimeoutSettings) -> None:
        self._agent = agent
        self._mesh = mesh
        self._timeouts = timeouts

    async def read(self, request: ReadRequest, call: Call, passage: Passage, channel: Channel) -> Read:
        context = Context(call, self._agent.name, self._timeouts.agent_call_s, passage, channel, self._mesh)
        try:
            return await self._agent.read(request, context)
        except PASSED_ON:
            raise
        except RetinueError as error:
            if context.comes_from_further_call(error):
                raise ExecutionFailedError.from_exception(error) from error
            raise


def local_reader(agent: ReadableAgent, dispatcher: Dispatcher, mesh: Calls | None = None) -> Reader:
    """The thin path to ``agent``, beside its ``dispatcher`` and within the same bounds."""
    own_first = OwnSkillsFirst(LocalLookup({agent.name: agent}), dispatcher, mesh or NoMesh())
    return Reader(
        agent=agent.name,
        source=LocalReads(agent, own_first, dispatcher.timeouts),
        guard=dispatcher.guard,
        limits=dispatcher.limits,
        events=dispatcher.events,
        access=dispatcher.access,
        timeout_s=dispatcher.timeouts.door_s,
    )
