"""A Caller without a mesh: calls async functions of this process as skills."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retinue.core.call import Answer, Outcome
from retinue.core.errors import (
    AgentUnreachableError,
    ExecutionFailedError,
    LookupFailedError,
    RetinueError,
    RoleNotOfferedError,
    SkillNotOfferedError,
    UnknownAgentError,
)
from retinue.core.record import QUERY_CAPABILITIES, AgentRecord, Listing, Skill
from retinue.mesh.asking.query import Can, Query, answer_query
from retinue.mesh.directory.routing import parse_role
from retinue.mesh.search.ranking import rank_skills
from retinue.thinking.toolbox import is_glob, matches, split_pattern
from retinue.workflows.caller import Choice, SkillOffer, Wanted
from retinue.workflows.dispatch_caller import find_willing
from retinue.workflows.runs.records import MESH_SCOPES, RUN_CALLER, WHOLE_REACH, Origin, Reach
from retinue.workflows.skill_offers import list_once, make_offer

Function = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class CallNote:
    """One received call; ``trace`` is the run's trace with the remaining budget."""

    agent: str
    skill: str
    arguments: Any
    idempotency_key: str
    origin: Origin


class MemoryCaller:
    """Offers async functions as skills of named agents and records the calls to them.

    A step calls the agent whose offer came first among the reachable ones. ``calls`` holds the calls,
    ``looked_up`` the skills and roles that were looked up, ``asked`` the agents that were asked first, all in
    order.

    >>> import asyncio
    >>> from retinue.workflows.runs.records import Origin
    >>> async def greet(arguments):
    ...     return f"Hello, {arguments['name']}!"
    >>> async def call_greet():
    ...     caller = MemoryCaller()
    ...     caller.offer("greet", greet, agent="greeter")
    ...     outcome = await caller.call(
    ...         await caller.choose("greet"), "greet", {"name": "Ada"},
    ...         run_id="r", path="greet", idempotency_key="r/greet", timeout_s=1, origin=Origin(),
    ...     )
    ...     return outcome.get(), [call.agent for call in caller.calls]
    >>> asyncio.run(call_greet())
    ('Hello, Ada!', ['greeter'])
    """

    def __init__(self) -> None:
        self.calls: list[CallNote] = []
        self.looked_up: list[str] = []
        self._offers: dict[str, dict[str, tuple[Choice, Function]]] = {}
        self._described: dict[str, dict[str, Skill]] = {}
        self._roles: dict[str, dict[str, Choice]] = {}
        self.asked: list[str] = []
        self._judgements: dict[str, list[Can | bool]] = {}
        self._unreachable: set[str] = set()
        self._found_out: set[str] = set()

    def offer(
        self,
        skill: str,
        function: Function,
        *,
        agent: str = "memory-agent",
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        roles: Sequence[str] = (),
        score: float | None = None,
        described: Skill | None = None,
        keeps_keys: bool = True,
        context_window: int | None = None,
    ) -> None:
        """Offer ``function`` as a skill of ``agent``; replaces an offer of the same agent and skill.

        ``function`` gets the arguments as one JSON value and returns a JSON value, or an Outcome; what it
        raises fails the call. The schemas are JSON Schemas: ``input_schema`` decides what a step without
        ``with`` is sent.
        The agent has each of ``roles``; with a higher ``score`` it is chosen first. ``described`` is what
        searches and globs know of the skill; without it they know its id. ``keeps_keys`` = a repeated call
        with a key is known to give the first outcome. ``context_window`` is that of a model agent.
        """
        described = described or Skill(skill, input_schema=input_schema, output_schema=output_schema)
        self._described.setdefault(agent, {})[skill] = described
        choice = Choice(
            agent,
            skill,
            input_schema=input_schema,
            output_schema=output_schema,
            url=f"memory://{agent}",
            keeps_keys=keeps_keys,
            is_repeatable=described.is_repeatable,
            context_window=context_window,
        )
        self._offers.setdefault(skill, {})[agent] = (choice, function)
        for role in roles:
            self._roles.setdefault(role, {})[agent] = replace(choice, score=score)

    def answer_asked(self, agent: str, *answers: Can | bool) -> None:
        """Set the answers of ``agent`` to steps with ``ask``: each answer once, then always the last.

        An agent without an answer says yes.
        """
        self._judgements[agent] = list(answers)

    def break_connection(self, agent: str) -> None:
        """Fail every call to ``agent`` with AgentUnreachableError; after one call, others come first."""
        self._unreachable.add(agent)

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Choice:
        self.looked_up.append(skill)
        offers = self._offers.get(skill)
        if not offers:
            raise SkillNotOfferedError(skill)
        if agent is not None and agent not in offers:
            raise UnknownAgentError(agent)
        names = [agent] if agent is not None else sorted(offers, key=lambda name: name in self._found_out)
        return offers[names[0]][0]

    async def list_role(
        self,
        role: str,
        agents: Sequence[str] = (),
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Sequence[Choice]:
        self.looked_up.append(role)
        known = {agent for offers in self._offers.values() for agent in offers}
        having = self._roles.get(parse_role(role), {})
        for agent in agents:
            if agent not in known:
                raise UnknownAgentError(agent)
            if agent not in having:
                raise RoleNotOfferedError(role, agent)
        if agents:
            return [replace(having[a], available=a not in self._found_out) for a in agents]
        candidates = sorted(
            (skill for skill in having.values() if skill.agent not in self._found_out),
            key=lambda skill: -(skill.score or 0.0),
        )
        if not candidates:
            raise RoleNotOfferedError(role)
        return candidates

    async def list_willing(self, wanted: Wanted, origin: Origin) -> Sequence[Choice]:
        if wanted.role is not None:
            choices = await self.list_role(wanted.role, wanted.agents)
        else:
            first = await self.choose(wanted.skill or "", wanted.agents[0] if wanted.agents else None)
            offers = self._offers[first.skill]
            choices = [first] if wanted.agents else [choice for choice, _ in offers.values()]

        async def ask(query: Query, agent: str, timeout_s: float) -> Outcome:
            self.asked.append(agent)
            if agent in self._unreachable:
                error = AgentUnreachableError(agent, f"memory://{agent}", "connection refused")
                return Outcome("", QUERY_CAPABILITIES, "failed", error=error)
            left = self._judgements.get(agent, [True])
            response = left.pop(0) if len(left) > 1 else left[0]
            own = response if isinstance(response, Can) else Can(response)
            topics = () if own.yes is False else query.capabilities
            record = AgentRecord(agent, topics=topics)
            value = answer_query(record, query, frozenset(), dict.fromkeys(query.wanted, own))
            return Outcome("", QUERY_CAPABILITIES, "done", agent=agent, value=value)

        return await find_willing(choices, wanted, ask)

    async def list_offers(self, patterns: Sequence[str], origin: Origin, limit: int) -> Sequence[SkillOffer]:
        offers: list[SkillOffer] = []
        for pattern in patterns:
            if is_glob(pattern):
                offers += [
                    self._describe(agent, skill.id)
                    for agent, skills in self._described.items()
                    for skill in skills.values()
                    if skill.listed and matches(pattern, agent, skill.id)
                ]
                continue
            agent, skill_id = split_pattern(pattern)
            try:
                choice = await self.choose(skill_id, agent)
            except LookupFailedError:
                continue
            offers.append(self._describe(choice.agent, skill_id))
        return list_once(offers)[:limit]

    async def find_skills(
        self, what: str, origin: Origin, limit: int, *, run_id: str = ""
    ) -> Sequence[SkillOffer]:
        listings = [
            Listing(AgentRecord(agent, skills=tuple(skills.values())), "memory", agent)
            for agent, skills in self._described.items()
        ]
        hits = rank_skills(what, listings, MESH_SCOPES)
        return [self._describe(listing.name, skill.id) for listing, skill in hits[:limit]]

    def _describe(self, agent: str, skill: str) -> SkillOffer:
        return make_offer(self._offers[skill][agent][0], agent, self._described[agent][skill])

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
        origin: Origin,
    ) -> Outcome:
        self.calls.append(CallNote(choice.agent, skill, arguments, idempotency_key, origin))
        began = time.perf_counter()
        value: Any = None
        error: RetinueError | None = None
        try:
            if choice.agent in self._unreachable:
                self._found_out.add(choice.agent)
                raise AgentUnreachableError(choice.agent, choice.url or "", "connection refused")
            value = await self._offers[skill][choice.agent][1](arguments)
            if isinstance(value, Outcome):
                return replace(value, call_id=idempotency_key, agent=choice.agent)
        except RetinueError as failed:
            error = failed
        except Exception as failed:  # noqa: BLE001  # whatever a skill raises is the outcome of its call
            error = ExecutionFailedError.from_exception(failed)
        answer = value if isinstance(value, Answer) else Answer(value)
        return Outcome(
            call_id=idempotency_key,
            skill=skill,
            status="done" if error is None else "failed",
            agent=choice.agent,
            value=answer.value,
            duration_ms=(time.perf_counter() - began) * 1000,
            usage=answer.usage,
            error=error,
            calls_used=0,
        )
