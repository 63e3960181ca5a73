"""Renders chains of calls, finds cycles in them, and rejects chains that are too deep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cachetools import FIFOCache

from retinue.core.call import Hop, TraceContext
from retinue.core.errors import CallTooDeepError, CircuitOpenError, GuardError

_ARROW = " → "


def draw_path(path: tuple[Hop, ...], target: Hop) -> str:
    """A chain as text: ``a:plan → b:build → a:plan``."""
    return _ARROW.join(f"{hop.agent}:{hop.skill}" for hop in (*path, target))


def find_cycle(path: tuple[Hop, ...], target: Hop) -> str:
    """The shortest cycle that ends in ``target``, as text; "" when its agent is not in the path."""
    for at in range(len(path) - 1, -1, -1):
        if path[at].agent == target.agent:
            return _ARROW.join(hop.agent for hop in (*path[at:], target))
    return ""


def guess_cycle(path: tuple[Hop, ...], target: Hop) -> str:
    """As `find_cycle`, otherwise the cycle to the agent that ran the same skill before.

    A hub does not know yet which agent would take the call, so this explains a rejection but does not cause
    one.
    """
    if cycle := find_cycle(path, target):
        return cycle
    taker = next((hop.agent for hop in reversed(path) if hop.skill == target.skill), None)
    return "" if taker is None else find_cycle(path, Hop(taker, target.skill))


def name_asked(refusal: GuardError, requested: Hop) -> GuardError:
    """The refusal of this process with the agent that was asked at the end of its path.

    A hub that refuses does not know yet which agent would take the call, so the guard draws the hub itself.
    """
    drawn = str(refusal.facts.get("path", ""))
    if not drawn:
        return refusal
    path = tuple(Hop(*hop.partition(":")[::2]) for hop in drawn.split(_ARROW)[:-1])
    redrawn = draw_path(path, requested)
    if isinstance(refusal, CallTooDeepError):
        max_depth = int(refusal.facts["max_depth"])
        # a chain within the limit has passed the same hub twice, which is its cycle
        cycle = find_cycle(path, requested) if refusal.depth > max_depth else refusal.cycle
        return CallTooDeepError(str(refusal.facts["trace_id"]), refusal.depth, max_depth, redrawn, cycle)
    refusal.message = refusal.message.replace(drawn, redrawn)
    refusal.args = (refusal.message,)
    refusal.facts["path"] = redrawn
    return refusal


@dataclass(slots=True)
class _Refusals:
    """The rejections of one trace: each chain that went too deep, and their number."""

    chains: list[tuple[Hop, ...]] = field(default_factory=list)
    count: int = 0
    open_until: float = 0.0


class TraceBreaker:
    """Rejects for ``open_s`` a chain that was rejected, and chains that begin with it.

    After ``refusals_to_open`` rejections it rejects the whole trace (specification 7.5).
    ``keep_traces`` bounds how many traces are remembered; the oldest are dropped first.
    """

    def __init__(
        self, clock: Callable[[], float], *, refusals_to_open: int, open_s: float, keep_traces: int
    ) -> None:
        self._clock = clock
        self._refusals_to_open = refusals_to_open
        self._open_s = open_s
        self.refused: FIFOCache[str, _Refusals] = FIFOCache(keep_traces)
        """By trace id, the oldest first."""

    def check(self, trace: TraceContext, target: Hop) -> None:
        """Raise CircuitOpenError where the chain is rejected."""
        refused = self.refused.get(trace.id)
        if refused is None:
            return
        open_s = refused.open_until - self._clock()
        if open_s <= 0:
            del self.refused[trace.id]
            return
        chain = (*trace.path, target)
        if refused.count >= self._refusals_to_open:
            cause = f"{refused.count} of its calls were refused"
        elif any(chain[: len(known)] == known for known in refused.chains):
            cause = "this chain of calls was refused"
        else:
            return
        path = draw_path(trace.path, target)
        raise CircuitOpenError(
            f"trace {trace.id}", open_s, f"{cause}; last path {path}", {"trace_id": trace.id, "path": path}
        )

    def record_refusal(self, trace: TraceContext, target: Hop) -> None:
        """Record that a call of this chain was too deep."""
        refused = self.refused[trace.id] = self.refused.get(trace.id) or _Refusals()
        refused.count += 1
        refused.open_until = self._clock() + self._open_s
        # A path with gaps would be the beginning of too many other chains.
        if len(trace.path) >= trace.depth:
            refused.chains.append((*trace.path, target))
