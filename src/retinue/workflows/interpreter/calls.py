"""Makes one call of a step: chooses an agent, calls it, waits for it, retries.

The choice is recorded on its own, so that a repeated call goes to the same agent. Only if that agent is
unreachable, another one is chosen, once per attempt, with the same idempotency key ``<run>/<path>``. An
attempt of a ``retry`` has a key of its own (``@2``) after an answered failure, because the work is to be done
again, and the key of the attempt before it as long as the outcome of that one is unknown (decision 0065). A
call that is to be undone then goes to no other agent, unless its skill may be executed twice.

An agent that certainly did not get the call (it is away or unreachable, or its circuit is open) is waited
for, which uses no attempt: for a step with ``retry`` as long as its attempts could last together, for a
compensation, and for a step of a run that was taken up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import orjson

from retinue.core.allowance import Allowance
from retinue.core.call import Outcome
from retinue.core.durations import render_duration
from retinue.core.errors import (
    AgentUnreachableError,
    CircuitOpenError,
    EmptyOutputError,
    ExpressionError,
    InputRequiredError,
    InvalidParametersError,
    LookupFailedError,
    OutputInvalidError,
    Problem,
    RetinueError,
    StepFailedError,
    StoppingError,
    TooLargeError,
    UnknownAgentError,
    UnknownSkillError,
    is_callers_time,
)
from retinue.core.parts import is_made_of_parts, list_beside, render_parts
from retinue.core.usage import SOURCES
from retinue.workflows.caller import Choice, Wanted, cache_key
from retinue.workflows.definitions.definition import AskFirst, Retry
from retinue.workflows.interpreter.call_approvals import MAX_QUESTIONS, await_answer, find_question
from retinue.workflows.interpreter.call_budget import StepBudget
from retinue.workflows.interpreter.frame import (
    Frame,
    StepResult,
    Trial,
    add_note,
    below,
    overdue,
    record_failure,
)
from retinue.workflows.runs.records import Fault, Origin, StepOutcome, as_json, read_json
from retinue.workflows.runs.replay_rules import is_step_time_out, step_timed_out

CHOOSE_TIMEOUT_S = 60.0

AGAIN_S = 0.5
"""The interval at which a missing agent is looked for."""

MIN_PAUSE_S = 0.1
"""The shortest wait for an open circuit: while its trial call is running, it names no time."""

SHOWN_INPUT_BYTES = 64 * 1024
"""Larger arguments are not repeated in the events of each attempt."""

SHOWN_BEGINNING = 200
"""How many bytes of them are."""

_WITHOUT_RESULT = (OutputInvalidError.type, EmptyOutputError.type)
"""Failures of a skill that came to its end."""

_NO_ANSWER = ("unreachable", "refused")
"""After such a failure the outcome of a call may be asked for once more."""

MAX_PART_BYTES = 1024 * 1024
"""The size of a part of a result (an image, a file) that a run keeps (specification 7, "Parts")."""

SETTLE = "settle"
"""The kind of a call that asks again for the outcome of an attempt."""

Accept = Callable[[Any], Awaitable[str | None]]
"""The problem of a value, None if it is accepted."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The target of a call, a ``skill`` or an agent with a ``role``, and its options.

    ``arguments_for`` gives the arguments for the chosen agent, or raises InvalidParametersError or
    ExpressionError. ``accept`` gives the problem of a value, None if it is accepted. ``agent`` is required,
    ``prefer`` only preferred. ``is_expected`` = worth waiting for if it is missing. ``wait_s`` is how long it
    is waited for; None = ``timeout_s`` for a call with further attempts, else not at all. ``first`` is the
    number of the first attempt, more than 1 where earlier ones were made before; ``undo`` the skill that
    compensates the step. ``as_mesh`` = called with the scopes of the mesh. With ``ask_first`` an agent is
    chosen among the agents that say yes. ``key_path`` is the key of an earlier attempt whose outcome is
    unknown, ``choice`` the agent that had it. ``once`` = only one that
    was lost or refused is followed by another. ``check`` raises an error for a value that the body cannot
    use; it belongs to the call, so such a value wins no race. ``most`` = what it may spend on models.
    ``begin`` records at a path that a call is made which a person was asked about.
    """

    step_id: str
    arguments_for: Callable[[Choice], Any]
    skill: str | None = None
    role: str | None = None
    agent: str | None = None
    prefer: str | None = None
    version: str | None = None
    timeout_s: float = CHOOSE_TIMEOUT_S
    retry: Retry | None = None
    cache_ttl_s: float | None = None
    allow_empty: bool = False
    accept: Accept | None = None
    check: Callable[[Any], object] | None = None
    kind: str = "call"
    is_expected: bool = True
    as_mesh: bool = False
    wait_s: float | None = None
    first: int = 1
    undo: str | None = None
    ask_first: AskFirst | None = None
    key_path: str | None = None
    choice: Choice | None = None
    once: bool = False
    verify: Callable[[], Awaitable[None]] | None = None
    begin: Callable[[str], Awaitable[None]] | None = None
    keep: Callable[[Outcome], Awaitable[Outcome]] | None = None
    shown: Any = None
    heeds_agents_wait: bool = False
    most: Allowance | None = None

    @property
    def target(self) -> str:
        return self.skill or self.role or ""

    @property
    def attempts(self) -> range:
        """The numbers of the attempts."""
        return range(self.first, self.first + (self.retry.attempts if self.retry else 1))

    @property
    def is_counted(self) -> bool:
        """Whether each effect of the call counts, because it is undone or undoes."""
        return self.undo is not None or self.kind in ("undo", SETTLE)

    def lasts_s(self, number: int, timeout_s: float) -> float:
        """How long the attempts from the ``number``-th on could last together, with the waits between."""
        if self.retry is None:
            return timeout_s
        later = range(number + 1, self.retry.attempts + 1)
        return timeout_s * (1 + len(later)) + sum(self.retry.delay_before(each) for each in later)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A call that was made: its recorded outcome, and the attempt as one that may have had its effect."""

    outcome: StepOutcome
    trial: Trial


class CallSteps:
    """Makes the calls of one body; ``outcomes`` are those of all calls that were made, in order."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.outcomes: list[StepOutcome] = []

    async def run(self, ask: Ask, path: str, base: str | None = None) -> StepResult:
        """Make a call with its retries; raises StepFailedError.

        The paths of the attempts begin with ``base``, by default the path of the step. Afterwards
        ``trials`` of the frame are the attempts that may have had an effect besides that of the result.
        """
        base = base or path
        choice = ask.choice
        unknown: list[Trial] = []
        trials = self._frame.trials = []
        key_path = ask.key_path
        waited_s = asked_s = 0.0
        for number, attempt in enumerate(ask.attempts, 1):
            here = base if attempt == 1 else f"{base}@{attempt}"
            if number > 1 and ask.retry:
                delay_s = max(ask.retry.delay_before(number), asked_s)
                await self._frame.sleep(f"{here}/wait", delay_s, step=path)
            key_path = key_path or here
            trial = _Attempt(self._frame, ask, path, here, attempt, key_path, bool(unknown))
            trial.waited_s = waited_s
            try:
                choice, outcome = await trial.run(choice, number)
            except StepFailedError:
                trials += _still_unknown([*unknown, *trial.list_unknown()])
                raise
            finally:
                self.outcomes += [call.outcome for call in trial.sent]
            waited_s = trial.waited_s
            unknown += trial.list_unknown()
            last = trial.sent[-1].trial if trial.sent else None
            fault = outcome.fault
            if fault is None:
                assert last is not None
                last = replace(last, value=outcome.value["value"], is_answered=True)
                fault = await self._refuse(ask, path, here, last.value)
            if fault is None:
                assert last is not None
                trials += [unanswered for unanswered in unknown if not _is_settled(unanswered, last)]
                answer = outcome.value
                facts = {"agent": answer["agent"], "cached": bool(answer.get("cached"))}
                if answer.get("parts"):
                    facts["parts"] = answer["parts"]
                return StepResult(answer["value"], facts, last.sent)
            is_last = number == len(ask.attempts) or "limit_of" in fault.data or "waited_s" in fault.data
            is_last = is_last or not fault.retryable or (ask.once and fault.on_error not in _NO_ANSWER)
            # A refusal says nothing about an earlier attempt with the same key.
            is_refusal = fault.on_error in ("request", "refused") and bool(unknown or ask.key_path)
            if last is not None and not (is_refusal or _is_unknown(fault) or _did_not_arrive(fault)):
                # Answered: the work is to be done again, and what is known of this key will not change.
                trials += _answered(last, fault, unknown)
                unknown, key_path = [], None
            if is_last:
                trials += _still_unknown(unknown)
                raise StepFailedError(path, choice.agent if choice else ask.agent, as_json(fault))
            if fault.on_error == "unreachable" and not (ask.is_counted and unknown):
                choice = ask.choice
            if ask.heeds_agents_wait:
                asked_s = float(fault.data.get("retry_after_s") or 0.0)
        raise AssertionError("a retry has at least one attempt")

    async def _refuse(self, ask: Ask, path: str, here: str, value: Any) -> Fault | None:
        """The fault of a value that is not accepted, retryable; None if it is accepted."""
        error: RetinueError
        try:
            problem = None if ask.accept is None else await ask.accept(value)
            if problem is None:
                return None
            error = OutputInvalidError(f"step {ask.step_id}", [Problem("", problem)])
            fault = Fault.from_error(error)
            fault = Fault(fault.type, fault.message, fault.remedy, True, "failed", fault.data)
        except ExpressionError as broken:
            error, fault = broken, Fault.from_error(broken)
        place = f"{here}/validate"
        await add_note(self._frame.context, place, {"kind": "fail", "below": below(place, path)}, error)
        return fault


class _Attempt:
    """One attempt: a call to one agent, and to another one if the first is unreachable.

    ``is_bound`` = an earlier attempt with the key of ``key_path`` may have had its effect. ``sent`` are the
    calls that were made, ``waited_s`` is how long this execution has waited for the agent of the step.
    """

    def __init__(
        self, frame: Frame, ask: Ask, path: str, here: str, attempt: int, key_path: str, is_bound: bool
    ) -> None:
        self._frame = frame
        self._ask = ask
        self._path = path
        self._here = here
        self._attempt = attempt
        self._key_path = key_path
        self._is_bound = is_bound
        self._left_s = inf
        self.waited_s = 0.0
        self.sent: list[_Sent] = []

    async def run(self, choice: Choice | None, number: int) -> tuple[Choice | None, StepOutcome]:
        """Make the ``number``-th attempt of this call."""
        left_s, nearest = await self._frame.time_left(self._here, step=self._path)
        timeout_s = min(self._ask.timeout_s, left_s)
        wait_s = min(self._wait_s(number, timeout_s), left_s)
        self._left_s = left_s
        if choice is None:
            outcome = await self._choose(f"{self._here}/choose", wait_s)
            if outcome.fault is not None:
                return None, outcome
            choice = read_json(Choice, outcome.value)
        outcome = await self._call_approved(self._here, choice, timeout_s)
        if outcome.fault is not None and _did_not_arrive(outcome.fault):
            may_move = self._may_move(choice, outcome.fault)
            other = await self._find_other(choice) if may_move else None
            # A call that was not sent may be made once more, even to the same agent.
            if other is not None or not outcome.fault.data.get("sent"):
                choice = other or choice
                outcome = await self._call_approved(f"{self._here}/again", choice, timeout_s, wait_s)
        fault = outcome.fault
        is_cut_off = fault is not None and is_step_time_out(fault) and fault.data["timeout_s"] >= left_s
        if nearest is not None and is_cut_off:
            outcome = StepOutcome(fault=read_json(Fault, overdue(self._path, nearest)))
        return choice, outcome

    def list_unknown(self) -> list[Trial]:
        """The calls whose outcome is unknown."""
        return [
            call.trial
            for call in self.sent
            if call.outcome.fault is not None and _is_unknown(call.outcome.fault)
        ]

    def _may_move(self, choice: Choice, fault: Fault) -> bool:
        """Whether another agent may take the call."""
        is_bound = self._is_bound or _is_unknown(fault)
        return not (self._ask.agent or (self._ask.is_counted and is_bound and not choice.is_repeatable))

    def _wait_s(self, number: int, timeout_s: float) -> float:
        """How long to wait for an agent that is known and not there now."""
        ask = self._ask
        if not ask.is_expected:
            return 0.0
        if ask.wait_s is not None:
            return ask.wait_s
        if len(ask.attempts) > 1:
            return max(ask.lasts_s(1, timeout_s) - self.waited_s, ask.lasts_s(number, timeout_s))
        return timeout_s if self._frame.context.agent_wait_s else 0.0

    async def _find_other(self, choice: Choice) -> Choice | None:
        """Choose another agent in place of a silent one; None if there is no other."""
        chosen = await self._choose(f"{self._here}/again/choose", 0.0)
        other = None if chosen.fault is not None else read_json(Choice, chosen.value)
        is_other = other is not None and (other.agent, other.url) != (choice.agent, choice.url)
        return other if is_other else None

    async def _choose(self, path: str, wait_s: float) -> StepOutcome:
        """Choose an agent; wait for a withdrawn agent and, in a resumed run, for a missing agent.

        While a registry cannot be read, an agent that no other registry lists counts as withdrawn.
        """
        ask = self._ask

        async def effect() -> Any:
            waited_s = 0.0
            while True:
                try:
                    return as_json(await self._find_best())
                except AgentUnreachableError as away:
                    if waited_s >= wait_s:
                        raise _after_waiting(away, waited_s) from None
                except LookupFailedError as error:
                    may_be_listed = error.unasked and waited_s < wait_s
                    is_awaited = ask.is_expected and self._frame.context.agent_wait_s
                    if not may_be_listed and not is_awaited:
                        raise
                await self._frame.context.pause(AGAIN_S)
                waited_s += AGAIN_S
                self.waited_s += AGAIN_S

        facts = {"kind": "choose", "skill": ask.target, "attempt": self._attempt, "serves": ask.kind}
        facts |= {"below": below(path, self._path)}
        asked_s = 0.0 if ask.ask_first is None else ask.ask_first.timeout_s
        timeout_s = CHOOSE_TIMEOUT_S + asked_s + wait_s
        return await self._frame.context.step(path, effect, timeout_s=timeout_s, facts=facts)

    def _as_asked(self, origin: Origin) -> Origin:
        return origin.as_mesh() if self._ask.as_mesh else origin

    async def _find_best(self) -> Choice:
        """The agent to call; raises LookupFailedError, and AgentUnreachableError for a withdrawn agent."""
        ask = self._ask
        if ask.prefer is None or ask.agent is not None:
            return await self._find(ask.agent)
        is_gone = False
        try:
            return await self._find(ask.prefer)
        except UnknownAgentError:
            is_gone = True
        except (LookupFailedError, AgentUnreachableError):
            pass
        try:
            return await self._find(None)
        except LookupFailedError as error:
            if not is_gone:
                raise
            # It executed the step before, so it is known.
            raise AgentUnreachableError.away(ask.prefer) from error

    async def _find(self, agent: str | None) -> Choice:
        ask, caller, origin = self._ask, self._frame.tools.caller, self._as_asked(self._frame.request.origin)
        if ask.ask_first is not None:
            wanted = Wanted(
                skill=ask.skill,
                role=ask.role,
                agents=(agent,) if agent else (),
                version_range=ask.version,
                capabilities=ask.ask_first.capabilities,
                timeout_s=ask.ask_first.timeout_s,
            )
            return (await caller.list_willing(wanted, origin))[0]
        if ask.skill is None:
            named = [agent] if agent else ()
            role = ask.role or ""
            return (await caller.list_role(role, named, origin.scopes, origin.caller, origin.reach))[0]
        return await caller.choose(ask.skill, agent, ask.version, origin.scopes, origin.caller, origin.reach)

    async def _call_approved(
        self, path: str, choice: Choice, timeout_s: float, wait_s: float = 0.0
    ) -> StepOutcome:
        """Make a call; where policies let a person decide about it, wait for the answer and make it again.

        The time of the step does not run meanwhile.
        """
        outcome, here = await self._call(path, choice, timeout_s, wait_s), path
        for number in range(1, MAX_QUESTIONS + 1):
            fault = outcome.fault
            question = None if fault is None else find_question(fault, self._frame.name(here))
            if question is None:
                break
            is_answered = await await_answer(
                self._frame,
                question,
                f"{path}/answer-{number}",
                step=self._path,
                call=f"{choice.agent}/{self._ask.skill or choice.skill}",
                arguments=self.sent[-1].trial.sent,
            )
            if not is_answered:
                break
            here = f"{path}/answered-{number}"
            if self._ask.begin is not None:
                await self._ask.begin(f"{path}/begin-{number}")
            self._left_s, _ = await self._frame.time_left(here, step=self._path)
            outcome = await self._call(here, choice, min(timeout_s, self._left_s), wait_s)
        return outcome

    async def _call(self, path: str, choice: Choice, timeout_s: float, wait_s: float = 0.0) -> StepOutcome:
        ask, context = self._ask, self._frame.context
        skill = ask.skill or choice.skill
        try:
            arguments = ask.arguments_for(choice)
        except (InvalidParametersError, ExpressionError) as error:
            raise await record_failure(
                context, path, error, step=self._path, skill=skill, agent=choice.agent
            ) from None
        budget = self._frame.budget.open_step(ask.most)

        async def effect() -> Any:
            return await self._obtain(path, choice, skill, arguments, timeout_s, budget, wait_s)

        facts: dict[str, Any] = {"kind": ask.kind, "skill": skill, "agent": choice.agent}
        facts |= {"version": choice.version, "attempt": self._attempt}
        if choice.warning:
            facts["warning"] = choice.warning
        facts["input"] = shown_input(arguments) if ask.shown is None else ask.shown
        facts["below"] = below(path, self._path)
        if ask.skill is None:
            facts["role"] = ask.role
        if ask.undo is not None:
            facts["undo"] = ask.undo
        outcome = await context.step(
            path,
            effect,
            timeout_s=min(timeout_s + wait_s, self._left_s),
            facts=facts,
            count=budget.count,
        )
        was_lost = outcome.fault is not None and outcome.fault.on_error == "unreachable"
        trial = Trial(
            self._path,
            path,
            self._key_path,
            choice,
            skill,
            arguments,
            is_open=choice.keeps_keys,
            was_lost=was_lost,
        )
        self.sent.append(_Sent(outcome, trial))
        return outcome

    async def _obtain(
        self,
        path: str,
        choice: Choice,
        skill: str,
        arguments: Any,
        timeout_s: float,
        budget: StepBudget,
        wait_s: float,
    ) -> Mapping[str, Any]:
        """Make the call, or take the cached value of an equal one; waits ``wait_s`` for its agent."""
        ask, cache = self._ask, self._frame.tools.cache
        key = ""
        is_tracked = self._frame.budget.is_tracked
        if ask.cache_ttl_s is not None and not is_tracked:
            origin = self._frame.request.origin
            place = [self._frame.request.name.partition("/")[0], ask.step_id]
            key = cache_key(place, origin.rights, choice.agent, choice.version, skill, arguments)
            kept = await cache.find(key)
            if kept is not None:
                return {"value": kept.value, "agent": choice.agent, "cached": True}
        make_call = partial(
            self._call_agent,
            choice,
            skill,
            arguments,
            run_id=self._frame.context.run_id,
            path=path,
            idempotency_key=self._frame.key(self._key_path),
            origin=self._as_asked(budget.begin()),
        )
        outcome = await make_call(timeout_s=timeout_s)
        waited_s = 0.0
        while (pause_s := self._find_pause(outcome.error, wait_s - waited_s)) is not None:
            await self._frame.context.pause(pause_s)
            waited_s += pause_s
            self.waited_s += pause_s
            # Waiting counts against the time of a step, but not against that of a compensation.
            left_s = timeout_s if wait_s > timeout_s else max(timeout_s - waited_s, AGAIN_S)
            outcome = await make_call(timeout_s=left_s)
        budget.record_usage(outcome.calls_used, outcome.usage)
        if outcome.error is not None:
            error = outcome.error
            if is_callers_time(error):
                # The agent knows only that its caller's time was over; the limit is that of this step.
                raise step_timed_out(self._path, timeout_s)
            if isinstance(error, UnknownAgentError):
                # The run has chosen it, so it was there.
                error = AgentUnreachableError.away(choice.agent, choice.url)
            raise _after_waiting(error, waited_s)
        if outcome.status != "done":
            raise InputRequiredError(f"{skill} did not finish: {outcome.status}")
        if not ask.allow_empty and self._is_empty(outcome.value, choice):
            raise EmptyOutputError(skill)
        if ask.check is not None:
            ask.check(outcome.value)
        beside = _list_beside(outcome, self._path)
        is_tracked = is_tracked or (outcome.usage is not None and SOURCES in outcome.usage)
        if ask.cache_ttl_s is not None and not (beside or is_tracked):
            await cache.put(key, outcome.value, ask.cache_ttl_s)
        result = {"value": outcome.value, "agent": choice.agent, "warnings": list(outcome.warnings)}
        if beside:
            result["parts"] = beside
        return result if outcome.usage is None else result | {"usage": dict(outcome.usage)}

    async def _call_agent(self, choice: Choice, skill: str, arguments: Any, **options: Any) -> Outcome:
        """Make the call, unless something prevents it; a failure is an outcome with ``error`` set."""
        ask = self._ask
        try:
            if ask.verify is not None:
                await ask.verify()
        except RetinueError as error:
            return Outcome(options["idempotency_key"], skill, "failed", agent=choice.agent, error=error)
        outcome = await self._frame.tools.caller.call(choice, skill, arguments, **options)
        return outcome if ask.keep is None or outcome.error is not None else await ask.keep(outcome)

    def _find_pause(self, error: RetinueError | None, left_s: float) -> float | None:
        """The seconds to wait before the same call is made again; None to end with its outcome."""
        pause_s = AGAIN_S
        if isinstance(error, UnknownSkillError):
            left_s = self._frame.context.agent_wait_s if self._ask.is_expected else 0.0
        elif not (isinstance(error, UnknownAgentError) or _is_away(error)):
            return None
        elif isinstance(error, CircuitOpenError):
            pause_s = max(error.retry_after_s, MIN_PAUSE_S)
        return min(pause_s, left_s) if left_s > 0 else None

    def _is_empty(self, value: Any, choice: Choice) -> bool:
        return is_nothing(value) if self._ask.skill is None else is_no_answer(value, choice.output_schema)


def _list_beside(outcome: Outcome, path: str) -> list[dict[str, Any]]:
    """The parts of a result that its value does not hold; raises TooLargeError for a part over the limit."""
    if not outcome.parts:
        return []
    for number, part in enumerate(render_parts(outcome.parts), 1):
        if part["kind"] != "text" and "data" in part and (part["size"] or 0) > MAX_PART_BYTES:
            what = f"part {number} of the result of step {path} ({part['mime_type']}, {part['size']:,} bytes)"
            remedy = "let the skill store it and give its URL, or make it smaller"
            raise TooLargeError(what, MAX_PART_BYTES, remedy=remedy)
    # an object that is made of the parts holds them already
    is_held = isinstance(outcome.value, Mapping) and is_made_of_parts(outcome.value, outcome.parts)
    return [] if is_held else list_beside(outcome.value, outcome.parts)


def _is_away(error: RetinueError | None) -> bool:
    """Whether an agent certainly did not get a call because it could not be reached."""
    if isinstance(error, CircuitOpenError):
        return error.kind.retryable and not error.relayed
    if error is not None and error.type == StoppingError.type:
        return not error.data.get("nested")
    return isinstance(error, AgentUnreachableError) and not error.sent


def _after_waiting(error: RetinueError, waited_s: float) -> RetinueError:
    """The error after a wait; if its agent is still away, further attempts would only wait again."""
    if waited_s and isinstance(error, AgentUnreachableError | CircuitOpenError) and _is_away(error):
        error.waited_s = waited_s
        error.message += f" (waited {render_duration(waited_s)})"
    return error


def _is_unknown(fault: Fault) -> bool:
    """Whether a call that ended so may have had its effect, or may still have it."""
    was_sent = fault.on_error == "unreachable" and bool(fault.data.get("sent"))
    return was_sent or fault.on_error in ("timeout", "cancelled")


def _is_settled(unknown: Trial, done: Trial) -> bool:
    """Whether the result of ``done`` is that of an attempt with the same key as well."""
    is_same = unknown.choice.agent == done.choice.agent and done.choice.keeps_keys
    return is_same or unknown.choice.is_repeatable


def _answered(last: Trial, fault: Fault, unknown: list[Trial]) -> list[Trial]:
    """The attempts of a key that may have had their effect, after a failure was answered.

    A refused result is that of an effect. An agent that may have died in an earlier attempt does not know
    what became of it; one that only took too long answers for it.
    """
    closed = [
        replace(trial, is_open=False)
        for trial in unknown
        if trial.was_lost or not (trial.choice.agent == last.choice.agent and trial.choice.keeps_keys)
    ]
    if last.is_answered or fault.type in _WITHOUT_RESULT:
        closed = [trial for trial in closed if not _is_settled(trial, last)]
        closed.append(replace(last, is_open=False))
    return closed


def _still_unknown(unknown: list[Trial]) -> list[Trial]:
    """The attempts of the last key, one for each agent that knows what it did for it."""
    last = unknown[-1:]
    others = [trial for trial in unknown[:-1] if not _is_settled(trial, last[0])]
    return [*(replace(trial, is_open=False) for trial in others), *last]


def _did_not_arrive(fault: Fault) -> bool:
    """Whether an agent was unreachable, or its circuit open."""
    # Not retryable, it was recorded by an earlier release, which did not wait.
    is_open = fault.type == CircuitOpenError.type and fault.retryable and not fault.data.get("sent")
    return fault.on_error == "unreachable" or is_open


def shown_input(arguments: Any) -> Any:
    """The arguments as the events of a call tell them: large ones, which are stored elsewhere, not again."""
    text = orjson.dumps(arguments)
    if len(text) <= SHOWN_INPUT_BYTES:
        return arguments
    begins = text[:SHOWN_BEGINNING].decode(errors="ignore")
    return {"omitted": f"{len(text):,} bytes", "begins": begins}


def is_nothing(value: Any) -> bool:
    """Whether a value is null, blank text, or a collection of such values."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(is_nothing(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_nothing(inner) for inner in value)
    return value is None


def is_no_answer(value: Any, schema: Mapping[str, Any] | None) -> bool:
    """Whether a value is blank text, or a null that the output schema does not allow."""
    if isinstance(value, str):
        return not value.strip()
    return value is None and not _allows_null(schema or {})


def _allows_null(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    if "const" in schema and schema["const"] is None:
        return True
    if None in (schema.get("enum") or ()):
        return True
    inner = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(isinstance(inner_schema, Mapping) and _allows_null(inner_schema) for inner_schema in inner)
