"""The files of a state that keep its imports and their accepted tools."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from retinue.core.errors import InvalidSettingError, StateDamagedError
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
    """The imports of the state, and those of the settings, which come first.

    Raises InvalidSettingError for an invalid file.
    """
    return {**_read_of_teams(state), **read_kept_imports(state), **settings.imports.servers}


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


def _read_of_teams(state: State) -> dict[str, ImportTable]:
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
