"""The dispatch path: every call, from every endpoint, is one ``dispatch(call, channel)``.

limits → trace guard → look-up within the caller's view → choice → input check → policies → guards →
breaker → limits and approvals of policies → invocation → output check → guards → record (specification 9.1).
Endpoints decode and encode; only the dispatcher runs skills.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from retinue.core.call import EXAM, Answer, Attempt, Call, Hop, Outcome, TraceExtension
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    PolicyDeniedError,
    RetinueError,
    UnknownSkillError,
)
from retinue.core.parts import value_of_parts
from retinue.core.record import (
    LOCAL_SOURCE,
    QUERY_CAPABILITIES,
    Candidate,
    Listing,
    ListingKey,
    Prompt,
    Resource,
    Skill,
    render_deprecation,
)
from retinue.core.usage import SOURCES, add_usage, read_usage
from retinue.mesh.admission import Admission
from retinue.mesh.asking.query import QUERY_SKILL
from retinue.mesh.channel import Channel, NullChannel, PausingChannel
from retinue.mesh.directory.routing import Strategy, first, order_candidates
from retinue.mesh.guard.call_marks import note_asked, was_asked
from retinue.mesh.guard.cycles import name_asked
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.health.agent_stats import AgentStats, AgentStatsTable, HealthSink, report_health
from retinue.mesh.health.failure_policy import is_stale_input, may_fail_over, record_failure, status_of
from retinue.mesh.observing.events import CallEndedEvent, OpenSpan, Span, ToolCallEvent, now
from retinue.mesh.permissions import Access, AgentView, check_scopes, is_seen
from retinue.mesh.schema.checks import check_input, check_output
from retinue.mesh.time_limit import TimeLimit

if TYPE_CHECKING:  # only a process that takes part in a rollout has one
    from retinue.mesh.directory.rollouts import Rollouts

_NULL_CHANNEL = NullChannel()

_ALMOST_S = 0.1
"""A caller that cancels this close to its deadline has run out of time."""


class Calls(Protocol):
    """Runs calls: a dispatcher of this process, or a hub elsewhere."""

    async def dispatch(self, call: Call, channel: Channel = _NULL_CHANNEL) -> Outcome:
        """Run one call. A failure is in ``Outcome.error``; only cancellation raises."""


class Lookup(Protocol):
    """Finds the agents that offer a skill, best first, among those that the caller may see."""

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Candidate, ...]:
        """At least one candidate, all within ``view``. Raises LookupFailedError."""

    async def find_offering(
        self,
        listing_id: ListingKey,
        skill_id: str,
        scopes: frozenset[str],
        *,
        view: AgentView | None = None,
    ) -> Candidate | None:
        """The listing with this id, if `resolve_skill` may list it for such a call now; None otherwise."""

    async def open(self, candidate: Candidate) -> Listing | None:
        """The whole listing of a candidate; None when it has been removed. Raises StateError."""

    async def reread(self, listing: Candidate) -> Listing | None:
        """Read a listing again from its source after a failure; None after its removal."""


class Invoker(Protocol):
    """Runs one skill once: a function of this process, or an agent over a protocol."""

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One attempt; raises RetinueError. ``AgentUnreachableError.sent`` tells whether it was sent."""


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """Default time-outs of one process, in seconds (specification 12.4)."""

    endpoint_s: float = 60.0
    agent_call_s: float = 30.0


class ApprovedCall(NamedTuple):
    """The yes of a person for a call; ``note`` is for the call's audit row.

    ``answer`` is that of an equal call, which is not made again. ``keep`` keeps the answer of this one.
    """

    note: Mapping[str, Any]
    answer: Answer | None = None
    keep: Callable[[Answer], Awaitable[None]] | None = None


class PolicyLimits(Protocol):
    """The limits of policies that count one call; raises BusyError where one of them is reached."""

    async def check(self) -> None:
        """Refuse the call that `take` would refuse; it is not counted."""

    async def take(self) -> None:
        """Count the call."""

    async def give_back(self) -> None:
        """Take back the count of a call that does not run."""


Approve = Callable[[Channel, PolicyLimits | None], Awaitable[ApprovedCall]]
"""Uses the yes of a person for one call, who may be asked through the channel.

The call is counted in its limits after the answer, and before the yes is used. So a limit that is reached
leaves the yes unused, and a call that waits for a person is not counted. Raises ApprovalNeededError,
PolicyDeniedError and BusyError.
"""


class PermittedCall(NamedTuple):
    """What policies say of a call that no rule denies.

    ``note`` is for the call's audit row. ``approve`` uses the yes of a person, where the call needs one, also
    for guards that ask about the same call. ``limits`` count the call, None where none concerns it.
    ``add_guards`` gives the guards of the process with those that the call needs.
    """

    note: Mapping[str, Any] | None = None
    approve: Approve | None = None
    add_guards: Callable[[Guards | None], Guards] | None = None
    limits: PolicyLimits | None = None


_UNCHECKED = PermittedCall()

CheckPolicies = Callable[[Call, Listing, Skill, AdmittedCall, Channel], Awaitable[PermittedCall]]
"""Checks a call against the policies of the owner before it is invoked; raises PolicyDeniedError.

It may note its decision in the trace of the admitted call. The channel tells whether a person can be asked.
"""


CheckRead = Callable[[Call, Listing, Resource | Prompt, AdmittedCall, Channel], Awaitable[PermittedCall]]
"""The same for a read of a resource or a prompt (`mesh.reading`)."""


class Guards(Protocol):
    """Looks at the arguments and the results of calls; each function raises PolicyDeniedError.

    ``clean_error`` changes the texts of an error in place, because its type says how it is handled.
    """

    def concern(self, agent: str) -> bool: ...

    async def before(self, call: Call, listing: Listing, skill: Skill) -> tuple[Call, Approve | None]: ...

    def watch(self, channel: Channel, call: Call, listing: Listing, skill: Skill) -> Channel: ...

    async def after(self, call: Call, listing: Listing, skill: Skill, answer: Answer) -> Answer: ...

    async def clean_error(self, call: Call, listing: Listing, skill: Skill, error: RetinueError) -> None: ...


async def use_permission(
    permitted: PermittedCall,
    ask: Approve | None,
    channel: Channel,
    admitted: AdmittedCall,
    agent: str,
    skill: str,
) -> ApprovedCall | None:
    """Count a call in its limits and use the yes of a person; None where it needs neither.

    ``ask`` is the question of guards, None where they ask nobody. A person whom policies ask decides for
    guards, too. The trace tells the next process of the mesh that a person was asked, so that its guards do
    not ask again. Raises ApprovalNeededError, PolicyDeniedError and BusyError.
    """
    if ask is not None and was_asked(admitted.trace, agent, skill):
        ask = None
    approve, limits = permitted.approve or ask, permitted.limits
    if approve is None:
        if limits is None:
            return None
        await limits.take()
        return ApprovedCall(permitted.note or {})
    approved = await approve(channel, limits)
    if ask is not None:
        admitted.trace = note_asked(admitted.trace, agent, skill)
    return approved._replace(note={**(permitted.note or {}), **approved.note})


class AskedSkill(NamedTuple):
    """The skill that a call asks for, at any agent or at a named one."""

    skill: str
    agent: str | None = None
    version: str | None = None


@dataclass(slots=True)
class _CallState:
    """The state of one dispatch; ``listing`` is the one chosen last."""

    started: float
    view: AgentView | None
    span: Span | None = None
    listing: Candidate | None = None
    attempts: list[Attempt] = field(default_factory=list)
    admitted: AdmittedCall | None = None
    policy: Mapping[str, Any] | None = None
    is_repeated: bool = False
    """Whether the answer is that of an earlier call, which was kept."""
    counted: PolicyLimits | None = None
    """The limits that have counted the call at the agent that was tried last."""

    @property
    def calls_used(self) -> int:
        return 0 if self.admitted is None else self.admitted.calls_used


@dataclass(slots=True)
class Dispatcher:
    """Runs the calls of one process.

    ``agent`` is the guard's target of a call that names no agent; ``invoker_of`` gives the invoker of a
    listing, ``queries`` that of the reserved skill where it is another one. ``relayed_by``, of a hub, tells
    which skill a call asks for that only hands on its arguments, None for others. ``check_policies`` and
    ``check_read`` are None in a process without policies, ``guards`` in one without guards. ``redacts`` tells
    of which agents policies may mask values.
    """

    agent: str
    lookup: Lookup
    invoker_of: Callable[[Listing], Invoker]
    admission: Admission = field(default_factory=Admission)
    agent_stats: AgentStatsTable = field(default_factory=AgentStatsTable)
    health_sink: HealthSink | None = None
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    strategy: Strategy = first
    open_span: OpenSpan | None = None
    access: Access = field(default_factory=Access)
    queries: Invoker | None = None
    relayed_by: Callable[[Call], AskedSkill | None] | None = None
    check_policies: CheckPolicies | None = None
    check_read: CheckRead | None = None
    guards: Guards | None = None
    redacts: Callable[[str], bool] | None = None
    reads_channel: bool = False
    """Whether policies read what the client of a call can do, so that each call needs its channel."""
    select: Callable[[tuple[Candidate, ...], str], tuple[Candidate, ...]] | None = None
    """Which candidates may take a call that names no agent; None = all."""
    rollouts: Rollouts | None = None
    """The teams that change their digest; None while there are none."""

    def is_guarded(self, agent: str) -> bool:
        """Whether values of calls of an agent are looked at, so that its bytes cannot be handed on."""
        is_masked = self.redacts is not None and self.redacts(agent)
        return is_masked or (self.guards is not None and self.guards.concern(agent))

    async def dispatch(self, call: Call, channel: Channel = _NULL_CHANNEL) -> Outcome:
        """Run one call. Every failure is data in the outcome; only cancellation raises."""
        span = None if self.open_span is None else self.open_span(call)
        state = _CallState(time.perf_counter(), self.access.view_of(call.principal), span)
        try:
            try:
                admitted = state.admitted = self.admission.enter(call, call.agent or self.agent)
            except GuardError as refusal:
                raise await self._name_asked(refusal, call, state.view) from None
            try:
                if span is not None:
                    admitted.trace = span.carry(admitted.trace)
                call = _with_trace(call, admitted)
                if self.rollouts is not None:
                    admitted.trace = self.rollouts.mark(call)
                    call = _with_trace(call, admitted)
                candidates: tuple[Candidate, ...] = ()
                if call.listing is not None:
                    chosen = await self.lookup.find_offering(
                        call.listing, call.skill, call.principal.scopes, view=state.view
                    )
                    candidates = () if chosen is None else (chosen,)
                candidates = candidates or await self.lookup.resolve_skill(
                    call.skill,
                    call.principal.scopes,
                    version_range=call.version_range,
                    agent=call.agent,
                    view=state.view,
                )
                if self.select is not None and call.agent is None and call.listing is None:
                    candidates = self.select(candidates, call.skill)
                if self.rollouts is not None:
                    candidates = self.rollouts.choose(candidates, call, state.view)
                state.listing = candidates[0]
                answer = await self._run(candidates, call, admitted, channel, state)
            finally:
                self.admission.leave(admitted)
            outcome = _succeeded(call, state, answer)
        except RetinueError as error:
            outcome = _failed(call, state, error)
        except asyncio.CancelledError:
            self._record(call, _failed(call, state, CallCancelledError(call.skill)), state)
            raise
        if state.admitted is not None and (extension := state.admitted.trace.extension) is not None:
            outcome = _with_source(outcome, extension, state)
        self._record(call, outcome, state)
        if outcome.usage is not None and state.admitted is not None:
            return replace(outcome, usage=state.admitted.seal(outcome.usage))
        return outcome

    async def _name_asked(self, refusal: GuardError, call: Call, view: AgentView | None) -> GuardError:
        """The refusal of a call by a hub with the agent that would have got it, if the caller sees it."""
        if self.relayed_by is None:
            return refusal
        asked = self.relayed_by(call) or AskedSkill(call.skill, call.agent, call.version_range)
        try:
            candidates = await self.lookup.resolve_skill(
                asked.skill, call.principal.scopes, version_range=asked.version, agent=asked.agent, view=view
            )
        except RetinueError:
            return refusal if asked.agent is None else name_asked(refusal, Hop(asked.agent, asked.skill))
        return name_asked(refusal, Hop(candidates[0].name, asked.skill))

    async def _run(
        self,
        candidates: tuple[Candidate, ...],
        call: Call,
        admitted: AdmittedCall,
        channel: Channel,
        state: _CallState,
    ) -> Answer:
        """Try the candidates in order; go to the next one only where the call may be run elsewhere.

        The cards of unreachable agents are read again only after all candidates failed, because a slow
        registry must not delay a call that another agent can take at once.
        """
        checked: Skill | None = None
        several = admitted.may_repeat = len(candidates) > 1
        queue: deque[Candidate] = deque(
            order_candidates(candidates, self.strategy, call.skill) if several else candidates
        )
        last_error: RetinueError | None = None
        unreachable: list[Listing] = []
        reread: set[ListingKey] = set()
        received, asked, asked_channel = admitted.trace, call, channel
        while queue or (queue := await self._find_moved(unreachable, reread)):
            listing = await self.lookup.open(queue.popleft())
            skill = listing.record.find_skill(call.skill) if listing is not None else None
            if skill is None and call.skill == QUERY_CAPABILITIES:
                skill = QUERY_SKILL  # every agent answers it; a foreign card may list one of its own
            if listing is None or skill is None or not is_seen(state.view, listing.name):
                continue
            state.listing = listing
            if skill is not checked:
                check_scopes(skill, call)
                if skill.input_schema is not None:
                    check_input(skill, call)
                if checked is None:
                    self._announce(call)
                checked = skill
            # what policies and guards said of the candidate before, and what they masked, is not for this one
            admitted.trace = received
            call, channel, ask = _with_trace(asked, admitted), asked_channel, None
            permitted, only_relays = _UNCHECKED, self._only_relays(call, listing)
            guards = None if only_relays else self.guards
            try:
                if self.check_policies is not None and not only_relays:
                    permitted = await self.check_policies(call, listing, skill, admitted, channel)
                    call = _with_trace(call, admitted)
                state.policy = permitted.note
                if permitted.add_guards is not None:
                    guards = permitted.add_guards(guards)
                if guards is not None:
                    call, ask = await guards.before(call, listing, skill)
                    channel = guards.watch(channel, call, listing, skill)
            except PolicyDeniedError as refusal:
                last_error = last_error or refusal  # another agent is another resource
                continue
            stats = self._stats_of(listing, call)
            try:
                stats.breaker.enter(listing.record.name)
            except GuardError as error:
                last_error = last_error or error
                continue
            keep: Callable[[Answer], Awaitable[None]] | None = None
            if permitted is not _UNCHECKED or ask is not None:
                try:
                    if state.counted is not None:
                        # the call is one call, also at another agent
                        await state.counted.give_back()
                    state.counted = permitted.limits
                    # last, so that nothing refuses after a used yes; a person sees the true arguments
                    approved = await use_permission(
                        permitted, ask, asked_channel, admitted, listing.name, skill.id
                    )
                except BaseException:
                    stats.breaker.abandoned()
                    raise
                if approved is not None:
                    state.policy, keep = approved.note, approved.keep
                    if approved.answer is not None:
                        stats.breaker.abandoned()
                        state.is_repeated = True
                        return approved.answer
            if self.rollouts is not None:
                admitted.trace = self.rollouts.follow(admitted.trace, listing)
                call = _with_trace(call, admitted)
            tried_at = time.perf_counter()
            stats.call_started()
            try:
                answer = await self._attempt(listing, skill, call, admitted, channel, state.span)
            except RetinueError as error:
                spent_s = time.perf_counter() - tried_at
                if guards is not None:
                    await guards.clean_error(call, listing, skill, error)
                state.attempts.append(Attempt(listing.record.name, spent_s * 1000, error.message))
                record_failure(stats, call.skill, spent_s, error)
                self._report_health(stats, listing, call)
                if is_stale_input(error) and listing.id not in reread:
                    reread.add(listing.id)
                    newer = await self.lookup.reread(listing)
                    if newer is not None and newer.digest != listing.digest:
                        queue.appendleft(newer)
                        continue
                if not may_fail_over(error, skill) or not _may_repeat(error, admitted):
                    raise
                last_error = error
                if error.kind.counts_against_health:
                    unreachable.append(listing)
                continue
            except BaseException:
                spent_s = time.perf_counter() - tried_at
                if self._is_overdue(skill, call, spent_s):
                    stats.timed_out(call.skill, spent_s)
                    self._report_health(stats, listing, call)
                else:
                    stats.abandoned()
                raise
            spent_s = time.perf_counter() - tried_at
            stats.answered(call.skill, spent_s)
            state.attempts.append(Attempt(listing.record.name, spent_s * 1000))
            self._report_health(stats, listing, call)
            if skill.output_schema is not None:
                check_output(skill, answer.value)
            if guards is not None:
                answer = await guards.after(call, listing, skill, answer)
            if keep is not None:
                await keep(_with_further_sources(answer, listing, admitted))
            return answer
        raise last_error or UnknownSkillError(call.skill)

    def _only_relays(self, call: Call, listing: Listing) -> bool:
        """Whether the hub hands the arguments to another skill, whose call the policies check."""
        is_own = listing.source == LOCAL_SOURCE and listing.name == self.agent
        return is_own and self.relayed_by is not None and self.relayed_by(call) is not None

    async def _find_moved(self, unreachable: list[Listing], reread: set[ListingKey]) -> deque[Candidate]:
        """The unreachable agents whose url has changed meanwhile; each is read again once."""
        moved: deque[Candidate] = deque()
        for listing in unreachable:
            if listing.id not in reread:
                reread.add(listing.id)
                newer = await self.lookup.reread(listing)
                if newer is not None and newer.record.url != listing.record.url:
                    moved.append(newer)
        unreachable.clear()
        return moved

    async def _attempt(
        self,
        listing: Listing,
        skill: Skill,
        call: Call,
        admitted: AdmittedCall,
        channel: Channel,
        span: Span | None,
    ) -> Answer:
        """One attempt within the time that is left; CallTimedOutError names the limit that ran out."""
        timeout_s, layer, setting = self._time_left(skill, call)
        if timeout_s <= 0:
            raise CallTimedOutError(call.skill, 0, layer=layer, setting=setting)
        invoker = self.invoker_of(listing)
        if skill is QUERY_SKILL and self.queries is not None:
            invoker = self.queries
        limit = TimeLimit(timeout_s)
        try:
            with limit:
                if call.deadline is None and channel is not _NULL_CHANNEL:
                    channel = PausingChannel(channel, limit)
                if span is None or listing.source == LOCAL_SOURCE:
                    return await invoker.invoke(listing, skill, call, admitted, channel)
                before = admitted.trace
                with span.attempt(listing.name, before) as admitted.trace:
                    try:
                        call = _with_trace(call, admitted)
                        return await invoker.invoke(listing, skill, call, admitted, channel)
                    finally:
                        admitted.trace = before
        except RetinueError:
            raise
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            raise ExecutionFailedError.from_exception(error, call.skill) from error
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired:
                raise CallTimedOutError(call.skill, timeout_s, layer=layer, setting=setting) from error
            # A skill that calls sys.exit has failed; other agents of this process keep running.
            raise ExecutionFailedError.from_exception(error, call.skill) from error

    def _time_left(self, skill: Skill, call: Call) -> tuple[float, str, str]:
        if skill.timeout_s is not None:
            limit = (skill.timeout_s, f"skill {skill.id}", "timeout_s of the skill")
        else:
            limit = (self.timeouts.endpoint_s, f"door {call.endpoint}", "timeouts.door_s")
        if call.deadline is not None:
            left_s = call.deadline - asyncio.get_running_loop().time()
            if skill.timeout_s is None or left_s < limit[0]:
                limit = (left_s, "caller", "the caller's timeout")
        return limit

    def _is_overdue(self, skill: Skill, call: Call, spent_s: float) -> bool:
        """Whether a caller cancelled because its time is over; a step's limit ends just before its call's.

        The limit of a skill that calls this one, such as ``call_skill`` of a hub, ends just before it, too,
        because the same setting holds for both.
        """
        limit_s = self.timeouts.endpoint_s if skill.timeout_s is None else skill.timeout_s
        left_s = limit_s - spent_s
        if call.deadline is not None:
            left_s = min(left_s, call.deadline - asyncio.get_running_loop().time())
        return left_s < _ALMOST_S

    def _stats_of(self, listing: Listing, call: Call) -> AgentStats:
        """The statistics that a call counts in: those of the agent, or none that stay for an exam."""
        return AgentStats(time.monotonic) if call.endpoint == EXAM else self.agent_stats.of(listing)

    def _report_health(self, stats: AgentStats, listing: Listing, call: Call) -> None:
        if self.health_sink is not None and call.endpoint != EXAM:
            report_health(stats, listing, self.health_sink)

    def _announce(self, call: Call) -> None:
        if self.admission.events.observed:
            self.admission.events.emit(
                ToolCallEvent(
                    call.id,
                    call.skill,
                    call.arguments,
                    call.principal.id,
                    call.trace.id,
                    call.trace.depth,
                    now(),
                )
            )

    def _record(self, call: Call, outcome: Outcome, state: _CallState) -> None:
        if state.span is not None:
            state.span.close(outcome)
        if self.admission.events.observed:
            listing, place = (
                (None, None) if state.listing is None else (state.listing.digest, state.listing.id)
            )
            policy = state.policy
            if outcome.error is not None and policy is None and state.admitted is not None:
                policy = state.admitted.policy  # of a call that policies denied
            event = CallEndedEvent(call, outcome, now(), policy=policy, listing=listing, place=place)
            self.admission.events.emit(event)


def _with_trace(call: Call, admitted: AdmittedCall) -> Call:
    """The call with its resolved trace, and with the remaining time of its chain as its deadline."""
    trace, deadline = admitted.trace, call.deadline
    if deadline is None and trace.seconds_left is not None:
        deadline = asyncio.get_running_loop().time() + trace.seconds_left
    elif trace is call.trace:
        return call
    # Every field by name: dataclasses.replace takes three times as long, and most calls get here.
    return Call(
        id=call.id,
        skill=call.skill,
        arguments=call.arguments,
        principal=call.principal,
        endpoint=call.endpoint,
        trace=trace,
        agent=call.agent,
        version_range=call.version_range,
        deadline=deadline,
        idempotency_key=call.idempotency_key,
        run_step=call.run_step,
        listing=call.listing,
    )


def _may_repeat(error: RetinueError, admitted: AdmittedCall) -> bool:
    """Whether the budget allows another attempt; an agent that was lost midway may have run the call."""
    return not (isinstance(error, AgentUnreachableError) and error.sent) or admitted.budget.take()


def _is_cancelled() -> bool:
    """Whether this task is being cancelled, rather than something that a skill awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _succeeded(call: Call, state: _CallState, answer: Answer) -> Outcome:
    chosen = state.listing
    further = None if state.admitted is None else state.admitted.usage
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status="done",
        agent=None if chosen is None else chosen.name,
        version=None if chosen is None else chosen.version,
        value=value_of_parts(answer.value, answer.parts) if answer.parts else answer.value,
        parts=answer.parts,
        attempts=tuple(state.attempts),
        duration_ms=(time.perf_counter() - state.started) * 1000,
        usage=answer.usage if further is None else add_usage(read_usage(answer.usage), further),
        warnings=answer.warnings if chosen is None else _with_warning(answer.warnings, chosen),
        meta=answer.meta,
        calls_used=state.calls_used,
    )


def _with_source(outcome: Outcome, extension: TraceExtension, state: _CallState) -> Outcome:
    """The outcome with the agent that has answered, where policies read the sources of the chain."""
    if SOURCES not in extension.others:
        return outcome
    # imported here, because only policies read sources
    from retinue.mesh.guard.sources import note_source

    return note_source(outcome, state.listing, is_repeated=state.is_repeated)


def _with_further_sources(answer: Answer, listing: Listing, admitted: AdmittedCall) -> Answer:
    """The answer to be kept for repetitions, with what its further calls have read, where policies ask."""
    extension = admitted.trace.extension
    if extension is None or SOURCES not in extension.others:
        return answer
    from retinue.mesh.guard.sources import keep_sources

    return keep_sources(answer, listing, admitted.usage)


def _with_warning(warnings: tuple[str, ...], chosen: Candidate) -> tuple[str, ...]:
    if not chosen.deprecated or not isinstance(chosen, Listing):
        return warnings
    warning = render_deprecation(chosen.record)
    # the agent's own process may have said so already
    return warnings if warning in warnings else (*warnings, warning)


def _failed(call: Call, state: _CallState, error: RetinueError) -> Outcome:
    chosen = state.listing
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status_of(error),
        agent=None if chosen is None else chosen.name,
        version=None if chosen is None else chosen.version,
        attempts=tuple(state.attempts),
        duration_ms=(time.perf_counter() - state.started) * 1000,
        usage=None if state.admitted is None else state.admitted.usage,
        error=error,
        calls_used=state.calls_used,
    )
