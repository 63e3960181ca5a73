"""The context of a running skill: its channel back to the caller, and calls to other agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, overload

from retinue.authoring.forms import make_form
from retinue.authoring.servers import McpServer
from retinue.core.allowance import Allowance, Amount, to_microdollars
from retinue.core.budget import CallLimits, read_budget
from retinue.core.call import Call, Outcome, Principal, TextPiece, TraceContext, new_id
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    RetinueError,
    StoppingError,
    is_callers_time,
)
from retinue.core.record import HUB_NAME, QUERY_CAPABILITIES
from retinue.core.remote_faults import rebuild_error
from retinue.core.usage import SOURCES, Usage
from retinue.mesh.artifacts import Artifact, ArtifactStore, Content, with_links
from retinue.mesh.asking.fanout import DEFAULT_TIMEOUT_S, Answers, ask_agents
from retinue.mesh.asking.query import MatchType, Query, make_query
from retinue.mesh.channel import ASKABLE, Channel, LogLevel, NullChannel, Root, run_within
from retinue.mesh.dispatch import Calls
from retinue.mesh.guard.spending import ModelSpending
from retinue.mesh.guard.trace_guard import AdmittedCall, OutgoingCall
from retinue.mesh.health.failure_policy import status_of
from retinue.mesh.servers import Ask, ServerRequest, Servers

AGENT_ENDPOINT = "agent"
"""The endpoint of calls that a skill makes; calls from outside never have it."""

T = TypeVar("T")

_CALLS_OF_A_QUESTION = 8
"""Further calls that an agent may make to answer whether it can do something."""

AWAY_PAUSE_S = 0.5
"""The pause before a call of an agent that is away is repeated."""

_SLACK_S = 2.0
"""The caller of a fan-out waits this much longer for the answers."""

_AGENT_SCOPES = frozenset({"exposed", "mesh"})
"""The scopes of an agent's own calls, whatever the scopes of its caller."""


@dataclass(slots=True)
class Context:
    """The running call, as the skill sees it. A parameter of this type is not part of the skill's schema."""

    _call: Call
    _agent: str
    _agent_call_s: float
    _admitted: AdmittedCall
    _channel: Channel
    _mesh: Calls
    _servers: Servers | None = None
    _artifacts: ArtifactStore | None = None
    _task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    _cancelled: bool = False
    _failures: list[RetinueError] = field(default_factory=list)
    _outlives_s: float = 0.0
    """How long the call may go on after its deadline, for a repetition of it."""
    _written: int = 0
    """The characters of the text that the skill has sent so far."""

    @property
    def trace(self) -> TraceContext:
        """The position of this call in its chain of calls."""
        return self._admitted.trace

    @property
    def principal(self) -> Principal:
        """The caller."""
        return self._call.principal

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key: equal for all repetitions of one request. None when the caller gave none."""
        return self._call.idempotency_key

    @property
    def run_step(self) -> str | None:
        """The step of a run that makes this call, as ``RUN/PATH``, if this process runs it; else None."""
        return self._call.run_step

    @property
    def deadline(self) -> float | None:
        """When the caller stops waiting, as a time of the event loop; None = the endpoint's default."""
        return self._call.deadline

    @property
    def _until(self) -> float | None:
        """When the further calls of this one must end."""
        deadline = self._call.deadline
        return None if deadline is None else deadline + self._outlives_s

    @property
    def calls_left(self) -> int:
        """How many further calls this call may cause."""
        return self._admitted.budget.left

    @property
    def tokens_left(self) -> int | None:
        """How many tokens this call and its further calls may still spend on models; None = no limit."""
        spending = self._admitted.spending
        return None if spending is None or spending.left.tokens is None else max(spending.left.tokens, 0)

    @property
    def dollars_left(self) -> float | None:
        """How many US dollars this call and its further calls may still spend on models; None = no limit."""
        spending = self._admitted.spending
        return None if spending is None or spending.left.dollars is None else max(spending.left.dollars, 0.0)

    @property
    def allowance(self) -> Allowance | None:
        """The tokens and the money of `tokens_left` and `dollars_left`; None = no limit."""
        spending = self._admitted.spending
        return None if spending is None else spending.left

    def reserve(self, tokens: int, dollars: float = 0.0, *, asked: str = "a model") -> ModelSpending:
        """Reserve what a request to a model may spend at most, for a skill that calls a model itself.

        ``with ctx.reserve(tokens=9_000, dollars=0.02) as spending: …; spending.settle({"input_tokens": …,
        "output_tokens": …, "cost_usd": …})``. Entering raises BudgetSpentError if the chain of calls has less
        left. The usage is added to that of the outcome; without ``settle`` the whole reservation counts.
        """
        return ModelSpending(self._admitted, Amount(tokens, to_microdollars(dollars)), asked)

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the call.

        Check it in long loops of synchronous code, which cannot be stopped otherwise. Works in any thread.
        """
        return self._cancelled or (self._task is not None and self._task.cancelling() > 0)

    def set_cancelled(self) -> None:
        """Record that the call was cancelled; the task itself does not show it after it has ended."""
        self._cancelled = True

    def outlive(self, seconds: float) -> None:
        """Let further calls go on after the deadline, because a repetition of this call may wait for it."""
        self._outlives_s = seconds

    def comes_from_further_call(self, error: RetinueError) -> bool:
        """Whether a call made by this skill failed with this error, so that it is not the skill's own."""
        return any(error is failure for failure in self._failures)

    @property
    def has_progress_listener(self) -> bool:
        """Whether the caller listens to progress; without one, reports are dropped."""
        return "progress" in self._channel.capabilities

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Report progress to the caller: 0 … 1, or None when unknown."""
        await self._channel.progress(fraction, message)

    async def stream_text(self, text: str, *, begins: bool = False) -> None:
        """Send a piece of the text that the skill is writing, exactly as it is.

        A caller that listens to progress gets the pieces marked as text, and may join them. ``begins`` starts
        the text again, for example after a failed attempt. The result of the skill is not changed by it.
        """
        if begins:
            self._written = 0
        piece = TextPiece(text, self._written, self._agent)
        self._written = piece.end
        if text:
            await self._channel.stream_text(piece)

    async def pass_on(self, piece: TextPiece) -> None:
        """Send a piece of a text that another agent writes, with its name and place."""
        await self._channel.stream_text(piece)

    async def log(
        self, message: str, *, level: LogLevel = "info", data: Mapping[str, Any] | None = None
    ) -> None:
        """Send one log line to the caller."""
        await self._channel.log(level, message, data)

    @overload
    async def elicit(self, message: str, schema: type[T], *, key: str | None = None) -> T: ...

    @overload
    async def elicit(self, message: str, schema: Any, *, key: str | None = None) -> Any: ...

    async def elicit(self, message: str, schema: Any, *, key: str | None = None) -> Any:
        """Ask the person behind the call a question; the answer fits ``schema``.

        ``schema`` is a JSON Schema or a type, such as ``str``, a Literal or a dataclass, of which the answer
        is then a value. ``key`` names the question, for clients that answer in a later request. Raises
        InputRequiredError where the client cannot ask a person, its subclass InputRefusedError where the
        person declines, and InvalidSettingError for a type that no form can have.
        """
        form, read = make_form(schema)
        return read(await self._channel.elicit(message, form, key=key))

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        """Ask the caller's own model; raises InputRequiredError where the client offers none."""
        return await self._channel.sample(prompt, max_tokens=max_tokens, key=key)

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        """The folders that the caller works in; raises InputRequiredError where it does not list them."""
        return await self._channel.roots(key=key)

    async def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
    ) -> Any:
        """Call a skill of another agent, found by the skill's id, and return its value.

        The call carries the trace, deadline and a share of the budget of this one. ``budget`` makes that
        share smaller: a number of further calls, or ``{"calls": …, "tokens": …, "dollars": …}``. Raises the
        error of a failed call (a RetinueError).
        """
        outcome = await self.ask(
            skill, arguments, agent=agent, version=version, timeout_s=timeout_s, budget=budget
        )
        return outcome.get()

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
        budget: CallLimits | None = None,
    ) -> Outcome:
        """As ``call``, but returns the whole outcome: a failure is data."""
        most_calls, most = (None, None) if budget is None else read_budget(budget)
        loop_time = asyncio.get_running_loop().time()
        limit_s = self._agent_call_s if timeout_s is None else timeout_s
        setting = "timeouts.agent_call_s" if timeout_s is None else "the timeout_s of this ctx.call"
        if self._until is not None and self._until - loop_time < limit_s:
            limit_s = self._until - loop_time
            setting = ""
        if limit_s <= 0:
            raise CallTimedOutError(skill, 0, layer="caller", setting="the caller's timeout")
        # A person answers in minutes: where one can be asked, the limit is kept here, and pauses meanwhile.
        is_pausable = self._until is None and not ASKABLE.isdisjoint(self._channel.capabilities)
        call_id = new_id()
        siblings = 1
        if self._admitted.trace.extension is not None and (spending := self._admitted.spending) is not None:
            siblings = await spending.count_siblings()
        try:
            outgoing = self._admitted.further_call(
                None if is_pausable else limit_s, siblings=siblings, most=most, most_calls=most_calls
            )
        except GuardError as refused:
            return Outcome(call_id, skill, "refused", error=refused)
        with outgoing:
            call = Call(
                id=call_id,
                skill=skill,
                arguments=with_links(dict(arguments or {})),
                principal=Principal(self._agent, "agent", self._outgoing_scopes()),
                endpoint=AGENT_ENDPOINT,
                trace=outgoing.trace,
                agent=agent,
                version_range=version,
                deadline=None if is_pausable else loop_time + limit_s,
            )
            if is_pausable:
                outcome = await self._dispatch_within(limit_s, call)
            else:
                outcome = await self._mesh.dispatch(call, self._channel)
            outgoing.record_outcome(outcome)
        if outcome.error is not None:
            error = rebuild_error(outcome.error)
            if setting and is_callers_time(error):
                # The called agent knows only that its caller's time ran out; here the limit has a name.
                layer = f"ctx.call of {self._agent}"
                error = CallTimedOutError(skill, limit_s, layer=layer, setting=setting)
            outcome = replace(outcome, error=error, status=status_of(error))
            self._failures.append(error)
        return outcome

    async def _dispatch_within(self, limit_s: float, call: Call) -> Outcome:
        try:
            return await run_within(
                limit_s, self._channel, lambda channel: self._mesh.dispatch(call, channel)
            )
        except TimeoutError:
            error = CallTimedOutError(call.skill, limit_s, layer="caller", setting="the caller's timeout")
            return Outcome(call.id, call.skill, "failed", error=error)

    def _outgoing_scopes(self) -> frozenset[str]:
        # The scope to run code is that of the caller that began the chain, through all agents between.
        return _AGENT_SCOPES | (self.principal.scopes & {"runs_code"})

    @property
    def artifacts(self) -> ArtifactStore | None:
        """The store of the artifacts that this skill saves and gets; None in a process without one."""
        return self._artifacts

    async def save(
        self, content: Content, media_type: str | None = None, *, name: str | None = None
    ) -> Artifact:
        """Save a file and return its link, which a skill returns and passes on.

        ``content`` is the path of a file, bytes, or an asynchronous iterator of bytes; it is read in pieces.
        Without ``media_type`` it is that of the file's name; ``name`` is the file name for readers. Raises
        TooLargeError, QuotaExceededError and StorageFullError; then nothing is stored.
        """
        if self._artifacts is None:
            raise ExecutionFailedError(
                "ctx.save has no store of artifacts",
                remedy="use it in a skill of an agent that retinue serve runs; in tests give artifacts=",
            )
        return await self._artifacts.save(
            content, media_type, caller=self._agent, name=name, run=self.trace.id
        )

    @asynccontextmanager
    async def mcp(
        self, server: str, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[McpServer]:
        """The tools, resources and prompts of an agent, by its name, or of any MCP server, by its URL.

        ``async with ctx.mcp("files") as files: await files.read_text("note://today")``. ``headers`` are sent
        to a URL, for example a token; ``timeout_s`` bounds each request. Every request is a further call of
        this skill, within its budget and the caller's time. Raises a RetinueError.
        """
        if self._servers is None:
            raise ExecutionFailedError(
                "ctx.mcp has no connection to servers",
                remedy="use it in a skill of an agent that retinue serve runs",
            )
        connecting = self._servers.connect(server, headers or {})
        try:
            ask = await connecting.__aenter__()
        except RetinueError as error:
            self._failures.append(error)
            raise

        async def send(request: ServerRequest) -> Any:
            return await self._ask_server(server, request, ask, timeout_s)

        async with AsyncExitStack() as stack:
            stack.push_async_exit(connecting)
            yield McpServer(server, send)

    async def _ask_server(
        self, server: str, request: ServerRequest, ask: Ask, timeout_s: float | None
    ) -> Any:
        what = f"{request.kind} {request.name}".rstrip() + f" of {server}"
        limit_s = self._agent_call_s if timeout_s is None else timeout_s
        setting = "timeouts.agent_call_s" if timeout_s is None else "the timeout_s of this ctx.mcp"
        if self._until is not None:
            left_s = self._until - asyncio.get_running_loop().time()
            if left_s < limit_s:
                limit_s, setting = left_s, "the caller's timeout"
        if limit_s <= 0:
            raise CallTimedOutError(what, 0, layer="caller", setting=setting)
        principal = Principal(self._agent, "agent", self._outgoing_scopes())
        try:
            with self._admitted.further_call(limit_s) as outgoing:
                result = await run_within(
                    limit_s, self._channel, lambda channel: ask(request, outgoing, principal, channel)
                )
                outgoing.note_answer(server)
                return result
        except TimeoutError:
            error = CallTimedOutError(what, limit_s, layer=f"ctx.mcp of {self._agent}", setting=setting)
            self._failures.append(error)
            raise error from None
        except RetinueError as error:
            self._failures.append(error)
            raise

    async def relay(
        self,
        skill: str,
        arguments: Mapping[str, Any],
        *,
        agent: str | None = None,
        version: str | None = None,
        deadline: float | None = None,
    ) -> Outcome:
        """Hand this call on to another skill, with the same caller, scopes and depth.

        ``deadline`` is a time of the event loop; the caller's own one holds as well.
        """
        known = [limit for limit in (deadline, self._until) if limit is not None]
        with self._admitted.relay() as outgoing:
            call = replace(
                self._call,
                skill=skill,
                arguments=dict(arguments),
                agent=agent,
                version_range=version,
                trace=outgoing.trace,
                deadline=min(known, default=None),
            )
            outcome = await self._mesh.dispatch(call, self._channel)
            outgoing.record_outcome(outcome)
        return outcome

    async def ask_as_caller(
        self, skill: str, arguments: Mapping[str, Any], *, agent: str, patience_s: float = 0.0
    ) -> Outcome:
        """A further call with the rights of this call's caller, for as long as the caller waits.

        The callee is told that this agent is between, and takes away the rights that the agent has not.
        A failure is data, also that of the trace guard. A call that may be repeated is repeated while its
        agent is away, for ``patience_s`` after each loss.
        """
        call_id, until = new_id(), self._until
        left_s = None if until is None else max(0.001, until - asyncio.get_running_loop().time())
        try:
            outgoing = self._admitted.further_call(left_s)
        except GuardError as refused:
            return Outcome(call_id, skill, "refused", error=refused)
        with outgoing:
            call = replace(
                self._call,
                id=call_id,
                skill=skill,
                arguments=dict(arguments),
                principal=self._caller_through_this_agent(),
                agent=agent,
                version_range=None,
                trace=outgoing.trace,
                deadline=until,
                idempotency_key=None,
            )
            outcome = await self._dispatch_patiently(call, patience_s)
            outgoing.record_outcome(outcome)
            self._admitted.take_in(outgoing.usage)
            outgoing.record_usage(outcome.calls_used)  # the value of the outcome tells what the run has spent
        return outcome

    async def _dispatch_patiently(self, call: Call, patience_s: float) -> Outcome:
        loop = asyncio.get_running_loop()
        away_since = loop.time()
        while True:
            began = loop.time()
            outcome = await self._mesh.dispatch(call, self._channel)
            if not isinstance(outcome.error, AgentUnreachableError | StoppingError):
                return outcome
            if loop.time() - began > AWAY_PAUSE_S:
                away_since = loop.time()  # it was there until now
            last_s = away_since + patience_s - AWAY_PAUSE_S
            if call.deadline is not None:
                last_s = min(last_s, call.deadline - AWAY_PAUSE_S)
            if loop.time() > last_s:
                return outcome
            await asyncio.sleep(AWAY_PAUSE_S)

    def _caller_through_this_agent(self) -> Principal:
        caller = self._call.principal
        # its owner has the rights of the mesh, though a client on stdio is shown only exposed skills
        scopes = caller.scopes | {"mesh"} if caller.kind == "local" else caller.scopes
        # the list of an agent before this one limits what that agent calls
        return replace(caller, scopes=scopes, through=self._agent, send=None)

    async def query(self, query: Query, agent: str, *, timeout_s: float) -> Outcome:
        """Ask one agent of many about its capabilities, with the rights of this call's caller."""
        ends_at = asyncio.get_running_loop().time() + timeout_s
        deadline = ends_at if self._until is None else min(ends_at, self._until)
        call_id = new_id()
        try:
            outgoing = self._admitted.relay_one_of_many(_CALLS_OF_A_QUESTION)
        except GuardError as refused:
            return Outcome(call_id, QUERY_CAPABILITIES, "refused", error=refused)
        with outgoing:
            call = replace(
                self._call,
                id=call_id,
                skill=QUERY_CAPABILITIES,
                arguments=query.as_payload(),
                agent=agent,
                version_range=None,
                trace=outgoing.trace,
                deadline=deadline,
                idempotency_key=None,
            )
            outcome = await self._mesh.dispatch(call, NullChannel())
            outgoing.record_outcome(outcome)
        return outcome

    async def ask_agents(
        self,
        capabilities: Sequence[str] = (),
        *,
        match: MatchType = "all",
        action: str | None = None,
        agents: Sequence[str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> Answers:
        """Ask agents at once whether they can do something now, and return their ranked answers.

        The question is about ``capabilities`` (``match`` all or any of them), about one ``action``, or
        without both about all capabilities. ``agents`` None asks every agent that the hub knows.
        ``answers.best`` is the agent to call, ``answers.silent`` are those without an answer in time. Raises
        InvalidParametersError for a malformed question, and UnknownAgentError where no hub runs that could
        ask all.
        """
        query = make_query(capabilities, match=match, action=action)
        if agents is not None:

            async def dispatch(agent: str) -> Outcome:
                return await self.ask(
                    QUERY_CAPABILITIES, query.as_payload(), agent=agent, timeout_s=timeout_s
                )

            return await ask_agents(agents, query, dispatch, timeout_s=timeout_s)
        arguments = {**query.as_payload(), "agent": "*", "timeout_s": timeout_s}
        reply = await self.call(QUERY_CAPABILITIES, arguments, agent=HUB_NAME, timeout_s=timeout_s + _SLACK_S)
        return Answers.from_json(reply)

    @property
    def is_tracked(self) -> bool:
        """Whether policies read what this chain takes in, so that it uses nothing that others have cached."""
        extension = self._admitted.trace.extension
        return extension is not None and SOURCES in extension.others

    def take_in(self, usage: Usage | None) -> None:
        """Note the sources of a result that this skill has got without a call, such as that of a run."""
        self._admitted.take_in(usage)

    def entrust(self) -> OutgoingCall:
        """The whole remaining budget of this call, for work that continues outside it (a run).

        Use it as a context manager: the rest of the budget is returned if ``record_usage`` was called.
        """
        return self._admitted.relay()


running_context: ContextVar[Context] = ContextVar("retinue_context")
"""The context of the running skill; set by `Agent.run`."""


def current_context() -> Context:
    """The context of the running skill, for an overridden ``execute_skill``; raises LookupError outside."""
    return running_context.get()
