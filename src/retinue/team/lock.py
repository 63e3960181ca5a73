"""``team.lock``: the hashes of all files of a team, and what its agents and imports offer.

The file is JSON with sorted keys, so that a review shows what changed. It has no dates and no paths of a
machine, and is part of the digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retinue.core.errors import InvalidSettingError
from retinue.core.text import suggest
from retinue.team.definition import LOCK_FILE, TeamDefinition
from retinue.team.files import FileRow, TeamFile

MAX_LOCK_BYTES = 8 * 1024 * 1024

LOCKS = "locks"
"""The folder of the lock files of imports, below that of ``team.toml``."""

PYLOCK = "pylock.toml"
PACKAGE_LOCK = "package-lock.json"
PACKAGE = "package.json"

_REMEDY = "write it again: retinue lock"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LockedSkill(_Table):
    """A skill of an agent or a tool of an import as it was when the team was locked."""

    id: str
    description: str = ""
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None


class LockedAgent(_Table):
    """What an agent is called and offers; ``lock`` is the path of its PEP 751 lock, if it has one."""

    name: str
    version: str | None = None
    skills: tuple[LockedSkill, ...] = ()
    lock: str | None = None


class LockedImport(_Table):
    """The lock of a program from npm or PyPI, its number of packages, and the tools that it offers."""

    lock: str | None = None
    packages: int = 0
    tools: tuple[LockedSkill, ...] = ()


class TeamLock(_Table):
    """All of ``team.lock``: files by path, agents by target, imports by name.

    ``licences`` are those that Python packages declare, by path of their PEP 751 lock and name; a lock of
    npm has them itself.
    """

    schema_version: int = Field(1, alias="schema", ge=1, le=1)
    files: Mapping[str, Sha256] = {}
    agents: Mapping[str, LockedAgent] = {}
    imports: Mapping[str, LockedImport] = {}
    licences: Mapping[str, Mapping[str, str]] = {}

    def find_change(self, files: Sequence[TeamFile]) -> str:
        """How the files differ from the locked ones, as a sentence without its end; "" if they do not."""
        present = {file.path: file.row.sha256 for file in files if file.path != LOCK_FILE}
        if missing := sorted(self.files.keys() - present.keys()):
            return f"{missing[0]} is locked and missing"
        if new := sorted(present.keys() - self.files.keys()):
            return f"{new[0]} is not locked"
        changed = sorted(path for path, sha256 in present.items() if self.files[path] != sha256)
        return f"{changed[0]} has changed since it was locked" if changed else ""

    def as_json(self) -> dict[str, Any]:
        """The lock as JSON."""
        document = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        if not self.licences:
            del document["licences"]
        return document


def parse_lock(content: bytes, *, where: str = LOCK_FILE) -> TeamLock:
    """The lock in the bytes of a file. Raises InvalidSettingError."""
    if len(content) > MAX_LOCK_BYTES:
        raise InvalidSettingError(where, f"it is over {MAX_LOCK_BYTES:,} bytes", remedy=_REMEDY)
    try:
        document = orjson.loads(content)
    except ValueError:
        raise InvalidSettingError(where, "it is not JSON", remedy=_REMEDY) from None
    return read_lock(document, where=where)


def read_lock(document: Any, *, where: str) -> TeamLock:
    """The lock in a parsed document. Raises InvalidSettingError."""
    try:
        return TeamLock.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    raise InvalidSettingError(f"{where}: {place}", first["msg"], remedy=_REMEDY)


def render_lock(lock: TeamLock) -> bytes:
    """The bytes of ``team.lock``."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(lock.as_json(), option=options)


def find_misfit(definition: TeamDefinition, lock: TeamLock, rows: Iterable[FileRow]) -> str:
    """How definition, lock and list of files do not fit together, as a sentence; "" where they do.

    A lock names what the definition has, and lock files by the paths at which ``retinue lock`` writes them.
    """
    if lock.agents.keys() != {agent.target for agent in definition.agents}:
        return "its lock has other agents than its definition"
    if lock.imports.keys() != definition.imports.keys():
        return "its lock has other imports than its definition"
    needed: dict[str, str] = {}
    for agent in definition.agents:
        needed[agent.path] = "prompts" if agent.is_markdown else "agents"
        path = lock.agents[agent.target].lock
        if path is not None:
            if agent.is_markdown or path != f"{agent.folder}/{PYLOCK}":
                return f"the lock of {lock.agents[agent.target].name} is at {path[:80]!r}"
            needed[path] = "agents"
    for name, table in definition.imports.items():
        if table.openapi is not None:
            needed[table.openapi] = "documents"
        files = () if table.package is None else (PACKAGE_LOCK, PACKAGE) if table.npm else (PYLOCK,)
        paths = [f"{LOCKS}/{name}/{file}" for file in files]
        if lock.imports[name].lock != (paths[0] if paths else None):
            return f"the lock of {name} is at {str(lock.imports[name].lock)[:80]!r}"
        needed.update(dict.fromkeys(paths, "imports"))
    present = {(row.path, row.layer) for row in rows}
    absent = [path for path, layer in needed.items() if (path, layer) not in present]
    return f"its list has no {absent[0]}" if absent else ""


def check_access(definition: TeamDefinition, lock: TeamLock) -> None:
    """Raise InvalidSettingError for access of a name that no agent and no model of the team has."""
    names = sorted({*(agent.name for agent in lock.agents.values()), *definition.llm})
    for name in sorted(definition.access.keys() - {*names}):
        near = suggest(name, names, limit=1)
        remedy = f"did you mean {near[0]}?" if near else f"the agents are {', '.join(names)}"
        raise InvalidSettingError(f"access.{name[:80]}", "the team has no agent of this name", remedy=remedy)
