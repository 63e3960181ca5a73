"""The one dispatch path: every call, through whichever door, is one ``dispatch(call, channel)``.

admit → trace guard → resolve within the caller's view → choose → input check → invoke → output check
→ record (DESIGN 2). Surfaces decode and encode; nothing else runs a skill.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from retinue.core.call import Answer, Attempt, Call, Outcome, Status
from retinue.core.errors import (
    AccessError,
    BusyError,
    CallCancelledError,
    CallTimedOutError,
    ExecutionFailedError,
    GuardError,
    InputRequiredError,
    InvalidParametersError,
    LookupFailedError,
    NotAuthenticatedError,
    OutputInvalidError,
    RequestError,
    RetinueError,
    UnknownSkillError,
)
from retinue.core.record import Listing, ListingKey, Skill
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.events import CallEndedEvent, EventBus, ToolCallEvent, now
from retinue.mesh.guards import Passage, TraceGuard
from retinue.mesh.limits import Limits
from retinue.mesh.patience import PatientChannel
from retinue.mesh.pulse import Board, Pulses, note_health
from retinue.mesh.routing import Strategy, first, order_candidates
from retinue.mesh.schema import SchemaCheck, compile_schema
from retinue.mesh.verdicts import is_stale_input, may_go_elsewhere, tell_failure

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
    ) -> tuple[Listing, ...]:
        """At least one listing; raises a LookupFailedError."""

    async def reread(self, listing: Listing) -> Listing | None:
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
    """How far a call has come: who was asked last, and every try."""

    started: float
    listing: Listing | None = None
    attempts: list[Attempt] = field(default_factory=list)


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

    async def dispatch(self, call: Call, channel: Channel = _NULL_CHANNEL) -> Outcome:
        """Run one call; every failure is data in the outcome, only cancellation raises."""
        course = _Course(time.perf_counter())
        passage: Passage | None = None
        try:
            self.limits.admit(call.principal.id)
            try:
                passage = self.guard.enter(call, call.agent or self.agent)
                call = _bounded(call, passage)
                candidates = await self.lookup.resolve_skill(
                    call.skill, call.principal.scopes, version_range=call.version_range, agent=call.agent
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
            self._record(call, _failed(call, course, CallCancelledError(call.skill)))
            raise
        self._record(call, outcome)
        return outcome

    async def _run(
        self,
        candidates: tuple[Listing, ...],
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
        several = len(candidates) > 1
        queue = deque(order_candidates(candidates, self.strategy, call.skill) if several else candidates)
        spared: RetinueError | None = None
        lost: list[Listing] = []
        reread: set[ListingKey] = set()
        while queue or (queue := await self._list_moved(lost, reread)):
            listing = queue.popleft()
            skill = _skill_of(listing, call.skill)
            if skill is None:
                continue
            course.listing = listing
            if skill is not checked:
                _check_access(skill, call)
                _check_input(skill, call)
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
                if not may_go_elsewhere(error, skill):
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
            _check_output(skill, answer.value)
            return answer
        raise spared or UnknownSkillError(call.skill)

    async def _list_moved(self, lost: list[Listing], reread: set[ListingKey]) -> deque[Listing]:
        """Those that could not be reached and have another url by now; each is asked about once."""
        moved: deque[Listing] = deque()
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
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
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
            if isinstance(error, TimeoutError) and limit.expired():
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

    def _record(self, call: Call, outcome: Outcome) -> None:
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


def _is_given_up() -> bool:
    """Whether this very task is being cancelled, rather than something that a skill awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_overdue(call: Call) -> bool:
    """Whether a caller gives up because its time is over: a step's limit ends just before its call's."""
    return call.deadline is not None and call.deadline - asyncio.get_running_loop().time() < _ALMOST_S


def _skill_of(listing: Listing, skill_id: str) -> Skill | None:
    return listing.record.find_skill(skill_id)


def _check_access(skill: Skill, call: Call) -> None:
    if skill.hints.runs_code and "runs_code" not in call.principal.scopes:
        raise NotAuthenticatedError(
            f"{skill.id} runs code and wants a token",
            remedy="call it with the retinue command line, or send keys/local.token as a bearer token",
        )


def _check_input(skill: Skill, call: Call) -> None:
    check = _compiled(skill.input_schema, f"input of {skill.id}")
    if check is not None and (problems := check.problems(call.arguments)):
        raise InvalidParametersError(problems)


def _check_output(skill: Skill, value: Any) -> None:
    check = _compiled(skill.output_schema, f"output of {skill.id}")
    if check is not None and (problems := check.problems(value)):
        raise OutputInvalidError(skill.id, problems)


def _compiled(schema: Mapping[str, Any] | None, where: str) -> SchemaCheck | None:
    return None if schema is None else compile_schema(schema, where)


def _done(call: Call, course: _Course, answer: Answer) -> Outcome:
    record = None if course.listing is None else course.listing.record
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status="done",
        agent=None if record is None else record.name,
        version=None if record is None else record.version,
        value=answer.value,
        parts=answer.parts,
        attempts=tuple(course.attempts),
        duration_ms=(time.perf_counter() - course.started) * 1000,
        usage=answer.usage,
        warnings=answer.warnings,
        meta=answer.meta,
    )


_REFUSALS = (RequestError, LookupFailedError, AccessError, GuardError, BusyError)


def _failed(call: Call, course: _Course, error: RetinueError) -> Outcome:
    record = None if course.listing is None else course.listing.record
    status: Status = "failed"
    if isinstance(error, InputRequiredError):
        status = "needs_input"
    elif isinstance(error, _REFUSALS):
        status = "refused"
    return Outcome(
        call_id=call.id,
        skill=call.skill,
        status=status,
        agent=None if record is None else record.name,
        version=None if record is None else record.version,
        attempts=tuple(course.attempts),
        duration_ms=(time.perf_counter() - course.started) * 1000,
        error=error,
    )
