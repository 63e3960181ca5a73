"""Nodes of seed 003's programs on real sockets, below one folder: the fixture ``net``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from retinue_koi.peers import FirstContact
from retinue_koi.programs.nodes import CoordinatorAdapterNode, KoiAgentNode
from tests.serving import serve_app
from tests.system import Reply

TRAITS = {"mood": "helpful", "calculate": {"description": "Calculates", "is_callable": True}}


class Later:
    """An app that is known only once its own address is."""

    app: Any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class Net:
    """Nodes of one test, each at a port of its own, below one folder."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.stack = stack

    async def agent(
        self, name: str = "helpful-agent", first_contact: FirstContact | str | None = None, **options: Any
    ) -> KoiAgentNode:
        """An agent that has started."""
        later = Later()
        url = await self.stack.enter_async_context(serve_app(later))
        options.setdefault("traits", TRAITS)
        node = KoiAgentNode(
            name,
            options.pop("version", "1.0"),
            options.pop("traits"),
            f"{url}/koi-net",
            int(url.rpartition(":")[2]),
            first_contact,
            folder=self.folder / name,
            **options,
        )
        later.app = node.mcp_server.app
        await self.stack.enter_async_context(node.mcp_server.running())
        self.stack.push_async_callback(node.stop)
        await node.start()
        return node

    @asynccontextmanager
    async def coordinating(
        self, name: str = "coordinator", **options: Any
    ) -> AsyncIterator[CoordinatorAdapterNode]:
        """A coordinator that has started, until the block ends."""
        later = Later()
        async with serve_app(later) as url:
            node = CoordinatorAdapterNode(
                name,
                f"{url}/koi-net",
                int(url.rpartition(":")[2]),
                folder=self.folder / name,
                **options,
            )
            later.app = node.registry_server.app
            async with node.registry_server.running():
                await node.start()
                try:
                    yield node
                finally:
                    await node.stop()

    async def coordinator(self, name: str = "coordinator", **options: Any) -> CoordinatorAdapterNode:
        return await self.stack.enter_async_context(self.coordinating(name, **options))


@pytest.fixture
async def net(tmp_path: Path) -> AsyncIterator[Net]:
    async with AsyncExitStack() as stack:
        yield Net(tmp_path, stack)


def contact(node: CoordinatorAdapterNode | KoiAgentNode) -> str:
    base_url = node.node.state.identity.profile.base_url
    assert base_url is not None
    return base_url


def read(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return json.loads(reply.body)
