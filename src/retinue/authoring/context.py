"""What a running skill is given: the way back to its caller, and the way on to other agents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from retinue.core.call import Call, Outcome, Principal, TraceContext, new_id
from retinue.core.errors import CallTimedOutError, GuardError, RetinueError, is_callers_time
from retinue.mesh.channel import Channel, LogLevel, Root
from retinue.mesh.dispatch import Calls
from retinue.mesh.guards import Departure, Passage

AGENT_DOOR = "agent"
"""The door of calls that a skill makes itself; no caller from outside comes through it."""


@dataclass(slots=True)
class Context:
    """One running call, seen from inside the skill; never part of the skill's schema."""

    _call: Call
    _agent: str
    _agent_call_s: float
    _passage: Passage
    _channel: Channel
    _mesh: Calls
    _task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    _given_up: bool = False
    _failures: list[RetinueError] = field(default_factory=list)

    @property
    def trace(self) -> TraceContext:
        """Where this call stands in its chain."""
        return self._passage.trace

    @property
    def principal(self) -> Principal:
        """Who calls."""
        return self._call.principal

    @property
    def idempotency_key(self) -> str | None:
        """The same for each repetition of one request; None when the caller gave none."""
        return self._call.idempotency_key

    @property
    def deadline(self) -> float | None:
        """When the caller stops waiting, in the event loop's time; None = the door's default."""
        return self._call.deadline

    @property
    def calls_left(self) -> int:
        """How many further calls this one may still cause."""
        return self._passage.budget.left

    @property
    def cancelled(self) -> bool:
        """Whether the caller has given up: worth a look in long loops of synchronous code.

        Works in any thread: nothing else can stop a synchronous function.
        """
        return self._given_up or (self._task is not None and self._task.cancelling() > 0)

    def give_up(self) -> None:
        """Note that nobody waits any longer; the task itself forgets it once it has ended."""
        self._given_up = True

    def comes_from_further_call(self, error: RetinueError) -> bool:
        """Whether this is what a call made from here failed with, and not this skill's own error."""
        return any(error is one for one in self._failures)

    async def progress(self, fraction: float | None, message: str = "") -> None:
        """Tell the caller how far this is, 0 … 1 or None when unknown."""
        await self._channel.progress(fraction, message)

    async def log(
        self, message: str, *, level: LogLevel = "info", data: Mapping[str, Any] | None = None
    ) -> None:
        """Send one log line to the caller."""
        await self._channel.log(level, message, data)

    async def elicit(self, message: str, schema: Mapping[str, Any], *, key: str | None = None) -> Any:
        """Ask the person behind the call; the answer fits ``schema``.

        Raises InputRequiredError where nobody can answer, and InputRefusedError (which is one) where
        the person does not want to. ``key`` names the question, for clients that answer in advance.
        """
        return await self._channel.elicit(message, schema, key=key)

    async def sample(self, prompt: str, *, max_tokens: int = 1024, key: str | None = None) -> str:
        """What the caller's own model says to ``prompt``; raises InputRequiredError where there is none."""
        return await self._channel.sample(prompt, max_tokens=max_tokens, key=key)

    async def roots(self, *, key: str | None = None) -> tuple[Root, ...]:
        """The folders that the caller works in; raises InputRequiredError where it does not say."""
        return await self._channel.roots(key=key)

    async def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The value of another agent's skill, found by its id; carries trace, deadline and budget.

        Raises what the call failed with (a RetinueError).
        """
        outcome = await self.ask(skill, arguments, agent=agent, version=version, timeout_s=timeout_s)
        return outcome.get()

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float | None = None,
    ) -> Outcome:
        """As ``call``, but the whole outcome: a failure is data."""
        loop_time = asyncio.get_running_loop().time()
        limit_s = self._agent_call_s if timeout_s is None else timeout_s
        setting = "timeouts.agent_call_s" if timeout_s is None else "the timeout_s of this ctx.call"
        if self._call.deadline is not None and self._call.deadline - loop_time < limit_s:
            limit_s = self._call.deadline - loop_time
            setting = ""
        if limit_s <= 0:
            raise CallTimedOutError(skill, 0, layer="caller", setting="the caller's timeout")
        call_id = new_id()
        try:
            departure = self._passage.outgoing(limit_s)
        except GuardError as refused:
            return Outcome(call_id, skill, "refused", error=refused)
        with departure:
            call = Call(
                id=call_id,
                skill=skill,
                arguments=dict(arguments or {}),
                principal=Principal(self._agent, "agent", self._outgoing_scopes()),
                door=AGENT_DOOR,
                trace=departure.trace,
                agent=agent,
                version_range=version,
                deadline=loop_time + limit_s,
            )
            outcome = await self._mesh.dispatch(call, self._channel)
            departure.told(outcome.calls_used)
        error = outcome.error
        if error is not None:
            if setting and is_callers_time(error):
                # whoever was called knows only that its caller's time was over; here it has a name
                layer = f"ctx.call of {self._agent}"
                error = CallTimedOutError(skill, limit_s, layer=layer, setting=setting)
                outcome = replace(outcome, error=error)
            self._failures.append(error)
        return outcome

    def _outgoing_scopes(self) -> frozenset[str]:
        # running code stays the right of whoever began the chain, however many agents lie between
        return _AGENT_SCOPES | (self.principal.scopes & {"runs_code"})

    async def relay(
        self,
        skill: str,
        arguments: Mapping[str, Any],
        *,
        agent: str | None = None,
        version: str | None = None,
    ) -> Outcome:
        """Hand this very call on to another skill: the same caller, the same rights, no hop deeper."""
        with self._passage.relay() as departure:
            call = replace(
                self._call,
                skill=skill,
                arguments=dict(arguments),
                agent=agent,
                version_range=version,
                trace=departure.trace,
            )
            outcome = await self._mesh.dispatch(call, self._channel)
            departure.told(outcome.calls_used)
        return outcome

    def entrust(self) -> Departure:
        """Everything that this call may still cause, for work that goes on beside it (a run).

        Used as a context, and told what was used, it gives back the rest; else nothing comes back.
        """
        return self._passage.relay()


_AGENT_SCOPES = frozenset({"exposed", "mesh"})
"""What an agent sees of the mesh, whoever calls it."""


_current: ContextVar[Context] = ContextVar("retinue_context")


def current_context() -> Context:
    """The context of the skill that runs now, for an overridden ``execute_skill``; LookupError outside."""
    return _current.get()
