"""Reads the files of policies: ``*.cedar`` and ``groups.yaml`` in the state folder and the project."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from retinue.core.errors import InvalidSettingError, RetinueError
from retinue.parts.part import Check
from retinue.settings import find_settings_file
from retinue.settings_tables import PolicyTable
from retinue.storage.files import replace_file, storage_errors

if TYPE_CHECKING:
    from retinue.policies.entities import TeamScope
    from retinue.policies.policy_set import PolicySet

FOLDER = "policies"
GROUPS = "groups.yaml"
MODE = "mode"
"""The file with the mode that the owner has set beside the settings."""

MODES = ("off", "watch", "enforce")

MAX_FILE_BYTES = 1024 * 1024

_WILDCARDS = frozenset("*?[")

_WHEELS: Mapping[str, tuple[str, ...]] = {
    "Linux": ("x86_64", "aarch64"),
    "Darwin": ("x86_64", "arm64"),
    "Windows": ("amd64", "x86_64"),
}
"""The machines for which cedarpy has a wheel, by their systems; on Linux with glibc only."""

Snapshot = tuple[tuple[str, int, int, int], ...]
"""Path, times of change of the contents and of the rights in ns, and size of each file."""


@dataclass(frozen=True, slots=True)
class PolicyFiles:
    """Where the policies of a process are: ``policies`` of its state, and the globs of ``[policy]``."""

    state_folder: Path
    project: Path | None
    globs: Sequence[str]

    @classmethod
    def of(cls, state_folder: Path, table: PolicyTable, start: Path | None = None) -> PolicyFiles:
        """The files of a state folder, and of the project of ``start``, the working directory by default."""
        settings = find_settings_file(start or Path.cwd())
        return cls(state_folder, None if settings is None else settings.parent, table.files)

    def list_files(self) -> list[Path]:
        """The files that exist: policies, and the groups beside them.

        Raises InvalidSettingError for a folder that cannot be listed, because its policies would not count.
        """
        paths = {*_find_files(self.state_folder, f"{FOLDER}/*.cedar")}
        if self.project is not None:
            for glob in self.globs:
                paths.update(path for path in _find_files(self.project, glob) if path.suffix == ".cedar")
        groups = {path.parent / GROUPS for path in paths}
        # a broken link is an error when it is read
        return sorted([*paths, *(path for path in groups if _is_there(path))])

    def look(self) -> Snapshot:
        """A value that differs after a change of a file. A file that vanishes meanwhile is not in it."""
        rows: list[tuple[str, int, int, int]] = []
        try:
            paths = [*self.list_files(), *self._list_teams()]
        except RetinueError as error:
            return ((error.message, 0, 0, 0),)  # `load` raises it
        for path in [*paths, self.state_folder / FOLDER / MODE]:
            try:
                stat = path.stat()
            except OSError:
                continue
            rows.append((str(path), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))
        return tuple(rows)

    @property
    def has_mode(self) -> bool:
        """Whether the owner has set a mode beside the settings."""
        return (self.state_folder / FOLDER / MODE).exists()

    def apply_mode(self, table: PolicyTable) -> PolicyTable:
        """The settings with the mode that the owner has set, if any. Raises InvalidSettingError."""
        path = self.state_folder / FOLDER / MODE
        if not path.exists():
            return table
        mode = _read(path).strip()
        if mode not in MODES:
            raise InvalidSettingError(
                str(path), f"{mode[:40]!r} is no mode", remedy="set it: retinue policy mode enforce"
            )
        return table.model_copy(update={"mode": mode})

    def load(self, table: PolicyTable, *, before: Snapshot = ()) -> PolicySet | None:
        """The policies in force; None where there are none and calls are allowed by default.

        ``before`` are the files that are in force now. Raises InvalidSettingError for files that cannot be
        read or are not valid, and where the state folder or the project has lost all its files.
        """
        if table.mode == "off":
            return None
        paths, teams = self.list_files(), self._list_teams()
        self._check_lost(before, paths)
        if not paths and not teams and table.default == "allow":
            return None
        return self._load(table, paths, teams)

    def load_all(self, table: PolicyTable) -> PolicySet:
        """The policies, also where they are switched off. Raises InvalidSettingError."""
        return self._load(table, self.list_files(), self._list_teams())

    def _load(self, table: PolicyTable, paths: Sequence[Path], teams: Mapping[Path, TeamScope]) -> PolicySet:
        check_library([*paths, *teams], "policy.default" if table.default == "deny" else "a policy")
        from retinue.policies.policy_set import load_policies

        groups: dict[str, Sequence[str]] = {}
        for path in paths:
            if path.name == GROUPS:
                for name, members in _read_groups(path).items():
                    if name in groups:
                        raise InvalidSettingError(
                            self.name_of(path),
                            f"the group {name!r} is in another file too",
                            remedy="rename it",
                        )
                    groups[name] = members
        return load_policies(
            self._read_texts([*paths, *teams]),
            default=table.default,
            groups=groups,
            teams={self.name_of(path): scope for path, scope in teams.items()},
        )

    def _list_teams(self) -> Mapping[Path, TeamScope]:
        """The policies of the teams that the state runs, with what they bind."""
        if not (self.state_folder / "teams" / "teams.json").exists():
            return {}
        from retinue.runtime.teams.policies import list_team_policies  # only states with teams load this

        return list_team_policies(self.state_folder)

    def read_texts(self) -> dict[str, str]:
        """The texts of the files by their names. Raises InvalidSettingError."""
        return self._read_texts(self.list_files())

    def read_all(self) -> tuple[dict[str, str], dict[str, TeamScope]]:
        """The texts with those of teams, and what the latter bind. Raises InvalidSettingError."""
        teams = self._list_teams()
        texts = self._read_texts([*self.list_files(), *teams])
        return texts, {self.name_of(path): scope for path, scope in teams.items()}

    def _read_texts(self, paths: Sequence[Path]) -> dict[str, str]:
        return {self.name_of(path): _read(path) for path in paths if path.suffix == ".cedar"}

    def name_of(self, path: Path) -> str:
        """The name of a file in messages: unique, and independent of the machine."""
        if path.is_relative_to(self.state_folder):
            return path.relative_to(self.state_folder).as_posix()
        if self.project is not None and path.is_relative_to(self.project):
            return f"project:{path.relative_to(self.project).as_posix()}"
        return path.as_posix()

    def _check_lost(self, before: Snapshot, paths: Sequence[Path]) -> None:
        """Raise InvalidSettingError if the state folder or the project had policies and has none now.

        An unmounted volume and a checkout in progress look like this.
        """

        def find_roots(names: Sequence[Path]) -> set[str]:
            teams = self.state_folder / "teams"  # these leave with their team
            policies = [name for name in names if name.suffix == ".cedar" and not name.is_relative_to(teams)]
            return {
                "the state folder" if name.is_relative_to(self.state_folder) else "the project"
                for name in policies
            }

        for root in sorted(find_roots([Path(row[0]) for row in before]) - find_roots(paths)):
            raise InvalidSettingError(
                "policies",
                f"{root} had policies, and has none now",
                remedy="restore the files; to remove all, leave one file without policies, "
                'such as policies/none.cedar, or set policy.mode to "off"',
            )

    def list_cases(self) -> list[Path]:
        """The files of cases: ``tests/*.yaml`` beside policies."""
        folders = {path.parent for path in self.list_files()}
        return sorted(path for folder in folders for path in (folder / "tests").glob("*.yaml"))


@dataclass(frozen=True, slots=True)
class Draft:
    """Policies that are not in force: their texts by the names of their files, and the groups beside them."""

    files: Mapping[str, str]
    groups: Mapping[str, Sequence[str]]


def read_draft(paths: Sequence[Path], current: Draft) -> Draft:
    """The policies in these files and folders; their groups are those beside them, else the current ones.

    Raises InvalidSettingError.
    """
    check_library(paths)
    files: dict[str, str] = {}
    groups = dict(current.groups)
    for path in paths:
        names = sorted(path.glob("*.cedar")) if path.is_dir() else [path]
        if not names:
            raise InvalidSettingError(str(path), "no file *.cedar in it", remedy="name a file, or its folder")
        files |= {name.as_posix(): _read(name) for name in names}
        if (own := (path if path.is_dir() else path.parent) / GROUPS).exists():
            groups |= _read_groups(own)
    return Draft(files, groups)


def store_policies(
    files: PolicyFiles, table: PolicyTable, name: str, text: str, *, replaces: bool = False
) -> Path:
    """Write a file of policies into the state folder, if the whole set is valid with it; returns its path.

    Raises InvalidSettingError, also for another file of this name, unless it ``replaces`` one.
    """
    from retinue.policies.policy_set import load_policies

    path = files.state_folder / FOLDER / name
    texts = files.read_texts()
    key = files.name_of(path)
    if key in texts and texts[key] != text and not replaces:
        raise InvalidSettingError(str(path), "it exists", remedy=f"edit it, or remove it before: rm {path}")
    load_policies({**texts, key: text}, default=table.default, groups=files.load_all(table).groups)
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o600)
    return path


def remove_policies(state_folder: Path, name: str) -> Path:
    """Remove a file of policies from the state folder; returns its path. Raises InvalidSettingError.

    If it was the last one, a file without policies takes its place, because a folder that has lost all its
    files is taken for an accident.
    """
    folder = state_folder / FOLDER
    path = folder / f"{name.removesuffix('.cedar')}.cedar"
    if path.parent != folder or not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.cedar"))) or "none"
        raise InvalidSettingError("NAME", f"no file {path}", remedy=f"files of this state are: {known}")
    with storage_errors(path):
        if list(folder.glob("*.cedar")) == [path]:
            replace_file(folder / "none.cedar", b"// All policies were removed.\n", mode=0o600)
        if path.name != "none.cedar":
            path.unlink()
    return path


def set_mode(state_folder: Path, mode: str | None) -> None:
    """Set what policies do in all processes of the state folder; None = what the settings say."""
    path = state_folder / FOLDER / MODE
    with storage_errors(path):
        if mode is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, f"{mode}\n".encode(), mode=0o600)


def check_policies(table: PolicyTable, state_folder: Path) -> list[Check]:
    """The row of ``retinue doctor``: whether the policies are valid; none where there are no files."""
    files = PolicyFiles.of(state_folder, table)
    try:
        table = files.apply_mode(table)
        count = len(files.list_files())
        policies = files.load(table)
    except RetinueError as error:
        return [Check("policies", "fail", error.message, error.remedy)]
    except Exception as error:  # noqa: BLE001 - the other rows are told all the same
        problem = f"not read: {type(error).__name__}: {str(error)[:200]}"
        return [Check("policies", "fail", problem, "check the files: retinue policy check")]
    if policies is None:
        unused = Check(
            "policies",
            "warn",
            f"policy.mode is off; {count} files are not used",
            "set policy.mode to enforce",
        )
        return [unused] if count else []
    summary = f"{len(policies.policies)} valid; policy.default is {policies.default}"
    if table.mode == "watch":
        return [Check("policies", "warn", f"{summary}; policy.mode is watch: nothing is denied")]
    return [Check("policies", "ok", summary)]


def check_library(paths: Sequence[Path], what: str = "a policy") -> None:
    """Raise InvalidSettingError where the engine of policies is not installed; ``what`` needs it."""
    if find_spec("cedarpy") is None:
        raise InvalidSettingError(
            "policy",
            f"{paths[0] if paths else what} needs cedarpy, which is not installed",
            remedy=explain_install(),
        )


def explain_install(system: str | None = None, machine: str | None = None, libc: str | None = None) -> str:
    """How to install the engine here; on a platform without a wheel of it, that it has none."""
    system, machine = system or platform.system(), (machine or platform.machine()).lower()
    libc = platform.libc_ver()[0] if libc is None else libc
    install = "pip install 'retinue[policy]'"
    if machine in _WHEELS.get(system, ()) and (system != "Linux" or libc == "glibc"):
        return install
    here = f"{system} with {libc or 'another libc than glibc'}" if system == "Linux" else system
    return (
        f"cedarpy has no wheel for {here} on {machine}, but for Linux with glibc (x86_64, aarch64), macOS "
        f"(x86_64, arm64) and Windows (x86_64): use one of these, or install Rust, which builds it: {install}"
    )


def _find_files(root: Path, glob: str) -> list[Path]:
    """The files below a folder that a glob matches.

    Raises InvalidSettingError for a folder that cannot be listed.

    `Path.glob` finds nothing in such a folder, and does not tell.
    """
    paths = [root]
    for part in PurePath(glob).parts:
        is_name = _WILDCARDS.isdisjoint(part)
        for folder in paths:
            _check_folder(folder, is_listed=not is_name)
        if is_name:
            paths = [folder / part for folder in paths]
        else:
            paths = [path for folder in paths for path in folder.glob(part)]
    return [path for path in paths if _is_there(path)]


def _is_there(path: Path) -> bool:
    """Whether there is a file, or a link to one; also where only reading it will tell what is wrong."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _check_folder(folder: Path, *, is_listed: bool) -> None:
    """Raise InvalidSettingError if a folder, or a link to one, cannot be reached or listed."""
    try:
        if not is_listed:
            folder.stat()
            return
        with os.scandir(folder):
            return
    except NotADirectoryError:
        return
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not folder.is_symlink():
            return
        raise InvalidSettingError(
            str(folder), f"its policies cannot be listed: {error}", remedy="make the folder readable"
        ) from error


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidSettingError(
                str(path), f"more than {MAX_FILE_BYTES:,} bytes", remedy="split the file"
            )
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettingError(str(path), str(error), remedy="make it readable, in UTF-8") from error


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises InvalidSettingError."""
    # needed by groups and by cases of tests only
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(_read(path))
    except RecursionError:
        raise InvalidSettingError(
            str(path), "lists within lists are too many", remedy="correct the file"
        ) from None
    except (YAMLError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        # a day that does not exist is a ValueError
        raise InvalidSettingError(str(path), f"not YAML: {error}", remedy="correct the file") from error


def _read_groups(path: Path) -> Mapping[str, Sequence[str]]:
    """The members of each group: ``NAME: [glob of principals, …]``."""
    groups = read_yaml(path) or {}
    remedy = "write NAME: [token:alice, 'jwt:*@example.org']"
    if not isinstance(groups, dict):
        raise InvalidSettingError(str(path), "not a mapping of groups", remedy=remedy)
    for name, members in groups.items():
        is_list = isinstance(members, list) and all(isinstance(member, str) for member in members)
        if not (isinstance(name, str) and is_list):
            raise InvalidSettingError(str(path), f"the group {name!r} is not a list of texts", remedy=remedy)
    # the names in policies have this form, too
    return {
        normalize("NFC", name): [normalize("NFC", glob) for glob in globs] for name, globs in groups.items()
    }
