"""The key that the processes of one mesh share, and the signatures that they make with it (DESIGN 2, trace).

It lies in ``<state>/keys/mesh.key``, readable by its owner only; children find it through their state
folder. A process of another state has another key: what it sends counts as claims.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from retinue.core.call import TraceContext
from retinue.drivers.state import State
from retinue.mesh.replays import ReplayWindow
from retinue.protocols.trace_signature import is_signed, render_key_id, sign_trace


class MeshSigner:
    """Signs the traces that this process sends, and judges those that it receives.

    ``clock`` gives seconds since 1970.
    """

    def __init__(self, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._kid = render_key_id(key)
        self._clock = clock
        self._replays = ReplayWindow(clock=clock)

    @classmethod
    def of(cls, state: State) -> MeshSigner:
        """With the key of this state; raises StateError where it cannot be read or made."""
        return cls(state.mesh_key())

    def sign(self, trace: TraceContext, agent: str, skill: str) -> TraceContext:
        """The trace as it is sent to ``agent`` ("" = any) for ``skill``; claims of others go unsigned."""
        if not trace.trusted or not trace.depth_given:
            return trace
        sent_at_ms = int(self._clock() * 1000)
        return sign_trace(trace, agent, skill, key=self._key, kid=self._kid, sent_at_ms=sent_at_ms)

    def find_flaw(self, trace: TraceContext, agent: str, skill: str) -> str | None:
        """Why the signature does not count, None when it does; asked once for each message."""
        if trace.mac is None or trace.sent_at_ms is None:
            return "it is not signed"
        if trace.kid != self._kid:
            return "it is of another mesh"
        if not is_signed(trace, agent, skill, key=self._key):
            return "it does not fit the call"
        return self._replays.find_flaw(trace.mac, trace.sent_at_ms)
