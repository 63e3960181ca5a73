"""The programs of active teams: agents as children of the hub, imports as those of its settings.

A child has the environment of imports, Retinue's own variables, and the names that the team gives it. Its
working directory is the folder of the digest, whose ``retinue.toml`` has the access lists and the models of
the team, so the settings of this machine stay those of the hub.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import orjson
import structlog

from retinue.core.errors import RetinueError, StateDamagedError
from retinue.mesh.directory.rollouts import mark_of, team_tag
from retinue.mesh.directory.sources import MemberId
from retinue.processes.environment import fill_variables, select_inherited
from retinue.runtime.teams.environments import Environments, find_npm_program, find_python_program
from retinue.runtime.teams.rollout import list_digests
from retinue.runtime.teams.staging import FILES as FILES
from retinue.runtime.teams.store import TEAMS, TeamRow, TeamStore
from retinue.settings_tables import ImportTable
from retinue.storage.state import TEAM_BUDGET_VARIABLE, TEAM_VARIABLE, State
from retinue.team.definition import DATA, TeamImport
from retinue.team.package import Team, read_config
from retinue.team.toml_text import quote, render_value

CONFIG = "config.json"
MANIFEST = "manifest.json"
SIGNATURES = "signatures.json"
SETTINGS = "retinue.toml"

_log = structlog.get_logger("retinue.teams")


@dataclass(frozen=True, slots=True)
class TeamProgram:
    """A child of the hub: arguments of ``retinue``, whole environment, Python and working directory.

    ``secrets`` is the id of the values of its secrets.
    """

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    program: str
    folder: Path
    secrets: str


def child_name(team: Team, target: str) -> str:
    """The name of a child: its team, the beginning of the digest, and its target."""
    return f"{team.name}@{team.digest[7:19]}/{target}"


def list_targets(team: Team) -> list[str]:
    """The targets of the children of a digest: its agents and its models."""
    models = [f"llm.{name}" for name in team.definition.llm]
    return [*(agent.target for agent in team.definition.agents), *models]


def list_children(state: State, hub_url: str, environ: Mapping[str, str]) -> Sequence[TeamProgram]:
    """The children of all active teams. A team that cannot be read is reported, and the others run."""
    specs: list[TeamProgram] = []
    for store, row, team in _list_teams(state, list_digests):
        try:
            specs += team_children(store, row, team, hub_url, environ)
        except RetinueError as error:
            _log.warning("team not started", team=row.name, error=error.message)
    return specs


def team_children(
    store: TeamStore, row: TeamRow, team: Team, hub_url: str, environ: Mapping[str, str]
) -> list[TeamProgram]:
    """The children of one digest: its agents and its models."""
    folder = store.folder_of(team.name, team.digest)
    values = variables_of(store, row, team.digest)
    common = select_inherited(environ) | {
        "RETINUE_HOME": str(store.home),
        "RETINUE_HUB": hub_url,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",
    }
    environments = Environments(store.environments, environ)
    own = f"{team.name}={','.join(sorted(team.names))}"
    tag = ("--tag", team_tag(team.version, team.digest), "--team", own)
    secrets = row.secrets.get(team.digest, "")
    variables = _fill_own_variables(team, values)
    specs = []
    for agent in team.definition.agents:
        lock = team.lock.agents[agent.target].lock
        program = sys.executable
        if lock is not None:
            program = str(environments.python_of((folder / FILES / lock).read_bytes(), is_agent=True))
        port = () if agent.port is None else ("--port", str(agent.port), "--port-may-move")
        child = child_name(team, agent.target)
        specs.append(
            TeamProgram(
                child,
                ("serve", agent.target, *tag, *port),
                common | variables[child],
                program=program,
                folder=folder / FILES,
                secrets=secrets,
            )
        )
    budget = team.definition.budget.model_dump(exclude_none=True)
    of_team = {TEAM_VARIABLE: team.name}
    if budget:
        of_team[TEAM_BUDGET_VARIABLE] = orjson.dumps(budget).decode()
    for name in team.definition.llm:
        child = child_name(team, f"llm.{name}")
        specs.append(
            TeamProgram(
                child,
                ("serve", "--llm", name, *tag),
                common | variables[child] | of_team,
                program=sys.executable,
                folder=folder / FILES,
                secrets=secrets,
            )
        )
    return specs


def _fill_own_variables(team: Team, values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The variables that a digest gives each of its children, by name of the child."""
    definition = team.definition
    own = {child_name(team, agent.target): fill_variables(agent.env, values) for agent in definition.agents}
    for name, table in definition.llm.items():
        key = {} if table.api_key_env is None else {table.api_key_env: values.get(table.api_key_env, "")}
        own[child_name(team, f"llm.{name}")] = fill_variables(table.env, values) | key
    return own


def find_renewed(team: Team, old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """The children of a digest that other values of its secrets start again."""
    before, after = _fill_own_variables(team, old), _fill_own_variables(team, new)
    return {child for child, own in after.items() if own != before[child]}


def read_team_imports(state: State) -> dict[MemberId, ImportTable]:
    """The imports of all digests that run, as tables of the settings with their secrets filled in.

    Each digest has its own, also of an import that is equal in two: a listing has one tag, and a program that
    ends counts for one digest. Those of the digest that lists show come first.
    """
    tables: dict[MemberId, ImportTable] = {}
    for store, row, team in _list_teams(state, list_digests):
        values = variables_of(store, row, team.digest)
        for name, table in team.definition.imports.items():
            member = MemberId(name, team.name, team_tag(team.version, team.digest))
            try:
                tables[member] = import_table(store, team, name, table, values)
            except (RetinueError, OSError) as error:
                _log.warning("import of a team left out", team=row.name, name=name, error=str(error))
    return tables


def import_table(
    store: TeamStore, team: Team, name: str, table: TeamImport, values: Mapping[str, str]
) -> ImportTable:
    """One import as a table of the settings: its program by path, its document by path, its texts filled."""
    files = store.folder_of(team.name, team.digest) / FILES
    env, headers = _fill_for_settings(table.env, values), _fill_for_settings(table.headers, values)
    common = {"env": env, "headers": headers, "start_s": table.start_s, "server": table.server}
    if table.openapi is not None:
        return ImportTable.model_validate({**common, "openapi": str(files / table.openapi)})
    if table.url is not None or table.a2a is not None:
        return ImportTable.model_validate({**common, "url": table.url, "a2a": table.a2a})
    locked = team.lock.imports[name]
    lock = (files / (locked.lock or "")).read_bytes()
    command, *first = import_command(Environments(store.environments, {}), table, lock)
    args = fill_variables({str(index): text for index, text in enumerate(table.args)}, values)
    return ImportTable.model_validate(
        {
            **common,
            "command": command,
            "args": (*first, *args.values()),
            "folder": store.data_folder(team.name),
        }
    )


def _fill_for_settings(texts: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    # the hub fills the tables of its imports from its own environment, and no value of a team may name that
    return {key: text.replace("$", "$$") for key, text in fill_variables(texts, values).items()}


def import_command(environments: Environments, table: TeamImport, lock: bytes) -> tuple[str, ...]:
    """The program of an import from npm or PyPI, by path, without its own arguments.

    Raises InvalidSettingError for a package without such a program.
    """
    if table.npm is not None:
        folder = environments.npm_folder(lock)
        return "node", str(find_npm_program(folder, table.package_name, table.bin))
    python = environments.python_of(lock, is_agent=False)
    return str(python), str(find_python_program(python, table.package_name, table.bin))


def list_workflows(state: State, chosen: Mapping[str, str]) -> dict[str, dict[str, Path]]:
    """The files of the workflows of the active teams, by name and team.

    ``chosen`` gives the mark of the digest of a team; of others it is the one that lists show.
    """

    def pick(row: TeamRow) -> Sequence[str]:
        digests = list_digests(row)
        marked = [digest for digest in digests if mark_of(digest) == chosen.get(row.name)]
        return marked or digests[:1]

    files: dict[str, dict[str, Path]] = {}
    for store, row, team in _list_teams(state, pick):
        for name, path in team.workflows.items():
            files.setdefault(name, {})[row.name] = store.folder_of(row.name, team.digest) / FILES / path
    return files


def variables_of(store: TeamStore, row: TeamRow, digest: str) -> dict[str, str]:
    """What ``${NAME}`` stands for in the texts of a digest: its secrets, and the folder of the team."""
    return {**store.read_secrets(row, digest), DATA: str(store.data_folder(row.name))}


def mend_teams(state: State) -> None:
    """Put back each team whose command was killed while it started a digest."""
    if has_teams(state):
        try:
            TeamStore(state).mend()
        except (RetinueError, OSError) as error:
            _log.warning("teams not put back", error=str(error))


def has_teams(state: State) -> bool:
    """Whether a team was ever started here; looks at one file."""
    return (state.root / TEAMS / "teams.json").exists()


def _list_shown(row: TeamRow) -> Sequence[str]:
    return list_digests(row)[:1]


def _list_teams(
    state: State, pick: Callable[[TeamRow], Sequence[str]] = _list_shown
) -> Iterator[tuple[TeamStore, TeamRow, Team]]:
    """The digests of each active team that ``pick`` gives: by default the one that lists show."""
    if not has_teams(state):
        return
    store = TeamStore(state)
    for row in store.list_active():
        try:
            for digest in pick(row):
                yield store, row, read_installed(store, row.name, digest)
        except RetinueError as error:
            _log.warning("team not read", team=row.name, error=error.message)


def read_installed(store: TeamStore, name: str, digest: str) -> Team:
    """The team of a digest that is installed. Raises TeamRefusedError, StateDamagedError."""
    path = store.folder_of(name, digest) / CONFIG
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateDamagedError(
            str(path), str(error.strerror), remedy="start the team again: retinue up"
        ) from None
    return _parse(content, digest)


@lru_cache(maxsize=16)
def _parse(content: bytes, digest: str) -> Team:
    return read_config(content, digest=digest, where=digest[:19], is_installed=True)


def render_settings(team: Team) -> bytes:
    """The ``retinue.toml`` of the children of a team: its access lists and models."""
    lines: list[str] = []
    definition = team.definition.as_json()
    for table in ("access", "llm"):
        for name, values in definition.get(table, {}).items():
            lines.append(f"[{table}.{quote(name)}]")
            lines += [f"{key} = {render_value(value)}" for key, value in values.items()]
            lines.append("")
    return "\n".join(lines).encode()
