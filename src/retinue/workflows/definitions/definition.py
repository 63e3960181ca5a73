"""The grammar of a workflow (DESIGN 4), as models whose JSON form is what a run stores.

Here is the shape only. That references lead somewhere and expressions compile is checked when a
definition is loaded (``checks``); a stored definition was checked before and is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from retinue.workflows.definitions.durations import Duration, parse_duration
from retinue.workflows.definitions.step_parts import (
    CacheRule,
    Compensation,
    ForeachPart,
    Loop,
    Name,
    OnError,
    Parallel,
    Part,
    Retry,
    Settings,
    StepId,
    Text,
    WaitForPart,
)

DEFAULT_STEP_TIMEOUT_S = 300.0
"""SPEC 2, formats: the time limit of a workflow step that names none."""

DEFAULT_ROLE = "execute"
"""SPEC 3, defaults where the seed is silent."""

AUTO = "auto"
"""In the place of an agent's or a role's name: the choice is left open."""

StepKind = Literal["skill", "role", "parallel", "loop", "foreach", "switch", "workflow", "wait_for"]
NAMED_KINDS: tuple[StepKind, ...] = (
    "skill",
    "parallel",
    "loop",
    "foreach",
    "switch",
    "workflow",
    "wait_for",
)
"""The kinds that a key of the same name makes; without one, role, prompt or agent make a role step."""


class Step(Part):
    """One node; what kind it is, one of ``NAMED_KINDS`` says, or a ``role``, ``prompt`` or ``agent``."""

    id: StepId
    description: Text = ""
    skill: Name | None = None
    with_: dict[str, Any] | str | None = Field(default=None, alias="with")
    agent: str | None = None
    role: str | None = None
    prompt: str | None = None
    version: str | None = None
    parallel: Parallel | None = None
    loop: Loop | None = None
    foreach: ForeachPart | None = None
    switch: str | None = None
    workflow: Name | None = None
    wait_for: WaitForPart | None = None
    steps: tuple[Step, ...] | None = Field(default=None, strict=False)
    branches: dict[str, Annotated[tuple[Step, ...], Field(strict=False)]] | None = None
    when: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    on_error: OnError = None
    then: StepId | None = None
    compensate: Compensation | None = None
    cache: CacheRule = None
    transform: Any = None
    validate_: str | None = Field(default=None, alias="validate")
    allow_empty: bool = False

    @property
    def kinds(self) -> tuple[StepKind, ...]:
        """The kinds that this step's keys make; a right one has exactly one."""
        named = tuple(kind for kind in NAMED_KINDS if getattr(self, kind) is not None)
        if not named and (self.role or self.prompt is not None or self.agent):
            return ("role",)
        return named

    @property
    def kind(self) -> StepKind:
        return self.kinds[0]

    @property
    def timeout_s(self) -> float:
        return DEFAULT_STEP_TIMEOUT_S if self.timeout is None else parse_duration(self.timeout)

    @property
    def asks_agents(self) -> bool:
        """Whether a parallel step asks several agents the same, rather than running branches."""
        return self.parallel is not None and self.steps is None and self.branches is None

    def list_branches(self) -> tuple[tuple[str, tuple[Step, ...]], ...]:
        """The branches of a parallel step by name: as named, else one for each nested step."""
        if self.branches is not None:
            return tuple(self.branches.items())
        return tuple((step.id, (step,)) for step in self.steps or ())


class Definition(Part):
    """A workflow.

    ``output`` is a value with templates, ``"last"`` (the last step's output, the default) or
    ``"merged"`` (the objects that all steps gave, merged in order, the later winning: what the
    spelling of seed 001 means, where a pipeline's result holds every step's outputs).
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")]
    description: Text = ""
    version: str | None = None
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    settings: Settings = Settings()
    input: dict[str, Any] | None = None
    steps: Annotated[tuple[Step, ...], Field(strict=False)]
    output: Any = "last"
    output_schema: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The canonical form: JSON values, without what equals the default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @classmethod
    def from_json(cls, value: Any) -> Definition:
        """A definition that `to_json` gave; raises pydantic's ValidationError for another value."""
        return cls.model_validate(value)


def step_to_json(step: Step) -> dict[str, Any]:
    """The canonical form of one step."""
    return step.model_dump(mode="json", by_alias=True, exclude_defaults=True)


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


def list_agents(definition: Definition) -> tuple[str, ...]:
    """The agents that a definition names, each once, in the order of first use."""
    named: list[str] = []
    for step in iterate_steps(definition.steps):
        agents = step.parallel.agents if step.parallel is not None else None
        named += [*([step.agent] if step.agent else []), *(agents if isinstance(agents, list) else [])]
    return tuple(dict.fromkeys(name for name in named if "${{" not in name and name != "auto"))
