"""An agent in Markdown follows its file, as a part of its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from retinue.core.call import Call, Principal, new_id
from retinue.core.errors import RetinueError
from retinue.core.record import HUB_NAME
from retinue.markdown.agent import ThinkingAgent
from retinue.mesh.guard.trace_guard import new_trace
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.card_publication import CardPublication
from retinue.runtime.joined_mesh import JoinedMesh
from retinue.runtime.loading.markdown_files import render_fault, watch_definition
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.agent_publication import republish_card
from retinue.runtime.serving import end_task
from retinue.storage.state import find_hub_url
from retinue.workflows.runs.records import MESH_SCOPES

MISSING_AFTER_S = 3.0
"""The time after its start at which an agent looks for its tools and its model."""


async def find_missing(process: Process, agent: ThinkingAgent, source: str) -> list[str]:
    """One line for each tool of the agent that the hub does not know, and for its model."""
    call = Call(
        id=new_id(),
        skill="check_workflow",
        arguments={"text": orjson.dumps(agent.definition.workflow).decode()},
        principal=Principal(agent.name, "agent", MESH_SCOPES),
        endpoint="agent",
        trace=new_trace(),
        agent=HUB_NAME,
    )
    outcome = await process.get(JoinedMesh).dispatch(call)
    if outcome.error is not None:
        return []
    return agent.definition.describe_missing(outcome.value["warnings"], source)


class MarkdownFilePart(Part):
    """Gives the agent each new text of its file, and publishes its file, and its card again."""

    name = "markdown-file"
    kinds = frozenset({"agent", "stdio"})
    runs_after = (CardPublication,)
    is_required = True

    def __init__(self, target: Target, hub_url: str | None = None) -> None:
        self._target = target
        self._hub_url = hub_url

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        agent, publication = self._target.agent, process.find(CardPublication)
        assert isinstance(agent, ThinkingAgent), "has_runs"
        is_in_folder = self._target.open_hub_skills is not None

        async def publish_file() -> None:
            if publication is not None:
                await publication.publish_file(agent.definition.content.encode())

        async def republish() -> None:
            if publication is not None:
                await publish_file()
                await republish_card(publication, process, self._hub_url)
            await tell_missing()

        async def tell_missing() -> None:
            """Say which tools and which model the mesh does not have, where a hub can tell."""
            if self._hub_url is None and find_hub_url(process.state) is None:
                return
            for line in await find_missing(process, agent, self._target.files[0].name):
                process.echo(f"warning: {line}")

        async def tell_later() -> None:
            # the agents of a mesh start at the same time
            await asyncio.sleep(MISSING_AFTER_S)
            await tell_missing()

        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            try:
                await publish_file()
            except RetinueError as error:
                # the agent answers all the same
                process.echo(f"its file is not published: {render_fault(error)}")
            watching = [
                asyncio.create_task(
                    watch_definition(agent, path, process.echo, republish, tells_name=not is_in_folder),
                    name="markdown file",
                )
                for path in self._target.files[:1]
            ]
            watching.append(asyncio.create_task(tell_later(), name="missing tools"))
            try:
                yield
            finally:
                for task in watching:
                    await end_task(task)

        yield Opened(running=running)
