"""The path of reads: resources, prompts and completions, each one ``read(request, channel)``.

limits → trace guard → policies → guards → approval → read within what the caller sees → guards → record, as
for a call. There is no agent to choose and no schema to check. The source of a read knows whose item it is,
so it calls `mesh.checked_reads`. The audit row of a read names its kind and its target. `Changes` notifies
observers of lists and resources that changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import structlog

from retinue.core.call import Call, Part, Principal, TraceContext
from retinue.core.errors import CallTimedOutError, ExecutionFailedError, RetinueError
from retinue.mesh.admission import Admission
from retinue.mesh.channel import Channel, NullChannel, PausingChannel
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import Access, is_seen
from retinue.mesh.time_limit import TimeLimit

ReadKind = Literal["resource", "prompt", "completion"]
ChangeKind = Literal["tools", "resources", "prompts", "resource"]

_NULL_CHANNEL = NullChannel()
_log = structlog.get_logger("retinue.changes")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request for the resource of a URI, a prompt with its arguments, or values for one argument.

    For a completion, ``name`` is the name of a prompt or a URI template, as ``completes`` says, ``argument``
    the argument to complete, ``value`` the text typed so far, and ``arguments`` the other arguments that are
    known. Where ``completes`` is None, the form of the name tells.
    """

    id: str
    kind: ReadKind
    name: str
    principal: Principal
    endpoint: str
    trace: TraceContext
    agent: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    argument: str = ""
    value: str = ""
    deadline: float | None = None
    completes: Literal["prompt", "resource"] | None = None

    @property
    def is_of_prompt(self) -> bool:
        """Whether a prompt is read, or an argument of it is completed."""
        if self.kind != "completion":
            return self.kind == "prompt"
        if self.completes is not None:
            return self.completes == "prompt"
        return ":" not in self.name and "/" not in self.name


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of a prompt."""

    role: Literal["user", "assistant"]
    part: Part


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt with its arguments inserted."""

    messages: tuple[PromptMessage, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """Values that fit; ``total`` is their number where it is known to be larger."""

    values: tuple[str, ...]
    total: int | None = None


Read = tuple[Part, ...] | PromptText | Completion
"""The result of a read, by its kind; the parts of a resource are of kind ``resource``."""


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """The outcome of a read: ``value`` or ``error`` is set; ``calls_used`` = further calls it caused."""

    request_id: str
    value: Read | None = None
    error: RetinueError | None = None
    calls_used: int | None = None

    def get(self) -> Read:
        """The value; raises ``error`` of a failed read."""
        if self.error is not None:
            raise self.error
        assert self.value is not None
        return self.value


class ReadSource(Protocol):
    """Provides resources, prompts and completions."""

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        """Answer one read of the principal, without hidden items.

        Raises UnknownResourceError or UnknownPromptError for a hidden or a missing item.
        """

    def follow(self, uris: frozenset[str]) -> None:
        """Tell the observers of changes of these resources, and no others, from now on.

        A source that always knows of its changes need not do anything.
        """


@dataclass(slots=True)
class Reader:
    """Runs the reads of one agent; shares admission and access lists with its dispatcher.

    A caller that the agent's access list excludes sees nothing of it.
    """

    agent: str
    source: ReadSource
    admission: Admission = field(default_factory=Admission)
    timeout_s: float = 60.0
    access: Access = field(default_factory=Access)

    async def read(self, request: ReadRequest, channel: Channel = _NULL_CHANNEL) -> ReadOutcome:
        """Read once. Every failure is data in the outcome; only cancellation raises."""
        call = _as_call(request, self.agent)
        try:
            with self.admission.message(call, self.agent) as admitted:
                call = replace(call, trace=admitted.trace)
                value = await self._read(request, call, admitted, channel)
        except RetinueError as error:
            return ReadOutcome(request.id, error=error)
        return ReadOutcome(request.id, value, calls_used=admitted.calls_used)

    async def _read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        limit = TimeLimit(self._time_left(request))
        try:
            with limit:
                if request.deadline is None and channel is not _NULL_CHANNEL:
                    channel = PausingChannel(channel, limit)
                return await self.source.read(self._seen(request), call, admitted, channel)
        except (RetinueError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired:
                raise CallTimedOutError(
                    call.skill,
                    self._time_left(request),
                    layer=f"door {call.endpoint}",
                    setting="timeouts.door_s",
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
    """The read as the guard, the policies, the event bus and the audit log see it."""
    arguments = dict(request.arguments)
    if request.argument:
        arguments[request.argument] = request.value
    return Call(
        id=request.id,
        skill=f"{request.kind} {request.name}",
        arguments=arguments,
        principal=request.principal,
        endpoint=request.endpoint,
        trace=request.trace,
        agent=request.agent or agent,
        deadline=request.deadline,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A list that changed, or one resource (``uri``) whose content changed."""

    kind: ChangeKind
    uri: str = ""


ChangeObserver = Callable[[Change], None]


class Changes:
    """Passes each change to every observer, in order and in the thread that notified."""

    def __init__(self) -> None:
        self._observers: tuple[ChangeObserver, ...] = ()

    def subscribe(self, observer: ChangeObserver) -> Callable[[], None]:
        """Add an observer; returns the function that removes it."""
        self._observers = (*self._observers, observer)

        def unsubscribe() -> None:
            self._observers = tuple(other for other in self._observers if other is not observer)

        return unsubscribe

    def notify(self, change: Change) -> None:
        """Pass a change to the observers; may be called in any thread."""
        for observer in self._observers:
            try:
                observer(change)
            except Exception as error:  # noqa: BLE001 - a failing observer must not fail the change
                _log.warning("observer failed", observer=repr(observer), error=str(error))
