"""The imported servers, APIs and agents of a hub as a part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from retinue.authoring.agent import Agent
from retinue.hub.imports import add_import_skill
from retinue.mesh.directory.directory import Directory
from retinue.mesh.observing.metrics import Figures
from retinue.parts.part import HubFile, Opened, Part, ReadinessProblem
from retinue.parts.process import Process
from retinue.runtime.imports.connections import Imports
from retinue.runtime.parts.policies import catch_up, check_import, read_revision
from retinue.settings import Settings
from retinue.storage.state import State


class ImportsPart(Part):
    """Connects the imported MCP servers, HTTP APIs and A2A agents.

    It runs after the hub file is written, by which an import of this hub itself is recognised.
    """

    name = "imports"
    kinds = frozenset({"hub"})
    gives = Imports
    runs_after = (HubFile,)
    is_required = True

    def __init__(self, make_imports: Callable[[Settings, State], Imports] = Imports) -> None:
        self._make_imports = make_imports

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        imports = self._make_imports(process.tables.get(Settings), process.state)
        dispatcher = process.dispatcher
        if dispatcher.health_sink is not None:
            dispatcher.health_sink = imports.health_sink(dispatcher.health_sink)

        def skills(agent: Agent) -> None:
            add_import_skill(agent, imports.list_imports, dispatcher.access)

        def running() -> AbstractAsyncContextManager[None]:
            imports.follow_policies(
                partial(check_import, process), partial(read_revision, process), partial(catch_up, process)
            )
            return imports.running(process.get(Directory), process.http)

        async def problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem("upstream", name, reason, is_fatal=False)
                for name, is_up, reason in imports.list_states()
                if not is_up
            ]

        async def figures(figures: Figures) -> None:
            for name, is_up, _ in imports.list_states():
                figures.put("retinue_upstream_up", float(is_up), name)

        yield Opened(
            product=imports,
            sources=imports.sources,
            invokers=imports.invokers,
            skills=skills,
            running=running,
            problems=problems,
            figures=figures,
        )
