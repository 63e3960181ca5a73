"""A hub in a thread of its own, and a program whose token has expired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue import Agent
from retinue.client.sync_connection import LoopThread
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.system import System, open_system


@contextmanager
def hub_in_thread(home: Path, *agents: Agent) -> Iterator[None]:
    """A hub with these agents, in a loop of another thread."""

    @asynccontextmanager
    async def running() -> Any:
        async with open_system(State(home)) as system:
            for agent in agents:
                await system.start_agent(agent)
            await system.start_hub()
            yield

    thread, system = LoopThread(), running()
    thread.run(system.__aenter__())
    try:
        yield
    finally:
        thread.run(system.__aexit__(None, None, None))
        thread.close()


def use_expired_token(system: System, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let this program have an expired token for the hub, and another state; gives a valid token."""
    system.state.forget_hub()
    tokens = TokenFile(system.state.keys)
    _, expired = tokens.issue(["mesh", "exposed"], lifetime_s=0)
    _, valid = tokens.issue(["mesh", "exposed"])
    monkeypatch.setenv("RETINUE_HOME", str(folder / "elsewhere"))
    monkeypatch.setenv("RETINUE_TOKEN", expired)
    return valid
