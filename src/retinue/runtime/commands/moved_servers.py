"""Moves the servers of an MCP client into the mesh, and puts them back.

A move records its steps in the state, stores the imports, waits until the hub has connected to each, and
writes the files. If a step fails, those before it are undone. The note stays until the servers are put back.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retinue.client.mesh_client import MeshClient
from retinue.core.errors import InvalidSettingError, StateDamagedError, StateError
from retinue.mcp.client_configs.clients import CLIENTS, Client
from retinue.mcp.client_configs.config_files import Changed, change_text, check_writable, read_text
from retinue.mcp.client_configs.merging import MovedEntry, PutBack, put_back
from retinue.mcp.upstream.http_transport import NEEDS_LOGIN
from retinue.runtime.commands.connect import (
    ServerContainer,
    find_places,
    has_backup,
    has_token,
    moves_file,
    read_servers,
)
from retinue.runtime.commands.imports import (
    ImportOutcome,
    choose_name,
    keep_and_wait,
    list_rows,
    remove_import,
)
from retinue.runtime.imports.files import find_own_url, read_imports
from retinue.settings import Settings
from retinue.settings_tables import ImportTable
from retinue.storage.files import hold_lock, replace_file, storage_errors
from retinue.storage.state import State


@dataclass(frozen=True, slots=True)
class Moving:
    """One server that is moved: its place, its entry, and the import that it becomes."""

    place: ServerContainer
    name: str
    entry: Any
    import_name: str
    table: ImportTable
    is_new: bool
    """Whether no import with the same table exists yet."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The steps of a move; ``stays`` are the names of servers that stay in the client, with the reason."""

    client: Client
    hub_name: str
    hub_entry: Mapping[str, Any]
    files: tuple[Path, ...]
    moving: tuple[Moving, ...]
    stays: tuple[tuple[str, str], ...]

    def edit(self, file: Path, text: str | None) -> str:
        """The text of a file without the servers that are moved; the hub is in the user's own file."""
        edited = text or ""
        for server in self.moving:
            if server.place.file == file:
                edited = self.client.remove_entry(edited, server.name, str(file), server.place.container)
        if file == self.files[0]:
            edited = self.client.write_entry(edited, self.hub_name, dict(self.hub_entry), str(file))
        return edited


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """The entries that were put back in one file."""

    file: Path
    names: tuple[str, ...]
    kept: tuple[str, ...]
    changed: Changed


async def plan_move(
    mesh: MeshClient,
    settings: Settings,
    state: State,
    client: Client,
    *,
    hub_name: str,
    hub_entry: Mapping[str, Any],
    project: Path | None = None,
    keep: Collection[str] = (),
) -> MovePlan:
    """Read the client's servers, and decide what becomes of each; writes nothing.

    Raises InvalidSettingError for an invalid file and a name in ``keep`` that no server has, StateError for a
    file that cannot be written.
    """
    imports = dict(read_imports(settings, state))
    agents = set(await list_rows(mesh)) - set(imports)
    moving: list[Moving] = []
    stays: list[tuple[str, str]] = []
    places = find_places(client, project)
    for place in places:
        for server, entry in read_servers(client, place, find_own_url(settings, state)):
            if server.name == hub_name and place.folder is None:
                continue
            if server.name in keep:
                stays.append((server.name, "--keep"))
            elif server.table is None:
                stays.append((server.name, server.stays))
            else:
                table = _read_table(server.name, server.table)
                name, is_new = choose_name(server.name, table, client.name, imports, agents)
                imports[name] = table
                moving.append(Moving(place, server.name, entry, name, table, is_new))
    names = {server.name for server in moving} | {name for name, _ in stays}
    if unknown := sorted(set(keep) - names):
        raise InvalidSettingError(
            "--keep",
            f"{client.title} has no server {unknown[0]!r}",
            remedy=f"one of {', '.join(sorted(names))}" if names else "leave it out",
        )
    files = tuple(dict.fromkeys([places[0].file, *(server.place.file for server in moving)]))
    plan = MovePlan(client, hub_name, hub_entry, files, tuple(moving), tuple(stays))
    for file in files:
        check_writable(file)
        plan.edit(file, read_text(file))
    return plan


async def move(mesh: MeshClient, settings: Settings, state: State, plan: MovePlan) -> list[Changed]:
    """Carry out a plan. Raises StateError, with nothing changed, if an import or a file fails."""
    with _alone(state):
        new = {server.import_name: server.table for server in plan.moving if server.is_new}
        if taken := sorted(new.keys() & read_imports(settings, state).keys()):
            raise StateError(f"an import {taken[0]!r} was added meanwhile", remedy="try again")
        moves = _read_moves(state, plan.client.name)
        try:
            # noted before it begins, so that --remove also clears up after a command that was killed
            _write_moves(state, plan.client.name, [*moves, _note(plan, new, _edit_files(plan))])
            outcomes = await keep_and_wait(mesh, state, new)
            if failed := [outcome for outcome in outcomes if outcome.problem or not outcome.is_listed]:
                raise _refusal(plan, failed)
            texts = _edit_files(plan)
            _write_moves(state, plan.client.name, [*moves, _note(plan, new, texts)])
            return _write_files(plan, texts)
        except BaseException:
            for name in new:
                with suppress(InvalidSettingError):  # it was not kept yet
                    remove_import(settings, state, name)
            _write_moves(state, plan.client.name, moves)
            raise


def _refusal(plan: MovePlan, failed: Sequence[ImportOutcome]) -> StateError:
    """The error for servers that do not run in the mesh; it names each, so that one repetition is enough."""
    names = {server.import_name: server.name for server in plan.moving}
    keep = " ".join(f"--keep {shlex.quote(names[outcome.name])}" for outcome in failed)
    problems, logins = [], []
    for outcome in failed:
        name, problem = names[outcome.name], outcome.problem or "the hub does not list it"
        if not problem.startswith(NEEDS_LOGIN):
            problems.append(f"{name!r} does not run in the mesh: {problem}")
            continue
        problems.append(f"{name!r} asks for a login")
        url = next(moving.table.url for moving in plan.moving if moving.import_name == outcome.name)
        logins.append(
            f"retinue import mcp-server {outcome.name} --url {url}; retinue imports login {outcome.name}; "
        )
    mend = f"{''.join(logins)}then try again, or leave it" if logins else "mend it, or leave it"
    if len(failed) > 1:
        mend = mend.replace("it,", "them,").replace("leave it", "leave them")
    return StateError(
        f"nothing was changed, because {'; '.join(problems)}",
        remedy=f"{mend} in {plan.client.title}: {keep}",
    )


Texts = dict[Path, tuple[str | None, str]]
"""The former and the new text of each file."""


def _edit_files(plan: MovePlan) -> Texts:
    texts: Texts = {}
    for file in plan.files:
        before = read_text(file)
        _check_unchanged(plan, file, before)
        texts[file] = before, plan.edit(file, before)
    return texts


def _note(plan: MovePlan, new: Mapping[str, ImportTable], texts: Texts) -> dict[str, Any]:
    return {
        "hub": plan.hub_name,
        "files": [
            {
                "path": str(file),
                "before": before,
                "after": after,
                "adds_hub": _adds_hub(plan, file, before),
                "mode": None if before is None else file.stat().st_mode & 0o777,
                "moved": [
                    {"container": server.place.container, "name": server.name, "entry": server.entry}
                    for server in plan.moving
                    if server.place.file == file
                ],
            }
            for file, (before, after) in texts.items()
        ],
        "imports": sorted({server.import_name for server in plan.moving}),
        "created": {name: table.model_dump(mode="json") for name, table in new.items()},
    }


def _write_files(plan: MovePlan, texts: Texts) -> list[Changed]:
    """Write the files; if one cannot be written, those before it become as they were."""
    written: list[Changed] = []
    try:
        for file, (before, after) in texts.items():
            secret, backup = _is_secret(plan, file), not has_backup(plan.client, file)
            written.append(_exchange(file, before, after, secret=secret, backup=backup))
    except BaseException:
        for changed in written:
            before, after = texts[changed.path]
            _exchange(changed.path, after, before, secret=_is_secret(plan, changed.path))
        raise
    return written


def _adds_hub(plan: MovePlan, file: Path, before: str | None) -> bool:
    if file != plan.files[0]:
        return False
    return before is None or plan.client.read_entry(before, plan.hub_name, str(file)) is None


def _check_unchanged(plan: MovePlan, file: Path, text: str | None) -> None:
    """Raise StateError if a moved entry differs from the shown one."""
    for server in plan.moving:
        if server.place.file == file:
            entry = plan.client.list_entries(text or "", str(file), server.place.container).get(server.name)
            if entry != server.entry:
                raise StateError(f"{server.name!r} in {file} was changed meanwhile", remedy="try again")


def _is_secret(plan: MovePlan, file: Path) -> bool:
    return file == plan.files[0] and has_token(plan.hub_entry)


def _exchange(
    file: Path, expected: str | None, text: str | None, *, secret: bool, backup: bool = False
) -> Changed:
    def edit(text_now: str | None) -> str | None:
        if text_now != expected:
            raise StateError(
                f"{file} was changed meanwhile", remedy="close the program that writes it, then try again"
            )
        return text

    return change_text(file, edit, secret=secret, backup=backup)


def restore(
    settings: Settings, state: State, client: Client, hub_name: str
) -> tuple[list[RestoredFile], list[str]]:
    """Put the servers of every move of this client back; returns the files, and the removed imports.

    Raises InvalidSettingError for a file that is invalid now; earlier restored files stay restored.
    """
    with _alone(state):
        moves = _read_moves(state, client.name)
        restored: list[RestoredFile] = []
        removed: list[str] = []
        for note in reversed(moves):
            if note["hub"] != hub_name:
                continue
            restored += [_restore_file(client, note["hub"], file_note) for file_note in note["files"]]
            left = [move for move in moves if move is not note]
            removed += _remove_imports(settings, state, client.name, note, left)
            moves = left
            _write_moves(state, client.name, moves)
        return restored, removed


def list_names(state: State, client: Client) -> list[str]:
    """The names of the entries under which servers of this client were moved."""
    return list(dict.fromkeys(str(note["hub"]) for note in _read_moves(state, client.name)))


def _restore_file(client: Client, hub_name: str, note: Mapping[str, Any]) -> RestoredFile:
    file = Path(note["path"])
    moved = [MovedEntry(tuple(entry["container"]), entry["name"], entry["entry"]) for entry in note["moved"]]
    result = PutBack(None)

    def edit(text: str | None) -> str | None:
        nonlocal result
        result = put_back(
            client,
            text,
            before=note["before"],
            after=note["after"],
            moved=moved,
            hub_name=hub_name if note["adds_hub"] else None,
            where=str(file),
        )
        return result.text

    changed = change_text(file, edit, secret=False, backup=False)
    mode = note.get("mode")
    if mode is not None and changed.changed:
        with storage_errors(file):
            file.chmod(mode)  # a token of the hub made the file readable for its owner only
    return RestoredFile(file, result.restored, result.kept, changed)


def _remove_imports(
    settings: Settings, state: State, client_name: str, note: dict[str, Any], left: Sequence[dict[str, Any]]
) -> list[str]:
    """Remove the imports that this move made, except imports that another move uses too."""
    others = {name: _read_moves(state, name) for name in CLIENTS if name != client_name}
    kept = read_imports(settings, state)
    removed = []
    for name, table in note["created"].items():
        heir = next((move for move in left if name in move["imports"]), None)
        if heir is not None:
            heir["created"][name] = table
            continue
        for other, moves in others.items():
            if heir := next((move for move in moves if name in move["imports"]), None):
                heir["created"][name] = table
                _write_moves(state, other, moves)
                break
        if heir is None and name in kept and kept[name] == ImportTable.model_validate(table):
            remove_import(settings, state, name)
            removed.append(name)
    return removed


def _read_table(name: str, fields: Mapping[str, Any]) -> ImportTable:
    try:
        return ImportTable.model_validate(fields)
    except ValidationError as error:
        raise InvalidSettingError(name, error.errors()[0]["msg"], remedy=f"leave it: --keep {name}") from None


@contextmanager
def _alone(state: State) -> Iterator[None]:
    state.prepare()
    folder = moves_file(state, next(iter(CLIENTS.values()))).parent
    with storage_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    with hold_lock(folder / ".lock", mode=0o600):
        yield


def _read_moves(state: State, client_name: str) -> list[dict[str, Any]]:
    path = moves_file(state, CLIENTS[client_name])
    try:
        notes: list[dict[str, Any]] = json.loads(path.read_bytes()) if path.exists() else []
    except (OSError, ValueError) as error:
        remedy = "put the newest backup beside the client's file back by hand, and delete it"
        raise StateDamagedError(str(path), "it is not JSON", remedy=remedy) from error
    return notes


def _write_moves(state: State, client_name: str, moves: Sequence[Mapping[str, Any]]) -> None:
    path = moves_file(state, CLIENTS[client_name])
    with storage_errors(path):
        if moves:
            replace_file(path, json.dumps(moves).encode(), mode=0o600)
        else:
            path.unlink(missing_ok=True)
