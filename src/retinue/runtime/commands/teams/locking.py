"""``retinue lock``: writes the locks of dependencies and ``team.lock``, with uv and npm."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from retinue.core.errors import InvalidSettingError
from retinue.processes.environment import fill_variables, select_inherited
from retinue.runtime.commands.teams.import_tools import read_tools
from retinue.runtime.commands.teams.source import TeamSource, read_source, write_lock
from retinue.runtime.teams.environments import (
    Environments,
    read_licences,
    run_installer,
    select_installer_variables,
)
from retinue.runtime.teams.programs import import_command
from retinue.storage.files import make_folder, replace_file, storage_errors
from retinue.team.definition import DATA, LOCK_FILE, TeamAgent, TeamImport
from retinue.team.lock import (
    LOCKS,
    PACKAGE,
    PACKAGE_LOCK,
    PYLOCK,
    LockedAgent,
    LockedImport,
    LockedSkill,
    TeamLock,
    check_access,
    render_lock,
)
from retinue.team.packages import list_packages
from retinue.team.vendored import list_lock_files, parse_pylock

LOCK_WITHIN_S = 300.0
DESCRIBE_WITHIN_S = 60.0

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

_PYTHON = "3.11"
"""The oldest Python for which dependencies are resolved."""


def lock_team(folder: Path, environments: Environments, environ: Mapping[str, str]) -> TeamLock:
    """Lock the team in a folder: resolve its dependencies, read its agents, write ``team.lock``.

    The code of its agents is loaded, in processes of their own. Raises InvalidSettingError for what cannot
    be locked, such as a missing uv or npm, before anything is resolved.
    """
    folder = folder.resolve()
    source = read_source(folder)
    _check_tools(source)
    for agent_folder in sorted({a.folder for a in source.definition.agents if not a.is_markdown}):
        _lock_agent_folder(folder, agent_folder, environ)
    imports = {
        name: _lock_import(folder, name, table, environ) for name, table in source.definition.imports.items()
    }
    imports = {
        name: _read_tools(folder, name, imports[name], table, environments, environ)
        for name, table in source.definition.imports.items()
    }
    source = read_source(folder)
    agents = {
        agent.target: describe_agent(folder, agent, environments, environ)
        for agent in source.definition.agents
    }
    _check_names(agents)
    files = {file.path: file.row.sha256 for file in source.files if file.path != LOCK_FILE}
    lock = TeamLock.model_validate({"schema": 1, "files": files, "agents": agents, "imports": imports})
    check_access(source.definition, lock)
    lock = lock.model_copy(update={"licences": _read_licences(source, lock, environments)})
    write_lock(folder, render_lock(lock))
    return lock


def _read_licences(
    source: TeamSource, lock: TeamLock, environments: Environments
) -> dict[str, dict[str, str]]:
    """What the installed packages of each PEP 751 lock declare, by path of the lock."""
    contents = {file.path: file.content for file in source.files}
    of_agents = {row.lock for row in lock.agents.values()}
    licences = {}
    for path in list_lock_files(lock):
        if path.endswith(PYLOCK):
            python = environments.python_of(contents[path], is_agent=path in of_agents)
            licences[path] = read_licences(python, list_packages(path, contents[path]))
    return {path: rows for path, rows in licences.items() if rows}


def _check_tools(source: TeamSource) -> None:
    """Raise InvalidSettingError for all programs that are missing at once."""
    needs: dict[str, str] = {}
    for agent in source.definition.agents:
        if not agent.is_markdown and _dependencies(source.folder, agent.folder):
            needs.setdefault("uv", f"the dependencies of {agent.folder}")
    for name, table in source.definition.imports.items():
        if table.package is not None:
            needs.setdefault("npm" if table.npm else "uv", f"the import {name}")
    missing = [f"{tool} (for {reason})" for tool, reason in needs.items() if shutil.which(tool) is None]
    if missing:
        raise InvalidSettingError(
            "lock",
            f"missing programs: {', '.join(missing)}",
            remedy="install them: pip install uv; npm with Node.js",
        )


def _dependencies(folder: Path, agent_folder: str) -> list[str]:
    """The dependencies of ``pyproject.toml`` in the folder of an agent, without Retinue itself."""
    path = folder / agent_folder / "pyproject.toml"
    try:
        project = tomllib.loads(path.read_text("utf-8")).get("project", {})
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidSettingError(
            f"{agent_folder}/pyproject.toml", str(error), remedy="correct it"
        ) from error
    names = project.get("dependencies", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        remedy = 'write dependencies = ["httpx>=0.28"]'
        raise InvalidSettingError(
            f"{agent_folder}/pyproject.toml", "its dependencies are no list", remedy=remedy
        )
    own = ("retinue", "retinue[")
    return [
        name
        for name in names
        if name.lower() != "retinue"
        and not name.lower().startswith(
            (own[1], "retinue>", "retinue=", "retinue~", "retinue<", "retinue ", "retinue;")
        )
    ]


def _lock_agent_folder(folder: Path, agent_folder: str, environ: Mapping[str, str]) -> None:
    path = folder / agent_folder / PYLOCK
    dependencies = _dependencies(folder, agent_folder)
    if not dependencies:
        path.unlink(missing_ok=True)
        return
    _compile(path, dependencies, agent_folder, environ)


def _compile(path: Path, requirements: Sequence[str], what: str, environ: Mapping[str, str]) -> None:
    """Write the PEP 751 lock of some requirements: every package with a wheel and its hash."""
    output = path.parent / "pylock.new.toml"
    arguments = (
        *("uv", "pip", "compile", "-", "--format", "pylock.toml", "--output-file", str(output)),
        *("--python", sys.executable, "--python-version", _PYTHON, "--only-binary", ":all:", "--quiet"),
        *("--no-header", "--no-annotate", "--universal"),
    )
    try:
        _run(arguments, path.parent, environ, what, "\n".join(requirements))
        content = output.read_bytes()
    finally:
        output.unlink(missing_ok=True)
    with storage_errors(path):
        replace_file(path, content, mode=0o644)


def _lock_import(folder: Path, name: str, table: TeamImport, environ: Mapping[str, str]) -> LockedImport:
    if table.package is None:
        return LockedImport()
    place = folder / LOCKS / name
    with storage_errors(place):
        make_folder(place)
    if table.pypi is not None:
        _compile(place / PYLOCK, [table.pypi], f"imports.{name}", environ)
        # wheels of an index without HTTPS can be packed with --vendor, so only `up` checks addresses
        count = check_pylock((place / PYLOCK).read_bytes(), table.pypi, f"imports.{name}", has_wheels=True)
        return LockedImport(lock=f"{LOCKS}/{name}/{PYLOCK}", packages=count)
    package, _, version = (table.npm or "").rpartition("@")
    manifest = {"name": f"team-import-{name}", "private": True, "dependencies": {package: version}}
    with storage_errors(place):
        replace_file(place / PACKAGE, orjson.dumps(manifest, option=orjson.OPT_INDENT_2), mode=0o644)
        (place / PACKAGE_LOCK).unlink(missing_ok=True)
    _run(
        ("npm", "install", "--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund"),
        place,
        environ,
        f"imports.{name}",
    )
    count = check_package_lock((place / PACKAGE_LOCK).read_bytes(), package, version, f"imports.{name}")
    return LockedImport(lock=f"{LOCKS}/{name}/{PACKAGE_LOCK}", packages=count)


def _read_tools(
    folder: Path,
    name: str,
    locked: LockedImport,
    table: TeamImport,
    environments: Environments,
    environ: Mapping[str, str],
) -> LockedImport:
    """The import with the tools that its program offers; it is installed and started once for that."""
    if locked.lock is None:
        return locked
    lock = (folder / locked.lock).read_bytes()
    if table.npm is not None:
        environments.make_npm((folder / locked.lock).with_name(PACKAGE).read_bytes(), lock)
    else:
        environments.make_python(lock, is_agent=False)
    with TemporaryDirectory() as data:
        values = {**environ, DATA: data}
        texts = {str(index): text for index, text in enumerate(table.args)}
        command = (*import_command(environments, table, lock), *fill_variables(texts, values).values())
        env = fill_variables(table.env, values)
        reading = read_tools(name, command, env, environ, Path(data), within_s=table.start_s)
        return locked.model_copy(update={"tools": asyncio.run(reading)})


def check_package_lock(content: bytes, package: str, version: str, field: str) -> int:
    """The number of packages of a ``package-lock.json``, each with the hash of its archive.

    An address is one over HTTPS; npm leaves addresses out with ``omit-lockfile-registry-resolved``.
    Raises InvalidSettingError for a lock that would fetch anything else than the named version by hash.
    """
    remedy = "write it again: retinue lock"
    try:
        packages: dict[str, Any] = orjson.loads(content)["packages"]
        rows = {name: row for name, row in packages.items() if name}
        root = rows[f"node_modules/{package}"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidSettingError(field, f"its lock does not have {package}", remedy=remedy) from None
    if root.get("version") != version:
        problem = f"its lock has {package} {str(root.get('version'))[:40]}, not {version}"
        raise InvalidSettingError(field, problem, remedy=remedy)
    for name, row in rows.items():
        address = str(row.get("resolved", "https://"))
        if not str(row.get("integrity", "")).startswith("sha512-") or not address.startswith("https://"):
            raise InvalidSettingError(
                field, f"{name[:80]} has no hash of its archive in the lock", remedy=remedy
            )
    return len(rows)


def check_pylock(content: bytes, requirement: str, field: str, *, has_wheels: bool) -> int:
    """The number of packages of a PEP 751 lock for ``NAME==VERSION``, each of wheels with their hashes.

    The addresses of the wheels are those over HTTPS, unless the digest itself ``has_wheels``.
    Raises InvalidSettingError for a lock that would install anything else than the named version by hash.
    """
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    name, _, version = requirement.partition("==")
    package, remedy = name.partition("[")[0], "write it again: retinue lock"
    packages = parse_pylock(content).packages
    named = [row for row in packages if row.name == canonicalize_name(package)]
    if not named:
        raise InvalidSettingError(field, f"its lock does not have {package}", remedy=remedy)
    for row in named:
        if row.version != Version(version):
            problem = f"its lock has {package} {str(row.version)[:40]}, not {version}"
            raise InvalidSettingError(field, problem, remedy=remedy)
    for row in packages:
        others = (row.vcs, row.directory, row.archive)
        if not row.wheels or any(source is not None for source in others):
            raise InvalidSettingError(field, f"{row.name[:80]} is no wheel in the lock", remedy=remedy)
        for wheel in row.wheels:
            if not _SHA256.fullmatch(str(wheel.hashes.get("sha256", ""))):
                problem = f"{row.name[:80]} has no SHA-256 of a wheel in the lock"
                raise InvalidSettingError(field, problem, remedy=remedy)
            if not has_wheels and not (wheel.url or "").startswith("https://"):
                problem = f"a wheel of {row.name[:80]} has no address with https:// in the lock"
                raise InvalidSettingError(
                    field, problem, remedy="lock it with another index, or pack it with --vendor"
                )
    return len(packages)


def describe_agent(
    folder: Path,
    agent: TeamAgent,
    environments: Environments,
    environ: Mapping[str, str],
    *,
    within_s: float = DESCRIBE_WITHIN_S,
) -> LockedAgent:
    """What an agent offers, asked of a process that loads it. Raises InvalidSettingError."""
    lock = f"{agent.folder}/{PYLOCK}" if not agent.is_markdown else ""
    has_lock = bool(lock) and (folder / lock).exists()
    python = (
        environments.make_python((folder / lock).read_bytes(), is_agent=True) if has_lock else sys.executable
    )
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [str(python), "-m", "retinue.runtime.commands.teams.describe", agent.target],
            cwd=folder,
            env={**select_inherited(environ), "RETINUE_HOME": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        problem = f"it is not loaded within {within_s:g} s"
        remedy = "do less when the module is imported, such as no calls over the network"
        raise InvalidSettingError(f"agents: {agent.target}", problem, remedy=remedy) from None
    try:
        reply = orjson.loads(done.stdout)
    except ValueError:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise InvalidSettingError(
            f"agents: {agent.target}", f"it cannot be loaded: {last[:300]}", remedy="correct it"
        ) from None
    if "error" in reply:
        raise InvalidSettingError(f"agents: {agent.target}", reply["error"], remedy=reply.get("remedy", ""))
    skills = tuple(LockedSkill.model_validate(skill) for skill in reply["skills"])
    return LockedAgent(
        name=reply["name"], version=reply["version"], skills=skills, lock=lock if has_lock else None
    )


def _check_names(agents: Mapping[str, LockedAgent]) -> None:
    targets: dict[str, str] = {}
    for target, agent in agents.items():
        if (other := targets.setdefault(agent.name, target)) != target:
            problem = f"{other} and {target} are both called {agent.name}"
            raise InvalidSettingError("agents", problem, remedy="give one of them another name")


def _run(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str], what: str, text: str = ""
) -> None:
    complaint = run_installer(arguments, folder, select_installer_variables(environ), LOCK_WITHIN_S, text)
    if complaint is not None:
        raise InvalidSettingError(
            what, f"{arguments[0]}: {complaint}", remedy="correct its version, or try again"
        )
