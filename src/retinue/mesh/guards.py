"""The trace guard: bounds every chain of calls by depth, by budget and by the hubs it passed.

Depth rises when an agent or a run calls; a hub that only forwards adds itself to ``via`` instead.
What the processes of a mesh send each other is signed, and taken as it is. Everything else is a claim:
its depth counts for no less than 1 + the depth of this process's own calls now in flight in that trace,
so that a loop through a careless peer still grows, and its budget for no more than what those calls
were given (SPEC 7, seed 004; S-14, S-15; docs/decisions/0018).

What bounds the tree of calls is that each call gets a share of its caller's budget (``budget``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Protocol, Self

from retinue.core.call import Call, Hop, TraceContext, new_id
from retinue.core.errors import BudgetSpentError, CallTooDeepError, InvalidRequestError
from retinue.mesh.budget import Budget
from retinue.mesh.chains import ChainBreaker, draw_path, find_cycle, guess_cycle

MAX_DEPTH = 5
"""The greatest depth that still runs (S-14)."""

UNKNOWN = Hop("?", "?")
"""Whoever stood between a call of ours and the claim that came back."""

Strictness = Literal["off", "trace", "signed"]


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Bounds of one process: depth, budget of a new trace, cycle mode, and the trace breaker.

    ``strict`` "trace" refuses a call without a trace, or with a signature that does not hold;
    "signed" everything that this mesh has not signed (SPEC 5, doubt 2).
    """

    max_depth: int = MAX_DEPTH
    calls: int = 10_000
    refuse_cycles: bool = False
    strict: Strictness = "off"
    refusals_to_open: int = 3
    open_s: float = 60.0
    keep_traces: int = 10_000


class Signer(Protocol):
    """Signs what this process sends and judges what it receives, for ``agent`` ("" = any) and ``skill``."""

    def sign(self, trace: TraceContext, agent: str, skill: str) -> TraceContext:
        """The trace to send; one that is not trusted goes unsigned."""

    def find_flaw(self, trace: TraceContext, agent: str, skill: str) -> str | None:
        """Why the signature of a received trace does not count, None when it does.

        Asked once for each message: the second time it was sent before.
        """


def fresh_trace() -> TraceContext:
    """The start of a chain: a new id at depth 0."""
    return TraceContext(id=new_id(), trusted=True)


@dataclass(slots=True)
class _Running:
    in_flight: int = 0
    admitted: int = 0


@dataclass(slots=True)
class Outgoing:
    """Own calls in flight in one trace, and how much of what they were given came back as claims."""

    traces: list[TraceContext]
    claimed: int = 0

    @property
    def unclaimed(self) -> int:
        return sum(trace.calls_left or 0 for trace in self.traces) - self.claimed


class TraceGuard:
    """Decides for each inbound call whether its chain may go on, and marks the calls that follow."""

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        hub_id: str | None = None,
        signer: Signer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or GuardSettings()
        self._hub_id = hub_id
        self._signer = signer
        self._breaker = ChainBreaker(
            clock,
            refusals_to_open=self._settings.refusals_to_open,
            open_s=self._settings.open_s,
            keep_traces=self._settings.keep_traces,
        )
        self._outgoing: dict[str, Outgoing] = {}
        self._running: dict[str, _Running] = {}

    def enter(self, call: Call, agent: str) -> Passage:
        """Check one inbound call to ``agent``; raises a GuardError that says which bound it passed.

        Each admitted call ends with ``leave``. Raises InvalidRequestError for a trace that is missing
        or not believed where ``strict`` wants one.
        """
        trace = call.trace
        if not trace.trusted:
            trace = self._judge(trace, call) if trace.id else self._begin(trace)
        target = Hop(agent, call.skill)
        settings = self._settings
        if self._breaker:
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
        charged = None if trace.trusted or not self._outgoing else self._outgoing.get(trace.id)
        if charged is not None:
            charged.claimed += 1 + (trace.calls_left or 0)
        return Passage(self, trace, target, charged)

    def leave(self, passage: Passage) -> None:
        """Say that an admitted call has ended; the last of its trace takes the count with it."""
        trace = passage.trace
        running = self._running[trace.id]
        running.in_flight -= 1
        if not running.in_flight:
            del self._running[trace.id]
        if passage.charged is not None:
            unused = (trace.calls_left or 0) - passage.calls_used
            passage.charged.claimed = max(0, passage.charged.claimed - unused)

    def forward(self, trace: TraceContext) -> TraceContext:
        """The trace as a hub hands it on: the same depth, itself added to ``via``."""
        if self._hub_id is None:
            return trace
        return replace(trace, via=(*trace.via, self._hub_id))

    @property
    def max_depth(self) -> int:
        """The greatest depth that still runs."""
        return self._settings.max_depth

    @property
    def calls_of_a_new_trace(self) -> int:
        """Further calls that the first one of a trace may cause; it counts itself."""
        return self._settings.calls - 1

    def _begin(self, trace: TraceContext) -> TraceContext:
        """A new chain; what came with an unusable id still counts."""
        if self._settings.strict != "off":
            raise _refused("the call carries no trace")
        began_here = not (trace.depth or trace.path or trace.via)
        calls_left = self._settings.calls - 1
        if trace.calls_left is not None:
            calls_left = min(calls_left, trace.calls_left)
        return _resolved(trace, new_id(), trace.depth, trace.path, calls_left, began_here)

    def _judge(self, trace: TraceContext, call: Call) -> TraceContext:
        """What is to be believed of a trace that came from outside."""
        strict = self._settings.strict
        if trace.mac is not None and self._signer is not None:
            flaw = self._signer.find_flaw(trace, call.agent or "", call.skill)
            if flaw is None:
                return _resolved(trace, trace.id, trace.depth, trace.path, trace.calls_left, True)
            if strict != "off":
                raise _refused(f"the signature of the trace does not hold: {flaw}")
        elif strict == "signed":
            raise _refused("the trace is not signed by this mesh")
        calls = self.calls_of_a_new_trace
        calls_left = calls if trace.calls_left is None else min(trace.calls_left, calls)
        depth = trace.depth if trace.depth_given else 0
        path = trace.path
        outgoing = self._outgoing.get(trace.id) if self._outgoing else None
        if outgoing is not None:
            deepest = max(outgoing.traces, key=_depth_of)
            if depth <= deepest.depth:
                depth, path = deepest.depth + 1, (*deepest.path, UNKNOWN)
            calls_left = min(calls_left, outgoing.unclaimed - 1)
        return _resolved(trace, trace.id, depth, path, calls_left, False)

    def _too_deep(self, trace: TraceContext, target: Hop, cycle: str) -> CallTooDeepError:
        self._breaker.note(trace, target)
        path = draw_path(trace.path, target)
        return CallTooDeepError(trace.id, trace.depth, self._settings.max_depth, path, cycle)

    def sent(self, trace: TraceContext) -> None:
        """Note that a call of this process is in flight."""
        outgoing = self._outgoing.get(trace.id)
        if outgoing is None:
            self._outgoing[trace.id] = Outgoing([trace])
        else:
            outgoing.traces.append(trace)

    def returned(self, trace: TraceContext) -> int:
        """Note that it has ended; returns how much of what it was given came back here as claims."""
        outgoing = self._outgoing[trace.id]
        outgoing.traces.remove(trace)
        spent = min(max(outgoing.claimed, 0), trace.calls_left or 0)
        outgoing.claimed -= spent
        if not outgoing.traces:
            del self._outgoing[trace.id]
        return spent


class Passage:
    """An admitted call: its resolved trace, and the way to call further from inside it.

    ``may_repeat`` keeps a part of the budget back when the call itself is handed on; ``charged`` are
    the own calls from whose budget it lives, where it is a claim.
    """

    __slots__ = ("_budget", "_guard", "_here", "charged", "may_repeat", "trace")

    def __init__(
        self, guard: TraceGuard, trace: TraceContext, here: Hop, charged: Outgoing | None = None
    ) -> None:
        self._guard = guard
        self._here = here
        self._budget: Budget | None = None
        self.trace = trace
        self.charged = charged
        self.may_repeat = False

    @property
    def budget(self) -> Budget:
        """What this call may still spend on further calls."""
        if self._budget is None:
            given = self.trace.calls_left
            self._budget = Budget(self._guard.calls_of_a_new_trace if given is None else given)
        return self._budget

    @property
    def calls_used(self) -> int:
        """Further calls that this one has caused, and those that it may still cause unseen."""
        return 0 if self._budget is None else self._budget.used

    def arrive(self, agent: str) -> None:
        """Note which agent took the call, where the guard could not know it yet."""
        if agent != self._here.agent:
            self._here = Hop(agent, self._here.skill)

    def outgoing(self, seconds_left: float | None = None) -> Departure:
        """One call made from here, one hop deeper; raises BudgetSpentError.

        A hop too deep costs nothing: whoever is called refuses it, and says more than we could.
        """
        hops = self._guard.max_depth - self.trace.depth - 1
        if hops < 0:
            trace = go_deeper(self.trace, self._here, calls_left=0, seconds_left=seconds_left)
            return Departure(trace, None, self._guard)
        share = self.budget.reserve(hops)
        trace = go_deeper(self.trace, self._here, calls_left=share, seconds_left=seconds_left)
        return Departure(trace, self.budget, self._guard)

    def forward(self) -> Departure:
        """This very call on its way to an agent elsewhere, with the whole budget."""
        return self._hand_on(self._guard.forward(self.trace))

    def relay(self) -> Departure:
        """This very call handed to another skill, with the whole budget."""
        return self._hand_on(self.trace)

    def _hand_on(self, trace: TraceContext) -> Departure:
        share = self.budget.reserve_rest(spare=self.may_repeat)
        if share != trace.calls_left:
            trace = replace(trace, calls_left=share)
        return Departure(trace, self.budget)


class Departure:
    """A call on its way, as a context: ``trace`` goes with it, and ``told`` says what it has used.

    Left without a word, the call keeps its share of the budget: nobody knows whether it still runs.
    """

    __slots__ = ("_budget", "_guard", "trace", "used")

    def __init__(
        self, trace: TraceContext, budget: Budget | None = None, guard: TraceGuard | None = None
    ) -> None:
        self.trace = trace
        self._budget = budget
        self._guard = guard
        self.used: int | None = None

    def told(self, calls_used: int | None) -> None:
        """What became known of the further calls that it caused; None = nothing."""
        self.used = calls_used

    def __enter__(self) -> Self:
        if self._guard is not None:
            self._guard.sent(self.trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        seen_here = 0 if self._guard is None else self._guard.returned(self.trace)
        if self.used is not None and self._budget is not None:
            self._budget.settle(self.trace.calls_left or 0, max(self.used, seen_here))


def go_deeper(
    trace: TraceContext, here: Hop, *, calls_left: int | None, seconds_left: float | None
) -> TraceContext:
    """The trace of a call that ``here`` makes: one hop deeper, and vouched for by this process."""
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
    # every field by name: dataclasses.replace takes three times as long, and most calls pass here
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
