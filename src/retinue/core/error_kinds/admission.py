"""Errors of admission: access, the trace guard, rate limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from retinue.core.durations import render_duration
from retinue.core.error_kinds.base import REFUSED, Kind, RetinueError


class AccessError(RetinueError):
    """The caller may not do this."""

    type = "access"
    kind = REFUSED


class NotAuthenticatedError(AccessError):
    """No token, or an unknown one."""

    type = "not_authenticated"


class ClocksDifferError(NotAuthenticatedError):
    """A token of the mesh whose times do not fit the clock of this machine; ``now_s`` is its time."""

    type = "clocks_differ"

    def __init__(self, message: str, now_s: float) -> None:
        super().__init__(message, remedy="synchronise the clocks of both machines")
        self.now_s = now_s

    @property
    def data(self) -> dict[str, Any]:
        return {"now_s": round(self.now_s, 3)}


class OtherMeshError(NotAuthenticatedError):
    """A token of a mesh that this process does not belong to."""

    type = "other_mesh"


class NotAllowedError(AccessError):
    """A known caller without permission, or a request from an origin that is not allowed."""

    type = "not_allowed"


class InsufficientScopeError(NotAllowedError):
    """A valid token without the required scope; ``scopes`` are the sufficient ones."""

    type = "insufficient_scope"

    def __init__(self, message: str, *, scopes: Sequence[str], remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.scopes = tuple(scopes)

    @property
    def data(self) -> dict[str, Any]:
        return {"scopes": list(self.scopes)}


class PolicyDeniedError(NotAllowedError):
    """A policy of the owner forbids the call; ``policies`` are the ids of those that decided."""

    type = "policy_denied"

    def __init__(self, message: str, *, policies: Sequence[str] = (), remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.policies = tuple(policies)

    @property
    def data(self) -> dict[str, Any]:
        return {"policies": list(self.policies)}


class ApprovalNeededError(NotAllowedError):
    """A policy lets a person decide about the call; ``approval`` is the id under which the person is asked.

    The call has not run. After a yes, the same call of the same caller runs once. ``step`` is that of a run
    whose call it is, as ``RUN/PATH``, "" outside of runs.
    """

    type = "approval_needed"

    def __init__(
        self, message: str, *, approval: str, policies: Sequence[str] = (), remedy: str = "", step: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.approval = approval
        self.policies = tuple(policies)
        self.step = step

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"approval": self.approval, "policies": list(self.policies)}
        return {**facts, "step": self.step} if self.step else facts


class GuardError(RetinueError):
    """The trace guard rejected the call before its skill ran.

    A rejection further down the chain is relayed unchanged: ``wire_data`` is then the ``data`` of the
    received error.
    """

    type = "guard"
    kind = REFUSED

    def __init__(self, message: str, facts: Mapping[str, Any] | None = None, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.facts = dict(facts or {})
        self.wire_data: Any = None
        self.relayed = False

    @classmethod
    def relay(cls, message: str, wire_data: Any) -> Self:
        """The rejection by another process, with the ``data`` that it sent."""
        error = cls.__new__(cls)
        facts = dict(wire_data) if isinstance(wire_data, dict) else {}
        facts.pop("type", None)
        GuardError.__init__(error, message, facts, remedy=str(facts.pop("remedy", "")))
        error.wire_data = wire_data
        error.relayed = True
        return error

    @property
    def data(self) -> dict[str, Any]:
        return dict(self.facts)


class CallTooDeepError(GuardError):
    """A chain of calls exceeded the depth limit, or passed the same hub twice.

    ``drawn_path`` is the chain as text, for a model to act on.
    """

    # S-14, S-15

    type = "recursion_limit"

    def __init__(self, trace_id: str, depth: int, max_depth: int, drawn_path: str, cycle: str = "") -> None:
        loop = f"; the cycle is {cycle}" if cycle else ""
        facts = {"trace_id": trace_id, "depth": depth, "max_depth": max_depth, "path": drawn_path}
        super().__init__(
            f"Call chain too deep: hop {depth} of at most {max_depth}: {drawn_path}{loop}",
            facts | ({"cycle": cycle} if cycle else {}),
            remedy="answer from what is known instead of calling further",
        )

    @property
    def depth(self) -> int:
        """The depth of the rejected call."""
        return int(self.facts.get("depth", 0))

    @property
    def drawn_path(self) -> str:
        return str(self.facts.get("path", ""))

    @property
    def cycle(self) -> str:
        """The cycle that was found; "" = none."""
        return str(self.facts.get("cycle", ""))


class BudgetSpentError(GuardError):
    """The trace has used up its calls, seconds, tokens or money, or a model agent its own limits."""

    type = "budget_spent"

    def __init__(self, what: str, setting: str) -> None:
        super().__init__(
            f"Budget spent: no {what} left in this trace", {"what": what}, remedy=f"raise {setting}"
        )

    @classmethod
    def of_model(cls, agent: str, problem: str, setting: str) -> Self:
        """The refusal of a call that could cost more than the budget of a model agent has left."""
        error = cls.__new__(cls)
        facts = {"what": "money" if "cost" in setting else "tokens", "agent": agent, "setting": setting}
        GuardError.__init__(error, f"Budget spent: {problem}", facts, remedy=f"raise {setting}")
        return error

    @classmethod
    def of_chain(cls, what: str, asked: str, need: str, left: str, setting: str) -> Self:
        """The refusal of a request of ``asked`` that could spend more than its chain of calls has left.

        ``what`` is ``tokens`` or ``money``; ``need`` and ``left`` are written with their unit.
        """
        error = cls.__new__(cls)
        option = "tokens" if what == "tokens" else "dollars"
        GuardError.__init__(
            error,
            f"Budget spent: this chain of calls has {left} left, and the request of {asked} needs {need}",
            {"what": what, "agent": asked, "setting": setting, "left": left, "need": need},
            remedy=f"begin it with more ({option} of its budget), or raise {setting}",
        )
        return error

    @property
    def what(self) -> str:
        """``calls`` or ``seconds`` of a chain, ``tokens`` or ``money`` of a chain or a model agent."""
        return str(self.facts.get("what", ""))


class CircuitOpenError(GuardError):
    """A breaker is open; ``retry_after_s`` says for how long.

    The one of an agent is worth a retry after that time. The one of a trace is not, because it has rejected
    calls of this chain, and would reject them again. ``waited_s`` = how long the caller waited in vain.
    """

    type = "circuit_open"
    kind = Kind(retryable=True, counts_against_health=False, on_error="refused")
    waited_s = 0.0

    def __init__(
        self, subject: str, retry_after_s: float, cause: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(
            f"Circuit open for {subject}" + (f": {cause}" if cause else ""),
            {"retry_after_s": round(retry_after_s, 3)} | dict(facts or {}),
            remedy=f"try again in {render_duration(retry_after_s)}",
        )
        self._settle_kind()

    @classmethod
    def relay(cls, message: str, wire_data: Any) -> Self:
        error = super().relay(message, wire_data)
        error._settle_kind()
        return error

    @property
    def retry_after_s(self) -> float:
        delay_s = self.facts.get("retry_after_s")
        return float(delay_s) if isinstance(delay_s, int | float) else 0.0

    @property
    def data(self) -> dict[str, Any]:
        # Relayed, it is an error of an agent that got its call; that one may have done something.
        more: dict[str, Any] = {"sent": True} if self.relayed else {}
        return self.facts | more | ({"waited_s": self.waited_s} if self.waited_s else {})

    def _settle_kind(self) -> None:
        if "trace_id" in self.facts:
            self.kind = REFUSED


def find_guard_error(error_type: object) -> type[GuardError] | None:
    """The GuardError class with this ``type``; None for other types."""
    kinds = (CallTooDeepError, BudgetSpentError, CircuitOpenError)
    return next((kind for kind in kinds if kind.type == error_type), None)


class BusyError(RetinueError):
    """A rate or concurrency limit was reached; the same request may succeed later."""

    type = "busy"
    kind = Kind(retryable=True, counts_against_health=False, on_error="refused")

    def __init__(self, what: str, retry_after_s: float = 1.0) -> None:
        super().__init__(f"Busy: {what}", remedy=f"try again in {render_duration(retry_after_s)}")
        self.retry_after_s = retry_after_s
        self.is_nested = False
        """Whether a further call of the skill was refused, so that the skill itself has begun."""

    @property
    def data(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"retry_after_s": round(self.retry_after_s, 3)}
        return {**facts, "nested": True} if self.is_nested else facts


class StoppingError(BusyError):
    """The process is stopping and takes no new calls; the call has not run, another process may take it."""

    type = "stopping"

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__("", retry_after_s)
        self.message = "Stopping: this process takes no new calls"
        self.args = (self.message,)


class OutOfMemoryError(BusyError):
    """The process is short of memory and has not read the request; no call of it has run."""

    type = "out_of_memory"

    def __init__(self, what: str = "the request", retry_after_s: float = 1.0) -> None:
        super().__init__(f"no memory to read {what}", retry_after_s)
