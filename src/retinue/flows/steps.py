"""The steps of a workflow in Python that can run alone or together: calls of skills, and own functions."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
import typing
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from retinue.authoring.results import encode_result
from retinue.authoring.signatures import call_in_thread
from retinue.core.errors import (
    ExecutionFailedError,
    InvalidParametersError,
    InvalidSettingError,
    OutputInvalidError,
    Problem,
    RemoteFaultError,
    RetinueError,
    StepFailedError,
)
from retinue.core.remote_faults import rebuild_error
from retinue.flows.arguments import to_json
from retinue.mesh.artifacts import Artifact, ArtifactStore
from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Retry
from retinue.workflows.interpreter.calls import Ask, CallSteps, shown_input
from retinue.workflows.interpreter.frame import Frame, below
from retinue.workflows.runs.ports import Mark
from retinue.workflows.runs.records import as_json

T = TypeVar("T")

_OWN_CODE = str(Path(__file__).parent)

Perform = Callable[[Frame, str], Awaitable[T]]
"""Makes the step at a path, with the state of a body."""


class PlannedStep(Generic[T]):
    """A step that has its name and has not begun: await it, or give it to `Run.gather`."""

    def __init__(
        self, path: str, mark: Mark, perform: Perform[T], begin: Callable[[PlannedStep[T]], Any]
    ) -> None:
        self.path = path
        self.mark = mark
        self._perform = perform
        self._begin = begin
        self._has_begun = False

    def __await__(self) -> Generator[Any, None, T]:
        awaited: Awaitable[T] = self._begin(self)
        return awaited.__await__()

    def __repr__(self) -> str:
        return f"<step {self.path} of {self.mark.place}>"

    async def perform(self, frame: Frame) -> T:
        """Make the step; once. Raises the error of a failed step, of its own class."""
        if self._has_begun:
            raise InvalidSettingError(
                f"step {self.path}", "it was awaited before", remedy="keep its result in a variable"
            )
        self._has_begun = True
        try:
            return await self._perform(frame, self.path)
        except StepFailedError as failed:
            raise find_error(failed) from failed


def make_call(
    skill: str,
    arguments: Mapping[str, Any],
    *,
    agent: str | None,
    version: str | None,
    timeout_s: float,
    retry: Retry | None,
    into: Any,
    options: frozenset[str],
) -> Perform[Any]:
    """The call of a skill; ``options`` are the names of the options that were given as keywords."""

    async def perform(frame: Frame, path: str) -> Any:
        ask = Ask(
            step_id=path,
            arguments_for=lambda choice: arguments,
            skill=skill,
            agent=agent,
            version=version,
            timeout_s=timeout_s,
            retry=retry,
            allow_empty=True,
            check=lambda value: _convert(path, value, into),
        )
        try:
            result = await CallSteps(frame).run(ask, path)
        except StepFailedError as failed:
            raise _explain_options(failed, skill, options) from failed.__cause__
        return _convert(path, result.output, into)

    return perform


def make_own(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    named: Mapping[str, Any],
    *,
    timeout_s: float,
    retry: Retry | None,
) -> Perform[Any]:
    """The call of an own function; a plain one runs in a thread."""
    returned = _read_return(function)

    async def effect(path: str) -> Any:
        try:
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **named)
            else:
                value = await _run_in_thread(function, args, named)
                if inspect.isawaitable(value):
                    value = await value
        except SystemExit as error:  # would end this process, and again after each start
            raise ExecutionFailedError.from_exception(error) from error
        encoded = encode_result(name_of(function), value, None if returned is Any else _adapter(returned))
        _convert(path, encoded, returned)  # a value that cannot be read back wins no race
        return {"value": encoded, "agent": None}

    async def perform(frame: Frame, path: str) -> Any:
        for number in range(1, (retry.attempts if retry else 1) + 1):
            here = path if number == 1 else f"{path}@{number}"
            if number > 1 and retry:
                await frame.sleep(f"{here}/wait", retry.delay_before(number), step=path)
            facts = {"kind": "call", "skill": name_of(function), "agent": None, "attempt": number}
            facts |= {"input": shown_input(to_json(list(args)) if args else to_json(dict(named)))}
            facts |= {"below": below(here, path)}
            outcome = await frame.context.step(here, partial(effect, path), timeout_s=timeout_s, facts=facts)
            if outcome.fault is None:
                return _convert(path, outcome.value["value"], returned)
            if not outcome.fault.retryable:
                break
        assert outcome.fault is not None
        raise StepFailedError(path, None, as_json(outcome.fault))

    return perform


def make_save(
    store: ArtifactStore,
    content: bytes | str | PathLike[str],
    media_type: str | None,
    *,
    caller: str,
    run: str,
    name: str | None,
) -> Perform[Artifact]:
    """A save of a file, which records its link."""

    async def save() -> Artifact:
        return await store.save(content, media_type, caller=caller, name=name, run=run)

    perform_own = make_own(save, (), {}, timeout_s=DEFAULT_STEP_TIMEOUT_S, retry=None)

    async def perform(frame: Frame, path: str) -> Artifact:
        return Artifact.of(await perform_own(frame, path), store)

    return perform


async def _run_in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> Any:
    """Call a plain function in a thread, which cannot be stopped: a cancellation waits for its end.

    So no attempt runs at the same time as the one before.
    """
    running = asyncio.create_task(asyncio.to_thread(call_in_thread, function, *args, **named))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((running,))
        if not running.cancelled():
            running.exception()  # read, so that it is not reported as lost
        raise


def mark_of(*facts: Any) -> Mark:
    """The mark of a step that is made by the author's code right now."""
    text = orjson.dumps(to_json(facts), option=orjson.OPT_SORT_KEYS)
    return Mark(sha256(text).hexdigest()[:32], find_caller())


def find_caller() -> str:
    """File and line of the author's code, as ``flows.py:12``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"  # noqa: PTH119 - much faster


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, as steps show it."""
    return str(getattr(function, "__name__", type(function).__name__))


def _read_return(function: Callable[..., Any]) -> Any:
    try:
        returned = typing.get_type_hints(function).get("return", Any)
    except (NameError, AttributeError, TypeError):
        return Any
    return None if returned is type(None) else returned


def _convert(path: str, value: Any, into: Any) -> Any:
    """A recorded value as the type that is wanted; raises StepFailedError where it does not fit."""
    if into is None or into is Any:
        return value
    try:
        return _adapter(into).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise OutputInvalidError(f"step {path}", [Problem(where, f"{where}: {first['msg']}")]) from error


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The adapter of a type, made once: a body makes the same step many times."""
    try:
        # unions of other orders are equal, but the first member that fits counts
        return _remembered_adapter(kind, repr(kind))
    except TypeError:  # a type that is not hashable, such as Annotated with a list
        return TypeAdapter(kind)


@lru_cache(maxsize=128)
def _remembered_adapter(kind: Any, text: str) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def find_error(failed: StepFailedError) -> RetinueError:
    """The cause of a failed step as the error that it was."""
    cause = failed.cause
    facts = {**cause.get("data", {}), "type": cause.get("type"), "remedy": cause.get("remedy", "")}
    error = rebuild_error(RemoteFaultError(failed.agent or "", -32603, str(cause.get("message", "")), facts))
    return failed if isinstance(error, StepFailedError) else error


def _explain_options(failed: StepFailedError, skill: str, options: frozenset[str]) -> StepFailedError:
    """A refusal of the arguments, with the remedy where a parameter has the name of an option."""
    cause = failed.cause
    if cause.get("type") != InvalidParametersError.type:
        return failed
    missing = {str(row.get("path", "")) for row in cause.get("data", {}).get("errors", ())} & options
    if not missing:
        return failed
    name = min(missing)
    remedy = f'{name} is an option of run.call: give the argument by run.call("{skill}", {{"{name}": …}})'
    return StepFailedError(failed.step, failed.agent, {**cause, "remedy": remedy})


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 56


class StepNames:
    """Gives each step its name; repeated ones are numbered in the order of the code: ``review-2``."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def take(self, proposed: str) -> str:
        """The name of the next step that proposes this one."""
        name = self.peek(proposed)
        self._taken.add(name)
        return name

    def peek(self, proposed: str) -> str:
        """The name that `take` would give."""
        base = _NOT_IN_NAMES.sub("_", proposed)[:_LONGEST_NAME] or "step"
        if not (base[0].isalpha() or base[0] == "_"):
            base = f"_{base}"
        number = self._last.get(base, 1)
        name = base if number == 1 else f"{base}-{number}"
        while name in self._taken:
            number += 1
            name = f"{base}-{number}"
        self._last[base] = number
        return name
