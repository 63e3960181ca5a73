"""The parts of a step: what stands below its keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from retinue.workflows.definitions.durations import MAX_DURATION_S, Duration, parse_duration

MAX_ROUNDS = 1_000
MAX_ATTEMPTS = 20
MAX_SIDE_BY_SIDE = 100
FOREACH_SIDE_BY_SIDE = 4
DEFAULT_WAIT_S = 24 * 3600.0
DEFAULT_CACHE_TTL_S = 300.0
"""SPEC 3, defaults where the seed is silent."""

Mode = Literal["race", "all", "vote", "merge"]

STEP_ID = re.compile(r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
StepId = Annotated[str, StringConstraints(pattern=STEP_ID.pattern)]
Text = Annotated[str, StringConstraints(max_length=10_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Part(BaseModel):
    """What all models of the grammar share: nothing unknown, nothing converted, nothing changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)


class Retry(Part):
    """Further attempts after a failure of a kind that may pass (``core.errors.Kind.retryable``).

    ``attempts`` counts the first one; before attempt n+1 the run waits ``delay * backoff ** (n-1)``.
    """

    attempts: int = Field(ge=1, le=MAX_ATTEMPTS)
    delay: Duration = "1s"
    backoff: float = Field(default=2.0, ge=1.0, le=10.0)

    def delay_before(self, attempt: int) -> float:
        """Seconds to wait before attempt ``attempt`` (2, 3, …)."""
        return min(parse_duration(self.delay) * self.backoff ** (attempt - 2), MAX_DURATION_S)


def _as_names(value: Any) -> Any:
    """One name stands for a list of one; a text with a template is read when the step runs."""
    return [value] if isinstance(value, str) and "${{" not in value else value


def _check_names(value: Any) -> Any:
    value = _as_names(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("it must be a list of agents' names")
    if len(value) > MAX_SIDE_BY_SIDE:
        raise ValueError(f"{len(value)} agents; at most {MAX_SIDE_BY_SIDE}")
    return value


class Parallel(Part):
    """Run branches side by side: nested steps, or one call of a role at each of several agents.

    ``mode``: ``all`` = every result · ``race`` = the first success, the others cancelled · ``vote``
    = the majority · ``merge`` = one result made of all. ``agents`` absent or empty = every available
    one that has the ``role``. ``k`` ends a vote as soon as one answer leads by that many.
    """

    mode: Mode = "all"
    agents: Annotated[Any, BeforeValidator(_check_names)] = None
    role: str | None = None
    prompt: str | None = None
    reviewer: Name | None = None
    k: int | None = Field(default=None, ge=1, le=MAX_SIDE_BY_SIDE)
    concurrency: int | None = Field(default=None, ge=1, le=MAX_SIDE_BY_SIDE)


class Loop(Part):
    """Repeat the nested steps until the condition holds, at most ``max`` rounds."""

    max: int = Field(ge=1, le=MAX_ROUNDS)
    until: str | None = None


class Foreach(Part):
    """Run the nested steps once for each item of a list, ``concurrency`` of them side by side."""

    items: str | list[Any] = Field(alias="in")
    concurrency: int = Field(default=FOREACH_SIDE_BY_SIDE, ge=1, le=MAX_SIDE_BY_SIDE)


class WaitFor(Part):
    """Wait for a signal: a person's approval, or word from another system."""

    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")]
    message: Text = ""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    timeout: Duration | None = None

    @property
    def timeout_s(self) -> float:
        return DEFAULT_WAIT_S if self.timeout is None else parse_duration(self.timeout)


class Compensation(Part):
    """The call that undoes a done step when what is around it fails."""

    skill: Name
    with_: dict[str, Any] | str | None = Field(default=None, alias="with")
    agent: str | None = None
    version: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None


class Settings(Part):
    """What holds for the whole workflow.

    ``on_error`` and ``retry`` are those of each step that says nothing itself. ``cache``: ``step``
    keeps the result of each call, ``workflow`` that of the whole run. ``max_iterations`` caps loops.
    """

    max_duration: Duration | None = None
    on_error: Literal["stop", "continue"] = "stop"
    retry: Retry | None = None
    cache: Literal["none", "step", "workflow"] = "none"
    max_iterations: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)


def _check_on_error(value: Any) -> Any:
    if value is None or value in ("stop", "continue"):
        return value
    if isinstance(value, Mapping) and set(value) == {"goto"} and isinstance(value["goto"], str):
        return dict(value)
    raise ValueError("on_error is stop, continue or {goto: a later step}")


OnError = Annotated[Any, BeforeValidator(_check_on_error)]
"""``"stop"``, ``"continue"`` or ``{"goto": step id}``."""


def _check_cache(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping) and set(value) == {"ttl"}:
        ttl = value["ttl"]
        if not isinstance(ttl, str):
            raise ValueError(f"{ttl} has no unit: write {ttl}s, {ttl}m or {ttl}ms")
        parse_duration(ttl)
        return dict(value)
    raise ValueError("cache is true, false or {ttl: 5m}")


CacheRule = Annotated[Any, BeforeValidator(_check_cache)]
"""``true``, ``false`` or ``{"ttl": duration}``."""


def read_cache_ttl(rule: Any) -> float | None:
    """For how many seconds a result is kept; None = it is not."""
    if isinstance(rule, Mapping):
        return parse_duration(rule["ttl"])
    return DEFAULT_CACHE_TTL_S if rule else None


def _expand_foreach(value: Any) -> Any:
    return {"in": value} if isinstance(value, (str, list)) else value


def _expand_wait_for(value: Any) -> Any:
    return {"topic": value} if isinstance(value, str) else value


ForeachPart = Annotated[Foreach, BeforeValidator(_expand_foreach)]
WaitForPart = Annotated[WaitFor, BeforeValidator(_expand_wait_for)]
