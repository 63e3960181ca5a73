"""What all steps of one body share: the durable calls, what is known, what bounds them, what to undo."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from retinue.core.call import MAX_KEY_LENGTH
from retinue.core.errors import CallTimedOutError, ExpressionError, StepFailedError
from retinue.workflows.caching import Cache, MemoryCache
from retinue.workflows.caller import Caller
from retinue.workflows.definitions.definition import Step, step_to_json
from retinue.workflows.definitions.step_parts import Settings
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.expressions.templates import parse_condition, render_value
from retinue.workflows.interpreter.needs import find_needs
from retinue.workflows.interpreter.notes import below, fail
from retinue.workflows.interpreter.spending import Spending
from retinue.workflows.run_records import Fault, RunRequest
from retinue.workflows.runs import RunContext

CLOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Tools:
    """What the steps of every run work with; ``clock`` gives seconds since 1970, inside effects only."""

    caller: Caller
    cache: Cache = field(default_factory=MemoryCache)
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Limit:
    """A time at which something around a step is over: a step of its own (``owner``), or the run."""

    owner: str
    at: float
    seconds: float
    setting: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a step gave, further facts for its entry, and what its call was sent."""

    output: Any
    facts: Mapping[str, Any] = field(default_factory=dict)
    arguments: Any = None


class RunSteps(Protocol):
    """Runs nested steps in this body; their paths begin with ``prefix``."""

    def __call__(self, steps: tuple[Step, ...], prefix: str) -> Awaitable[None]: ...


@dataclass(slots=True)
class Frame:
    """One body at work. ``undo`` are the compensations of what is done, the last step's last;
    ``spending`` is what its steps may cause in further calls."""

    context: RunContext
    request: RunRequest
    scope: Scope
    tools: Tools
    settings: Settings
    nested: Mapping[str, Any]
    run_steps: RunSteps
    limits: tuple[Limit, ...] = ()
    undo: list[dict[str, Any]] = field(default_factory=list)
    spending: Spending = field(init=False)

    def __post_init__(self) -> None:
        self.spending = Spending(self.request.ambient.get("trace"))
        self.limits = tuple(Limit(**one) for one in self.request.ambient.get("limits", ()))

    @property
    def scopes(self) -> frozenset[str]:
        return frozenset(self.request.ambient.get("scopes", ()))

    def tell_calls(self) -> None:
        """Say what the body has used, now that it ends."""
        self.context.tell_calls(self.spending.used)

    def name(self, path: str) -> str:
        """A path of this body as nobody else has it."""
        return f"{self.context.run_id}/{path}"

    def key(self, path: str) -> str:
        """The idempotency key of an effect: its name, made shorter where that is longer than keys may be."""
        name = self.name(path)
        if len(name) <= MAX_KEY_LENGTH:
            return name
        digest = sha256(name.encode()).hexdigest()
        return f"{name[: MAX_KEY_LENGTH - len(digest) - 1]}~{digest}"

    async def holds(self, condition: str, path: str) -> bool:
        """The value of a condition; raises StepFailedError where it cannot be told.

        The failure is recorded at ``path``, which must not be used otherwise then.
        """
        try:
            return parse_condition(condition).holds(self.scope.variables)
        except ExpressionError as error:
            raise await fail(self.context, path, error) from None

    async def render(self, value: Any, path: str, *, step: str | None = None) -> Any:
        """A value with its templates replaced; raises StepFailedError where one fails, as `holds`."""
        try:
            return render_value(value, self.scope.variables)
        except ExpressionError as error:
            raise await fail(self.context, path, error, step=step) from None

    async def add_limit(self, path: str, seconds: float, setting: str) -> None:
        """From now on everything ends within ``seconds``, of what the owner at ``path`` does."""
        if not path:
            now, owner = await self._read_clock(path, "settings/max_duration"), self.context.run_id
        else:
            now, owner = await self._read_clock(path, f"{path}/limit"), self.name(path)
        self.limits = (*self.limits, Limit(owner, now + seconds, seconds, setting))

    async def bound(
        self, path: str, timeout_s: float, *, step: str | None = None
    ) -> tuple[float, Limit | None]:
        """The seconds that a durable call may take, and the limit that made them fewer.

        ``step`` is the path of the step that it serves, ``path`` itself if absent. Raises
        StepFailedError when the time is over already.
        """
        if not self.limits:
            return timeout_s, None
        nearest = min(self.limits, key=lambda limit: limit.at)
        left_s = nearest.at - await self._read_clock(step or path, f"{path}/clock")
        if left_s <= 0:
            raise StepFailedError(step or path, None, overdue(step or path, nearest))
        return (left_s, nearest) if left_s < timeout_s else (timeout_s, None)

    async def sleep(self, path: str, seconds: float, *, step: str) -> None:
        """Wait, not past the time that is left, for a step."""
        bounded_s, _ = await self.bound(path, seconds, step=step)
        await self.context.sleep(path, bounded_s)

    def is_overdue(self, error: StepFailedError) -> bool:
        """Whether a failure is the end of something further out, which no step in between can mend."""
        owner = error.cause.get("data", {}).get("limit_of")
        return owner is not None and any(limit.owner == owner for limit in self.limits)

    def branch_request(
        self, path: str, steps: tuple[Step, ...], *, loop: Mapping[str, Any] | None = None
    ) -> RunRequest:
        """The request of a child run that walks nested steps, and knows what they can read."""
        needs = find_needs(steps)
        return RunRequest(
            name=f"{self.request.name}/{path}",
            definition={
                "branch": [step_to_json(step) for step in steps],
                "known": needs.pick_known(self.scope.known),
                "settings": self.settings.model_dump(mode="json", exclude_defaults=True),
                "nested": self.nested if needs.workflows else {},
            },
            input={
                "input": needs.pick_input(self.scope.input),
                "entries": needs.pick_entries(self.scope.entries),
                "loop": self.scope.loop if loop is None else loop,
            },
            ambient=self.child_ambient(),
        )

    def child_ambient(self) -> Mapping[str, Any]:
        """What child runs are started with: the same rights and trace, and the time that is left."""
        return {**self.request.ambient, "limits": [asdict(limit) for limit in self.limits]}

    async def _read_clock(self, step: str, path: str) -> float:
        async def effect() -> float:
            return self.tools.clock()

        facts = {"kind": "clock", "below": below(path, step)}
        outcome = await self.context.step(path, effect, timeout_s=CLOCK_TIMEOUT_S, facts=facts)
        return float(outcome.value)


def overdue(path: str, limit: Limit) -> dict[str, Any]:
    """The fault of a step that was cut off by a limit around it."""
    error = CallTimedOutError(f"step {path}", limit.seconds, layer="workflow", setting=limit.setting)
    fault = Fault.from_error(error).to_json()
    return {**fault, "data": {**fault["data"], "limit_of": limit.owner}}
