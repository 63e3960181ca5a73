"""The teams of a state folder: which digest of each is active, its files, its secrets and its data.

``teams/teams.json`` holds one row for each team, ``teams/NAME/HEX/`` the files of a digest, and
``teams/NAME/data`` what the agents keep. Files appear under their name only when all of them are there.
``teams/NAME/secrets-ID.json`` holds the values of the secrets of one start of a digest. The row says which
file counts for which digest, so a digest that runs keeps its values while another one starts with new ones.

A command that starts a digest keeps the row before it in ``undo`` until the digest has passed its check. A
row with an ``undo`` whose command was killed is put back by the next command, and by the hub.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import BusyError, RetinueError, StateDamagedError
from retinue.core.text import hide_always, hide_tokens
from retinue.runtime.teams.row import TeamRow as TeamRow
from retinue.runtime.teams.row import read_clock as read_clock
from retinue.runtime.teams.staging import INCOMING, Staging, staging
from retinue.storage.files import (
    hold_lock,
    make_folder,
    refuse_gone,
    remove_leftovers,
    replace_file,
    storage_errors,
)
from retinue.storage.state import State

TEAMS = "teams"
ENVIRONMENTS = "team-environments"
"""The folder of what is installed for locks; it can be made again, so it is in no backup."""

_ROWS = "teams.json"
_CHILDREN = "children.json"
_SECRETS = "secrets.json"
"""The values of a digest without a file of its own, as earlier versions of Retinue kept them."""
_FORMER_SECRETS = "secrets.before.json"
_SECRETS_OF = "secrets-{}.json"
_PRIVATE = 0o600
KEPT_DIGESTS = 3
_LOCK_WITHIN_S = 0.2
"""The hub holds a team for less than this while it puts one back."""
_HEX = re.compile(r"[0-9a-f]{64}")


class TeamStore:
    """The teams of one state folder."""

    def __init__(self, state: State) -> None:
        self.root = state.root / TEAMS
        self._state = state

    @property
    def home(self) -> Path:
        """The state folder."""
        return self._state.root

    @property
    def registry(self) -> Path:
        """The registry of the state, in which the agents of teams publish their cards."""
        return self._state.registry

    @property
    def environments(self) -> Path:
        """Where packages of locks are installed."""
        return self._state.root / ENVIRONMENTS

    @property
    def rows_file(self) -> Path:
        """The file that changes when a team is started or stopped."""
        return self.root / _ROWS

    def read_rows(self) -> dict[str, TeamRow]:
        """The teams by name. Raises StateDamagedError."""
        return self._parse_rows(_read_object(self.rows_file))

    def _parse_rows(self, document: Mapping[str, Any]) -> dict[str, TeamRow]:
        try:
            return {name: TeamRow(**row) for name, row in document.items()}
        except TypeError as error:
            raise StateDamagedError(str(self.rows_file), str(error), remedy="remove the file") from error

    def list_settled(self) -> list[TeamRow]:
        """The teams as they are without the commands that change them now, by name."""
        rows = [row.settled() for _, row in sorted(self.read_rows().items())]
        return [row for row in rows if row is not None]

    def list_active(self) -> list[TeamRow]:
        """The teams that run or should run."""
        return [row for row in self.read_rows().values() if row.active is not None]

    def write_row(self, row: TeamRow) -> None:
        """Keep a row; the running hub starts and stops programs accordingly."""
        with self._changing_rows() as document:
            document[row.name] = asdict(row)

    def change_row(self, name: str, change: Callable[[TeamRow], TeamRow]) -> TeamRow:
        """Keep what ``change`` makes of the row as it is now; returns that."""
        with self._changing_rows() as document:
            changed = change(self._parse_rows(document).get(name, TeamRow(name)))
            document[name] = asdict(changed)
        return changed

    @contextmanager
    def starting(self, row: TeamRow, names: Iterable[str]) -> Iterator[None]:
        """Note the names of a digest while it is started; where that fails, put ``row`` back."""
        self.mend()
        with self._changing_rows() as document:
            undo = document.get(row.name, {})
            current = self._parse_rows(document).get(row.name, row)  # the hub may have ended its rollout
            claim = replace(current, names=sorted({*names, *row.names}), undo=undo)
            document[row.name] = asdict(claim)
        try:
            yield
        except BaseException as error:
            self._put_back(row.name, _describe(error))
            raise

    def settle(self, row: TeamRow, names: Iterable[str]) -> None:
        """Keep that the active digest of ``row`` has passed its check, and holds only these names."""
        self.write_row(self.keep_only(replace(row, names=sorted(names), undo=None)))

    def mend(self) -> None:
        """Put back each team whose command was killed while it started a digest."""
        for row in self.read_rows().values():
            if not row.is_settled:
                with suppress(BusyError), self.changing(row.name, within_s=0.0):
                    pass  # that puts it back

    def _put_back(self, name: str, reason: str) -> None:
        """Write the row before a command, and why the digest that it started does not serve."""
        reason = hide_tokens(reason)
        with self._changing_rows() as document:
            row = self._parse_rows(document).get(name)
            if row is None or row.is_settled:
                return
            before = row.settled()
            if row.active is None or row.active == (before and before.active):
                failed = {} if before is None else before.failed
            else:
                failed = {"digest": row.active, "version": row.version, "reason": reason, "at": read_clock()}
            if before is None and not failed:
                del document[name]
            else:
                document[name] = asdict(replace(before or TeamRow(name), failed=failed))
        for file in {*row.secrets.values()} - {*(before.secrets.values() if before else ())}:
            self.remove_secrets(name, file)

    @contextmanager
    def _changing_rows(self) -> Iterator[dict[str, Any]]:
        """The rows as a document, which is written at the end unless an error is raised."""
        self._prepare()
        with storage_errors(self.rows_file), hold_lock(Path(f"{self.rows_file}.lock"), mode=_PRIVATE):
            remove_leftovers(self.root, self.rows_file.name)
            document = _read_object(self.rows_file)
            content = orjson.dumps(document, option=orjson.OPT_INDENT_2)
            yield document
            changed = orjson.dumps(document, option=orjson.OPT_INDENT_2)
            if changed != content:
                replace_file(self.rows_file, changed, mode=_PRIVATE)

    @contextmanager
    def changing(self, name: str, *, within_s: float = _LOCK_WITHIN_S) -> Iterator[TeamRow]:
        """Hold the team, one command at a time; its row, which is put back first if a command was killed.

        Raises BusyError.
        """
        self._prepare()
        folder = self.root / name
        with storage_errors(folder):
            make_folder(folder)
        lock = FileLock(folder / ".lock", mode=_PRIVATE)
        try:
            lock.acquire(timeout=within_s)
        except Timeout:
            raise BusyError(f"another command changes the team {name}", 5.0) from None
        try:
            for leftover in folder.glob(f"{INCOMING}*"):
                _remove(leftover)
            remove_leftovers(folder)
            row = self.read_rows().get(name, TeamRow(name))
            if not row.is_settled:
                self._put_back(name, "its command was killed before it had passed its check")
                row = self.read_rows().get(name, TeamRow(name))
            self._remove_unused_secrets(row)
            yield row
        finally:
            lock.release()

    def folder_of(self, name: str, digest: str) -> Path:
        """Where the files of a digest are, or would be."""
        return self.root / name / digest.removeprefix("sha256:")

    def has(self, name: str, digest: str) -> bool:
        """Whether all files of a digest are here."""
        return self.folder_of(name, digest).is_dir()

    def list_installed(self, name: str) -> list[str]:
        """The digests of a team whose files are here."""
        folder = self.root / name
        if not folder.is_dir():
            return []
        return [f"sha256:{place.name}" for place in folder.iterdir() if _HEX.fullmatch(place.name)]

    def data_folder(self, name: str) -> Path:
        """The folder in which the programs of a team keep their files; created if missing."""
        folder = self.find_data_folder(name)
        with storage_errors(folder):
            make_folder(folder)
        return folder

    def find_data_folder(self, name: str) -> Path:
        """The folder of `data_folder`, which may be missing."""
        return self.root / name / "data"

    def staging(self, name: str, digest: str) -> AbstractContextManager[Staging]:
        """Takes the files of a digest, and removes them unless they are published; see `Staging`."""
        return staging(self.folder_of(name, digest))

    def install(self, name: str, digest: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of a digest; all of them appear at once, or none."""
        folder = self.folder_of(name, digest)
        if not folder.is_dir():
            with self.staging(name, digest) as place:
                for path, content in files.items():
                    place.write(path, content)
                place.publish()
        return folder

    def keep_only(self, row: TeamRow) -> TeamRow:
        """The row without old digests, whose files are removed; active, before and the newest stay."""
        kept = {*row.digests}
        for digest in reversed(list(row.versions)):
            if len(kept) < KEPT_DIGESTS:
                kept.add(digest)
        for digest in self.list_installed(row.name):
            if digest not in kept:
                _remove(self.folder_of(row.name, digest))
        return replace(
            row,
            versions={digest: version for digest, version in row.versions.items() if digest in kept},
            signers={digest: signer for digest, signer in row.signers.items() if digest in kept},
            secrets={digest: file for digest, file in row.secrets.items() if digest in kept},
            references={digest: text for digest, text in row.references.items() if digest in kept},
        )

    def read_secrets(self, row: TeamRow, digest: str) -> dict[str, str]:
        """The values of the secrets of a digest; {} for one that has none."""
        path = self._secrets_file(row.name, row.secrets.get(digest))
        values = {key: str(value) for key, value in _read_object(path).items()}
        hide_always(values.values())
        return values

    def keep_secrets(self, name: str, values: Mapping[str, str]) -> str:
        """Write the values of the secrets of a digest to a file that only the owner reads; returns its id.

        The values count when the id is in the row of the team. The file is never changed.
        """
        hide_always(values.values())
        file = secrets.token_hex(8)
        path = self._secrets_file(name, file)
        with storage_errors(path):
            replace_file(path, orjson.dumps(dict(values)), mode=_PRIVATE)
        return file

    def hide_secrets(self) -> None:
        """Let no log line, audit row or error text of this process show the secrets of teams."""
        for row in self.read_rows().values():
            for digest in row.secrets:
                with suppress(StateDamagedError):
                    self.read_secrets(row, digest)

    def remove_secrets(self, name: str, file: str | None) -> None:
        """Remove a file of secrets that no row names any more."""
        if file is not None:
            path = self._secrets_file(name, file)
            with storage_errors(path):
                path.unlink(missing_ok=True)

    def _secrets_file(self, name: str, file: str | None) -> Path:
        return self.root / name / (_SECRETS if file is None else _SECRETS_OF.format(file))

    def _remove_unused_secrets(self, row: TeamRow) -> None:
        """Remove the values that killed commands and former starts have left; the caller holds the team."""
        folder = self.root / row.name
        unused = {*folder.glob(_SECRETS_OF.format("*")), folder / _FORMER_SECRETS}
        unused -= {self._secrets_file(row.name, file) for file in row.secrets.values()}
        if row.digests and row.digests <= row.secrets.keys():
            unused.add(folder / _SECRETS)
        with storage_errors(folder):
            for path in unused:
                path.unlink(missing_ok=True)

    def read_children(self) -> dict[str, Any]:
        """What the hub says of the programs of teams, by the name of the child."""
        try:
            return _read_object(self.root / _CHILDREN)
        except StateDamagedError:
            return {}

    def write_children(self, children: Mapping[str, Any]) -> None:
        """Tell other processes how the programs of teams are. A failure is only late news."""
        with suppress(OSError):
            replace_file(self.root / _CHILDREN, orjson.dumps(dict(children)), mode=_PRIVATE)

    def _prepare(self) -> None:
        self._state.prepare()
        refuse_gone(self._state.root)
        with storage_errors(self.root):
            self.root.mkdir(mode=0o700, exist_ok=True)


def _describe(error: BaseException) -> str:
    """Why a command has ended, for people."""
    if isinstance(error, RetinueError):
        return error.message
    return str(error) or (type(error).__name__ if isinstance(error, Exception) else "its command was stopped")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise StateDamagedError(str(path), "it is not JSON", remedy="remove the file") from error
    if not isinstance(document, dict):
        raise StateDamagedError(str(path), "it is no object", remedy="remove the file")
    return document


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
