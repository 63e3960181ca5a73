"""Records the steps of a process in their order, at methods that are wrapped while a test runs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

import pytest

from retinue.runtime.run_process import GETTING_READY


@dataclass(frozen=True, slots=True)
class Seam:
    """A function or method, as ``module:name``, and the lines that stand for it in the record.

    ``begins`` is recorded when a plain function has returned, when a coroutine begins, and when a context
    has been entered; ``ends`` when the coroutine or the context has ended. With ``main`` only calls by the
    main task of the process are recorded, because background tasks do the same at any time.
    """

    place: str
    begins: str
    ends: str | None = None
    main: bool = False
    shows: str | None = None
    of: Callable[[Any], str] | None = None


class Recorder:
    """The steps of one process so far."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.main: asyncio.Task[Any] | None = None
        """The main task of the process."""

    def note(self, step: str | None) -> None:
        """Record one step; nothing for None."""
        if step is not None:
            self.steps.append(step)

    def watch(self, monkeypatch: pytest.MonkeyPatch, seams: Sequence[Seam]) -> None:
        """Record the steps at ``seams`` until the test is over."""
        for seam in seams:
            module, _, name = seam.place.partition(":")
            owner: Any = import_module(module)
            *classes, attribute = name.split(".")
            for one in classes:
                owner = getattr(owner, one)
            function = inspect.getattr_static(owner, attribute)
            monkeypatch.setattr(owner, attribute, self._wrap(function, seam))

    def _wrap(self, function: Callable[..., Any], seam: Seam) -> Callable[..., Any]:
        @wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            if seam.main and not self._is_in_main():
                return result
            begins, ends = seam.begins, seam.ends
            if seam.of is not None:
                thing = seam.of(arguments[0])
                begins, ends = begins.format(thing), ends and ends.format(thing)
            if inspect.iscoroutine(result):
                return self._run(result, begins, ends)
            if ends is not None:
                enter = self._enter_async if hasattr(result, "__aenter__") else self._enter
                return enter(result, begins, ends)
            shown = "" if seam.shows not in options else f", {seam.shows}={options[seam.shows]}"
            self.note(f"{begins}{shown}")
            return result

        return call

    def _is_in_main(self) -> bool:
        try:
            task = asyncio.current_task()
            return task is self.main or (task is not None and task.get_name() == GETTING_READY)
        except RuntimeError:  # in a thread
            return False

    async def _run(self, coroutine: Any, begins: str, ends: str | None) -> Any:
        self.note(begins)
        try:
            return await coroutine
        finally:
            self.note(ends)

    @asynccontextmanager
    async def _enter_async(self, context: Any, begins: str, ends: str) -> AsyncIterator[Any]:
        try:
            async with context as entered:
                self.note(begins)
                yield entered
        finally:
            self.note(ends)

    @contextmanager
    def _enter(self, context: Any, begins: str, ends: str) -> Iterator[Any]:
        try:
            with context as entered:
                self.note(begins)
                yield entered
        finally:
            self.note(ends)
