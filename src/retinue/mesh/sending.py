"""Whom an agent may call: its ``send`` list, held before the call leaves its process (S-17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from retinue.core.call import Call, Outcome
from retinue.core.errors import LookupFailedError, NotAllowedError, RemoteFaultError, RetinueError
from retinue.mesh.access import matches
from retinue.mesh.channel import Channel, NullChannel
from retinue.mesh.dispatch import Calls

_MISSES = frozenset({"skill_not_offered", "unknown_skill", "unknown_agent"})


class LimitedCalls:
    """The mesh as an agent with a ``send`` list sees it."""

    def __init__(self, calls: Calls, agent: str, send: Sequence[str]) -> None:
        self._calls = calls
        self._agent = agent
        parts = (entry.partition("/") for entry in send)
        self._entries = [(target, skill or "*") for target, _, skill in parts]

    async def dispatch(self, call: Call, channel: Channel | None = None) -> Outcome:
        """One call, if the list has it; a NotAllowedError says so otherwise, for its own agent to read."""
        targets = tuple(agent for agent, skill in self._entries if fnmatchcase(call.skill, skill))
        named = None if call.agent is None else call.agent.partition("@")[0]
        if not targets or (named is not None and not matches(named, targets)):
            return self._refuse(call, named)
        if named is None and "*" not in targets:
            if call.principal.agents:
                return self._refuse(call, named)
            # found by skill: whoever looks must find nobody else
            call = replace(call, principal=replace(call.principal, agents=targets))
        outcome = await self._calls.dispatch(call, channel or NullChannel())
        if named is None and "*" not in targets and outcome.error is not None and _is_miss(outcome.error):
            return self._refuse(call, named)
        return outcome

    def _refuse(self, call: Call, named: str | None) -> Outcome:
        what = call.skill if named is None else f"{call.skill} of {named}"
        error = NotAllowedError(
            f"{self._agent} may not call {what}, or nobody whom it may call offers it",
            remedy=f"see access.{self._agent}.send in retinue.toml, or access.send in its agent.json",
        )
        return Outcome(call.id, call.skill, "refused", agent=call.agent, error=error)


def _is_miss(error: RetinueError) -> bool:
    if isinstance(error, RemoteFaultError):
        return error.remote_type in _MISSES
    return isinstance(error, LookupFailedError)
