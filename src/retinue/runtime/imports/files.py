"""The files of a state that keep its imports and their accepted tools."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from retinue.core.errors import InvalidSettingError, StateDamagedError
from retinue.mesh.directory.rollouts import read_mark
from retinue.mesh.directory.sources import MemberId
from retinue.mesh.pins import Document, Pins
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.files import file_mode, hold_lock, replace_file, storage_errors
from retinue.storage.state import State

PRIVATE = 0o600


def find_own_url(settings: Settings, state: State) -> str | None:
    """The url of MCP at the hub of this state, which may not run yet; None if its port is not known."""
    running = state.read_hub()
    if running is not None:
        return f"{running.url.rstrip('/')}/mcp"
    host, port = settings.hub.host, settings.hub.port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp" if port else None


def read_imports(settings: Settings, state: State) -> dict[str, ImportTable]:
    """The imports by the names that lists show: of a team those of the digest that serves.

    Raises InvalidSettingError for an invalid file.
    """
    members = read_members(settings, state)
    return {name: members[member] for name, member in name_members(members).items()}


def read_members(settings: Settings, state: State) -> dict[MemberId, ImportTable]:
    """All imports: of the teams, of the state, and of the settings, which come before those of the state.

    Of a team that changes its digest there are those of both digests, first those of the one that lists show.
    Raises InvalidSettingError for an invalid file.
    """
    own = {**read_kept_imports(state), **settings.imports.servers}
    return {**_read_of_teams(state), **{MemberId(name): table for name, table in own.items()}}


def name_members(members: Iterable[MemberId]) -> dict[str, MemberId]:
    """The imports by the names that lists show: ``NAME@TEAM`` where another one is called NAME, too.

    Of several digests of a team the first is shown.
    """
    shown: dict[str, MemberId] = {}
    for member in members:
        shown.setdefault(member.full_name, member)
    names = [member.name for member in shown.values()]
    return {
        member.name if names.count(member.name) == 1 else member.full_name: member
        for member in shown.values()
    }


def find_members(settings: Settings, state: State, name: str) -> list[MemberId]:
    """The imports of this name, plain or full: one, or that of each digest of a team; [] for none.

    Raises InvalidSettingError for an invalid file.
    """
    members = read_members(settings, state)
    shown = name_members(members).get(name)
    full_name = name if shown is None else shown.full_name
    return [member for member in members if member.full_name == full_name]


def read_import(settings: Settings, state: State, name: str) -> tuple[MemberId, ImportTable] | None:
    """The import of this name, plain or full, of the digest that serves; None for none.

    Raises InvalidSettingError for an invalid file.
    """
    members = read_members(settings, state)
    serving = next(iter(find_members(settings, state, name)), None)
    return None if serving is None else (serving, members[serving])


def list_waiting(settings: Settings, state: State) -> dict[str, list[str]]:
    """The tools that wait to be accepted, by the names of the imports that lists show.

    Raises InvalidSettingError for an invalid file, StateDamagedError.
    """
    pins, shown = open_pins(settings, state), name_members(read_members(settings, state))
    return {name: list(pins.list_waiting(member.pinned)) for name, member in shown.items()}


def is_pin_used(state: State, name: str) -> bool:
    """Whether tools under this name are those of an import of the machine, or of a digest that is here."""
    full_name, _, tag = name.partition(":")
    mark, team = read_mark(tag), full_name.rpartition("@")[2]
    return not mark or any((state.root / "teams" / team).glob(f"{mark}*"))


def is_import_source(source: str | None) -> bool:
    """Whether this source of agents is one of imports."""
    # imported here, because most commands need none of these
    from retinue.a2a.client.imports import A2A_AGENTS
    from retinue.mcp.upstream.imports.server import IMPORTS
    from retinue.openapi.imports import APIS

    return source in (A2A_AGENTS, IMPORTS, APIS)


def read_kept_imports(state: State) -> dict[str, ImportTable]:
    """The imports that commands keep in the state. Raises InvalidSettingError for an invalid file."""
    path = state.imports
    try:
        tables = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        return {name: ImportTable.model_validate(table) for name, table in tables.items()}
    except (OSError, ValueError, ValidationError) as error:
        raise InvalidSettingError(
            str(path), str(error).splitlines()[0], remedy="mend it, or delete it and import again"
        ) from error


def _read_of_teams(state: State) -> dict[MemberId, ImportTable]:
    if not (state.root / "teams" / "teams.json").exists():
        return {}
    from retinue.runtime.teams.programs import read_team_imports  # only states with teams load this

    return read_team_imports(state)


def write_import(state: State, name: str, table: ImportTable | None) -> None:
    """Keep one import in the state, or remove it. The file is readable for its owner only."""
    state.prepare()
    path = state.imports
    with storage_errors(path), hold_lock(Path(f"{path}.lock"), mode=file_mode(path.parent)):
        tables = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
        tables.pop(name, None)
        if table is not None:
            tables[name] = table.model_dump(exclude_defaults=True, mode="json")
        replace_file(path, _render_toml(tables).encode(), mode=PRIVATE)


def _render_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values; strings, lists and numbers of JSON are also those of TOML."""
    lines: list[str] = []
    for name, table in tables.items():
        lines.append(f"[{_quote(name)}]")
        for key, value in table.items():
            if isinstance(value, Mapping):
                inner = ", ".join(f"{_quote(k)} = {_quote(str(v))}" for k, v in value.items())
                lines.append(f"{key} = {{ {inner} }}")
            else:
                lines.append(f"{key} = {_quote(value)}")
        lines.append("")
    return "\n".join(lines)


def _quote(value: Any) -> str:
    # the strings of JSON are those of TOML, but for DEL
    return orjson.dumps(value).decode().replace("\x7f", "\\u007f")


def open_pins(settings: Settings, state: State) -> Pins:
    """The accepted tools of the imports. Raises StateDamagedError."""
    path = state.pins

    def update(change: Callable[[Document], Document]) -> Document:
        with storage_errors(path), hold_lock(Path(f"{path}.lock"), mode=file_mode(path.parent)):
            kept = change(read_pins(state))
            replace_file(path, orjson.dumps(kept), mode=PRIVATE)
        return kept

    return Pins(read_pins(state), update, enabled=settings.imports.pin)


def read_pins(state: State) -> Document:
    """The accepted tools as they are kept. Raises StateDamagedError."""
    path = state.pins
    try:
        document: Document = orjson.loads(path.read_bytes()) if path.exists() else {}
    except (OSError, ValueError) as error:
        remedy = "delete it: the tools are accepted anew as they are now"
        raise StateDamagedError(str(path), "it is not JSON", remedy=remedy) from error
    return document
