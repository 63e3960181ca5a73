"""The grammar of a workflow (DESIGN 4), as models whose JSON form is what a run stores.

Here is the shape only. That references lead somewhere and expressions compile is checked when a
definition is loaded (``checks``); a stored definition was checked before and is read as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

DEFAULT_STEP_TIMEOUT_S = 300.0
"""SPEC 2, formats: the time limit of a workflow step that names none."""

MAX_DURATION_S = 7 * 24 * 3600.0
MAX_ROUNDS = 1_000
MAX_ATTEMPTS = 20

LATER_STEP_KEYS = frozenset(
    {
        "agents",
        "ask",
        "cache",
        "compensate",
        "foreach",
        "on_error",
        "prompt",
        "role",
        "switch",
        "wait_for",
        "workflow",
    }
)
"""Keys of a step that the full grammar has and this version does not (never silently ignored)."""

LATER_TOP_KEYS = frozenset({"on_error", "settings"})
LATER_PARALLEL_KEYS = frozenset({"agents", "concurrency", "k", "prompt", "reviewer", "role"})
LATER_MODES = frozenset({"merge", "race", "vote"})

_DURATION = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """The seconds of ``250ms``, ``30s``, ``5m`` or ``1h``; raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write a number with a unit, as in 250ms, 30s, 5m or 1h")
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if not 0 < seconds <= MAX_DURATION_S:
        raise ValueError(f"{text!r} is out of range: more than 0, at most 168h")
    return seconds


def render_duration(seconds: float) -> str:
    """Seconds in the spelling of the grammar, as in ``90s``; exact to the microsecond of a unit."""
    text = f"{seconds:.6f}".rstrip("0").rstrip(".")
    return f"{text}s"


def _check_duration(text: str) -> str:
    parse_duration(text)
    return text


def _refuse_bare_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"{value} has no unit: write {value}s, {value}m or {value}ms")
    return value


def _refuse_later_mode(value: Any) -> Any:
    if isinstance(value, str) and value in LATER_MODES:
        raise ValueError(f"mode {value!r} is known, but not available in this version")
    return value


Duration = Annotated[str, BeforeValidator(_refuse_bare_number), AfterValidator(_check_duration)]
"""A length of time as authored, with its unit."""

StepId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
Text = Annotated[str, StringConstraints(max_length=10_000)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)


class Retry(_Model):
    """Further attempts after a failure of a kind that may pass (``core.errors.Kind.retryable``).

    ``attempts`` counts the first one; before attempt n+1 the run waits ``delay * backoff ** (n-1)``.
    """

    attempts: int = Field(ge=1, le=MAX_ATTEMPTS)
    delay: Duration = "1s"
    backoff: float = Field(default=2.0, ge=1.0, le=10.0)

    def delay_before(self, attempt: int) -> float:
        """Seconds to wait before attempt ``attempt`` (2, 3, …)."""
        return min(parse_duration(self.delay) * self.backoff ** (attempt - 2), MAX_DURATION_S)


class Parallel(_Model):
    """Run the branches side by side; mode ``all`` = every result, and one failure fails the step."""

    mode: Annotated[Literal["all"], BeforeValidator(_refuse_later_mode)] = "all"


class Loop(_Model):
    """Repeat the nested steps until the condition holds, at most ``max`` rounds."""

    max: int = Field(ge=1, le=MAX_ROUNDS)
    until: str | None = None


class Step(_Model):
    """One node: a call of a ``skill``, or a ``parallel`` or ``loop`` around nested steps."""

    id: StepId
    description: Text = ""
    skill: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    with_: dict[str, Any] | str | None = Field(default=None, alias="with")
    agent: str | None = None
    version: str | None = None
    parallel: Parallel | None = None
    loop: Loop | None = None
    steps: tuple[Step, ...] | None = Field(default=None, strict=False)
    branches: dict[StepId, Annotated[tuple[Step, ...], Field(strict=False)]] | None = None
    when: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None

    @property
    def timeout_s(self) -> float:
        return DEFAULT_STEP_TIMEOUT_S if self.timeout is None else parse_duration(self.timeout)

    def list_branches(self) -> tuple[tuple[str, tuple[Step, ...]], ...]:
        """The branches of a parallel step by name: as named, else one for each nested step."""
        if self.branches is not None:
            return tuple(self.branches.items())
        return tuple((step.id, (step,)) for step in self.steps or ())


class Definition(_Model):
    """A workflow.

    ``output`` is a value with templates, ``"last"`` (the last step's output, the default) or
    ``"merged"`` (the objects that all steps gave, merged in order, the later winning: what the
    spelling of seed 001 means, where a pipeline's result holds every step's outputs).
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")]
    description: Text = ""
    version: str | None = None
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    input: dict[str, Any] | None = None
    steps: Annotated[tuple[Step, ...], Field(strict=False)]
    output: Any = "last"

    def to_json(self) -> dict[str, Any]:
        """The canonical form: JSON values, without what equals the default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @classmethod
    def from_json(cls, value: Any) -> Definition:
        """A definition that `to_json` gave; raises pydantic's ValidationError for another value."""
        return cls.model_validate(value)


def iterate_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step in the order of the text, an outer one before its nested ones."""
    for step in steps:
        yield step
        yield from iterate_steps(step.steps or ())
        for branch in (step.branches or {}).values():
            yield from iterate_steps(branch)


def list_calls(definition: Definition) -> tuple[str, ...]:
    """The skills that a definition calls, each once, in the order of the text."""
    return tuple(dict.fromkeys(s.skill for s in iterate_steps(definition.steps) if s.skill))
