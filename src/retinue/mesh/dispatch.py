"""The one dispatch path: every call, through whichever door, is one ``dispatch(call, channel)``.

admit → trace guard → resolve within the caller's view → choose → input check → invoke → output check
→ record (DESIGN 2). Surfaces decode and encode; nothing else runs a skill.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from retinue.core.call import Answer, Attempt, Call, Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    RetinueError,
    UnknownSkillError,
)
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.access import Access, AgentView, is_seen
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.entry import Candidate
from retinue.mesh.events import CallEndedEvent, EventBus, ToolCallEvent, now
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.limits import Limits
from retinue.mesh.patience import PatientChannel
from retinue.mesh.pulse import Board, Pulses, note_health
from retinue.mesh.routing import Strategy, first, order_candidates
from retinue.mesh.skill_checks import check_access, check_input, check_output
from retinue.mesh.spans import Span, Spans
from retinue.mesh.time_limit import TimeLimit
from retinue.mesh.verdicts import is_stale_input, may_go_elsewhere, status_of, tell_failure

_NULL_CHANNEL = NullChannel()

_ALMOST_S = 0.1


class Calls(Protocol):
    """Whatever takes a call to its outcome: a dispatcher here, or a hub over there."""

    async def dispatch(self, call: Call, channel: Channel = _NULL_CHANNEL) -> Outcome:
        """Run one call; a failure is in ``Outcome.error``, only cancellation raises."""


class Lookup(Board, Protocol):
    """Finds who offers a skill, best first, within what the caller may see; is told who is healthy."""

    async def resolve_skill(
        self,
        skill_id: str,
        scopes: frozenset[str],
        *,
        version_range: str | None = None,
        agent: str | None = None,
        view: AgentView | None = None,
    ) -> tuple[Candidate, ...]:
        """At least one; raises a LookupFailedError. Outside ``view`` there is nobody."""

    async def open(self, candidate: Candidate) -> Listing | None:
        """The whole listing of a candidate; None when it is gone since. Raises StateError."""

    async def reread(self, listing: Candidate) -> Listing | None:
        """Ask the source again after this listing failed; None when the agent is gone."""


class Invoker(Protocol):
    """Runs one skill once: a function of this process, or a peer over a wire."""

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        """One attempt; raises RetinueError. AgentUnreachableError says whether it was sent."""


@dataclass(frozen=True, slots=True)
class TimeoutSettings:
    """The one policy of time-outs, in seconds (DESIGN 7)."""

    door_s: float = 60.0
    agent_call_s: float = 30.0


@dataclass(slots=True)
class _Course:
    """How far a call has come: whom its caller sees, who was asked last, and every try."""

    started: float
    view: AgentView | None
    listing: Candidate | None = None
    attempts: list[Attempt] = field(default_factory=list)
    passage: Passage | None = None

    @property
    def calls_used(self) -> int:
        return 0 if self.passage is None else self.passage.calls_used


@dataclass(slots=True)
class Dispatcher:
    """Takes calls to outcomes for one process."""

    agent: str
    lookup: Lookup
    invoker_of: Callable[[Listing], Invoker]
    guard: TraceGuard = field(default_factory=TraceGuard)
    limits: Limits = field(default_factory=Limits)
    pulses: Pulses = field(default_factory=Pulses)
    events: EventBus = field(default_factory=EventBus)
    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    strategy: Strategy = first
    spans: Spans | None = None
    access: Access = field(default_factory=Access)

    async def dispatch(self, call: Call, channel: Channel = _NULL_CHANNEL) -> Outcome:
        """Run one call; every failure is data in the outcome, only cancellation raises."""
        course = _Course(time.perf_counter(), self.access.view_of(call.principal))
        span = None if self.spans is None else self.spans.open(call)
        passage: Passage | None = None
        try:
            self.limits.admit(call.principal.id)
            try:
                passage = course.passage = self.guard.enter(call, call.agent or self.agent)
                if span is not None:
                    passage.trace = span.carry(passage.trace)
                call = _bounded(call, passage)
                candidates = await self.lookup.resolve_skill(
                    call.skill,
                    call.principal.scopes,
                    version_range=call.version_range,
                    agent=call.agent,
                    view=course.view,
                )
                course.listing = candidates[0]
                answer = await self._run(candidates, call, passage, channel, course)
            finally:
                self.limits.release()
                if passage is not None:
                    self.guard.leave(passage)
            outcome = _done(call, course, answer)
        except RetinueError as error:
            outcome = _failed(call, course, error)
        except asyncio.CancelledError:
            self._record(call, _failed(call, course, CallCancelledError(call.skill)), span)
            raise
        self._record(call, outcome, span)
        return outcome

    async def _run(
        self,
        candidates: tuple[Candidate, ...],
        call: Call,
        passage: Passage,
        channel: Channel,
        course: _Course,
    ) -> Answer:
        """Try the candidates in order; the next one only when the last certainly did not run the call.

        Cards are read again when nobody is left, not before: a slow registry must not hold up a call
        that another agent can take at once.
        """
        checked: Skill | None = None
        several = passage.may_repeat = len(candidates) > 1
        queue: deque[Candidate] = deque(
            order_candidates(candidates, self.strategy, call.skill) if several else candidates
        )
        spared: RetinueError | None = None
        lost: list[Listing] = []
        reread: set[ListingKey] = set()
        while queue or (queue := await self._list_moved(lost, reread)):
            listing = await self.lookup.open(queue.popleft())
            skill = listing.record.find_skill(call.skill) if listing is not None else None
            if listing is None or skill is None or not is_seen(course.view, listing.name):
                continue
            course.listing = listing
            if skill is not checked:
                check_access(skill, call)
                check_input(skill, call)
                if checked is None:
                    self._announce(call)
                checked = skill
            pulse = self.pulses.of(listing)
            try:
                pulse.breaker.enter(listing.record.name)
            except GuardError as error:
                spared = spared or error
                continue
            tried_at = time.perf_counter()
            pulse.begun()
            try:
                answer = await self._attempt(listing, skill, call, passage, channel)
            except RetinueError as error:
                spent_s = time.perf_counter() - tried_at
                course.attempts.append(Attempt(listing.record.name, spent_s * 1000, error.message))
                tell_failure(pulse, call.skill, spent_s, error)
                note_health(pulse, listing, self.lookup)
                if is_stale_input(error) and listing.id not in reread:
                    reread.add(listing.id)
                    newer = await self.lookup.reread(listing)
                    if newer is not None and newer.digest != listing.digest:
                        queue.appendleft(newer)
                        continue
                if not may_go_elsewhere(error, skill) or not _may_repeat(error, passage):
                    raise
                spared = error
                if error.kind.counts_against_health:
                    lost.append(listing)
                continue
            except BaseException:
                if _is_overdue(call):
                    pulse.timed_out(call.skill, time.perf_counter() - tried_at)
                    note_health(pulse, listing, self.lookup)
                else:
                    pulse.abandoned()
                raise
            spent_s = time.perf_counter() - tried_at
            pulse.answered(call.skill, spent_s)
            course.attempts.append(Attempt(listing.record.name, spent_s * 1000))
            note_health(pulse, listing, self.lookup)
            check_output(skill, answer.value)
            return answer
        raise spared or UnknownSkillError(call.skill)

    async def _list_moved(self, lost: list[Listing], reread: set[ListingKey]) -> deque[Candidate]:
        """Those that could not be reached and have another url by now; each is asked about once."""
        moved: deque[Candidate] = deque()
        for listing in lost:
            if listing.id not in reread:
                reread.add(listing.id)
                newer = await self.lookup.reread(listing)
                if newer is not None and newer.record.url != listing.record.url:
                    moved.append(newer)
        lost.clear()
        return moved

    async def _attempt(
        self, listing: Listing, skill: Skill, call: Call, passage: Passage, channel: Channel
    ) -> Answer:
        """One attempt within the time that is left, named when it runs out."""
        timeout_s, layer, setting = self._time_left(skill, call)
        if timeout_s <= 0:
            raise CallTimedOutError(call.skill, 0, layer=layer, setting=setting)
        invoker = self.invoker_of(listing)
        limit = TimeLimit(timeout_s)
        try:
            with limit:
                if call.deadline is None and channel is not _NULL_CHANNEL:
                    channel = PatientChannel(channel, limit)
                return await invoker.invoke(listing, skill, call, passage, channel)
        except RetinueError:
            raise
        except asyncio.CancelledError as error:
            if _is_given_up():
                raise
            raise ExecutionFailedError.from_exception(error) from error
        except GeneratorExit:
            raise
        except BaseException as error:
            if isinstance(error, TimeoutError) and limit.expired:
                raise CallTimedOutError(call.skill, timeout_s, layer=layer, setting=setting) from error
            # a skill that calls sys.exit has failed; the agents beside it go on
            raise ExecutionFailedError.from_exception(error) from error

    def _time_left(self, skill: Skill, call: Call) -> tuple[float, str, str]:
        if skill.timeout_s is not None:
            limit = (skill.timeout_s, f"skill {skill.id}", "timeout_s of the skill")
        else:
            limit = (self.timeouts.door_s, f"door {call.door}", "timeouts.door_s")
        if call.deadline is not None:
            left_s = call.deadline - asyncio.get_running_loop().time()
            if skill.timeout_s is None or left_s < limit[0]:
                limit = (left_s, "caller", "the caller's timeout")
        return limit

    def _announce(self, call: Call) -> None:
        if self.events.observed:
            self.events.emit(
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

    def _record(self, call: Call, outcome: Outcome, span: Span | None) -> None:
        if span is not None:
            span.close(outcome)
        if self.events.observed:
            self.events.emit(CallEndedEvent(call, outcome, now()))


def _bounded(call: Call, passage: Passage) -> Call:
    """The call with its resolved trace, and with the time that its chain has left as its deadline."""
    trace, deadline = passage.trace, call.deadline
    if deadline is None and trace.seconds_left is not None:
        deadline = asyncio.get_running_loop().time() + trace.seconds_left
    elif trace is call.trace:
        return call
    # every field by name: dataclasses.replace takes three times as long, and most calls pass here
    return Call(
        id=call.id,
        skill=call.skill,
        arguments=call.arguments,
        principal=call.principal,
        door=call.door,
        trace=trace,
        agent=call.agent,
        version_range=call.version_range,
        deadline=deadline,
        idempotency_key=call.idempotency_key,
        run_step=call.run_step,
    )


def _may_repeat(error: RetinueError, passage: Passage) -> bool:
    """Whether the budget has room for it: an agent that was lost in the middle may have run the call."""
    return not (isinstance(error, AgentUnreachableError) and error.sent) or passage.budget.take()


def _is_given_up() -> bool:
    """Whether this very task is being cancelled, rather than something that a skill awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_overdue(call: Call) -> bool:
    """Whether a caller gives up because its time is over: a step's limit ends just before its call's."""
    return call.deadline is not None and call.deadline - asyncio.get_running_loop().time() < _ALMOST_S


def _done(call: Call, course: _Course, answer: Answer) -> Outcome:
    chosen = course.listing
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status="done",
        agent=None if chosen is None else chosen.name,
        version=None if chosen is None else chosen.version,
        value=answer.value,
        parts=answer.parts,
        attempts=tuple(course.attempts),
        duration_ms=(time.perf_counter() - course.started) * 1000,
        usage=answer.usage,
        warnings=answer.warnings,
        meta=answer.meta,
        calls_used=course.calls_used,
    )


def _failed(call: Call, course: _Course, error: RetinueError) -> Outcome:
    chosen = course.listing
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status_of(error),
        agent=None if chosen is None else chosen.name,
        version=None if chosen is None else chosen.version,
        attempts=tuple(course.attempts),
        duration_ms=(time.perf_counter() - course.started) * 1000,
        error=error,
        calls_used=course.calls_used,
    )
