"""What a command starts from: settings, the state folder, logs on standard error, a client of the mesh."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.cli.failures import DEBUG_VARIABLE

if TYPE_CHECKING:
    from retinue.apps.client import Client
    from retinue.drivers.state import State
    from retinue.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """The settings and the state folder of one command."""

    settings: Settings
    state: State

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The running hub, else the same skills in this process."""
        from retinue.apps.client import open_client
        from retinue.core.errors import AgentUnreachableError

        async with open_client(self.settings, self.state) as client:
            try:
                yield client
            except AgentUnreachableError as error:
                # Only a request of this process is lost on the way to the hub itself.
                if client.hub_url is not None:
                    error.remedy = "start it: retinue hub; or see what is wrong: retinue doctor"
                raise


def accept_join(state: State, hub_url: str) -> None:
    """Make ``state`` one of the mesh of the hub at ``hub_url`` where RETINUE_JOIN says how.

    Raises InvalidSettingError.
    """
    from retinue.drivers import joins

    if text := os.environ.pop(joins.JOIN_VARIABLE, ""):
        joins.accept_join(state.keys, hub_url, joins.parse_join(text))


def find_state() -> State:
    """The state folder of this command; nothing is made."""
    from retinue.drivers.state import State, find_state_folder

    return State(find_state_folder(os.environ, Path.cwd()))


def open_session(
    flags: Mapping[str, Any] | None = None, *, log_level: str = "warning", joins: str | None = None
) -> Session:
    """Read the settings with ``flags`` over them, make the state folder, and log to standard error.

    ``joins`` is the hub of another machine: its mesh becomes this state's, and its registry the first of
    the configured ones. Raises InvalidSettingError where RETINUE_JOIN neither says nor said how.
    """
    from retinue.apps.logs import configure_logs
    from retinue.settings import load_settings

    configure_logs("debug" if os.environ.get(DEBUG_VARIABLE) else log_level)
    settings, state = load_settings(flags), find_state()
    state.prepare()
    if joins is not None:
        from retinue.drivers.joins import check_joined

        accept_join(state, joins)
        check_joined(state.keys, joins)
        settings = settings.model_copy(update={"registries": (joins, *settings.registries)})
    return Session(settings, state)


def run_command(command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end; Ctrl-C cancels it and then raises KeyboardInterrupt."""
    return asyncio.run(command)
