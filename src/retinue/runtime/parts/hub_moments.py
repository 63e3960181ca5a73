"""Parts for the start of a hub: its file, the first reading, and the printed lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from retinue.llm.not_started import MODELS
from retinue.mesh.directory.directory import Directory
from retinue.parts.part import AgentsStarted, FirstReading, HubFile, Opened, Part
from retinue.parts.process import Process
from retinue.runtime.imports.connections import Imports
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.models import Models
from retinue.runtime.observing.log_files import writes_to
from retinue.runtime.serving import end_task
from retinue.storage.state import State

HUB = frozenset({"hub"})


class HubFilePart(Part):
    """Writes the file by which programs find the running hub, and writes again when the hub is ready."""

    name = "hub-file"
    kinds = HUB
    gives = HubFile
    ready_after = (AgentsStarted, LazyRuns)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        state, url = process.state, process.own_url or ""
        writes_log = writes_to(state.hub_log)

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            state.write_hub(url, ready=False, writes_log=writes_log)
            try:
                yield
            finally:
                state.forget_hub()

        async def on_ready() -> None:
            # a client that reads the file expects the hub to answer
            state.write_hub(url, writes_log=writes_log)

        yield Opened(product=HubFile(), running=running, on_ready=on_ready)


class FirstReadingPart(Part):
    """Reads the directory once; a hub answers meanwhile."""

    name = "first-reading"
    kinds = frozenset({"hub", "worker"})
    gives = FirstReading
    runs_after = (HubFile, Imports, Models)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            await process.get(Directory).ensure_fresh()
            yield

        yield Opened(product=FirstReading(), running=running)


class FolderWatchPart(Part):
    """Stops a hub whose state folder was deleted or replaced."""

    name = "folder-watch"
    kinds = HUB
    runs_after = (FirstReading,)
    is_required = True

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        lost = f"the state folder {process.state.root} was deleted or replaced; start the hub again"

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            watching = asyncio.create_task(watch_folder(process.state, lambda: process.ask_to_stop(lost, 1)))
            try:
                yield
            finally:
                await end_task(watching)

        yield Opened(running=running)


class HubLinesPart(Part):
    """Prints where the hub answers, and what it offers when its agents have started."""

    name = "hub-lines"
    kinds = HUB
    runs_after = (FirstReading,)
    ready_after = (HubFile,)
    is_required = True

    def __init__(self, next_step: str | None) -> None:
        self._next_step = next_step

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            process.echo(f"hub at {process.own_url} (state {process.state.root}){process.advertised}")
            yield

        async def on_ready() -> None:
            process.echo(_describe_agents(process.get(Directory)))
            models = process.find(Models)
            for line in () if models is None else models.not_started.describe():
                process.echo(line)
            if self._next_step is not None:
                process.echo(self._next_step)

        yield Opened(running=running, on_ready=on_ready)


def _describe_agents(directory: Directory) -> str:
    # models that are not started have lines of their own
    entries = [entry for entry in directory.list_entries() if entry.source != MODELS]
    skills = sum(len(entry.skills) for entry in entries)
    exposed = sum(len(entry.list_skills(frozenset({"exposed"}))) for entry in entries)
    line = f"{len(entries)} agents, {skills} skills, {exposed} exposed to MCP clients"
    if skills and not exposed:
        line += "; expose one with @agent.skill(expose=True)"
    return line


async def watch_folder(state: State, on_loss: Callable[[], None], *, every_s: float = 2.0) -> None:
    """Call ``on_loss`` once when the state folder is deleted or replaced.

    The open database would otherwise continue to accept writes to a deleted file.
    """
    folder = state.identity()
    while state.identity() == folder:
        await asyncio.sleep(every_s)
    on_loss()
