"""The second, thin path: resources, prompts and completion, ``read(request, channel)``.

admit → trace guard → find within the caller's view → read → record, as a call has it (DESIGN 2); there
is nothing to choose and no schema to check. The audit row of a read names its kind and what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from retinue.core.call import Call, Part, Principal, TraceContext
from retinue.core.errors import (
    CallTimedOutError,
    ExecutionFailedError,
    RetinueError,
)
from retinue.mesh.access import Access, is_seen
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.events import EventBus
from retinue.mesh.gate import Gate
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.limits import Limits
from retinue.mesh.patience import PatientChannel
from retinue.mesh.time_limit import TimeLimit

ReadKind = Literal["resource", "prompt", "completion"]

_NULL_CHANNEL = NullChannel()


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What is read: the resource of a uri, a prompt with its arguments, or values for one argument.

    Of a completion ``name`` is the prompt's name or the uri template, ``argument`` the argument asked
    about, ``value`` what was typed of it, ``arguments`` those that are known.
    """

    id: str
    kind: ReadKind
    name: str
    principal: Principal
    door: str
    trace: TraceContext
    agent: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    argument: str = ""
    value: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    part: Part


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt with its arguments filled in."""

    messages: tuple[Message, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """Values that fit; ``total`` of them, where that is known to be more."""

    values: tuple[str, ...]
    total: int | None = None


Read = tuple[Part, ...] | PromptText | Completion
"""What a read gives, by its kind; the parts of a resource are of kind ``resource``."""


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What became of a read; ``error`` is set unless ``value`` is."""

    request_id: str
    value: Read | None = None
    error: RetinueError | None = None

    def get(self) -> Read:
        """The value; raises ``error`` otherwise."""
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value


class Reads(Protocol):
    """Whatever takes a read to its outcome: a `Reader` here, or a hub that asks an agent."""

    async def read(self, request: ReadRequest, channel: Channel = _NULL_CHANNEL) -> ReadOutcome:
        """Read once; a failure is in ``ReadOutcome.error``, only cancellation raises."""


class ReadSource(Protocol):
    """Whoever has the things that can be read."""

    async def read(self, request: ReadRequest, call: Call, passage: Passage, channel: Channel) -> Read:
        """Read once, within what the principal may see.

        Raises UnknownResourceError or UnknownPromptError for what is missing and for what is hidden.
        """


@dataclass(slots=True)
class Reader:
    """Takes reads to outcomes for one process; shares guard, limits, bus and lists with its dispatcher.

    To whom the agent's list does not hear, all that it has is hidden.
    """

    agent: str
    source: ReadSource
    guard: TraceGuard = field(default_factory=TraceGuard)
    limits: Limits = field(default_factory=Limits)
    events: EventBus = field(default_factory=EventBus)
    timeout_s: float = 60.0
    access: Access = field(default_factory=Access)

    async def read(self, request: ReadRequest, channel: Channel = _NULL_CHANNEL) -> ReadOutcome:
        """Read once; every failure is data in the outcome, only cancellation raises."""
        call = _as_call(request, self.agent)
        gate = Gate(self.guard, self.limits, self.events)
        try:
            with gate.admit(call, self.agent) as passage:
                call = replace(call, trace=passage.trace)
                value = await self._read(request, call, passage, channel)
        except RetinueError as error:
            return ReadOutcome(request.id, error=error)
        return ReadOutcome(request.id, value)

    async def _read(self, request: ReadRequest, call: Call, passage: Passage, channel: Channel) -> Read:
        limit = TimeLimit(self._time_left(request))
        try:
            with limit:
                if request.deadline is None and channel is not _NULL_CHANNEL:
                    channel = PatientChannel(channel, limit)
                return await self.source.read(self._seen(request), call, passage, channel)
        except (RetinueError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired:
                raise CallTimedOutError(
                    call.skill, self._time_left(request), layer=f"door {call.door}", setting="timeouts.door_s"
                ) from error
            raise ExecutionFailedError.from_exception(error) from error

    def _seen(self, request: ReadRequest) -> ReadRequest:
        principal = request.principal
        if is_seen(self.access.view_of(principal), self.agent):
            return request
        return replace(request, principal=replace(principal, scopes=frozenset()))

    def _time_left(self, request: ReadRequest) -> float:
        if request.deadline is None:
            return self.timeout_s
        return min(self.timeout_s, request.deadline - asyncio.get_running_loop().time())


def _as_call(request: ReadRequest, agent: str) -> Call:
    """The read as guard, bus and audit know it."""
    return Call(
        id=request.id,
        skill=f"{request.kind} {request.name}",
        arguments=dict(request.arguments),
        principal=request.principal,
        door=request.door,
        trace=request.trace,
        agent=request.agent or agent,
        deadline=request.deadline,
    )
