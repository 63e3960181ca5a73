"""Agents in Markdown on disk: one file, or a folder of them; loads them and watches them for changes.

An edited file changes the agent that runs: its card and its skill are those of the new text. Runs keep the
text that they started with. A file that cannot be read is reported, and the agent stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.core.errors import DefinitionError, InvalidSettingError, RetinueError
from retinue.runtime.loading.reloading import POLL_S

if TYPE_CHECKING:
    from retinue.markdown.agent import ThinkingAgent
    from retinue.markdown.definition import MarkdownAgent
    from retinue.parts.process import Echo

MAX_FILE_BYTES = 1024 * 1024

_ENDINGS = (".md", ".agent")


def read_definition(path: Path) -> MarkdownAgent:
    """The agent that a file defines. Raises InvalidSettingError and DefinitionError, with the line."""
    # imported here, because other agents need nothing of it: the grammar of workflows, and YAML
    from retinue.markdown.definition import parse_agent

    return parse_agent(_read_utf8(path), path.name, name=_stem(path))


def _stem(path: Path) -> str:
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name


def _read_utf8(path: Path) -> str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise InvalidSettingError(
                path.name, f"its {size_bytes:,} bytes exceed {MAX_FILE_BYTES:,}", remedy="make it smaller"
            )
        content = path.read_bytes()
        return content.decode()
    except FileNotFoundError:
        raise InvalidSettingError("target", f"no file {path}", remedy="check the path") from None
    except OSError as error:
        raise InvalidSettingError(
            path.name, f"it cannot be read: {error.strerror}", remedy="check its rights"
        ) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DefinitionError(
            "it is not UTF-8", source=path.name, line=line, remedy="save it as UTF-8 text"
        ) from None


def list_files(folder: Path) -> list[Path]:
    """The files of a folder that may be agents, in the order of their names; not README.md."""
    return sorted(
        path
        for path in folder.glob("*.md")
        if path.name != "README.md" and not path.name.startswith(".") and path.is_file()
    )


def is_folder_of_agents(path: Path) -> bool:
    """Whether a target is a folder of agents in Markdown: one without an agent.json."""
    return path.is_dir() and not (path / "agent.json").is_file()


@dataclass(frozen=True, slots=True)
class FolderReading:
    """The agents of a folder by file, and the fault of each file that is none."""

    agents: Mapping[Path, MarkdownAgent]
    faults: Mapping[Path, RetinueError]


def read_folder(files: Iterable[Path]) -> FolderReading:
    """Read files as agents; of two with one name, the first in the order of the files has it."""
    agents: dict[Path, MarkdownAgent] = {}
    faults: dict[Path, RetinueError] = {}
    owners: dict[str, Path] = {}
    for path in files:
        try:
            definition = read_definition(path)
            if (owner := owners.setdefault(definition.name, path)) != path:
                raise DefinitionError(
                    f"name: the agent of {owner.name} is called {definition.name} already",
                    source=path.name,
                    line=definition.lines.get("name", 1),
                    remedy="give it another name",
                )
        except RetinueError as error:
            faults[path] = error
        else:
            agents[path] = definition
    return FolderReading(agents, faults)


def render_fault(error: RetinueError) -> str:
    """A fault of a file as one line, with the remedy."""
    return f"{error.message}; {error.remedy}" if error.remedy else error.message


Stamp = tuple[int, int] | None
"""Modification time in ns and size in bytes; None if the file does not exist."""


def stamp_of(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


async def watch_definition(
    agent: ThinkingAgent,
    path: Path,
    echo: Echo,
    on_change: Callable[[], Awaitable[None]],
    *,
    tells_name: bool = True,
) -> None:
    """Give the agent each new text of its file until cancelled; ``on_change`` is called after each.

    A text with another name is not for this agent; ``tells_name`` says so.
    """
    seen: Stamp = None
    while True:
        stamp = stamp_of(path)
        if stamp is not None and stamp != seen:
            seen = stamp
            try:
                definition = await asyncio.to_thread(read_definition, path)
                if definition.name == agent.name:
                    await _take_over(agent, definition, path, echo, on_change)
                elif tells_name:
                    echo(f"{path.name}: it has another name; start it again, because {agent.name} runs on")
            except RetinueError as error:
                echo(f"{render_fault(error)}; the agent stays as it was")
        await asyncio.sleep(POLL_S)


async def _take_over(
    agent: ThinkingAgent,
    definition: MarkdownAgent,
    path: Path,
    echo: Echo,
    on_change: Callable[[], Awaitable[None]],
) -> None:
    if definition.digest == agent.definition.digest:
        return
    agent.adopt(definition)
    for warning in definition.warnings:
        echo(f"warning: {warning}")
    echo(f"{path.name} has changed: {agent.name} follows it, and runs keep the text that they started with")
    await on_change()
