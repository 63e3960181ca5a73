"""The teams of a state folder: which digest of each is active, its files, its secrets and its data.

``teams/teams.json`` holds one row for each team, ``teams/NAME/HEX/`` the files of a digest, and
``teams/NAME/data`` what the agents keep. Files appear under their name only when all of them are there.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from retinue.core.errors import BusyError, StateDamagedError
from retinue.storage.files import make_folder, refuse_gone, replace_file, storage_errors
from retinue.storage.state import State

TEAMS = "teams"
ENVIRONMENTS = "team-environments"
"""The folder of what is installed for locks; it can be made again, so it is in no backup."""

_ROWS = "teams.json"
_CHILDREN = "children.json"
_SECRETS = "secrets.json"
_PRIVATE = 0o600
_INCOMING = ".incoming-"
KEPT_DIGESTS = 3
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TeamRow:
    """What the state knows of a team. Digests are ``sha256:…``; ``active`` is None for one that is down.

    ``highest`` is the highest version that was accepted, ``failed`` the last digest that did not serve.
    """

    name: str
    active: str | None = None
    version: str = ""
    since: str = ""
    reference: str = ""
    signer: str = ""
    highest: str = ""
    before: str | None = None
    is_checked: bool = True
    """Whether ``active`` has passed its check; False while it is started, and after a killed ``up``."""
    failed: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """The version of each digest whose files are kept."""
    signers: Mapping[str, str] = field(default_factory=dict)
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """Which digest replaces which (`rollout.StoredRollout`); {} where none does."""

    def settled(self) -> TeamRow:
        """The row; that of the digest before, where nobody has seen the active one pass its check."""
        if self.is_checked:
            return self
        version = self.versions.get(self.before or "", "")
        return replace(self, active=self.before, version=version, before=None, is_checked=True)


class TeamStore:
    """The teams of one state folder."""

    def __init__(self, state: State) -> None:
        self.root = state.root / TEAMS
        self._state = state

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
        document = _read_object(self.rows_file)
        try:
            return {name: TeamRow(**row) for name, row in document.items()}
        except TypeError as error:
            raise StateDamagedError(str(self.rows_file), str(error), remedy="remove the file") from error

    def list_active(self) -> list[TeamRow]:
        """The teams that run or should run."""
        return [row for row in self.read_rows().values() if row.active is not None]

    def write_row(self, row: TeamRow) -> None:
        """Keep a row; the running hub starts and stops programs accordingly."""
        self._prepare()
        with storage_errors(self.rows_file), FileLock(f"{self.rows_file}.lock", mode=_PRIVATE):
            document = _read_object(self.rows_file)
            document[row.name] = asdict(row)
            replace_file(self.rows_file, orjson.dumps(document, option=orjson.OPT_INDENT_2), mode=_PRIVATE)

    def change_row(self, name: str, change: Callable[[TeamRow], TeamRow]) -> TeamRow:
        """Keep what ``change`` makes of the row as it is now; returns that."""
        self._prepare()
        with storage_errors(self.rows_file), FileLock(f"{self.rows_file}.lock", mode=_PRIVATE):
            rows = self.read_rows()
            before = rows.get(name, TeamRow(name))
            changed = change(before)
            if changed != before:
                rows[name] = changed
                document = {known: asdict(row) for known, row in rows.items()}
                replace_file(
                    self.rows_file, orjson.dumps(document, option=orjson.OPT_INDENT_2), mode=_PRIVATE
                )
        return changed

    def forget(self, name: str) -> None:
        """Remove the secrets of a team and the news of its programs."""
        (self.root / name / _SECRETS).unlink(missing_ok=True)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Hold the team: one ``up`` or ``down`` at a time. Raises BusyError."""
        self._prepare()
        folder = self.root / name
        with storage_errors(folder):
            make_folder(folder)
        lock = FileLock(folder / ".lock", mode=_PRIVATE)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise BusyError(f"another command changes the team {name}", 5.0) from None
        try:
            for leftover in folder.glob(f"{_INCOMING}*"):
                _remove(leftover)
            yield
        finally:
            lock.release()

    def folder_of(self, name: str, digest: str) -> Path:
        """Where the files of a digest are, or would be."""
        return self.root / name / digest.removeprefix("sha256:")

    def has(self, name: str, digest: str) -> bool:
        """Whether all files of a digest are here."""
        return self.folder_of(name, digest).is_dir()

    def data_folder(self, name: str) -> Path:
        """The folder in which the programs of a team keep their files; created if missing."""
        folder = self.root / name / "data"
        with storage_errors(folder):
            make_folder(folder)
        return folder

    def install(self, name: str, digest: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of a digest; all of them appear at once, or none."""
        folder = self.folder_of(name, digest)
        if folder.is_dir():
            return folder
        incoming = folder.parent / f"{_INCOMING}{secrets.token_hex(6)}"
        with storage_errors(folder):
            try:
                for path, content in files.items():
                    place = incoming / path
                    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    place.write_bytes(content)
                    place.chmod(0o400)
                incoming.rename(folder)
            except BaseException:
                _remove(incoming)
                raise
        return folder

    def keep_only(self, row: TeamRow) -> TeamRow:
        """The row without old digests, whose files are removed; active, before and the newest stay."""
        rolled = (row.rollout.get("old"), row.rollout.get("new"))
        kept = {digest for digest in (row.active, row.before, *rolled) if digest is not None}
        for digest in reversed(list(row.versions)):
            if len(kept) < KEPT_DIGESTS:
                kept.add(digest)
        for place in (self.root / row.name).iterdir():
            if _HEX.fullmatch(place.name) and f"sha256:{place.name}" not in kept:
                _remove(place)
        return replace(
            row,
            versions={digest: version for digest, version in row.versions.items() if digest in kept},
            signers={digest: signer for digest, signer in row.signers.items() if digest in kept},
        )

    def read_secrets(self, name: str) -> dict[str, str]:
        """The values of the secrets of a team."""
        return {key: str(value) for key, value in _read_object(self.root / name / _SECRETS).items()}

    def write_secrets(self, name: str, values: Mapping[str, str]) -> None:
        """Keep the values of the secrets in a file that only the owner reads."""
        path = self.root / name / _SECRETS
        with storage_errors(path):
            if values:
                replace_file(path, orjson.dumps(dict(values)), mode=_PRIVATE)
            else:
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
