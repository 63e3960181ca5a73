"""The session of a command: settings, state folder, logs and a client of the mesh.

Logs go to standard error, as one line of JSON each; on a terminal they are formatted for reading (P-26).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar, cast

from retinue.cli.failures import DEBUG_VARIABLE
from retinue.core.log_lines import JsonLines, hide_tokens_in_line, render_json_line
from retinue.core.text import hide_tokens

if TYPE_CHECKING:
    from retinue.client.hub_choice import HubChoice
    from retinue.client.mesh_client import MeshClient
    from retinue.settings import Settings
    from retinue.storage.state import State

# structlog imports rich for tracebacks that are not printed here: 6 MB and 50 ms in every process
sys.modules.setdefault("rich", cast(Any, None))
import structlog  # noqa: E402

if sys.modules["rich"] is None:
    del sys.modules["rich"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The settings and the state folder of one command."""

    settings: Settings
    state: State
    reread: Callable[[], Settings]
    """Reloads the settings, with the options of this command over them; raises InvalidSettingError."""

    def choose_hub(self, option: str | None) -> HubChoice | None:
        """The hub of a command with the option ``--hub``; None where no hub is named and none runs."""
        from retinue.client.hub_choice import choose_hub

        return choose_hub(self.state, option, os.environ)

    def as_owner(self, hub: HubChoice | None) -> HubChoice | None:
        """The choice with the owner's token, where it would get the token of the state."""
        if hub is None or hub.token != self.state.local_token():
            return hub
        return replace(hub, token=self.state.owner_token())

    @asynccontextmanager
    async def client(self, hub: HubChoice | None = None) -> AsyncIterator[MeshClient]:
        """Open a client of ``hub``, else of the state's hub, else of the same skills in this process."""
        from retinue.runtime.commands.client import open_client

        async with open_client(self.settings, self.state, hub=hub) as client:
            yield client

    @asynccontextmanager
    async def hub_client(self, option: str | None) -> AsyncIterator[MeshClient]:
        """Open a client of the hub of `choose_hub`; without a hub, of the same skills in this process."""
        async with self.client(self.choose_hub(option)) as client:
            yield client


def accept_join(state: State, hub_url: str) -> None:
    """Join ``state`` to the mesh of the hub at ``hub_url`` if RETINUE_JOIN contains a join token.

    Raises InvalidSettingError.
    """
    from retinue.storage import mesh_key as joins

    if text := os.environ.pop(joins.JOIN_VARIABLE, ""):
        joins.accept_join(state.keys, hub_url, joins.parse_join(text))


def find_state() -> State:
    """Return the state folder of this command without creating it."""
    from retinue.storage.state import State, find_state_folder

    return State(find_state_folder(os.environ, Path.cwd()))


def open_session(
    flags: Mapping[str, Any] | None = None,
    *,
    log_level: str = "warning",
    joins: str | None = None,
    with_parts: bool = True,
) -> CommandSession:
    """Read the settings with ``flags`` over them, create the state folder, and log to standard error.

    ``with_parts`` as in `load_settings`.

    ``joins`` is the URL of another machine's hub: the state joins its mesh, and its registry becomes the
    first of the configured ones. Raises InvalidSettingError if the state has never received a join token.
    """
    from retinue.settings import load_settings

    configure_logs("debug" if os.environ.get(DEBUG_VARIABLE) else log_level)
    state = find_state()

    def read() -> Settings:
        settings = load_settings(flags, with_parts=with_parts)
        if joins is None:
            return settings
        return settings.model_copy(update={"registries": (joins, *settings.registries)})

    settings = read()
    state.prepare()
    if joins is not None:
        from retinue.storage.mesh_key import check_joined

        accept_join(state, joins)
        check_joined(state.keys, joins)
    return CommandSession(settings, state, read)


def run_command(command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end; Ctrl-C cancels it and then raises KeyboardInterrupt."""
    return asyncio.run(command)


def ask_hub(skill: str, arguments: Mapping[str, Any], hub: str | None, *, as_owner: bool = False) -> Any:
    """The value of a skill of the hub that ``hub`` names (`hub_option`); without a hub, of this process.

    ``as_owner`` = the hub of this state gets the token of its owner.
    """

    async def ask() -> Any:
        session = open_session()
        chosen = session.choose_hub(hub)
        async with session.client(session.as_owner(chosen) if as_owner else chosen) as client:
            return await client.get(skill, arguments)

    return run_command(ask())


LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(level: str = "info") -> None:
    """Configure structlog for this process; logs go to standard error, results to standard output."""
    stream = sys.stderr
    number = LEVELS.get(level, logging.INFO)
    rendering = [ReadableLines(), hide_tokens_in_line] if stream.isatty() else [render_json_line]
    logs_calls = number <= logging.INFO
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.MaybeTimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=JsonLines(stream) if logs_calls else structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    _catch_others(stream)


class ReadableLines:
    """Renders log lines for a terminal: a call as ``06:25:53 greet → my-agent  18 ms  done``."""

    def __init__(self) -> None:
        self._other = structlog.dev.ConsoleRenderer()

    def __call__(self, logger: Any, method: str, row: MutableMapping[str, Any]) -> str:
        if row.get("event") != "call" or "skill" not in row:
            return self._other(logger, method, row)
        if row["skill"] == "refresh_agents" and row.get("status") == "done":
            raise structlog.DropEvent  # agents that come and go say so to the hub: no call of a person
        line = render_call(row)
        return f"{line}\n{row['exception']}" if row.get("exception") else line


def render_call(row: Mapping[str, Any]) -> str:
    """The log row of a call for people: ``06:25:53 greet → my-agent  18 ms  done``.

    An agent of a team that calls is named: ``06:25:53 greet → my-agent by editor@news  18 ms  done``.
    """
    at = datetime.fromisoformat(row["timestamp"].replace("Z", "+00:00")).astimezone()
    agent = f" → {row['agent']}" if row.get("agent") else ""
    caller = f" by {row['caller']}@{row['team']}" if row.get("team") else ""
    error = f" ({row['error']})" if row.get("error") else ""
    reason = f": {_plain(row['reason'])}" if row.get("reason") else ""
    duration_ms = row["duration_ms"]
    took = f"{duration_ms:.0f} ms" if duration_ms < 10_000 else f"{duration_ms / 1000:.1f} s"
    called = _plain(f"{row['skill']}{agent}{caller}")
    return f"{at:%H:%M:%S} {called}  {took}  {row['status']}{error}{reason}"


def _plain(text: Any) -> str:
    """The text of a caller or a card without control characters."""
    return "".join(c if c.isprintable() else " " for c in str(text))


class _HidingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return hide_tokens(super().format(record))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a record of a library is worth a line: a client that hangs up in its request is not.

    By name, because commands that serve nothing do not load Starlette.
    """
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or kind.__name__ != "ClientDisconnect"


def _catch_others(stream: TextIO) -> None:
    """Send the logs of libraries to the same place, with the same redaction."""
    handler = logging.StreamHandler(stream)
    handler.setLevel(logging.WARNING)
    handler.addFilter(_is_news)
    handler.setFormatter(_HidingFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in root.handlers:
        if isinstance(old.formatter, _HidingFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
