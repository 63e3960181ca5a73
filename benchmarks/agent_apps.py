"""An agent as it is served, for the servers that are measured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.types import ASGIApp

from retinue.authoring.agent import Agent
from retinue.authoring.local import local_dispatcher
from retinue.parts.opening import open_parts
from retinue.parts.part import Part
from retinue.runtime.access import behind_proxies
from retinue.runtime.agent_core import open_agent
from retinue.runtime.launch import Start
from retinue.runtime.loading.targets import Target
from retinue.runtime.parts.protocols import CardPart, ExecutePart, RestPart
from retinue.runtime.run_process import make_checks
from retinue.runtime.serving import Stop
from retinue.settings import load_settings
from retinue.storage.state import State

PLAIN: Sequence[Part] = (ExecutePart(), CardPart(), RestPart())
"""What each agent answers, in the order of an agent's process."""


@asynccontextmanager
async def open_agent_app(
    agent: Agent, home: Path, parts: Sequence[Part] = PLAIN, url: str = "http://127.0.0.1"
) -> AsyncIterator[ASGIApp]:
    """The app of one agent with these parts, behind every check of its endpoint; closed on leaving."""
    settings, state = load_settings(), State(home)
    state.prepare()
    start = Start(settings, state, lambda line: None, Stop(), url, url)
    async with open_agent("agent", Target(agent, ()), None, start) as process:
        # without the log line of each call, which would fill the pipe to the program that measures
        process.dispatcher = local_dispatcher(agent)
        async with open_parts(process, parts) as opened:
            checks = make_checks(process, opened, "127.0.0.1")
            yield behind_proxies(checks, settings.doors, url)
