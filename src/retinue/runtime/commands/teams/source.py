"""Reads the folder of a team: ``team.toml`` and the files that it names, each with its layer."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from retinue.core.errors import InvalidSettingError
from retinue.guards.sensitive import find_sensitive
from retinue.storage.files import replace_file, storage_errors
from retinue.team.definition import FILE, LOCK_FILE, TeamDefinition, TeamSchedule, parse_definition
from retinue.team.files import MAX_FILE_BYTES, MAX_FILES, TeamFile, find_list_problem, find_path_problem
from retinue.team.from_config import CONFIG_FILE, Conversion, convert_config, holds_credential
from retinue.team.lock import LOCKS, PACKAGE_LOCK, PYLOCK, TeamLock, parse_lock
from retinue.team.trace import FOLDER as TRACES
from retinue.team.trace import parse_trace

_IGNORED = frozenset(
    {
        *("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".venv", "venv", "node_modules"),
        *(".git", ".hg", ".svn", ".idea", ".vscode", ".DS_Store", ".retinue"),
    }
)
_IGNORED_ENDINGS = (".pyc", ".pyo", ".swp", "~")
_GENERATED = frozenset({LOCK_FILE, PYLOCK, PACKAGE_LOCK})
_MIN_SECRET_CHARS = 8


@dataclass(frozen=True, slots=True)
class TeamSource:
    """A team in a folder: its definition and the files that belong to it."""

    folder: Path
    definition: TeamDefinition
    files: tuple[TeamFile, ...]

    @property
    def workflows(self) -> dict[str, str]:
        """The paths of the workflows by their names."""
        paths = [file.path for file in self.files if file.layer == "workflows"]
        return {path.rpartition("/")[2].rpartition(".")[0]: path for path in paths}

    def read_lock(self) -> TeamLock:
        """The lock, which must fit the files. Raises InvalidSettingError."""
        content = next((file.content for file in self.files if file.path == LOCK_FILE), None)
        if content is None:
            raise InvalidSettingError(LOCK_FILE, "it is missing", remedy="write it: retinue lock")
        lock = parse_lock(content)
        if change := lock.find_change(self.files):
            raise InvalidSettingError(
                LOCK_FILE, change, remedy="look at the change, then write it: retinue lock"
            )
        return lock

    def check_secrets(self, environ: Mapping[str, str]) -> None:
        """Refuse files that hold a token of a known form, or the value of a declared secret.

        So are URLs with a password in ``team.toml``. Raises InvalidSettingError, which names the place and
        never the value.
        """
        definition = self.definition
        addresses = {
            f"imports.{name}": [text for text in (table.url, table.a2a, table.server) if text is not None]
            for name, table in definition.imports.items()
        }
        addresses |= {f"llm.{name}": [table.base_url or ""] for name, table in definition.llm.items()}
        for place, texts in (*definition.list_texts(), *addresses.items()):
            if any(map(holds_credential, texts)):
                remedy = 'name it in [secrets] of team.toml and write "${NAME}" in its place'
                raise InvalidSettingError(f"{FILE}: {place}", "it has a URL with a password", remedy=remedy)
        values = {name: environ.get(name, "") for name in self.definition.secrets}
        for file in self.files:
            if file.path.rpartition("/")[2] in _GENERATED:
                continue
            text = file.content.decode("utf-8", "replace")
            for name, value in values.items():
                if len(value) >= _MIN_SECRET_CHARS and value in text:
                    raise _secret_inside(file.path, text.index(value), text, f"the value of {name}")
            if (finding := next(iter(find_sensitive(text, {"key"})), None)) is not None:
                raise _secret_inside(file.path, finding.start, text, "a key or password")


def read_source(folder: Path) -> TeamSource:
    """The team in a folder. Raises InvalidSettingError for a file that no digest may have."""
    content = _read_file(folder, FILE)
    definition = parse_definition(content)
    files = [TeamFile(FILE, "team", content)]
    if (folder / LOCK_FILE).exists():
        files.append(TeamFile(LOCK_FILE, "team", _read_file(folder, LOCK_FILE)))
    files += _read_all(folder, definition)
    unique = {file.path: file for file in reversed(files)}
    ordered = tuple(sorted(unique.values(), key=lambda file: file.path.encode()))
    if problem := find_list_problem(file.row for file in ordered):
        raise InvalidSettingError(
            "team", problem, remedy="rename it, or move it out of the folder of its agent"
        )
    source = TeamSource(folder, definition, ordered)
    _check_workflows(source)
    return source


def _read_all(folder: Path, definition: TeamDefinition) -> Iterator[TeamFile]:
    for agent in definition.agents:
        if agent.is_markdown:
            yield TeamFile(agent.path, "prompts", _read_file(folder, agent.path, f"agents: {agent.target}"))
        else:
            _read_file(folder, agent.path, f"agents: {agent.target}")
            for path in _walk(folder, agent.folder):
                yield TeamFile(path, "agents", _read_file(folder, path))
    for glob in definition.workflows.files:
        for path in _find(folder, glob, "workflows.files"):
            yield TeamFile(path, "workflows", _read_file(folder, path))
    for glob in ("policies/*.cedar", "policies/tests/*.yaml"):
        for path in _find(folder, glob, "policies"):
            yield TeamFile(path, "policies", _read_file(folder, path))
    for path in _find(folder, f"{TRACES}/*.json", TRACES):
        content = _read_file(folder, path)
        parse_trace(content, where=path)
        yield TeamFile(path, "traces", content)
    for name, table in definition.imports.items():
        if table.openapi is not None:
            document = _read_file(folder, table.openapi, f"imports.{name}.openapi")
            yield TeamFile(table.openapi, "documents", document)
        if table.package is not None and (folder / LOCKS / name).is_dir():
            for path in _walk(folder, f"{LOCKS}/{name}"):
                yield TeamFile(path, "imports", _read_file(folder, path))


def _walk(root: Path, folder: str) -> Iterator[str]:
    """The paths of the files below a folder, without those that tools leave behind."""
    count = 0
    for name in sorted(place.name for place in (root / folder).iterdir()):
        path = f"{folder}/{name}"
        if name in _IGNORED or name.endswith(_IGNORED_ENDINGS):
            continue
        status = (root / path).lstat()
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, path)
            continue
        if not stat.S_ISREG(status.st_mode):
            kind = "a link" if stat.S_ISLNK(status.st_mode) else "no plain file"
            raise InvalidSettingError(
                path, f"it is {kind}", remedy="a team has plain files only: copy its content"
            )
        if problem := find_path_problem(path):
            raise InvalidSettingError(path, f"the path {problem}", remedy="rename it, or move it elsewhere")
        count += 1
        if count > MAX_FILES:
            raise InvalidSettingError(folder, f"it has over {MAX_FILES:,} files", remedy="leave some out")
        yield path


def _find(root: Path, glob: str, field: str) -> Iterable[str]:
    if glob.startswith("/") or ".." in glob.split("/"):
        raise InvalidSettingError(field, f"{glob[:60]!r} leaves the folder", remedy="write a path below it")
    return [path.relative_to(root).as_posix() for path in sorted(root.glob(glob)) if path.is_file()]


def _read_file(root: Path, path: str, field: str = "") -> bytes:
    """The content of a plain file below ``root``, to which no link leads."""
    place = root / path
    try:
        status = place.lstat()
        is_plain = stat.S_ISREG(status.st_mode) and place.resolve().is_relative_to(root.resolve())
        if not is_plain:
            raise InvalidSettingError(
                field or path, f"{path} is a link or no file", remedy="copy its content"
            )
        if status.st_size > MAX_FILE_BYTES:
            problem = f"{path} has {status.st_size:,} bytes; a file has at most {MAX_FILE_BYTES:,}"
            raise InvalidSettingError(
                field or path, problem, remedy="leave it out, or pass it as an artifact"
            )
        return place.read_bytes()
    except FileNotFoundError:
        remedy = "begin a team: retinue new --team NAME" if path == FILE else "check the path"
        raise InvalidSettingError(field or path, f"no file {place}", remedy=remedy) from None
    except OSError as error:
        raise InvalidSettingError(field or path, f"{error.strerror}", remedy="check the file") from error


def _check_workflows(source: TeamSource) -> None:
    # loads YAML and CEL, which other commands do not need
    from retinue.workflows.definitions.loading import load_definition

    for file in source.files:
        if file.layer == "workflows":
            name = load_definition(file.content.decode("utf-8", "replace"), source=file.path).name
            stem = file.path.rpartition("/")[2].rpartition(".")[0]
            if name != stem:
                problem = f"the workflow is called {name}, its file {stem}"
                raise InvalidSettingError(file.path, problem, remedy="give both one name")
    named = [("check.workflow", source.definition.check.workflow)]
    named += [
        (f"schedules.{number}.workflow", schedule.workflow)
        for number, schedule in enumerate(source.definition.schedules)
    ]
    for field, workflow in named:
        if workflow is not None and workflow not in source.workflows:
            known = ", ".join(sorted(source.workflows)) or "none"
            raise InvalidSettingError(field, f"no workflow {workflow}; there is {known}", remedy="name one")
    for number, schedule in enumerate(source.definition.schedules):
        _check_schedule(source, schedule, f"schedules.{number}")


def _check_schedule(source: TeamSource, schedule: TeamSchedule, field: str) -> None:
    """Raise InvalidSettingError unless the keys of the team and those of the workflow make a schedule."""
    from pydantic import ValidationError

    from retinue.workflows.definitions.loading import load_definition
    from retinue.workflows.definitions.starts import Schedule

    content = next(file.content for file in source.files if file.path == source.workflows[schedule.workflow])
    own = load_definition(content.decode("utf-8", "replace"), source=schedule.workflow).schedule
    rule = {} if own is None else own.model_dump(exclude_defaults=True)
    if schedule.cron is not None or schedule.every is not None:
        rule = {key: value for key, value in rule.items() if key not in ("cron", "every")}
    try:
        Schedule.model_validate({**rule, **schedule.rule})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = first["msg"].removeprefix("Value error, ")
        remedy = 'give it cron = "0 3 * * *" or every = "15m"'
        raise InvalidSettingError(field, problem, remedy=remedy) from None


def _secret_inside(path: str, position: int, text: str, what: str) -> InvalidSettingError:
    line = text.count("\n", 0, position) + 1
    remedy = 'name it in [secrets] of team.toml and write "${NAME}" in its place'
    return InvalidSettingError(f"{path}, line {line}", f"it holds {what}", remedy=remedy)


def convert_settings(folder: Path) -> Conversion:
    """Write the ``team.toml`` of the settings in a folder, whose name is that of the team.

    Raises InvalidSettingError for a folder that has one, and for settings of which no team can be made.
    """
    path = folder / FILE
    if path.exists():
        raise InvalidSettingError(FILE, f"{path} exists", remedy="edit it, or move it away")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    conversion = convert_config(
        _read_file(folder, CONFIG_FILE), name if name[:1].isalpha() else f"team-{name}"
    )
    with storage_errors(path):
        replace_file(path, conversion.text.encode(), mode=0o644)
    return conversion


def write_lock(folder: Path, content: bytes) -> None:
    """Write ``team.lock``. Raises StateError."""

    path = folder / LOCK_FILE
    with storage_errors(path):
        replace_file(path, content, mode=0o644)
