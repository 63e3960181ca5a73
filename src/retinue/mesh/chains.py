"""Chains of calls: drawn in words, searched for loops, and cut off once they went too far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.core.call import Hop, TraceContext
from retinue.core.errors import CircuitOpenError


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
class _Refusals:
    """What was refused of one trace: each chain that went too far, and how often in all."""

    chains: list[tuple[Hop, ...]] = field(default_factory=list)
    count: int = 0
    open_until: float = 0.0


class ChainBreaker:
    """Refuses a chain that was refused, and whatever begins with it, for ``open_s``; after
    ``refusals_to_open`` the whole trace (SPEC 7, seed 004).

    ``keep_traces`` bounds how many are remembered; the oldest go first.
    """

    def __init__(
        self, clock: Callable[[], float], *, refusals_to_open: int, open_s: float, keep_traces: int
    ) -> None:
        self._clock = clock
        self._refusals_to_open = refusals_to_open
        self._open_s = open_s
        self._keep_traces = keep_traces
        self._refused: OrderedDict[str, _Refusals] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def check(self, trace: TraceContext, target: Hop) -> None:
        """Raises CircuitOpenError."""
        refused = self._refused.get(trace.id)
        if refused is None:
            return
        open_s = refused.open_until - self._clock()
        if open_s <= 0:
            del self._refused[trace.id]
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

    def note(self, trace: TraceContext, target: Hop) -> None:
        """A call went too far."""
        refused = self._refused.setdefault(trace.id, _Refusals())
        self._refused.move_to_end(trace.id)
        if len(self._refused) > self._keep_traces:
            self._refused.popitem(last=False)
        refused.count += 1
        refused.open_until = self._clock() + self._open_s
        # a path with gaps would be the beginning of too many others
        if len(trace.path) >= trace.depth:
            refused.chains.append((*trace.path, target))
