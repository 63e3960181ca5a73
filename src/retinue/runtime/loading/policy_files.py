"""Reads the files of policies: ``*.cedar`` and ``groups.yaml`` in the state folder and the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retinue.core.errors import InvalidSettingError
from retinue.parts.part import Check
from retinue.settings import find_settings_file
from retinue.settings_tables import PolicyTable

if TYPE_CHECKING:
    from retinue.policies.policy_set import PolicySet

FOLDER = "policies"
GROUPS = "groups.yaml"

MAX_FILE_BYTES = 1024 * 1024

Snapshot = tuple[tuple[str, int, int], ...]
"""Path, time of change in ns and size of each file."""


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
        """The files that exist: policies, and the groups beside them."""
        paths = {*(self.state_folder / FOLDER).glob("*.cedar")}
        if self.project is not None:
            for glob in self.globs:
                paths.update(path for path in self.project.glob(glob) if path.suffix == ".cedar")
        groups = {path.parent / GROUPS for path in paths}
        return sorted([*paths, *(path for path in groups if path.is_file())])

    def look(self) -> Snapshot:
        """What changes when a file changes. A file that vanishes meanwhile is not in it."""
        rows: list[tuple[str, int, int]] = []
        for path in self.list_files():
            try:
                stat = path.stat()
            except OSError:
                continue
            rows.append((str(path), stat.st_mtime_ns, stat.st_size))
        return tuple(rows)

    def load(self, table: PolicyTable) -> PolicySet | None:
        """The policies in force; None where there are none and calls are allowed by default.

        Raises InvalidSettingError for files that cannot be read or are not valid.
        """
        if table.mode == "off" or not (self.list_files() or table.default == "deny"):
            return None
        return self.load_all(table)

    def load_all(self, table: PolicyTable) -> PolicySet:
        """The policies, also where they are switched off. Raises InvalidSettingError."""
        paths = self.list_files()
        check_library(paths)
        from retinue.policies.policy_set import load_policies

        groups: dict[str, Sequence[str]] = {}
        for path in paths:
            if path.name == GROUPS:
                groups.update(_read_groups(path))
        return load_policies(self.read_texts(), default=table.default, groups=groups)

    def read_texts(self) -> dict[str, str]:
        """The texts of the files by their names. Raises InvalidSettingError."""
        return {_name(path, self): _read(path) for path in self.list_files() if path.suffix == ".cedar"}

    def list_cases(self) -> list[Path]:
        """The files of cases: ``tests/*.yaml`` beside policies."""
        folders = {path.parent for path in self.list_files()}
        return sorted(path for folder in folders for path in (folder / "tests").glob("*.yaml"))


def check_policies(table: PolicyTable, state_folder: Path) -> list[Check]:
    """The row of ``retinue doctor``: whether the policies are valid; none where there are no files."""
    files = PolicyFiles.of(state_folder, table)
    try:
        policies = files.load(table)
    except InvalidSettingError as error:
        return [Check("policies", "fail", error.message, error.remedy)]
    if policies is None:
        count = len(files.list_files())
        unused = Check(
            "policies",
            "warn",
            f"policy.mode is off; {count} files are not used",
            "set policy.mode to enforce",
        )
        return [unused] if count else []
    found = f"{len(policies.policies)} valid; policy.default is {policies.default}"
    if table.mode == "watch":
        return [Check("policies", "warn", f"{found}; policy.mode is watch: nothing is denied")]
    return [Check("policies", "ok", found)]


def check_library(paths: Sequence[Path]) -> None:
    """Raise InvalidSettingError where the engine of policies is not installed."""
    if find_spec("cedarpy") is None:
        what = f"{paths[0]} needs" if paths else "policy.default needs"
        raise InvalidSettingError(
            "policy",
            f"{what} cedarpy, which is not installed",
            remedy="pip install 'retinue[policy]'; there are wheels for Linux with glibc, macOS and Windows",
        )


def _name(path: Path, files: PolicyFiles) -> str:
    """The name of a file in messages, which does not depend on the machine."""
    for root in (files.state_folder, files.project):
        if root is not None and path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return path.as_posix()


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
    except YAMLError as error:
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
    return groups
