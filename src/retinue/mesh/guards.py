"""The trace guard: bounds every chain of calls by depth, by budget and by the hubs it passed.

Depth rises when an agent or a run calls; a hub that only forwards adds itself to ``via`` instead.
A stranger's claim is not believed below 1 + the depth of this process's own calls now in flight in
that trace, so that a loop through a careless peer still grows (SPEC 7, seed 004; S-14, S-15). Whoever
authenticates belongs to this mesh and counts honestly: a depth that it gives is taken as it is, or
the siblings of a fan-out on an agent that calls on would push each other over the limit.

``calls_left`` bounds one branch; what bounds the tree is that each process counts the calls of a
trace from the first that is in flight here to the last.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from retinue.core.call import Call, Hop, TraceContext
from retinue.core.errors import BudgetSpentError, CallTooDeepError, CircuitOpenError

MAX_DEPTH = 5
"""The greatest depth that still runs (S-14)."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Bounds of one process: depth, budget of a new trace, cycle mode, and the trace breaker."""

    max_depth: int = MAX_DEPTH
    calls: int = 10_000
    refuse_cycles: bool = False
    refusals_to_open: int = 3
    open_s: float = 60.0
    keep_traces: int = 10_000


def fresh_trace() -> TraceContext:
    """The start of a chain: a new id at depth 0."""
    return TraceContext(id=secrets.token_hex(16))


def draw_path(path: tuple[Hop, ...], target: Hop) -> str:
    """A chain in words: ``a:plan → b:build → a:plan``."""
    return " → ".join(f"{hop.agent}:{hop.skill}" for hop in (*path, target))


def find_cycle(path: tuple[Hop, ...], target: Hop) -> str:
    """The shortest loop that ends in ``target``, drawn; "" when the agent was not met before."""
    for at in range(len(path) - 1, -1, -1):
        if path[at].agent == target.agent:
            return " → ".join(hop.agent for hop in (*path[at:], target))
    return ""


def guess_cycle(path: tuple[Hop, ...], target: Hop) -> str:
    """As `find_cycle`, else the loop to whoever ran the same skill before.

    A hub does not know yet who would take the call: good enough to explain a refusal, not for one.
    """
    if cycle := find_cycle(path, target):
        return cycle
    taker = next((hop.agent for hop in reversed(path) if hop.skill == target.skill), None)
    return "" if taker is None else find_cycle(path, Hop(taker, target.skill))


@dataclass(slots=True)
class _Running:
    in_flight: int = 0
    admitted: int = 0


@dataclass(slots=True)
class _Refusals:
    count: int = 0
    open_until: float = 0.0


class TraceGuard:
    """Decides for each inbound call whether its chain may go on, and marks the calls that follow."""

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        hub_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings or GuardSettings()
        self._hub_id = hub_id
        self._clock = clock
        self._outgoing: dict[str, list[int]] = {}
        self._running: dict[str, _Running] = {}
        self._refusals: OrderedDict[str, _Refusals] = OrderedDict()

    def enter(self, call: Call, agent: str) -> Passage:
        """Check one inbound call to ``agent``; raises a GuardError that says which bound it passed.

        Each admitted call ends with ``leave``.
        """
        trace = self._resolve_depth(call) if call.trace.id else self._begin(call.trace)
        target = Hop(agent, call.skill)
        refused = self._refusals.get(trace.id) if self._refusals else None
        if refused is not None and refused.open_until > self._clock():
            raise CircuitOpenError(
                f"trace {trace.id}",
                refused.open_until - self._clock(),
                f"{refused.count} of its calls were refused; last path {draw_path(trace.path, target)}",
            )
        if trace.depth > self._settings.max_depth:
            raise self._too_deep(trace, target, guess_cycle(trace.path, target))
        if self._hub_id is not None and self._hub_id in trace.via:
            raise self._too_deep(trace, target, " → ".join((*trace.via, self._hub_id)))
        if self._settings.refuse_cycles and (cycle := find_cycle(trace.path, target)):
            raise self._too_deep(trace, target, cycle)
        if trace.calls_left is not None and trace.calls_left < 0:
            raise BudgetSpentError("calls", "trace.calls")
        if trace.seconds_left is not None and trace.seconds_left <= 0:
            raise BudgetSpentError("seconds", "the caller's timeout")
        running = self._running.get(trace.id)
        if running is None:
            running = self._running[trace.id] = _Running()
        elif running.admitted >= self._settings.calls:
            raise BudgetSpentError("calls", "trace.calls")
        running.in_flight += 1
        running.admitted += 1
        return Passage(self, trace, target)

    def leave(self, passage: Passage) -> None:
        """Say that an admitted call has ended; the last of its trace takes the count with it."""
        running = self._running[passage.trace.id]
        running.in_flight -= 1
        if not running.in_flight:
            del self._running[passage.trace.id]

    def forward(self, trace: TraceContext) -> TraceContext:
        """The trace as a hub hands it on: the same depth, itself added to ``via``."""
        if self._hub_id is None:
            return trace
        return replace(trace, via=(*trace.via, self._hub_id))

    @staticmethod
    def _begin(trace: TraceContext) -> TraceContext:
        # an unusable id is replaced, a depth that came with it still counts;
        # every field by name: dataclasses.replace takes three times as long, and most calls pass here
        return TraceContext(
            id=secrets.token_hex(16),
            depth=trace.depth,
            path=trace.path,
            via=trace.via,
            calls_left=trace.calls_left,
            seconds_left=trace.seconds_left,
            traceparent=trace.traceparent,
            tracestate=trace.tracestate,
            baggage=trace.baggage,
            kid=trace.kid,
            mac=trace.mac,
            trusted=trace.trusted,
        )

    def _resolve_depth(self, call: Call) -> TraceContext:
        trace = call.trace
        if trace.depth_given and (trace.trusted or call.principal.kind != "anonymous"):
            return trace
        in_flight = self._outgoing.get(trace.id) if self._outgoing else None
        claimed = trace.depth if trace.depth_given else 0
        least = 1 + max(in_flight) if in_flight else 0
        if trace.depth_given and claimed >= least:
            return trace
        return replace(trace, depth=max(claimed, least), depth_given=True)

    def _too_deep(self, trace: TraceContext, target: Hop, cycle: str) -> CallTooDeepError:
        refused = self._refusals.setdefault(trace.id, _Refusals())
        self._refusals.move_to_end(trace.id)
        if len(self._refusals) > self._settings.keep_traces:
            self._refusals.popitem(last=False)
        refused.count += 1
        if refused.count >= self._settings.refusals_to_open:
            refused.open_until = self._clock() + self._settings.open_s
        return CallTooDeepError(
            trace.id, trace.depth, self._settings.max_depth, draw_path(trace.path, target), cycle
        )

    @property
    def calls_of_a_new_trace(self) -> int:
        return self._settings.calls

    def _sent(self, trace: TraceContext) -> None:
        self._outgoing.setdefault(trace.id, []).append(trace.depth)

    def _returned(self, trace: TraceContext) -> None:
        depths = self._outgoing[trace.id]
        depths.remove(trace.depth)
        if not depths:
            del self._outgoing[trace.id]


class Passage:
    """An admitted call: its resolved trace, and the way to call further from inside it."""

    __slots__ = ("_calls_left", "_guard", "_here", "trace")

    def __init__(self, guard: TraceGuard, trace: TraceContext, here: Hop) -> None:
        self._guard = guard
        self._here = here
        self.trace = trace
        given = trace.calls_left
        self._calls_left = guard.calls_of_a_new_trace if given is None else given

    def arrive(self, agent: str) -> None:
        """Note which agent took the call, where the guard could not know it yet."""
        if agent != self._here.agent:
            self._here = Hop(agent, self._here.skill)

    @contextmanager
    def outgoing(self, seconds_left: float | None = None) -> Iterator[TraceContext]:
        """The trace of one call made from here, one hop deeper; raises BudgetSpentError."""
        if self._calls_left <= 0:
            raise BudgetSpentError("calls", "trace.calls")
        self._calls_left -= 1
        trace = replace(
            self.trace,
            depth=self.trace.depth + 1,
            path=(*self.trace.path, self._here),
            via=(),
            calls_left=self._calls_left,
            seconds_left=seconds_left,
            kid=None,
            mac=None,
            trusted=True,
        )
        self._guard._sent(trace)
        try:
            yield trace
        finally:
            self._guard._returned(trace)
