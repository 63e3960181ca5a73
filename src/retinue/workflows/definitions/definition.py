"""The grammar of a workflow, as models; a run stores their JSON form.

The models check the shape only. ``checks`` resolves references and compiles expressions when a definition is
loaded; a stored definition was checked before and is read as it is. A length of time is a number with its
unit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
)

from retinue.workflows.definitions.starts import SchedulePart, Triggers
from retinue.workflows.definitions.think import Think
from retinue.workflows.definitions.values import (
    MAX_DURATION_S,
    Duration,
    Name,
    StepId,
    StrictModel,
    Text,
    TimerDuration,
    parse_duration,
)
from retinue.workflows.times import parse_time

MAX_ROUNDS = 1_000

MAX_ATTEMPTS = 20

MAX_SIDE_BY_SIDE = 100

FOREACH_SIDE_BY_SIDE = 4

DEFAULT_ASK_TIMEOUT_S = 5.0

MAX_ASK_TIMEOUT_S = 60.0

DEFAULT_WAIT_S = 24 * 3600.0

DEFAULT_CACHE_TTL_S = 300.0
"""Specification 3.3."""


Mode = Literal["race", "all", "vote", "merge"]


class Retry(StrictModel):
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
    """A single name is read as a list of one; a text with a template is rendered when the step runs."""
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


class Parallel(StrictModel):
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


class Loop(StrictModel):
    """Repeat the nested steps until the condition holds, at most ``max`` rounds."""

    max: int = Field(ge=1, le=MAX_ROUNDS)
    until: str | None = None


class Foreach(StrictModel):
    """Run the nested steps once for each item of a list, ``concurrency`` of them side by side."""

    items: str | list[Any] = Field(alias="in")
    concurrency: int = Field(default=FOREACH_SIDE_BY_SIDE, ge=1, le=MAX_SIDE_BY_SIDE)


class WaitFor(StrictModel):
    """Wait for a signal: a person's approval, or word from another system."""

    topic: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")]
    message: Text = ""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    timeout: Duration | None = None

    @property
    def timeout_s(self) -> float:
        return DEFAULT_WAIT_S if self.timeout is None else parse_duration(self.timeout)


def _check_until(text: str) -> str:
    if "${{" not in text:
        parse_time(text)
    return text


class Timer(StrictModel):
    """Wait for a length of time, or until a point in time: RFC 3339, or a template that gives it."""

    for_: TimerDuration | None = Field(default=None, alias="for")
    until: Annotated[str, AfterValidator(_check_until)] | None = None


class Compensation(StrictModel):
    """The call that undoes a done step after a failure around it."""

    skill: Name
    with_: dict[str, Any] | str | None = Field(default=None, alias="with")
    agent: str | None = None
    version: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None


class WorkflowSettings(StrictModel):
    """The settings of the whole workflow.

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


def _expand_timer(value: Any) -> Any:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return {"for": value}
    if isinstance(value, Mapping) and len(value) != 1:
        raise ValueError("wait has one of for and until")
    return value


ForeachPart = Annotated[Foreach, BeforeValidator(_expand_foreach)]

WaitForPart = Annotated[WaitFor, BeforeValidator(_expand_wait_for)]

TimerPart = Annotated[Timer, BeforeValidator(_expand_timer)]


class AskFirst(StrictModel):
    """Ask agents before the step whether they can do it now; only agents that say yes are called.

    They are asked for the step's skill and for ``capabilities``; ``timeout`` bounds the answers.
    """

    capabilities: Annotated[tuple[Name, ...], Field(strict=False, max_length=20)] = ()
    timeout: Duration | None = None

    @property
    def timeout_s(self) -> float:
        return DEFAULT_ASK_TIMEOUT_S if self.timeout is None else parse_duration(self.timeout)


def _expand_ask(value: Any) -> Any:
    if value is True:
        return {}
    return None if value is False else value


AskPart = Annotated[AskFirst | None, BeforeValidator(_expand_ask)]
"""``true``, ``false`` or an `AskFirst`."""


DEFAULT_STEP_TIMEOUT_S = 300.0
"""The time limit of a workflow step that names none (specification 2.1)."""


DEFAULT_ROLE = "execute"
"""Specification 3.3."""


AUTO = "auto"
"""In the place of an agent's or a role's name: the choice is left open."""


StepKind = Literal[
    "skill", "role", "parallel", "loop", "foreach", "switch", "workflow", "think", "wait_for", "wait"
]

NAMED_KINDS: tuple[StepKind, ...] = (
    "skill",
    "parallel",
    "loop",
    "foreach",
    "switch",
    "workflow",
    "think",
    "wait_for",
    "wait",
)
"""The kinds that a key of the same name makes; without one, role, prompt or agent make a role step."""


class Step(StrictModel):
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
    think: Think | None = None
    wait_for: WaitForPart | None = None
    wait: TimerPart | None = None
    steps: tuple[Step, ...] | None = Field(default=None, strict=False)
    branches: dict[str, Annotated[tuple[Step, ...], Field(strict=False)]] | None = None
    when: str | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    on_error: OnError = None
    then: StepId | None = None
    compensate: Compensation | None = None
    ask: AskPart = None
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
        """The kind of a right step."""
        for kind in NAMED_KINDS:
            if getattr(self, kind) is not None:
                return kind
        return "role"

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


RunsAs = Literal["caller", "mesh"]


class Definition(StrictModel):
    """A workflow.

    ``output`` is a value with templates, ``"last"`` (the last step's output, the default) or ``"merged"``
    (the objects of all steps, merged in order, the later winning). A workflow runs with the rights of its
    starter; ``runs_as: mesh`` adds the scopes of the mesh, but only if the workflow is stored in this state
    (`library.is_run_as_mesh`).
    """

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,127}$")]
    description: Text = ""
    version: str | None = None
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    runs_as: RunsAs = "caller"
    settings: WorkflowSettings = WorkflowSettings()
    input: dict[str, Any] | None = None
    steps: Annotated[tuple[Step, ...], Field(strict=False)]
    output: Any = "last"
    output_schema: dict[str, Any] | None = None
    schedule: SchedulePart | None = None
    on: Triggers | None = None

    @property
    def runs_others(self) -> bool:
        """Whether a step runs another workflow."""
        return any(step.workflow is not None for step in iterate_steps(self.steps))

    def complete_input(self, value: Any) -> Any:
        """The input of a run; a missing one is an empty object where the schema asks for an object."""
        is_object = self.input is not None and self.input.get("type") == "object"
        return {} if value is None and is_object else value

    def to_json(self) -> dict[str, Any]:
        """The canonical form: JSON values, without what equals the default."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    @classmethod
    def from_json(cls, value: Any) -> Definition:
        """A definition that `to_json` gave; raises pydantic's ValidationError for another value."""
        return cls.model_validate(value)


class CodeReference(StrictModel):
    """The function in Python that executes a workflow, and the digest of the code that it belongs to."""

    file: str
    function: str
    digest: str


class CodeDefinition(Definition):
    """A workflow in Python: its steps are those that its function makes while it runs."""

    steps: Annotated[tuple[Step, ...], Field(strict=False, max_length=0)] = ()
    code: CodeReference


def step_to_json(step: Step) -> dict[str, Any]:
    """The canonical form of one step."""
    return step.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def iterate_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step in the order of the text, an outer one before its nested ones."""
    for step in steps:
        yield step
        if step.steps:
            yield from iterate_steps(step.steps)
        for branch in (step.branches or {}).values():
            yield from iterate_steps(branch)


def list_calls(definition: Definition) -> tuple[str, ...]:
    """The skills that a definition calls, each once, in the order of the text."""
    return tuple(dict.fromkeys(s.skill for s in iterate_steps(definition.steps) if s.skill))


_MODEL_ROLES = ("plan", "execute", "review")
"""In the place of a model's name: the best model for the role."""


def list_agents(definition: Definition) -> tuple[str, ...]:
    """The agents that a definition names, each once, in the order of first use."""
    named: list[str] = []
    for step in iterate_steps(definition.steps):
        agents = step.parallel.agents if step.parallel is not None else None
        named += [*([step.agent] if step.agent else []), *(agents if isinstance(agents, list) else [])]
        if step.think is not None and step.think.model not in (None, *_MODEL_ROLES):
            named.append(step.think.model or "")
    return tuple(dict.fromkeys(name for name in named if "${{" not in name and name != "auto"))
