"""The process of a folder of agents in Markdown: each has its own port and card, and all share the runs.

A new file is a new agent, a removed one ends its agent, and an edited one changes its agent while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.markdown.definition import MarkdownAgent
from retinue.parts.lazy import Lazy
from retinue.parts.process import Echo, Process
from retinue.runtime.agent_core import attach_model
from retinue.runtime.agent_process import ServeOptions, serve_agent
from retinue.runtime.commands.own_mesh import open_own_mesh
from retinue.runtime.launch import Shared
from retinue.runtime.loading.markdown_files import (
    FolderReading,
    list_files,
    read_folder,
    render_fault,
    stamp_of,
)
from retinue.runtime.loading.reloading import POLL_S
from retinue.runtime.loading.targets import Target, markdown_target
from retinue.runtime.serving import Stop, end_task
from retinue.runtime.supervisor import report_ready
from retinue.settings import Settings
from retinue.storage.state import State

OpenHubSkills = Callable[[Settings, State], AbstractAsyncContextManager[Process]]


@dataclass(slots=True)
class _Member:
    """An agent of the folder that runs."""

    name: str
    stop: Stop
    task: asyncio.Task[int]


async def serve_folder(
    folder: Path,
    options: ServeOptions,
    settings: Settings,
    state: State,
    echo: Echo,
    reread: Callable[[], Settings] | None = None,
) -> int:
    """Serve the agents of a folder until asked to stop; returns the exit code.

    Raises InvalidSettingError for a folder that has no agent at the start.
    """
    reading = await asyncio.to_thread(read_folder, list_files(folder))
    if not reading.agents:
        lines = "; ".join(render_fault(fault) for fault in reading.faults.values())
        raise InvalidSettingError(
            "target",
            f"{folder} has no agent in Markdown" + (f": {lines}" if lines else ""),
            remedy="write one: retinue new --think NAME",
        )
    stop = Stop()
    stop.on_signals()
    async with _shared_hub_skills(settings, state) as open_hub_skills:
        serving = _Folder(folder, options, settings, state, echo, reread, stop, open_hub_skills)
        stop.on_hangup = serving.reread if reread is not None else None
        await serving.run(reading)
    echo(f"stopping: {stop.reason}")
    return stop.exit_code


@asynccontextmanager
async def _shared_hub_skills(settings: Settings, state: State) -> AsyncIterator[OpenHubSkills]:
    """The hub's skills in this process, for runs while no hub runs; opened once for all agents."""
    own = Lazy(lambda: open_own_mesh(settings, state))

    @asynccontextmanager
    async def open_hub_skills(settings: Settings, state: State) -> AsyncIterator[Process]:
        yield await own.open()

    try:
        yield open_hub_skills
    finally:
        await own.aclose()


class _Folder:
    """The agents of one folder, each served by a task of its own."""

    def __init__(
        self,
        folder: Path,
        options: ServeOptions,
        settings: Settings,
        state: State,
        echo: Echo,
        reread: Callable[[], Settings] | None,
        stop: Stop,
        open_hub_skills: OpenHubSkills,
    ) -> None:
        self._folder = folder
        self._options = options
        self._settings = settings
        self._state = state
        self._echo = echo
        self._reread = reread
        self._stop = stop
        self._open_hub_skills = open_hub_skills
        self._members: dict[Path, _Member] = {}
        self._supervisor = stop.with_supervisor()

    def reread(self) -> None:
        """Let each agent read its settings again."""
        for member in self._members.values():
            if member.stop.on_hangup is not None:
                member.stop.on_hangup()

    async def run(self, reading: FolderReading) -> None:
        """Serve the agents of the folder, and follow its files, until the process is asked to stop."""
        watching = asyncio.create_task(self._watch(reading), name="folder watch")
        watching.add_done_callback(lambda _: self._stop.ask("the folder is not watched any more", 1))
        await self._stop.wait()
        await end_task(watching)
        await asyncio.gather(*(self._end(path) for path in list(self._members)))

    async def _watch(self, reading: FolderReading) -> None:
        seen = _stamps(self._folder)
        await self._follow(reading)
        while True:
            await asyncio.sleep(POLL_S)
            stamps = _stamps(self._folder)
            if stamps != seen:
                seen = stamps
                await self._follow(await asyncio.to_thread(read_folder, stamps))

    async def _follow(self, reading: FolderReading) -> None:
        """Start the agents of new files, and end those of files that are gone or name another agent.

        An agent whose file has a fault runs on as it was.
        """
        for path, fault in reading.faults.items():
            if path not in self._members:
                self._echo(render_fault(fault))
        for path, member in list(self._members.items()):
            definition = reading.agents.get(path)
            is_other = definition is not None and definition.name != member.name
            if is_other or path not in (*reading.agents, *reading.faults) or member.task.done():
                await self._end(path)
        starting = [
            self._start(path, definition)
            for path, definition in reading.agents.items()
            if path not in self._members
        ]
        await asyncio.gather(*starting)

    async def _start(self, path: Path, definition: MarkdownAgent) -> None:
        """Serve one agent; returns when it is ready, or has failed."""
        ready = asyncio.Event()

        def note_ready(facts: Mapping[str, Any]) -> None:
            ready.set()
            report_ready(self._supervisor, {**facts, "name": self._folder.name})
            self._supervisor = None  # the first agent speaks for the folder

        try:
            target = replace(markdown_target(definition, path), open_hub_skills=self._open_hub_skills)
        except RetinueError as error:
            self._echo(render_fault(error))
            return
        stop = Stop()
        if not self._members:
            attach_model(target, self._settings, self._state, self._echo)
        serving = self._serve(target, replace(self._options, shared=Shared(stop, note_ready)))
        member = self._members[path] = _Member(definition.name, stop, asyncio.create_task(serving))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({member.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        await end_task(waiting)

    async def _serve(self, target: Target, options: ServeOptions) -> int:
        try:
            return await serve_agent(target, options, self._settings, self._state, self._echo, self._reread)
        except RetinueError as error:
            self._echo(f"{target.agent.name}: {render_fault(error)}")
            return 1

    async def _end(self, path: Path) -> None:
        member = self._members.pop(path)
        member.stop.ask(self._stop.reason or f"{path.name} is gone or has another name")
        await asyncio.gather(member.task, return_exceptions=True)


def _stamps(folder: Path) -> dict[Path, Any]:
    return {path: stamp_of(path) for path in list_files(folder)}
