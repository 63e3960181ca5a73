"""The handle with which a workflow in Python makes its steps."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from os import PathLike
from typing import Any, ParamSpec, TypeVar, overload

from retinue.authoring.forms import make_form
from retinue.core.errors import InvalidSettingError, StepFailedError
from retinue.flows.arguments import (
    arguments_as_json,
    check_function,
    check_own_arguments,
    check_seconds,
    check_text,
)
from retinue.flows.children import make_child
from retinue.flows.options import StepOptions, make_step, read_retry, read_time
from retinue.flows.steps import (
    Perform,
    PlannedStep,
    StepNames,
    find_error,
    make_call,
    make_own,
    make_save,
    mark_of,
    name_of,
)
from retinue.flows.thinking import make_think
from retinue.flows.together import check_number, check_steps, choose_values, name_cut_off
from retinue.mesh.artifacts import Artifact, ArtifactStore
from retinue.mesh.channel import LogLevel
from retinue.workflows.definitions.definition import (
    DEFAULT_STEP_TIMEOUT_S,
    Compensation,
    Retry,
    Step,
    WorkflowSettings,
)
from retinue.workflows.definitions.values import render_duration
from retinue.workflows.expressions.scope import Scope
from retinue.workflows.interpreter.call_budget import CallBudget
from retinue.workflows.interpreter.control_steps import run_timer, run_wait_for
from retinue.workflows.interpreter.frame import Frame, Tools, Undo
from retinue.workflows.interpreter.rounds import MarkedContext, Rounds
from retinue.workflows.library import Library
from retinue.workflows.runs.ports import Mark, RunContext
from retinue.workflows.runs.records import Origin, RunRequest

P = ParamSpec("P")
T = TypeVar("T")

_CHANGE = re.compile(r"[A-Za-z0-9_-]{1,100}")
_CLOCK_S = 60.0
_LONGEST_SLEEP_S = 100 * 366 * 86_400.0
_UNITS = ("seconds", "minutes", "hours", "days")
_OPTIONS = ("agent", "version", "timeout_s", "retry", "into", "name")
DEFAULT_WAIT = "24h"


class _Registered:
    """What is done already: awaited, it gives None."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class Run:
    """The run of a workflow in Python: each method makes a step, which is recorded once.

    A run that is taken up after a crash begins its function again: recorded steps give their recorded
    results, and the first one without a record is made. So between two steps a function must decide by its
    arguments and by results of steps alone: it reads the time by `now` and random numbers by `random`, and
    does everything else that is not the same each time by `step`.

    A step is named after its skill or function; repeated ones are numbered: ``review``, ``review-2``.
    """

    def __init__(self, context: RunContext, request: RunRequest, tools: Tools, library: Library) -> None:
        self._context = context
        self._library = library
        self._request = request
        self._tools = tools
        self._scope = Scope(request.input, ())
        self._names = StepNames()
        self._budget = CallBudget(request.origin)
        self._undo: list[Undo] = []
        self._changes: dict[str, bool] = {}

    @property
    def id(self) -> str:
        """The id of the run, which begins the idempotency keys of its calls."""
        return self._context.run_id

    def call(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        agent: str | None = None,
        version: str | None = None,
        timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
        retry: int | Retry | None = None,
        into: Any = None,
        name: str | None = None,
        **fields: Any,
    ) -> PlannedStep[Any]:
        """Call a skill of an agent; awaited, it gives the value.

        The arguments are a mapping or keywords; a parameter that has the name of an option needs the
        mapping. ``retry`` is the number of attempts, each limited to ``timeout_s``; ``into`` a type of the
        value, such as a dataclass. Raises the error of a failed call, of its own class (a RetinueError).
        """
        check_text("call", "skill", skill)
        for option, text in (("agent", agent), ("version", version), ("name", name)):
            if text is not None:
                check_text("call", option, text)
        check_seconds("call", "timeout_s", timeout_s)
        if arguments is not None and fields:
            raise InvalidSettingError(
                f"run.call of {skill}",
                "arguments come as a mapping and as keywords",
                remedy="give one of them",
            )
        sent = arguments_as_json(skill, fields if arguments is None else arguments)
        values = (agent, version, timeout_s, retry, into, name)
        defaults = (None, None, DEFAULT_STEP_TIMEOUT_S, None, None, None)
        used = {o for o, v, d in zip(_OPTIONS, values, defaults, strict=True) if v != d}
        perform = make_call(
            skill,
            sent,
            agent=agent,
            version=version,
            timeout_s=timeout_s,
            retry=read_retry(retry),
            into=into,
            options=frozenset(used),
        )
        return self._plan(name or skill, mark_of("call", skill, sent, agent, version), perform)

    def think(
        self,
        prompt: str,
        /,
        *,
        instructions: str = "",
        model: str | None = None,
        tools: str | Sequence[str] = ("search",),
        deny: str | Sequence[str] = (),
        approve: str | Sequence[str] = (),
        into: Any = None,
        limits: Mapping[str, Any] | None = None,
        parallel: int | None = None,
        context: Mapping[str, Any] | None = None,
        session: str | None = None,
        retry: int | Retry | None = None,
        name: str | None = None,
    ) -> PlannedStep[Any]:
        """Let a language model work on a prompt with skills as its tools; awaited, it gives the answer.

        ``model`` is a model agent or a role. ``tools`` and ``deny`` name skills by id, by ``agent/skill`` or
        by a glob, and ``search`` lets the model find further ones. A person is asked before each call that
        ``approve`` names. ``into`` is the type of the answer, or its JSON Schema; without it the answer is
        text. ``limits`` has ``turns``, ``calls``, ``tokens``, ``dollars`` and ``time``, and ``context`` has
        ``keep_results``, as in YAML. ``session`` is an id: the model knows what was asked and answered in
        earlier runs of this caller with it. Raises LimitedError, which has a last answer, OutputInvalidError
        and ModelError.
        """
        options = {
            "instructions": instructions,
            "model": model,
            "tools": tools,
            "deny": deny,
            "approve": approve,
            "limits": limits,
            "parallel": parallel,
            "context": context,
            "session": session or None,
        }
        asked, perform = make_think(prompt, into, read_retry(retry), options)
        return self._plan(
            name or "think", mark_of("think", asked.model_dump(mode="json", exclude_defaults=True)), perform
        )

    @overload
    def step(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        /,
        *args: P.args,
        **named: P.kwargs,
    ) -> PlannedStep[T]: ...

    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> PlannedStep[T]: ...

    def step(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> PlannedStep[Any]:
        """Call an own function with these arguments, once; awaited, it gives the result.

        The result is recorded as JSON, and read back by the return annotation. A plain function runs in a
        thread. See `options` for a name, attempts and a time limit. Raises ExecutionFailedError for what the
        function raises.
        """
        return self.options().step(function, *args, **named)

    def options(
        self,
        *,
        name: str | None = None,
        retry: int | Retry | None = None,
        timeout_s: float = DEFAULT_STEP_TIMEOUT_S,
    ) -> StepOptions:
        """Options of an own function: ``run.options(retry=3).step(upload, plans)``."""
        if name is not None:
            check_text("options", "name", name)
        check_seconds("options", "timeout_s", timeout_s)
        return StepOptions(self._plan_own, name, read_retry(retry), timeout_s)

    @property
    def artifacts(self) -> ArtifactStore | None:
        """The store of the artifacts that this run saves and gets; None where there is none."""
        return self._tools.artifacts

    def save(
        self, content: bytes | str | PathLike[str], media_type: str | None = None, *, name: str | None = None
    ) -> PlannedStep[Artifact]:
        """Save a file as a step, once; awaited, it gives the artifact, whose link the run records.

        ``content`` is bytes or the path of a file, ``name`` the file name for readers. The artifact is held
        as long as the run is stored. Raises InvalidSettingError where there is no store of artifacts.
        """
        store = self._tools.artifacts
        if store is None:
            raise InvalidSettingError(
                "run.save", "there is no store of artifacts", remedy="run it with retinue hub or run_workflow"
            )
        path = None if isinstance(content, bytes) else os.fspath(content)
        digest = sha256(content).hexdigest() if isinstance(content, bytes) else None
        return self._plan(
            "save",
            mark_of("save", path, digest, media_type, name),
            make_save(store, content, media_type, caller=self._request.origin.caller, run=self.id, name=name),
        )

    async def gather(
        self,
        *steps: PlannedStep[Any],
        limit: int | None = None,
        enough: int | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Make several steps at once, at most ``limit`` in flight; gives their values in the given order.

        Where a step fails, those in flight come to their end and the first failure is raised. With
        ``return_exceptions`` all are made, and failures are among the values.

        With ``enough`` it gives the values of so many steps, those that succeeded first; where several
        succeed at once, the first in the given order count. The others are cut off, and a call that was cut
        off may have had its effect. The first failure is raised when so many cannot succeed any more. With
        ``return_exceptions`` it gives a value or an error of each step, CallCancelledError for a step that
        was cut off.
        """
        check_number("limit of run.gather", limit)
        check_number("enough of run.gather", enough, len(steps))
        rounds = Rounds(self._context, limit, enough=enough)
        tolerated = None if return_exceptions else 0 if enough is None else len(steps) - enough
        results = await self._run_together("gather", rounds, steps, tolerated)
        return name_cut_off(results, steps) if return_exceptions else choose_values(results, enough)

    async def race(self, *steps: PlannedStep[Any]) -> Any:
        """Make several steps at once and give the value of the first that succeeds; the others are cut off.

        It is a `gather` with ``enough=1``. Raises the first failure where none succeeds.
        """
        if not steps:
            raise InvalidSettingError("run.race", "there are no steps", remedy="give one or more")
        rounds = Rounds(self._context, enough=1)
        results = await self._run_together("race", rounds, steps, len(steps) - 1)
        return choose_values(results, 1)[0]

    async def _run_together(
        self, method: str, rounds: Rounds, steps: Sequence[PlannedStep[Any]], tolerated: int | None
    ) -> list[Any]:
        """The values of steps, or what they raised; the call budget is shared out among them."""
        check_steps(method, steps)
        if not steps:
            return []
        origin = self._budget.divide(len(steps))
        frames = [self._open_branch(step.mark, rounds, origin) for step in steps]
        works = [partial(step.perform, frame) for step, frame in zip(steps, frames, strict=True)]
        results = await rounds.run(works, tolerated=tolerated)
        for frame in frames:
            self._budget.settle_share(origin, frame.budget.used, frame.budget.usage)
        return results

    async def sleep(
        self,
        seconds: float = 0.0,
        *,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        name: str | None = None,
    ) -> None:
        """Sleep; time that passes while the run is interrupted counts."""
        for unit, number in zip(_UNITS, (seconds, minutes, hours, days), strict=True):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not is_number or not 0 <= number <= _LONGEST_SLEEP_S:
                problem = f"{unit} is {number!r:.80}, and not a number of {unit} from 0 on"
                raise InvalidSettingError("run.sleep", problem, remedy=f"write run.sleep({unit}=5)")
        total_s = seconds + 60 * minutes + 3600 * hours + 86_400 * days
        step = make_step(
            "sleep", self._names.take(name or "sleep"), {"wait": {"for": render_duration(total_s)}}
        )
        mark = mark_of("sleep", total_s)
        await self._perform(step.id, mark, lambda frame, path: run_timer(frame, step, path))

    @overload
    async def receive(
        self,
        topic: str,
        into: type[T],
        *,
        timeout: str | float = DEFAULT_WAIT,
        message: str = "",
        name: str | None = None,
    ) -> T: ...

    @overload
    async def receive(
        self,
        topic: str,
        into: Any = None,
        *,
        timeout: str | float = DEFAULT_WAIT,
        message: str = "",
        name: str | None = None,
    ) -> Any: ...

    async def receive(
        self,
        topic: str,
        into: Any = None,
        *,
        timeout: str | float = DEFAULT_WAIT,
        message: str = "",
        name: str | None = None,
    ) -> Any:
        """Wait for the next signal of a topic (``retinue signal RUN TOPIC VALUE``), and give its value.

        ``into`` is the type that the value must have, or its JSON Schema. ``timeout`` is a text such as
        ``8h``, or seconds. Raises CallTimedOutError.
        """
        check_text("receive", "topic", topic)
        check_text("receive", "message", message)
        schema, read = (None, None) if into is None else make_form(into)
        wait = {"topic": topic, "message": message, "schema": schema, "timeout": read_time(timeout)}
        path = self._names.take(name or topic)
        step = make_step("receive", path, {"wait_for": wait})
        perform: Perform[Any] = lambda frame, path: run_wait_for(frame, step, path)  # noqa: E731
        result = await self._perform(path, mark_of("receive", topic, schema), perform)
        return result.output if read is None else read(result.output)

    @overload
    async def elicit(
        self,
        message: str,
        into: type[T],
        *,
        timeout: str | float = DEFAULT_WAIT,
        name: str = "answer",
    ) -> T: ...

    @overload
    async def elicit(
        self, message: str, into: Any, *, timeout: str | float = DEFAULT_WAIT, name: str = "answer"
    ) -> Any: ...

    async def elicit(
        self,
        message: str,
        into: Any,
        *,
        timeout: str | float = DEFAULT_WAIT,
        name: str = "answer",
    ) -> Any:
        """Ask a person, and give the answer as a value of the type ``into``.

        The question waits with the run and is answered as a signal: its topic is the name of the step,
        ``answer``, ``answer-2`` and so on. Raises CallTimedOutError.
        """
        check_text("elicit", "message", message)
        path = self._names.peek(name)
        return await self.receive(path, into, timeout=timeout, message=message, name=name)

    async def workflow(
        self,
        workflow: str,
        input: Any = None,  # noqa: A002 - the word of the grammar
        *,
        name: str | None = None,
    ) -> Any:
        """Run a stored workflow, in YAML or in Python, as a child run; gives its output.

        It is cancelled with this run, and undoes its own steps if it fails; what it has done is not undone
        with this run. Raises the error of its failed step, UnknownWorkflowError, InvalidParametersError and
        PolicyDeniedError.
        """
        check_text("workflow", "workflow", workflow)
        arguments = {} if input is None else arguments_as_json(workflow, input)
        perform = make_child(self._library, self._tools, workflow, arguments)
        mark = mark_of("workflow", workflow, arguments)
        return await self._perform(self._names.take(name or workflow), mark, perform)

    async def now(self, *, name: str = "now") -> datetime:
        """The time, in UTC, as it was when the step was first made."""
        path, mark = self._names.take(name), mark_of("now")
        read = await self._perform(path, mark, lambda frame, path: frame.read_clock(path, path))
        return datetime.fromtimestamp(read, UTC)

    async def random(self, *, name: str = "random") -> float:
        """A random number from 0 to 1, the same one whenever the step is repeated."""

        async def draw() -> float:
            return random.random()

        async def perform(frame: Frame, path: str) -> float:
            outcome = await frame.context.step(path, draw, timeout_s=_CLOCK_S, facts={"kind": "random"})
            return float(outcome.value)

        return await self._perform(self._names.take(name), mark_of("random"), perform)

    async def log(
        self, message: str, *, level: LogLevel = "info", data: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line to the log of the run, which `retinue runs ID`, the dashboard and events show.

        A function that is begun again adds each line once. Lines belong between steps: an own function
        returns what is to be said. Of a run 10,000 lines are kept.
        """
        check_text("log", "message", message)
        await self._context.log(message, level, data)

    async def patched(self, change: str) -> bool:
        """Whether this run has a change of the function, asked where the old and the new code differ.

        It is True for runs that come here with the new code first, and False for those that went on here
        before, which must make the steps of the old code. The answer is the same for the whole run.
        ``change`` is a name for the change. Runs of older code come to code that names their digest in
        ``continues`` of `workflow`. When none of them is left, leave the question out: recorded answers are
        passed. Raises InvalidSettingError.

        >>> async def ship(run: Run) -> None:
        ...     if await run.patched("weigh-first"):
        ...         await run.call("weigh")
        ...     await run.call("ship")
        """
        check_text("patched", "change", change)
        if not _CHANGE.fullmatch(change):
            raise InvalidSettingError(
                "run.patched",
                f"{change[:50]!r} is no name of a change",
                remedy="write letters, digits, - and _, at most 100",
            )
        if change not in self._changes:
            self._changes[change] = await self._context.patched(change)
        return self._changes[change]

    def undo(
        self,
        skill: str,
        arguments: Mapping[str, Any],
        /,
        *,
        agent: str | None = None,
        retry: int | None = None,
        name: str | None = None,
    ) -> Awaitable[None]:
        """Let this call undo what was done, should the run fail later; the last one is made first.

        It takes effect at once, so that it need not be awaited, but may be.
        It is made as the ``compensate`` of a step in YAML: ``retinue runs resume`` repeats one that failed.
        """
        check_text("undo", "skill", skill)
        path = self._names.take(name or skill)
        call: dict[str, Any] = {"skill": skill}
        if agent is not None:
            call["agent"] = agent
        if retry is not None:
            call["retry"] = {"attempts": retry}
        compensation = Compensation.model_validate(call)
        stored = compensation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        undo_arguments = arguments_as_json(skill, arguments)
        self._undo.append(Undo(path, path, agent, stored, arguments=undo_arguments))
        return _Registered()

    def open_frame(self, context: RunContext) -> Frame:
        """The state with which steps of this run are made."""
        frame = self._make_frame(context, self._request)
        frame.budget, frame.undo = self._budget, self._undo
        return frame

    def _plan_own(
        self,
        options: StepOptions,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> PlannedStep[Any]:
        """The step of an own function."""
        check_function(function)
        perform = make_own(function, args, named, timeout_s=options.timeout_s, retry=options.retry)
        wanted = name_of(function)
        check_own_arguments(wanted, args, named)
        return self._plan(options.name or wanted, mark_of("step", wanted, args, named), perform)

    def _plan(self, name: str, mark: Mark, perform: Perform[T]) -> PlannedStep[T]:
        return PlannedStep(self._names.take(name), mark, perform, self._begin)

    def _begin(self, step: PlannedStep[T]) -> Awaitable[T]:
        return step.perform(self.open_frame(MarkedContext(self._context, step.mark)))

    async def _perform(self, path: str, mark: Mark, perform: Perform[T]) -> T:
        try:
            return await perform(self.open_frame(MarkedContext(self._context, mark)), path)
        except StepFailedError as failed:
            raise find_error(failed) from failed

    def _open_branch(self, mark: Mark, rounds: Rounds, origin: Origin) -> Frame:
        return self._make_frame(
            MarkedContext(self._context, mark, rounds), replace(self._request, origin=origin)
        )

    def _make_frame(self, context: RunContext, request: RunRequest) -> Frame:
        return Frame(context, request, self._scope, self._tools, WorkflowSettings(), {}, _run_no_steps)


async def _run_no_steps(steps: tuple[Step, ...], prefix: str) -> None:
    raise AssertionError("a workflow in Python has no nested steps")
