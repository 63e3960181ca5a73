"""Calls skills of a mesh with the options of a caller, through a hub or in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retinue.client.limits import TIMEOUT_S
from retinue.client.retries import find_wait
from retinue.core.call import LOCAL, MAX_KEY_LENGTH, Call, Outcome, new_id
from retinue.core.errors import CallTimedOutError, InvalidParametersError, Problem, is_callers_time
from retinue.mesh.guard.trace_guard import new_trace

if TYPE_CHECKING:
    from retinue.core.budget import CallLimits
    from retinue.mesh.channel import Channel
    from retinue.mesh.dispatch import Calls  # with schemas and routing, which the hub applies

_ALMOST = 0.9
"""A call whose caller's time ran out before this share of it failed by the time of a nested call."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of one call.

    ``agent`` names the agent, ``version`` a range such as ``>=1.2,<2``. ``key`` is an idempotency key.
    ``budget`` bounds the further calls, tokens and dollars of the call. ``setting`` names the time limit in
    the error of a call that exceeds it. ``is_repeatable``: the call only reads, so that it may be sent again.
    """

    agent: str | None = None
    version: str | None = None
    key: str | None = None
    timeout_s: float = TIMEOUT_S
    budget: CallLimits | None = None
    setting: str = "the caller's timeout"
    is_repeatable: bool = False


_DEFAULTS = CallOptions()


@dataclass(slots=True)
class MeshClient:
    """Calls skills of the mesh; ``hub_url`` is None if they run in this process.

    ``remedy`` is what to do when the hub does not answer. ``retries`` bounds the repetitions of a call that
    the hub did not get, or whose repetition is safe. ``is_in_memory`` tells that there is no hub at all.
    """

    calls: Calls
    hub_url: str | None
    remedy: str = ""
    retries: int = 0
    endpoint: str = "cli"
    is_in_memory: bool = False

    async def ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        channel: Channel | None = None,
        options: CallOptions = _DEFAULTS,
        **changes: Any,
    ) -> Outcome:
        """Call a skill; a failure is part of the outcome.

        ``channel`` is told of progress and asked questions; the time limit pauses while one is open.
        ``changes`` are fields of ``options``.
        """
        options = replace(options, **changes) if changes else options
        began = asyncio.get_running_loop().time()
        call = _make_call(skill, arguments, options, self.endpoint)
        if channel is None:
            outcome = await self._dispatch(replace(call, deadline=began + options.timeout_s), None, options)
        else:
            outcome = await self._dispatch_with(channel, call, options)
        took_s = asyncio.get_running_loop().time() - began
        # the time-out may also be that of a nested call, with less time
        if is_callers_time(outcome.error) and took_s > _ALMOST * options.timeout_s:
            error = CallTimedOutError(skill, options.timeout_s, layer="caller", setting=options.setting)
            return replace(outcome, error=error)
        return outcome

    async def get(self, skill: str, arguments: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """The value; raises the error of the call."""
        return (await self.ask(skill, arguments, **options)).get()

    async def _dispatch_with(self, channel: Channel, call: Call, options: CallOptions) -> Outcome:
        from retinue.mesh.channel import run_within

        try:
            return await run_within(
                options.timeout_s, channel, lambda pausing: self._dispatch(call, pausing, options)
            )
        except TimeoutError:
            error = CallTimedOutError(call.skill, options.timeout_s, layer="caller", setting=options.setting)
            return Outcome(call.id, call.skill, "failed", agent=call.agent, error=error)

    async def _dispatch(self, call: Call, channel: Channel | None, options: CallOptions) -> Outcome:
        repeated = 0
        while True:
            waiting = self.calls.dispatch(call) if channel is None else self.calls.dispatch(call, channel)
            outcome = await waiting
            if outcome.error is None or repeated >= self.retries:
                return outcome
            # what a lost call has spent is unknown, so that another one could spend too much
            is_keyed = options.key is not None and call.trace.extension is None
            is_repeatable = options.is_repeatable or is_keyed
            wait_s = find_wait(outcome.error, repeated, is_repeatable=is_repeatable)
            if wait_s is None or _is_over(call, wait_s):
                return outcome
            await asyncio.sleep(wait_s)
            repeated += 1


def is_seconds(timeout_s: object) -> bool:
    """Whether it is a time limit, a number above 0."""
    return isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s > 0


def check_seconds(timeout_s: object) -> None:
    """Raise InvalidParametersError for what is no time limit."""
    if not is_seconds(timeout_s):
        problem = f"timeout_s is {timeout_s!r:.80}, and not a number of seconds above 0"
        raise InvalidParametersError([Problem("timeout_s", problem)])


def _is_over(call: Call, wait_s: float) -> bool:
    """Whether the time of the call is over after the wait."""
    return call.deadline is not None and asyncio.get_running_loop().time() + wait_s >= call.deadline


def _is_key(key: object) -> bool:
    is_short = isinstance(key, str) and 0 < len(key) <= MAX_KEY_LENGTH
    return isinstance(key, str) and is_short and key.isascii() and key.isprintable()


def _make_call(skill: str, arguments: Mapping[str, Any] | None, options: CallOptions, endpoint: str) -> Call:
    """Raises InvalidParametersError for an option of another form."""
    key = options.key
    if key is not None and not _is_key(key):
        problem = f"key is not 1 to {MAX_KEY_LENGTH} printable ASCII characters"
        raise InvalidParametersError([Problem("key", problem)])
    trace = new_trace()
    if options.budget is not None:
        # imported here, because most calls have none
        from retinue.core.budget import read_budget

        calls, allowance = read_budget(options.budget)
        trace = replace(trace, calls_left=calls).with_allowance(allowance)
    return Call(
        id=new_id(),
        skill=skill,
        arguments=dict(arguments or {}),
        principal=LOCAL,
        endpoint=endpoint,
        trace=trace,
        agent=options.agent,
        version_range=options.version,
        idempotency_key=key,
    )
