"""The trace guard: limits every chain of calls by depth, by budget and by the hubs that it passed.

Depth grows when an agent or a run calls; a hub that only forwards adds itself to ``via`` instead. Traces that
processes of the mesh send each other are signed and trusted. Any other trace is a claim: its depth counts as
at least 1 + the depth of this process's own calls in flight in that trace, so that a loop through a peer that
drops the depth still grows, and its budget as at most what those calls were given (specification 7.5; S-14,
S-15; decision 0018).

The tree of calls is bounded because each call gets a share of its caller's budget (``budget``). So is what it
spends on models, where the trace limits that (``spending``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from retinue.core.allowance import Allowance, Amount
from retinue.core.call import Answer, Call, Hop, Outcome, TraceContext, TraceExtension, new_id
from retinue.core.errors import BudgetSpentError, CallTooDeepError, InvalidRequestError
from retinue.core.usage import SOURCES, Usage, add_usage, as_further
from retinue.mesh.guard.budget import TraceBudget
from retinue.mesh.guard.cycles import TraceBreaker, draw_path, find_cycle, guess_cycle
from retinue.mesh.guard.spending import (
    NOTHING,
    SpendingBudget,
    accept_usage,
    count_unclaimed,
    limit_claim,
    limit_new,
    seal_usage,
    without_others,
)

MAX_DEPTH = 5
"""The greatest depth that is admitted (S-14)."""

UNKNOWN = Hop("?", "?")
"""The unknown hops between a call of this process and the claim that came back."""

NO_USAGE: Usage = {}
"""The usage of a call that has spent nothing."""

Strictness = Literal["off", "trace", "signed"]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Bounds of one process: depth, budget of a new trace, cycles, and the trace breaker.

    ``strict`` "trace" rejects a call without a trace or with an invalid signature; "signed" rejects
    everything that this mesh has not signed (specification 5, doubt 2). ``allowance`` = the tokens and the
    money of a new trace.
    """

    max_depth: int = MAX_DEPTH
    calls: int = 10_000
    refuse_cycles: bool = False
    strict: Strictness = "off"
    allowance: Allowance | None = None
    refusals_to_open: int = 3
    open_s: float = 60.0
    keep_traces: int = 10_000


class TraceSigner(Protocol):
    """Signs the traces that this process sends and verifies those it receives.

    A signature is for one ``agent`` ("" = any) and one ``skill``.
    """

    def sign(self, trace: TraceContext, agent: str, skill: str) -> TraceContext:
        """The trace to send; an untrusted trace is not signed."""

    def verify(self, trace: TraceContext, agent: str, skill: str) -> str | None:
        """Why the signature of a received trace is invalid; None when it is valid.

        Called once per message: a second call with the same message reports a replay.
        """

    def sign_usage(self, usage: Usage, request_mac: str) -> str:
        """The signature of a usage in the reply to the request whose trace has this ``mac``."""


def new_trace() -> TraceContext:
    """The trace of a new chain: a new id at depth 0."""
    return TraceContext(id=new_id(), trusted=True)


@dataclass(slots=True)
class _Running:
    in_flight: int = 0
    admitted: int = 0


@dataclass(slots=True)
class _InFlight:
    """This process's calls in flight in one trace, and how much of their budget came back as claims."""

    traces: list[TraceContext]
    claimed: int = 0
    claimed_amount: Amount = NOTHING

    @property
    def unclaimed(self) -> int:
        return sum(trace.calls_left or 0 for trace in self.traces) - self.claimed


class TraceGuard:
    """Decides for each inbound call whether its chain may continue, and traces the calls that follow.

    ``make_id`` makes the id of a new chain.
    """

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        hub_id: str | None = None,
        signer: TraceSigner | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_id: Callable[[], str] = new_id,
    ) -> None:
        self._make_id = make_id
        self._settings = settings or GuardSettings()
        self._hub_id = hub_id
        self._signer = signer
        self._breaker = TraceBreaker(
            clock,
            refusals_to_open=self._settings.refusals_to_open,
            open_s=self._settings.open_s,
            keep_traces=self._settings.keep_traces,
        )
        self._in_flight: dict[str, _InFlight] = {}
        self._running: dict[str, _Running] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is kept of any trace, because no call is in flight."""
        return not (self._in_flight or self._running)

    def is_in_flight(self, trace_id: str) -> bool:
        """Whether an admitted call of this trace has not ended."""
        return trace_id in self._running

    @property
    def refused_traces(self) -> int:
        """Traces whose refusals are remembered."""
        return len(self._breaker.refused)

    def configure(self, settings: GuardSettings) -> None:
        """Apply other bounds to the next calls; the breaker keeps those of its creation."""
        self._settings = settings

    def enter(self, call: Call, agent: str) -> AdmittedCall:
        """Check one inbound call to ``agent``; end an admitted call with `leave`.

        Raises a GuardError that names the exceeded bound, and InvalidRequestError for a trace that is
        missing or invalid where ``strict`` requires one.
        """
        trace = call.trace
        if not trace.trusted:
            trace = self._judge(trace, call) if trace.id else self._begin(trace)
        target = Hop(agent, call.skill)
        settings = self._settings
        if settings.allowance is not None and not trace.depth:
            trace = limit_new(trace, settings.allowance)
        if self._breaker.refused:
            self._breaker.check(trace, target)
        if trace.depth > settings.max_depth:
            raise self._too_deep(trace, target, guess_cycle(trace.path, target))
        if self._hub_id is not None and self._hub_id in trace.via:
            raise self._too_deep(trace, target, " → ".join((*trace.via, self._hub_id)))
        if settings.refuse_cycles and (cycle := find_cycle(trace.path, target)):
            raise self._too_deep(trace, target, cycle)
        if trace.calls_left is not None and trace.calls_left < 0:
            raise BudgetSpentError("calls", "trace.calls")
        if trace.seconds_left is not None and trace.seconds_left <= 0:
            raise BudgetSpentError("seconds", "the caller's timeout")
        running = self._running.get(trace.id)
        if running is None:
            running = self._running[trace.id] = _Running()
        elif running.admitted >= settings.calls:
            raise BudgetSpentError("calls", "trace.calls")
        running.in_flight += 1
        running.admitted += 1
        charged = None if trace.trusted or not self._in_flight else self._in_flight.get(trace.id)
        admitted = AdmittedCall(self, trace, target, charged)
        if charged is not None:
            charged.claimed += 1 + (trace.calls_left or 0)
            if (allowance := trace.allowance) is not None:
                charged.claimed_amount = charged.claimed_amount.plus(allowance.amount)
        if trace.extension is not None and trace.trusted:
            admitted.request_mac = call.trace.mac
        return admitted

    def seal_usage(self, usage: Usage, request_mac: str) -> Usage:
        """The usage with its signature, for the process of the mesh that sent the request."""
        return usage if self._signer is None else seal_usage(usage, request_mac, self._signer)

    def leave(self, admitted: AdmittedCall) -> None:
        """End an admitted call; with the last one of its trace the counts of the trace are dropped."""
        trace = admitted.trace
        running = self._running[trace.id]
        running.in_flight -= 1
        if not running.in_flight:
            del self._running[trace.id]
        if admitted.charged is not None:
            unused = (trace.calls_left or 0) - admitted.calls_used
            admitted.charged.claimed = max(0, admitted.charged.claimed - unused)
            if admitted.spending is not None:
                admitted.charged.claimed_amount = admitted.charged.claimed_amount.less(
                    admitted.spending.left.amount
                )

    def forward(self, trace: TraceContext, calls_left: int | None = None) -> TraceContext:
        """The trace as a hub forwards it: at the same depth, with the hub added to ``via`` and not signed.

        ``calls_left`` is its budget; None = that of ``trace``. The fields of its extension stay as they are.
        """
        budget = trace.calls_left if calls_left is None else calls_left
        if self._hub_id is None:
            return trace if budget == trace.calls_left else replace(trace, calls_left=budget)
        return TraceContext(
            id=trace.id,
            depth=trace.depth,
            path=trace.path,
            via=(*trace.via, self._hub_id),
            calls_left=budget,
            seconds_left=trace.seconds_left,
            traceparent=trace.traceparent,
            tracestate=trace.tracestate,
            baggage=trace.baggage,
            trusted=trace.trusted,
            depth_given=trace.depth_given,
            extension=trace.extension,
        )

    @property
    def max_depth(self) -> int:
        """The greatest depth that is admitted."""
        return self._settings.max_depth

    @property
    def new_trace_calls(self) -> int:
        """Further calls that the first call of a trace may cause; the first call counts as well."""
        return self._settings.calls - 1

    @property
    def new_trace_allowance(self) -> Allowance | None:
        """The amount that a new trace may spend on models."""
        return self._settings.allowance

    def _begin(self, trace: TraceContext) -> TraceContext:
        """A new chain; depth, path and budget that came without a usable id still count."""
        if self._settings.strict != "off":
            raise _refused("the call carries no trace")
        began_here = not (trace.depth or trace.path or trace.via)
        calls_left = self._settings.calls - 1
        if trace.calls_left is not None:
            calls_left = min(calls_left, trace.calls_left)
        # the new chain gets a signature, which must not cover fields that somebody claims
        extension = None if trace.extension is None else without_others(trace)
        extension = self._limit_claim(extension)
        return _resolved(trace, self._make_id(), trace.depth, trace.path, calls_left, began_here, extension)

    def _judge(self, trace: TraceContext, call: Call) -> TraceContext:
        """The trace of a received message: as it is where it is signed, else bounded."""
        strict = self._settings.strict
        if trace.mac is not None and self._signer is not None:
            flaw = self._signer.verify(trace, call.agent or "", call.skill)
            if flaw is None:
                return _resolved(
                    trace, trace.id, trace.depth, trace.path, trace.calls_left, True, trace.extension
                )
            if strict != "off":
                raise _refused(f"the signature of the trace does not hold: {flaw}")
        elif strict == "signed":
            raise _refused("the trace is not signed by this mesh")
        calls = self.new_trace_calls
        calls_left = calls if trace.calls_left is None else min(trace.calls_left, calls)
        depth = trace.depth if trace.depth_given else 0
        path = trace.path
        in_flight = self._in_flight.get(trace.id) if self._in_flight else None
        extension = self._limit_claim(trace.extension)
        if in_flight is not None:
            extension = limit_claim(extension, count_unclaimed(in_flight.traces, in_flight.claimed_amount))
            deepest = max(in_flight.traces, key=_depth_of)
            if depth <= deepest.depth:
                depth, path = deepest.depth + 1, (*deepest.path, UNKNOWN)
            calls_left = min(calls_left, in_flight.unclaimed - 1)
        return _resolved(trace, trace.id, depth, path, calls_left, False, extension)

    def _limit_claim(self, extension: TraceExtension | None) -> TraceExtension | None:
        default = self._settings.allowance
        return None if extension is None and default is None else limit_claim(extension, default)

    def _too_deep(self, trace: TraceContext, target: Hop, cycle: str) -> CallTooDeepError:
        self._breaker.record_refusal(trace, target)
        path = draw_path(trace.path, target)
        return CallTooDeepError(trace.id, trace.depth, self._settings.max_depth, path, cycle)

    def call_started(self, trace: TraceContext) -> None:
        """Record a call of this process as in flight."""
        in_flight = self._in_flight.get(trace.id)
        if in_flight is None:
            self._in_flight[trace.id] = _InFlight([trace])
        else:
            in_flight.traces.append(trace)

    def call_ended(self, trace: TraceContext) -> tuple[int, Amount]:
        """Record that the call ended; returns how much of its budgets came back here as claims."""
        in_flight = self._in_flight[trace.id]
        in_flight.traces.remove(trace)
        spent = min(max(in_flight.claimed, 0), trace.calls_left or 0)
        in_flight.claimed -= spent
        amount = NOTHING
        if trace.allowance is not None and in_flight.claimed_amount != NOTHING:
            amount = in_flight.claimed_amount.at_most(trace.allowance.amount)
            in_flight.claimed_amount = in_flight.claimed_amount.less(amount)
        if not in_flight.traces:
            del self._in_flight[trace.id]
        return spent, amount


class AdmittedCall:
    """An admitted call: its resolved trace, and the traces and budgets of calls made from it.

    With ``may_repeat`` a part of the budget is kept back when the call is handed on. ``charged`` are the
    calls of this process whose budget the call uses, where its trace is a claim. ``usage`` is what its
    further calls have spent on models. ``request_mac`` = the signature of a request that limits that.
    ``policy`` is what policies said of a message, or of a call that they denied, for its audit row.
    """

    __slots__ = (
        "_budget",
        "_guard",
        "_here",
        "_spending",
        "charged",
        "may_repeat",
        "policy",
        "request_mac",
        "trace",
        "usage",
    )

    def __init__(
        self, guard: TraceGuard, trace: TraceContext, here: Hop, charged: _InFlight | None = None
    ) -> None:
        self._guard = guard
        self._here = here
        self._budget: TraceBudget | None = None
        self._spending: SpendingBudget | None = None
        self.usage: Usage | None = None
        self.request_mac: str | None = None
        self.trace = trace
        self.charged = charged
        self.may_repeat = False
        self.policy: Mapping[str, Any] | None = None

    @property
    def budget(self) -> TraceBudget:
        """The budget of this call for further calls."""
        if self._budget is None:
            calls_left = self.trace.calls_left
            self._budget = TraceBudget(self._guard.new_trace_calls if calls_left is None else calls_left)
        return self._budget

    @property
    def calls_used(self) -> int:
        """Further calls that this one has caused, or may still cause without reporting them."""
        return 0 if self._budget is None else self._budget.used

    @property
    def spending(self) -> SpendingBudget | None:
        """The amount that this call may still spend on models; None without a limit."""
        if self._spending is None and (allowance := self.trace.allowance) is not None:
            self._spending = SpendingBudget(allowance)
        return self._spending

    def seal(self, usage: Usage) -> Usage:
        """The usage of this call as its reply has it: signed if the request was signed and limits it."""
        return usage if self.request_mac is None else self._guard.seal_usage(usage, self.request_mac)

    def settle_usage(self, outgoing: OutgoingCall, amount: Amount, *, failed: bool) -> None:
        """Count what an ended call has spent; ``amount`` is what came back here as claims.

        The usage of a call that was only handed on is that of its answer, unless it failed.
        """
        usage, share = outgoing.usage, outgoing.trace.allowance
        if share is not None and (spending := self.spending) is not None:
            self.usage = add_usage(self.usage, spending.settle(share, usage, amount))
        if usage and not outgoing.is_forwarded:
            self.usage = add_usage(self.usage, as_further(usage))
        elif usage and failed:
            self.usage = add_usage(self.usage, usage)

    def set_agent(self, agent: str) -> None:
        """Set the agent that took the call, where the guard did not know it yet."""
        if agent != self._here.agent:
            self._here = Hop(agent, self._here.skill)

    def further_call(
        self,
        seconds_left: float | None = None,
        *,
        siblings: int = 1,
        most: Allowance | None = None,
        most_calls: int | None = None,
    ) -> OutgoingCall:
        """One call made from this one, one hop deeper; raises BudgetSpentError.

        A hop that is too deep costs nothing: the called process rejects it, with a better explanation.
        ``siblings`` = how many such calls begin at once; ``most`` limits what this one may spend on models,
        ``most_calls`` its further calls.
        """
        hops = self._guard.max_depth - self.trace.depth - 1
        share = 0 if hops < 0 else self.budget.reserve(hops, most_calls)
        trace = next_hop(self.trace, self._here, calls_left=share, seconds_left=seconds_left)
        if most is not None or trace.extension is not None:
            trace = self._carry_sources(trace.with_allowance(self._share_spending(siblings, most)))
        return OutgoingCall(trace, None if hops < 0 else self.budget, self._guard, self)

    def _carry_sources(self, trace: TraceContext) -> TraceContext:
        """The trace of a further call, which is told what this call has read."""
        if self.usage is None or SOURCES not in self.usage:
            return trace
        # imported here, because only policies read sources
        from retinue.mesh.guard.sources import carry

        return carry(trace, self.usage)

    def take_in(self, usage: Usage | None) -> None:
        """Note the sources of a result that this call gets otherwise, such as that of an earlier run."""
        if usage is not None and SOURCES in usage and self.trace.extension is not None:
            self.usage = add_usage(self.usage, {SOURCES: usage[SOURCES]})

    def _share_spending(self, siblings: int, most: Allowance | None) -> Allowance | None:
        spending = self.spending
        if spending is None:
            return most
        return spending.reserve(siblings) if most is None else spending.reserve_most(most)

    def forward(self) -> OutgoingCall:
        """This call, forwarded to an agent elsewhere with the whole budget."""
        share = self.budget.reserve_rest(spare=self.may_repeat)
        trace = self._guard.forward(self.trace, share)
        if trace.extension is not None and (spending := self.spending) is not None:
            trace = trace.with_allowance(spending.reserve_rest(spare=self.may_repeat))
        return OutgoingCall(trace, self.budget, admitted=self, is_forwarded=True)

    def relay(self, *, is_forwarded: bool = False) -> OutgoingCall:
        """This call, relayed to another skill with the whole budget.

        ``is_forwarded`` = it is the same skill, elsewhere: the usage comes with its answer.
        """
        share = self.budget.reserve_rest(spare=self.may_repeat)
        trace = self.trace
        if share != trace.calls_left:
            trace = replace(trace, calls_left=share)
        trace = self._carry_sources(trace)
        if trace.extension is not None and (spending := self.spending) is not None:
            trace = trace.with_allowance(spending.reserve_rest(spare=self.may_repeat))
        return OutgoingCall(trace, self.budget, admitted=self, is_forwarded=is_forwarded)

    def relay_one_of_many(self, calls: int) -> OutgoingCall:
        """As `relay`, for one of many messages at once: each has at most ``calls`` further calls.

        It may spend nothing on models where the trace limits that. Raises BudgetSpentError.
        """
        share = self.budget.reserve_few(calls)
        trace = replace(self.trace, calls_left=share)
        if trace.extension is not None and (spending := self.spending) is not None:
            trace = trace.with_allowance(spending.reserve_nothing())
        return OutgoingCall(trace, self.budget, admitted=self)


class OutgoingCall:
    """A call in flight, as a context manager; ``trace`` is sent with it.

    On leaving, the unused part of its share of the budget is returned if `record_usage` was called. Without
    it the share stays spent, because the call may still be running. ``admitted`` is the call that makes it;
    ``is_forwarded`` = it is that call itself, whose answer has the usage.
    """

    __slots__ = ("_admitted", "_budget", "_guard", "is_forwarded", "trace", "usage", "used")

    def __init__(
        self,
        trace: TraceContext,
        budget: TraceBudget | None = None,
        guard: TraceGuard | None = None,
        admitted: AdmittedCall | None = None,
        *,
        is_forwarded: bool = False,
    ) -> None:
        self.trace = trace
        self._budget = budget
        self._guard = guard
        self._admitted = admitted
        self.is_forwarded = is_forwarded
        self.used: int | None = None
        self.usage: Usage | None = None

    def record_usage(self, calls_used: int | None, usage: Usage | None = None) -> None:
        """Record how many further calls the call has caused, and what it has spent on models.

        ``calls_used`` None = unknown. ``usage`` None = nothing was spent if the calls are known, else that
        is unknown too; {} = nothing was spent.
        """
        self.used = calls_used
        if usage is None and calls_used is not None:
            usage = NO_USAGE
        self.usage = usage

    def record_outcome(self, outcome: Outcome) -> None:
        """Record what the outcome of the call reports."""
        self.record_usage(outcome.calls_used, outcome.usage)
        if outcome.error is None:
            self.note_answer(outcome.agent)

    def note_answer(self, agent: str | None) -> None:
        """Record that this agent has answered, where policies read that and nobody of the mesh has said it.

        A source that the mesh has not signed is foreign.
        """
        extension = self.trace.extension
        if extension is None or SOURCES not in extension.others:
            return
        # imported here, because only policies read sources
        from retinue.mesh.guard.sources import note_unsigned

        self.usage = note_unsigned(self.usage, agent)

    def record_reply(
        self,
        calls_used: int | None,
        usage: Usage | None,
        sent: TraceContext | None = None,
        signer: TraceSigner | None = None,
    ) -> Usage | None:
        """Record what the reply to a request reports; returns its usage as it is accepted.

        ``sent`` is the trace of the request, by default that of the call. ``signer`` checks a signed usage.
        """
        accepted = None if usage is None else accept_usage(usage, sent or self.trace, signer)
        self.used = calls_used
        self.usage = NO_USAGE if accepted is None else accepted
        return accepted

    def take_answer(self, answer: Answer) -> Answer:
        """The answer of an agent of no mesh with its usage as it is accepted; it makes no further calls."""
        if answer.usage is None:
            return answer
        return replace(answer, usage=self.record_reply(0, answer.usage))

    def __enter__(self) -> Self:
        if self._guard is not None:
            self._guard.call_started(self.trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        seen_here, amount = (0, NOTHING) if self._guard is None else self._guard.call_ended(self.trace)
        if self.used is not None and self._budget is not None:
            self._budget.settle(self.trace.calls_left or 0, max(self.used, seen_here))
        if self._admitted is not None and (self.usage or self.trace.extension is not None):
            self._admitted.settle_usage(self, amount, failed=kind is not None)


def next_hop(
    trace: TraceContext, here: Hop, *, calls_left: int | None, seconds_left: float | None
) -> TraceContext:
    """The trace of a call that ``here`` makes: one hop deeper, and trusted, since this process made it."""
    return replace(
        trace,
        depth=trace.depth + 1,
        depth_given=True,
        path=(*trace.path, here),
        via=(),
        calls_left=calls_left,
        seconds_left=seconds_left,
        trusted=True,
        extension=trace.extension if trace.trusted or trace.extension is None else without_others(trace),
    )


def _resolved(
    trace: TraceContext,
    trace_id: str,
    depth: int,
    path: tuple[Hop, ...],
    calls_left: int | None,
    trusted: bool,
    extension: TraceExtension | None,
) -> TraceContext:
    # Every field by name: dataclasses.replace takes three times as long, and most calls get here.
    return TraceContext(
        id=trace_id,
        depth=depth,
        path=path,
        via=trace.via,
        calls_left=calls_left,
        seconds_left=trace.seconds_left,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
        baggage=trace.baggage,
        trusted=trusted,
        extension=extension,
    )


def _depth_of(trace: TraceContext) -> int:
    return trace.depth


def _refused(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{problem}, and trace.strict is on", remedy="send X-OpenStarry-Trace-ID, or call through the hub"
    )
