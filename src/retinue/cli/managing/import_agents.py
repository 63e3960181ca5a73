"""``retinue import claude-agents``: import agents in Markdown of a project or home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.cli.managing.imports import say
from retinue.cli.output import note, print_table
from retinue.cli.session import open_session
from retinue.core.errors import InvalidSettingError

if TYPE_CHECKING:
    from retinue.cli.session import CommandSession
    from retinue.runtime.commands.imported_agents import ListedAgent


def import_agents(
    names: tuple[str, ...],
    read_hub: Callable[[CommandSession], set[str]],
    *,
    every: bool,
    replace: bool,
) -> None:
    """List the agents in Markdown of a folder, or import those that are named, or ``every`` agent.

    The first of ``names`` may be the folder. ``read_hub`` gives the agents of the running hub.
    """
    from retinue.runtime.commands.imported_agents import keep, list_agents, list_kept, list_places
    from retinue.runtime.imports.files import read_imports

    session = open_session()
    folder, names = _split(names)
    places = list_places(folder, Path.cwd(), Path.home())
    kept = list_kept(session.state)
    taken = (read_hub(session) | read_imports(session.settings, session.state).keys()) - kept.keys()
    listed = list_agents(session.state, places, taken)
    if not listed:
        say("there are no agents in Markdown in .claude/agents of this project or of your home")
        return
    if not (every or names):
        print_table(
            ("NAME", "STATUS", "FILE"), [(agent.name, agent.status, str(agent.path)) for agent in listed]
        )
        _say_warnings(listed)
        say("import them: retinue import claude-agents --all, or with their names")
        return
    chosen = _choose(listed, names, every=every, replace=replace)
    if chosen:
        _say_warnings(chosen)
        keep(session.state, chosen)
        say(f"imported: {', '.join(agent.name for agent in chosen)}")
    _say_next(session, chosen)


def _split(words: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """The folder, if the first word is one, and the names."""
    if not words:
        return None, ()
    first = Path(words[0]).expanduser()
    if first.is_dir():
        return first.absolute(), words[1:]
    if "/" in words[0]:
        raise InvalidSettingError("FOLDER", f"no folder {words[0]}", remedy="check the path")
    return None, words


def _say_warnings(listed: Sequence[ListedAgent]) -> None:
    for agent in listed:
        if agent.problem:
            say(f"{agent.problem}; {agent.remedy}")
        for warning in () if agent.definition is None else agent.definition.warnings:
            note(warning)


def _choose(
    listed: Sequence[ListedAgent], names: Sequence[str], *, every: bool, replace: bool
) -> list[ListedAgent]:
    """The agents to copy; raises InvalidSettingError for a name that cannot be imported."""
    by_name = {agent.name: agent for agent in listed}
    if missing := [name for name in names if name not in by_name]:
        raise InvalidSettingError(
            "NAMES", f"no file has the agent {missing[0]!r}", remedy=f"one of {', '.join(by_name)}"
        )
    chosen = []
    for agent in listed:
        if not every and agent.name not in names:
            continue
        if agent.status == "imported":
            say(f"{agent.name} is imported already")
        elif agent.status == "left out" and not (replace and agent.is_replaceable):
            if not every:
                raise InvalidSettingError("NAMES", agent.problem, remedy=agent.remedy)
            say(f"{agent.name} is left out: {agent.problem}; {agent.remedy}")
        else:
            chosen.append(agent)
    return chosen


def _say_next(session: CommandSession, chosen: Sequence[ListedAgent]) -> None:
    from retinue.storage.state import find_hub_url

    if not chosen:
        return
    if find_hub_url(session.state) is None:
        say("start the hub to serve them: retinue hub")
    else:
        say("the hub starts them: retinue agents; remove one: retinue imports remove NAME")
