"""The hub's skills in the process of an agent in Markdown, as a part: runs need them while no hub runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from retinue.mesh.dispatch import Calls
from retinue.parts.lazy import Lazy
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.joined_mesh import JoinedMesh
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.serving import ending, in_background
from retinue.settings import Settings
from retinue.storage.run_store import RunStore
from retinue.storage.state import State, find_hub_url


class OwnRunsPart(Part):
    """Opens the hub's skills in this process at their first use while no hub runs.

    If no hub runs when the process starts, and the state has runs, they are opened at once, because some may
    be those of a process like this one that was killed.
    """

    name = "own-runs"
    kinds = frozenset({"agent", "stdio"})
    is_required = True

    def __init__(
        self, open_hub_skills: Callable[[Settings, State], AbstractAsyncContextManager[Process]]
    ) -> None:
        self._open_hub_skills = open_hub_skills

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        settings, state = process.tables.get(Settings), process.state
        own = Lazy(partial(self._open_executing, settings, state, process.echo))

        async def find_hub_skills() -> Calls:
            return (await own.open()).dispatcher

        opening: list[asyncio.Task[Process]] = []

        async def on_ready() -> None:
            store = RunStore(settings.database, state.runs)
            if find_hub_url(state) is None and store.exists():
                opening.append(asyncio.create_task(own.open(), name="own runs"))

        process.get(JoinedMesh).hub_skills_here = find_hub_skills
        try:
            async with ending(opening):
                yield Opened(on_ready=on_ready)
        finally:
            await own.aclose()

    @asynccontextmanager
    async def _open_executing(
        self, settings: Settings, state: State, echo: Callable[[str], None]
    ) -> AsyncIterator[Process]:
        """The hub's skills, with the runs of this state executed here, those of lost processes as well."""
        async with (
            self._open_hub_skills(settings, state) as process,
            in_background(process.get(LazyRuns).launch(echo), name="own runs"),
        ):
            yield process
