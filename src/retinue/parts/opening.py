"""Opens the parts of a process in the order of their needs, then runs, drains and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import structlog
from starlette.routing import BaseRoute

from retinue.authoring.agent import Agent
from retinue.core.call import Principal
from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.mesh.directory.directory import Directory
from retinue.mesh.observing.metrics import METRICS, Figures, Metric
from retinue.parts.part import LivePart, Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.web.security import PathExceptions, SecurityMiddleware

SLOW_S = 10.0
"""A part that takes longer to open, or to start, is named."""

_log = structlog.get_logger("retinue.parts")

Edges = Callable[[Part], Sequence[type]]
"""The products whose parts come before a part."""


class CircleError(InvalidSettingError):
    """Parts wait for each other; ``circle`` holds each of them once."""

    def __init__(self, circle: Sequence[Part]) -> None:
        names = " → ".join(part.name for part in [*circle, circle[0]])
        super().__init__(
            f"part {circle[0].name}",
            f"parts wait for each other: {names}",
            remedy="uninstall one of them, or switch it off: [parts] off",
        )
        self.circle = tuple(circle)


def in_order(parts: Sequence[Part], edges: Edges) -> list[Part]:
    """The parts, each after the parts that give its ``edges``; otherwise in the order of the list.

    Raises CircleError for parts that wait for each other.
    """
    givers = {part.gives: part for part in parts if part.gives is not None}
    ordered: list[Part] = []
    waiting: list[Part] = []

    def visit(part: Part) -> None:
        if part in ordered:
            return
        if part in waiting:
            raise CircleError(waiting[waiting.index(part) :])
        waiting.append(part)
        for product in edges(part):
            if product in givers:
                visit(givers[product])
        waiting.pop()
        ordered.append(part)

    for part in parts:
        visit(part)
    return ordered


_ORDERS: Sequence[Edges] = (
    lambda part: part.needs,
    lambda part: part.runs_after,
    lambda part: part.ready_after,
)
"""The orders in which parts open, run and get ready."""


def _find_circle(parts: Sequence[Part], edges: Edges) -> CircleError | None:
    try:
        in_order(parts, edges)
    except CircleError as circle:
        return circle
    return None


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part with its `Opened`."""

    part: Part
    opened: Opened


class OpenParts:
    """The open parts of one process; made by `open_parts`."""

    def __init__(self, process: Process, slow_s: float = SLOW_S) -> None:
        self._process = process
        self._slow_s = slow_s
        self._parts: list[OpenPart] = []
        self._failed: list[ReadinessProblem] = []

    def add(self, part: Part, opened: Opened) -> None:
        """Take all that a part gives, so that the parts after it find it; if that fails, take nothing.

        Raises InvalidSettingError for the name of a source that another part has, and what `Opened.skills`
        raises.
        """
        process = self._process
        with _skills_kept_whole(process.agent):
            if opened.skills is not None:
                opened.skills(process.agent)
            directory = process.find(Directory)
            if directory is not None:
                directory.add_sources(opened.sources)
        # nothing below can fail
        for source_name, invoker in opened.invokers.items():
            process.invokers.add_invoker(source_name, invoker)
        for protocol, invoker in opened.protocols.items():
            process.invokers.add_protocol(protocol, invoker)
        if part.gives is not None:
            process.products[part.gives] = opened.product
        self._parts.append(OpenPart(part, opened))

    def note_failure(self, name: str, error: Exception) -> None:
        """Keep the reason why a part is missing, for ``/ready``."""
        if isinstance(error, RetinueError):
            reason = f"{error.message} — {error.remedy}"
        else:
            reason = f"{type(error).__name__}: {error}"
        if (problem := ReadinessProblem("part", name, reason, is_fatal=False)) not in self._failed:
            self._failed.append(problem)
            self._process.echo(f"{name} is not available: {reason}")

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics of the process: those of the core, then those that its parts add."""
        added: dict[str, Metric] = {}
        for open_ in self._parts:
            added.update(open_.opened.metrics)
        return {**METRICS, **added}

    def list_routes(self) -> list[BaseRoute]:
        """The routes of all parts by their rank."""
        ranked = sorted(self._parts, key=lambda open_: open_.part.rank)
        return [route for open_ in ranked for route in open_.opened.routes]

    def list_tokens(self) -> dict[str, Principal]:
        """The tokens that parts accept at every route."""
        return {token: who for open_ in self._parts for token, who in open_.opened.tokens.items()}

    def list_live(self) -> list[LivePart]:
        """The settings that apply while the process runs."""
        return [live for open_ in self._parts for live in open_.opened.live]

    def list_path_exceptions(self) -> PathExceptions:
        """The paths that need no token, and those whose endpoints check the media type themselves."""
        gifts = [open_.opened for open_ in self._parts]
        return PathExceptions(
            open_paths=frozenset[str]().union(*(opened.open_paths for opened in gifts)),
            open_prefixes=tuple(prefix for opened in gifts for prefix in opened.open_prefixes),
            any_media_type=tuple(prefix for opened in gifts for prefix in opened.any_media_type),
        )

    def give_checks(self, checks: SecurityMiddleware) -> None:
        """Let parts put apps in front of the security checks."""
        for open_ in self._parts:
            if open_.opened.on_checks is not None:
                open_.opened.on_checks(checks)

    async def read_figures(self, figures: Figures) -> None:
        """Put the figures of all parts."""
        for open_ in self._parts:
            if open_.opened.figures is not None:
                with self.excusing(open_.part, "figures not read"):
                    await open_.opened.figures(figures)

    async def find_problems(self) -> list[ReadinessProblem]:
        """What the parts lack, and the parts that are missing."""
        problems: list[ReadinessProblem] = []
        for open_ in self._parts:
            if open_.opened.problems is not None:
                with self.excusing(open_.part, "problems not read"):
                    problems += await open_.opened.problems()
        return [*problems, *self._failed]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Enter what runs while the process serves; on leaving it ends in reverse, then everything drains."""
        async with AsyncExitStack() as stack:
            for open_ in self._parts:
                if open_.opened.drain is not None:
                    stack.callback(self._drain, open_.part, open_.opened.drain)
            for part, opened in self._list(lambda part: part.runs_after):
                if opened.running is None:
                    continue
                with self.excusing(part, "part does not run"), self._naming(part, "start"):
                    running = AsyncExitStack()
                    await running.enter_async_context(opened.running())
                    stack.push_async_callback(self._end, part, running)
            yield

    def _drain(self, part: Part, drain: Callable[[], None]) -> None:
        with self._ending(part):
            drain()

    async def _end(self, part: Part, entered: AsyncExitStack) -> None:
        """Leave what a part has entered; it sees a normal end, also if another part has failed."""
        with self._ending(part):
            await entered.aclose()

    @contextmanager
    def _ending(self, part: Part) -> Iterator[None]:
        """Let the other parts end although this one fails, unless it is required; log the failure."""
        try:
            yield
        except Exception as error:
            if part.is_required:
                raise
            _log.warning("part does not end well", part=part.name, exc_info=error)

    async def get_ready(self) -> None:
        """Let each part finish its start, one after the other."""
        for part, opened in self._list(lambda part: part.ready_after):
            if opened.on_ready is None:
                continue
            with self.excusing(part, "part is not ready"):
                await opened.on_ready()

    @contextmanager
    def excusing(self, part: Part, event: str) -> Iterator[None]:
        """Go on without a part that fails, unless it is required; log the failure and keep the reason."""
        try:
            yield
        except Exception as error:
            if part.is_required:
                error.add_note(f"part {part.name}")
                raise
            if isinstance(error, RetinueError):  # it says all that a person can use
                _log.warning(event, part=part.name, reason=error.message)
            else:
                _log.warning(event, part=part.name, exc_info=error)
            self.note_failure(part.name, error)

    def _list(self, edges: Edges) -> Iterator[tuple[Part, Opened]]:
        by_part = {open_.part: open_.opened for open_ in self._parts}
        return ((part, by_part[part]) for part in in_order(list(by_part), edges))

    @contextmanager
    def _naming(self, part: Part, verb: str) -> Iterator[None]:
        """Name a part that takes long."""
        notice = f"{part.name} takes more than {self._slow_s:g} s to {verb}"
        timer = asyncio.get_running_loop().call_later(self._slow_s, self._process.echo, notice)
        try:
            yield
        finally:
            timer.cancel()

    def wants(self, part: Part) -> bool:
        """Whether the process has the part; no if the part, which is not required, cannot say it."""
        kind, tables = self._process.kind, self._process.tables
        with self.excusing(part, "part not opened"):
            return kind in part.kinds and part.is_wanted(tables, kind)
        return False

    def leave_out_circles(self, parts: Sequence[Part]) -> list[Part]:
        """The parts without those that wait for each other and are not required; each of these is noted.

        Raises CircleError if only required parts wait for each other.
        """
        kept = [*parts]
        for edges in _ORDERS:
            while (circle := _find_circle(kept, edges)) is not None:
                optional = [part for part in circle.circle if not part.is_required]
                if not optional:
                    raise circle
                for part in optional:
                    kept.remove(part)
                    _log.warning("part not opened", part=part.name, reason=circle.message)
                    self.note_failure(part.name, circle)
        return kept

    async def open(self, part: Part, stack: AsyncExitStack) -> None:
        """Open one part, which ends with ``stack``, or at once if the process cannot take what it gives."""
        for product in part.needs:
            if product not in self._process.products:
                raise InvalidSettingError(
                    f"part {part.name}",
                    f"it needs {product.__name__}, which no part of this process gives",
                    remedy="install what gives it, or switch the part off: [parts] off",
                )
        with self._naming(part, "open"):
            async with AsyncExitStack() as own:
                self.add(part, await own.enter_async_context(part.open(self._process)))
                stack.push_async_callback(self._end, part, own.pop_all())


@contextmanager
def _skills_kept_whole(agent: Agent) -> Iterator[None]:
    """Take back the skills that were added to the agent if the block fails."""
    before = {skill.id for skill in agent.skills}
    try:
        yield
    except BaseException:
        for skill in agent.skills:
            if skill.id not in before:
                agent.forget_skill(skill.id)
        raise


@asynccontextmanager
async def open_parts(
    process: Process, parts: Sequence[Part], *, slow_s: float = SLOW_S
) -> AsyncIterator[OpenParts]:
    """Open the wanted parts, and make them a product of the process; on leaving they are closed in reverse.

    A part that takes longer than ``slow_s`` to open or to start is named.

    Raises RetinueError for a required part that cannot open. Another one is left out and noted.
    """
    opened = OpenParts(process, slow_s)
    process.add(OpenParts, opened)
    chosen = opened.leave_out_circles([part for part in parts if opened.wants(part)])
    async with AsyncExitStack() as stack:
        for part in in_order(chosen, lambda part: part.needs):
            with opened.excusing(part, "part not opened"):
                await opened.open(part, stack)
        if process.when_open is not None:
            await process.when_open()
        yield opened
