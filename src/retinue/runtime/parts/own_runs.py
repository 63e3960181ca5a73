"""The hub's skills in the process of an agent in Markdown, as a part: runs need them while no hub runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from retinue.mesh.dispatch import Calls
from retinue.parts.lazy import Lazy
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.joined_mesh import JoinedMesh
from retinue.settings import Settings
from retinue.storage.state import State


class OwnRunsPart(Part):
    """Opens the hub's skills in this process at their first use while no hub runs."""

    name = "own-runs"
    kinds = frozenset({"agent", "stdio"})
    is_required = True

    def __init__(
        self, open_hub_skills: Callable[[Settings, State], AbstractAsyncContextManager[Process]]
    ) -> None:
        self._open_hub_skills = open_hub_skills

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        own = Lazy(partial(self._open_hub_skills, process.tables.get(Settings), process.state))

        async def find_hub_skills() -> Calls:
            return (await own.open()).dispatcher

        process.get(JoinedMesh).hub_skills_here = find_hub_skills
        try:
            yield Opened()
        finally:
            await own.aclose()
