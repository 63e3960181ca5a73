"""An agent in Markdown follows its file, as a part of its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from retinue.core.errors import RetinueError
from retinue.markdown.agent import ThinkingAgent
from retinue.parts.part import Opened, Part
from retinue.parts.process import Process
from retinue.runtime.card_publication import CardPublication
from retinue.runtime.joined_mesh import notify_hub
from retinue.runtime.loading.markdown_files import render_fault, watch_definition
from retinue.runtime.loading.targets import Target
from retinue.runtime.serving import end_task


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
                await publication.renew()
                await notify_hub(process.http, process.state, self._hub_url)

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
            try:
                yield
            finally:
                for task in watching:
                    await end_task(task)

        yield Opened(running=running)
