"""Imports agents in Markdown of a project or of a home into the state, whose hub serves them.

The state keeps a copy of each file, ``agents/NAME.md``, and where it came from. A copy is written whole or
not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from retinue.core.errors import InvalidSettingError, StateDamagedError
from retinue.core.record import HUB_NAME
from retinue.markdown.definition import MarkdownAgent
from retinue.runtime.loading.markdown_files import list_files, read_folder
from retinue.storage.files import file_mode, hold_lock, replace_file, storage_errors
from retinue.storage.state import State

FOLDER = Path(".claude") / "agents"
PRIVATE = 0o600

Status = Literal["new", "imported", "changed", "left out"]


@dataclass(frozen=True, slots=True)
class ListedAgent:
    """A file that may be imported.

    ``status`` is "imported" for an unchanged copy, "changed" where the file has changed since, and "left out"
    for a file that is no agent or whose name is taken; ``problem`` says why. ``is_replaceable`` = the import
    of another file has the name.
    """

    name: str
    path: Path
    status: Status
    problem: str = ""
    remedy: str = ""
    definition: MarkdownAgent | None = None
    is_replaceable: bool = False


def list_places(folder: Path | None, start: Path, home: Path) -> list[Path]:
    """The folders with agents: of the project around ``start`` and of the home, or only of ``folder``.

    ``folder`` is a project, or the folder of the files itself. Raises InvalidSettingError if it has none.
    """
    if folder is not None:
        places = [place for place in (folder / FOLDER, folder) if list_files(place)]
        if not places:
            raise InvalidSettingError(
                "FOLDER", f"{folder} has no {FOLDER} and no agents in Markdown", remedy="name another folder"
            )
        return places[:1]
    projects = (parent / FOLDER for parent in (start, *start.parents))
    project = next((place for place in projects if place.is_dir()), home / FOLDER)
    return [place for place in dict.fromkeys((project, home / FOLDER)) if place.is_dir()]


def list_agents(state: State, places: Sequence[Path], taken: Collection[str]) -> list[ListedAgent]:
    """The agents of folders, the first of a name; ``taken`` are the names of agents that are not kept here.

    Raises StateDamagedError.
    """
    reading = read_folder(path for place in places for path in list_files(place))
    sources = _read_sources(state)
    listed = [
        ListedAgent(path.stem, path, "left out", f"{path.parent}/{fault.message}", fault.remedy or "")
        for path, fault in reading.faults.items()
    ]
    for path, definition in reading.agents.items():
        listed.append(_compare(state, definition, path, sources.get(definition.name), taken))
    return sorted(listed, key=lambda agent: (agent.name, str(agent.path)))


def _compare(
    state: State, definition: MarkdownAgent, path: Path, source: str | None, taken: Collection[str]
) -> ListedAgent:
    name, copy = definition.name, place_of(state, definition.name)
    if copy.exists():
        if copy.read_bytes() == path.read_bytes():
            return ListedAgent(name, path, "imported", definition=definition)
        if source == str(path):
            return ListedAgent(name, path, "changed", definition=definition)
        problem = f"{path}: the import of {source or copy} is called {name}, too"
        return ListedAgent(name, path, "left out", problem, "replace it with --replace", definition, True)
    if name == HUB_NAME or name in taken:
        problem = f"{path}: an agent is called {name} already"
        return ListedAgent(name, path, "left out", problem, "give it another name", definition)
    return ListedAgent(name, path, "new", definition=definition)


def keep(state: State, agents: Sequence[ListedAgent]) -> None:
    """Copy the files of agents into the state; raises StateError."""
    state.prepare()
    folder = state.agents
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)

    def change(sources: dict[str, str]) -> None:
        for agent in agents:
            copy = place_of(state, agent.name)
            with storage_errors(copy):
                replace_file(copy, agent.path.read_bytes(), mode=PRIVATE)
            sources[agent.name] = str(agent.path)

    _change_sources(state, change)


def list_kept(state: State) -> dict[str, str]:
    """The imported agents by name, each with the file that it was copied from."""
    if not state.agents.is_dir():
        return {}
    sources = _read_sources(state)
    return {path.stem: sources.get(path.stem, str(path)) for path in list_files(state.agents)}


def remove(state: State, name: str) -> bool:
    """Remove an imported agent; whether there was one."""
    if name not in list_kept(state):
        return False
    copy = place_of(state, name)
    with storage_errors(copy):
        copy.unlink()
    _change_sources(state, lambda sources: sources.pop(name, None))
    return True


def place_of(state: State, name: str) -> Path:
    """The copy of the agent of this name."""
    return state.agents / f"{name}.md"


def _sources_file(state: State) -> Path:
    return state.agents / "sources.json"


def _read_sources(state: State) -> dict[str, str]:
    path = _sources_file(state)
    try:
        sources: dict[str, str] = orjson.loads(path.read_bytes()) if path.exists() else {}
        return {str(name): str(source) for name, source in sources.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise StateDamagedError(
            str(path), "it is no JSON object", remedy="delete it and import again"
        ) from error


def _change_sources(state: State, change: Callable[[dict[str, str]], object]) -> None:
    path = _sources_file(state)
    with storage_errors(path), hold_lock(Path(f"{path}.lock"), mode=file_mode(path.parent)):
        sources = _read_sources(state)
        change(sources)
        replace_file(path, orjson.dumps(sources, option=orjson.OPT_SORT_KEYS), mode=PRIVATE)
