"""The port through which steps choose and call agents.

Also the port of a cache for the results of steps, with its in-memory twin.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from cachetools import FIFOCache

from retinue.core.call import Outcome
from retinue.core.json_values import copy_json
from retinue.core.record import ListingKey
from retinue.workflows.runs.records import RUN_CALLER, WHOLE_REACH, Origin, Reach


@dataclass(frozen=True, slots=True)
class Choice:
    """The agent that a step will call, as it is recorded in the run; schemas are JSON Schemas.

    ``skill`` is the skill to call. ``score`` = its configured number for the role, where it was chosen by
    role; ``available`` is false for one that was asked for by name and does not answer; ``listing`` is its
    place in the directory of the process that chose it, None in the runs of earlier releases; ``warning`` is
    what callers of a deprecated version are told. ``keeps_keys`` = the agent answers a repeated idempotency
    key with its first outcome; ``is_repeatable`` = the skill may be executed twice, as its author says.
    ``context_window`` = how many tokens a model agent reads at once.
    """

    agent: str
    skill: str = ""
    version: str | None = None
    url: str | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    score: float | None = None
    available: bool = True
    warning: str = ""
    listing: ListingKey | None = None
    keeps_keys: bool = True
    is_repeatable: bool = False
    context_window: int | None = None


@dataclass(frozen=True, slots=True)
class SkillOffer:
    """A skill that a step ``think`` may call, as the agent ``agent`` offers it now.

    ``choice`` is how a run calls it. ``is_read_only`` = its author says so; ``polls`` = equal calls are
    expected, because its author gave it the tag ``polling``.
    """

    choice: Choice
    agent: str
    description: str = ""
    is_read_only: bool = False
    polls: bool = False

    @property
    def skill(self) -> str:
        return self.choice.skill


@dataclass(frozen=True, slots=True)
class Wanted:
    """The agents that a step asks before it calls: they have this ``skill`` or ``role``.

    They are asked for the skill that would be called and for ``capabilities``, for at most ``timeout_s``.
    """

    skill: str | None = None
    role: str | None = None
    agents: tuple[str, ...] = ()
    version_range: str | None = None
    capabilities: tuple[str, ...] = ()
    timeout_s: float = 5.0


class Caller(Protocol):
    """The calls of steps; implemented over the one dispatch path."""

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Choice:
        """The agent to call: this one when ``agent`` is named.

        As ``caller`` sees it with ``scopes`` in ``reach``.

        Raises SkillNotOfferedError, UnknownAgentError, VersionConflictError, and whatever keeps
        the directory from answering.
        """

    async def list_role(
        self,
        role: str,
        agents: Sequence[str] = (),
        scopes: frozenset[str] = frozenset(),
        caller: str = RUN_CALLER,
        reach: Reach = WHOLE_REACH,
    ) -> Sequence[Choice]:
        """Every available agent that has the role, best first; the named ``agents`` as they are named.

        As ``caller`` sees them with ``scopes`` in ``reach``.

        A named one that does not answer stays in the list, with ``available`` false.
        Raises UnknownRoleError, UnknownAgentError, RoleNotOfferedError.
        """

    async def list_willing(self, wanted: Wanted, origin: Origin) -> Sequence[Choice]:
        """The agents that say that they can do it now, best first; ``origin`` is that of the run.

        Raises NobodyWillingError, and what `choose` and `list_role` raise.
        """

    async def list_offers(self, patterns: Sequence[str], origin: Origin, limit: int) -> Sequence[SkillOffer]:
        """The skills that patterns name (``thinking.toolbox``), as the run sees them, at most ``limit``.

        Those of the first pattern come first. Of several agents with a skill that is named without its agent
        the best is listed, and for a glob all. A pattern that names nothing gives nothing.
        """

    async def find_skills(
        self, what: str, origin: Origin, limit: int, *, run_id: str = ""
    ) -> Sequence[SkillOffer]:
        """The skills that fit a description, best first, as the run sees them, of agents that are trusted.

        They are those of the own mesh, of signed cards, and of sources that the owner configured. ``run_id``
        is the run whose calls the search may lead to.
        """

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
        """Call the chosen agent and no other; a failure is an outcome with ``error`` set.

        A cancelled call is cut off. ``origin`` is that of the run with this call's share of the budget.
        """


KEPT_RESULTS = 100
"""Specification 3.3: 100 entries, first in, first out."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that was kept; JSON values."""

    value: Any


class Cache(Protocol):
    """Keeps results by key; an old one is not returned. Never raises for a value that it cannot keep."""

    async def find(self, key: str) -> Kept | None:
        """The result under this key, None when there is none (any more)."""

    async def put(self, key: str, value: Any, ttl_s: float) -> None:
        """Keep a JSON value for ``ttl_s`` seconds; an older one under the key is replaced."""


def cache_key(*facts: Any) -> str:
    """One key of everything that determines a result (specification 3, doubt 15); JSON values."""
    return hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS)).hexdigest()


class MemoryCache:
    """A Cache of this process; the oldest go first. It is not used while ``is_closed``."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        kept: int = KEPT_RESULTS,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._is_closed = is_closed
        self._results: FIFOCache[str, tuple[float, Any]] = FIFOCache(kept)

    async def find(self, key: str) -> Kept | None:
        if self._is_closed():
            return None
        until, value = self._results.get(key, (0.0, None))
        return Kept(copy_json(value, "a kept result")) if until > self._clock() else None

    def clear(self) -> int:
        """Forget all results; returns their number."""
        count = len(self._results)
        self._results.clear()
        return count

    async def put(self, key: str, value: Any, ttl_s: float) -> None:
        if not self._is_closed():
            self._results[key] = (self._clock() + ttl_s, copy_json(value, "a kept result"))
