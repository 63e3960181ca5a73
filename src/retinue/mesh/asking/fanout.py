"""Asks many agents one question at once, within a deadline, and ranks the answers.

Rank: the share of the capabilities that match, then an agent's own yes before an answer from a record, then
higher confidence, lower price, shorter time, and figures of earlier calls. An agent that states no confidence
counts as `NEUTRAL`; a price or time that is stated goes before one that is not.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retinue.core.call import Outcome
from retinue.core.record import Stats
from retinue.mesh.asking.query import Query, fold

Json = dict[str, Any]

DEFAULT_TIMEOUT_S = 5.0

AT_ONCE = 500
"""Questions in flight of one fan-out: half of the calls that a process admits by default."""

MAX_ASKED = 1_000
"""Agents that one fan-out asks; it reports how many more there were."""

NEUTRAL = 0.5

Dispatch = Callable[[str], Awaitable[Outcome]]
"""Asks one agent, named so that it means this agent alone."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """The answer of one agent; ``match`` is the share of the capabilities it has, 0 to 1.

    ``yes`` = the agent fits the whole question. ``payload`` is the answer as it came, ``stats`` are the
    figures of its earlier calls.
    """

    agent: str
    yes: bool
    match: float
    live: bool
    payload: Json
    matched: tuple[str, ...] = ()
    price: float | None = None
    time_s: float | None = None
    confidence: float | None = None
    stats: Stats = field(default_factory=Stats)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sorts the best first."""
        stats = self.stats
        return (
            -self.match,
            not self.yes,
            not self.live,
            -(NEUTRAL if self.confidence is None else self.confidence),
            math.inf if self.price is None else self.price,
            math.inf if self.time_s is None else self.time_s,
            stats.failures / stats.calls if stats.calls else 0.0,
            stats.mean_latency_s or math.inf,
            self.agent,
        )

    def as_json(self) -> Json:
        """As the hub's tool renders it."""
        stats = self.stats
        terms = {"price": self.price, "time_s": self.time_s, "confidence": self.confidence}
        proven: Json = {"calls": stats.calls, "failures": stats.failures}
        if stats.mean_latency_s is not None:
            proven["mean_s"] = round(stats.mean_latency_s, 3)
        return {
            "agent": self.agent,
            "yes": self.yes,
            "match": round(self.match, 3),
            "live": self.live,
            **{name: value for name, value in terms.items() if value is not None},
            **({"proven": proven} if stats.calls else {}),
            "answer": self.payload,
        }


@dataclass(frozen=True, slots=True)
class SilentAgent:
    """An agent that gave no answer, and why."""

    agent: str
    reason: str

    def as_json(self) -> Json:
        return {"agent": self.agent, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Answers:
    """The end of a fan-out.

    ``answers`` are of agents that can do at least a part, best first; ``unable`` counts the refusals,
    ``silent`` names the agents without an answer, ``not_asked`` counts agents beyond `MAX_ASKED`.
    """

    answers: tuple[AgentAnswer, ...]
    silent: tuple[SilentAgent, ...] = ()
    unable: int = 0
    not_asked: int = 0

    @property
    def best(self) -> AgentAnswer | None:
        """The first agent that fits the whole question, or None."""
        return next((answer for answer in self.answers if answer.yes), None)

    def as_json(self) -> Json:
        """As the hub's tool renders it."""
        return {
            "answers": [answer.as_json() for answer in self.answers],
            "silent": [agent.as_json() for agent in self.silent],
            "unable": self.unable,
            "not_asked": self.not_asked,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Answers:
        """Read what `as_json` rendered; raises KeyError or TypeError for anything else."""
        return cls(
            tuple(_restore(row) for row in value["answers"]),
            tuple(SilentAgent(row["agent"], row["reason"]) for row in value["silent"]),
            value["unable"],
            value["not_asked"],
        )


async def ask_agents(
    agents: Sequence[str],
    query: Query,
    dispatch: Dispatch,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    stats_of: Callable[[str], Stats] = lambda agent: Stats(),
    not_asked: int = 0,
) -> Answers:
    """Ask all ``agents`` at once; answers missing after ``timeout_s`` are cancelled and named.

    ``dispatch`` returns a failure as an outcome. ``stats_of`` gives the figures of an agent's earlier calls.
    """
    room = asyncio.Semaphore(AT_ONCE)

    async def ask(agent: str) -> Outcome:
        async with room:
            return await dispatch(agent)

    tasks = {agent: asyncio.ensure_future(ask(agent)) for agent in dict.fromkeys(agents)}
    try:
        if tasks:
            await asyncio.wait(tasks.values(), timeout=timeout_s)
    finally:
        late = [task for task in tasks.values() if not task.done()]
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    answers: list[AgentAnswer] = []
    silent: list[SilentAgent] = []
    for agent, task in tasks.items():
        if task in late:
            silent.append(SilentAgent(agent, f"no answer within {timeout_s:g} s"))
            continue
        outcome = task.result()
        if outcome.error is not None:
            silent.append(SilentAgent(agent, outcome.error.message))
            continue
        answer = read_answer(agent, query, outcome.value, stats_of(agent))
        if answer is None:
            silent.append(SilentAgent(agent, "what it answered is no answer to the question"))
        else:
            answers.append(answer)
    able = sorted((answer for answer in answers if answer.match > 0), key=lambda answer: answer.rank)
    return Answers(tuple(able), tuple(silent), len(answers) - len(able), not_asked)


def read_answer(agent: str, query: Query, payload: Any, stats: Stats | None = None) -> AgentAnswer | None:
    """The answer in a payload; None for any other payload. Agents of other makes may answer too.

    ``match_result`` and ``matched_capabilities`` may also stand below ``capabilities``
    (specification 1, doubt 4).
    """
    if not isinstance(payload, Mapping):
        return None
    inner = payload.get("capabilities")
    facts = {**inner, **payload} if isinstance(inner, Mapping) else payload
    matched: tuple[str, ...] = ()
    if query.type == "specific":
        names = facts.get("matched_capabilities")
        if not isinstance(names, list | tuple):
            return None
        folded = {fold(name) for name in names if isinstance(name, str)}
        matched = tuple(capability for capability in query.capabilities if fold(capability) in folded)
        share = len(matched) / len(query.capabilities)
        yes = facts.get("match_result") is True and (share == 1.0 or query.match_type == "any")
    elif query.type == "action_details":
        yes = isinstance(facts.get("action"), Mapping) and facts.get("available") is not False
        share = 1.0 if yes else 0.0
    else:
        yes, share = isinstance(inner, Mapping), 1.0
    return AgentAnswer(
        agent,
        yes=yes,
        match=share,
        live=facts.get("live") is not False,
        payload=dict(payload),
        matched=matched,
        price=_number(facts.get("price")),
        time_s=_number(facts.get("time_s")),
        confidence=_number(facts.get("confidence"), most=1.0),
        stats=stats or Stats(),
    )


def _number(value: Any, most: float = math.inf) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and 0 <= value <= most else None


def _restore(row: Mapping[str, Any]) -> AgentAnswer:
    proven = row.get("proven") or {}
    stats = Stats(proven.get("calls", 0), proven.get("failures", 0), proven.get("mean_s"))
    matched: Iterable[str] = row["answer"].get("matched_capabilities") or ()
    return AgentAnswer(
        row["agent"],
        yes=row["yes"],
        match=row["match"],
        live=row["live"],
        payload=row["answer"],
        matched=tuple(matched),
        price=row.get("price"),
        time_s=row.get("time_s"),
        confidence=row.get("confidence"),
        stats=stats,
    )
