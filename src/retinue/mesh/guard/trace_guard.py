"""The trace guard: limits every chain of calls by depth, by budget and by the hubs that it passed.

Depth grows when an agent or a run calls; a hub that only forwards adds itself to ``via`` instead. Traces that
processes of the mesh send each other are signed and trusted. Any other trace is a claim: its depth counts as
at least 1 + the depth of this process's own calls in flight in that trace, so that a loop through a peer that
drops the depth still grows, and its budget as at most what those calls were given (specification 7.5; S-14,
S-15; decision 0018).

The tree of calls is bounded because each call gets a share of its caller's budget (``budget``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Protocol, Self

from retinue.core.call import Call, Hop, TraceContext, new_id
from retinue.core.errors import BudgetSpentError, CallTooDeepError, InvalidRequestError
from retinue.mesh.guard.budget import TraceBudget
from retinue.mesh.guard.cycles import TraceBreaker, draw_path, find_cycle, guess_cycle

MAX_DEPTH = 5
"""The greatest depth that is admitted (S-14)."""

UNKNOWN = Hop("?", "?")
"""The unknown hops between a call of this process and the claim that came back."""

Strictness = Literal["off", "trace", "signed"]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Bounds of one process: depth, budget of a new trace, cycles, and the trace breaker.

    ``strict`` "trace" rejects a call without a trace or with an invalid signature; "signed" rejects
    everything that this mesh has not signed (specification 5, doubt 2).
    """

    max_depth: int = MAX_DEPTH
    calls: int = 10_000
    refuse_cycles: bool = False
    strict: Strictness = "off"
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

    @property
    def unclaimed(self) -> int:
        return sum(trace.calls_left or 0 for trace in self.traces) - self.claimed


class TraceGuard:
    """Decides for each inbound call whether its chain may continue, and traces the calls that follow."""

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        hub_id: str | None = None,
        signer: TraceSigner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
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
        if charged is not None:
            charged.claimed += 1 + (trace.calls_left or 0)
        return AdmittedCall(self, trace, target, charged)

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

    def forward(self, trace: TraceContext, calls_left: int | None = None) -> TraceContext:
        """The trace as a hub forwards it: at the same depth, with the hub added to ``via`` and not signed.

        ``calls_left`` is its budget; None = that of ``trace``.
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
        )

    @property
    def max_depth(self) -> int:
        """The greatest depth that is admitted."""
        return self._settings.max_depth

    @property
    def new_trace_calls(self) -> int:
        """Further calls that the first call of a trace may cause; the first call counts as well."""
        return self._settings.calls - 1

    def _begin(self, trace: TraceContext) -> TraceContext:
        """A new chain; depth, path and budget that came without a usable id still count."""
        if self._settings.strict != "off":
            raise _refused("the call carries no trace")
        began_here = not (trace.depth or trace.path or trace.via)
        calls_left = self._settings.calls - 1
        if trace.calls_left is not None:
            calls_left = min(calls_left, trace.calls_left)
        return _resolved(trace, new_id(), trace.depth, trace.path, calls_left, began_here)

    def _judge(self, trace: TraceContext, call: Call) -> TraceContext:
        """The trace of a received message: as it is where it is signed, else bounded."""
        strict = self._settings.strict
        if trace.mac is not None and self._signer is not None:
            flaw = self._signer.verify(trace, call.agent or "", call.skill)
            if flaw is None:
                return _resolved(trace, trace.id, trace.depth, trace.path, trace.calls_left, True)
            if strict != "off":
                raise _refused(f"the signature of the trace does not hold: {flaw}")
        elif strict == "signed":
            raise _refused("the trace is not signed by this mesh")
        calls = self.new_trace_calls
        calls_left = calls if trace.calls_left is None else min(trace.calls_left, calls)
        depth = trace.depth if trace.depth_given else 0
        path = trace.path
        in_flight = self._in_flight.get(trace.id) if self._in_flight else None
        if in_flight is not None:
            deepest = max(in_flight.traces, key=_depth_of)
            if depth <= deepest.depth:
                depth, path = deepest.depth + 1, (*deepest.path, UNKNOWN)
            calls_left = min(calls_left, in_flight.unclaimed - 1)
        return _resolved(trace, trace.id, depth, path, calls_left, False)

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

    def call_ended(self, trace: TraceContext) -> int:
        """Record that the call ended; returns how much of its budget came back here as claims."""
        in_flight = self._in_flight[trace.id]
        in_flight.traces.remove(trace)
        spent = min(max(in_flight.claimed, 0), trace.calls_left or 0)
        in_flight.claimed -= spent
        if not in_flight.traces:
            del self._in_flight[trace.id]
        return spent


class AdmittedCall:
    """An admitted call: its resolved trace, and the traces and budgets of calls made from it.

    With ``may_repeat`` a part of the budget is kept back when the call is handed on. ``charged`` are the
    calls of this process whose budget the call uses, where its trace is a claim.
    """

    __slots__ = ("_budget", "_guard", "_here", "charged", "may_repeat", "trace")

    def __init__(
        self, guard: TraceGuard, trace: TraceContext, here: Hop, charged: _InFlight | None = None
    ) -> None:
        self._guard = guard
        self._here = here
        self._budget: TraceBudget | None = None
        self.trace = trace
        self.charged = charged
        self.may_repeat = False

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

    def set_agent(self, agent: str) -> None:
        """Set the agent that took the call, where the guard did not know it yet."""
        if agent != self._here.agent:
            self._here = Hop(agent, self._here.skill)

    def further_call(self, seconds_left: float | None = None) -> OutgoingCall:
        """One call made from this one, one hop deeper; raises BudgetSpentError.

        A hop that is too deep costs nothing: the called process rejects it, with a better explanation.
        """
        hops = self._guard.max_depth - self.trace.depth - 1
        if hops < 0:
            trace = next_hop(self.trace, self._here, calls_left=0, seconds_left=seconds_left)
            return OutgoingCall(trace, None, self._guard)
        share = self.budget.reserve(hops)
        trace = next_hop(self.trace, self._here, calls_left=share, seconds_left=seconds_left)
        return OutgoingCall(trace, self.budget, self._guard)

    def forward(self) -> OutgoingCall:
        """This call, forwarded to an agent elsewhere with the whole budget."""
        share = self.budget.reserve_rest(spare=self.may_repeat)
        return OutgoingCall(self._guard.forward(self.trace, share), self.budget)

    def relay(self) -> OutgoingCall:
        """This call, relayed to another skill with the whole budget."""
        share = self.budget.reserve_rest(spare=self.may_repeat)
        trace = self.trace
        if share != trace.calls_left:
            trace = replace(trace, calls_left=share)
        return OutgoingCall(trace, self.budget)

    def relay_one_of_many(self, calls: int) -> OutgoingCall:
        """As `relay`, for one of many messages at once: each has at most ``calls`` further calls.

        Raises BudgetSpentError.
        """
        share = self.budget.reserve_few(calls)
        return OutgoingCall(replace(self.trace, calls_left=share), self.budget)


class OutgoingCall:
    """A call in flight, as a context manager; ``trace`` is sent with it.

    On leaving, the unused part of its share of the budget is returned if `record_usage` was called. Without
    it the share stays spent, because the call may still be running.
    """

    __slots__ = ("_budget", "_guard", "trace", "used")

    def __init__(
        self, trace: TraceContext, budget: TraceBudget | None = None, guard: TraceGuard | None = None
    ) -> None:
        self.trace = trace
        self._budget = budget
        self._guard = guard
        self.used: int | None = None

    def record_usage(self, calls_used: int | None) -> None:
        """Record how many further calls the call has caused; None = unknown."""
        self.used = calls_used

    def __enter__(self) -> Self:
        if self._guard is not None:
            self._guard.call_started(self.trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        seen_here = 0 if self._guard is None else self._guard.call_ended(self.trace)
        if self.used is not None and self._budget is not None:
            self._budget.settle(self.trace.calls_left or 0, max(self.used, seen_here))


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
    )


def _resolved(
    trace: TraceContext,
    trace_id: str,
    depth: int,
    path: tuple[Hop, ...],
    calls_left: int | None,
    trusted: bool,
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
    )


def _depth_of(trace: TraceContext) -> int:
    return trace.depth


def _refused(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{problem}, and trace.strict is on", remedy="send X-OpenStarry-Trace-ID, or call through the hub"
    )
