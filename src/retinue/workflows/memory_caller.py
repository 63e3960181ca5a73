"""A Caller without a mesh: skills that are plain functions of this process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.call import Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    ExecutionFailedError,
    RetinueError,
    SkillNotOfferedError,
    UnknownAgentError,
)
from retinue.workflows.caller import Choice

Function = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class CallNote:
    """One call as it arrived."""

    agent: str
    skill: str
    arguments: Any
    idempotency_key: str
    trace: Mapping[str, Any] | None


class MemoryCaller:
    """Offers functions as skills of named agents; the first reachable one in order of offer is chosen.

    Time limits are left to the step. ``calls`` are the calls that arrived and ``looked_up`` the
    skills asked for, both in order.
    """

    def __init__(self) -> None:
        self.calls: list[CallNote] = []
        self.looked_up: list[str] = []
        self._offers: dict[str, dict[str, tuple[Choice, Function]]] = {}
        self._unreachable: set[str] = set()
        self._found_out: set[str] = set()

    def offer(
        self,
        skill: str,
        function: Function,
        *,
        agent: str = "memory-agent",
        input_schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Let an agent offer a skill; an offer of the same agent and skill is replaced."""
        choice = Choice(agent, input_schema=input_schema, url=f"memory://{agent}")
        self._offers.setdefault(skill, {})[agent] = (choice, function)

    def break_connection(self, agent: str) -> None:
        """Make an agent unreachable, which the directory finds out by the next call to it."""
        self._unreachable.add(agent)

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
    ) -> Choice:
        self.looked_up.append(skill)
        offers = self._offers.get(skill)
        if not offers:
            raise SkillNotOfferedError(skill)
        if agent is not None and agent not in offers:
            raise UnknownAgentError(agent)
        names = [agent] if agent is not None else sorted(offers, key=lambda name: name in self._found_out)
        return offers[names[0]][0]

    async def call(
        self,
        choice: Choice,
        skill: str,
        arguments: Any,
        *,
        run_id: str,
        path: str,
        idempotency_key: str,
        timeout_s: float,
        trace: Mapping[str, Any] | None,
    ) -> Outcome:
        self.calls.append(CallNote(choice.agent, skill, arguments, idempotency_key, trace))
        began = time.perf_counter()
        value: Any = None
        error: RetinueError | None = None
        try:
            if choice.agent in self._unreachable:
                self._found_out.add(choice.agent)
                raise AgentUnreachableError(choice.agent, choice.url or "", "connection refused")
            value = await self._offers[skill][choice.agent][1](arguments)
        except RetinueError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001  # whatever a skill raises is the outcome of its call
            error = ExecutionFailedError.from_exception(failed)
        return Outcome(
            call_id=idempotency_key,
            skill=skill,
            status="done" if error is None else "failed",
            agent=choice.agent,
            value=value,
            duration_ms=(time.perf_counter() - began) * 1000,
            error=error,
            calls_used=0,
        )
