"""Checks the state: its folder, space, keys, database, runs, registry and signatures."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from retinue.core.errors import CardSignatureError, InvalidSettingError, RetinueError, StateError
from retinue.oci.codec.artifacts import find_content_layer
from retinue.oci.codec.manifest import INDEX_TYPE, parse_manifest
from retinue.oci.codec.reference import Reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.source import RegistrySource
from retinue.parts.part import Check
from retinue.runtime.checks.machine import failed
from retinue.runtime.factories import card_verifier
from retinue.settings import Settings
from retinue.storage.run_store import check_encoding
from retinue.storage.runs_file import RunsFile
from retinue.storage.state import State

LOW_SPACE_BYTES = 1024**3
MIN_SPACE_BYTES = 50 * 1024**2


DATABASE_TIMEOUT_S = 3
"""Seconds to connect to the configured database; psycopg takes whole ones."""


def check_folder(state: State) -> Check:
    """Whether the state's folder is there, writable and private, or can be created."""
    if not state.root.exists():
        place = _nearest_folder(state.root)
        below = next(path for path in (state.root, *state.root.parents) if path.parent == place)
        if below.exists():
            return Check(
                "state",
                "fail",
                f"{state.root} cannot be created: {below} is not a folder",
                "move it away, or set RETINUE_HOME",
            )
        if os.access(place, os.W_OK | os.X_OK):
            return Check("state", "ok", f"{state.root} (created when needed)")
        return Check(
            "state", "fail", f"{state.root} cannot be created: {place} is not writable", "set RETINUE_HOME"
        )
    if not state.root.is_dir():
        return Check("state", "fail", f"{state.root} is not a folder", "move it away, or set RETINUE_HOME")
    try:
        with tempfile.TemporaryFile(dir=state.root):
            pass
        return check_privacy(state)
    except OSError as error:
        return Check(
            "state",
            "fail",
            f"{state.root}: {error.strerror}",
            "change its owner or mode (chown, chmod u+rwx), or set RETINUE_HOME",
        )


def check_privacy(state: State) -> Check:
    """Whether other users of this machine can read the state; a folder of an early release may allow it."""
    readable = list(state.list_open_to_others())
    if not readable:
        return Check("state", "ok", f"{state.root} is writable, and accessible to its owner only")
    exposure = f"{readable[0]} is accessible to other users ({readable[0].stat().st_mode & 0o777:o})"
    if len(readable) > 1:
        exposure += f" (and {len(readable) - 1:,} more)"
    return Check("state", "warn", exposure, f"restart the hub, or: chmod -R go= {state.root}")


def check_space(state: State) -> Check:
    """Whether the disk of the state has room."""
    place = _nearest_folder(state.root)
    free = shutil.disk_usage(place).free
    space = f"{free / 1024**3:,.1f} GB free at {place}"
    if free < MIN_SPACE_BYTES:
        return Check("disk", "fail", space, "free some space, or move the state: RETINUE_HOME")
    if free < LOW_SPACE_BYTES:
        return Check("disk", "warn", space, "free some space soon")
    return Check("disk", "ok", space)


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def check_token(state: State) -> Check:
    """Whether the local token is private and readable."""
    return _check_key("local token", state.keys / "local.token", state.local_token)


def check_mesh_key(state: State) -> Check:
    """Whether the mesh key, without which no process starts, is private and readable."""
    return _check_key("mesh key", state.keys / "mesh.key", state.mesh_key)


def _check_key(name: str, path: Path, read: Callable[[], object]) -> Check:
    if not path.exists():
        return Check(name, "ok", "created when needed")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        return Check(name, "fail", f"{path} is accessible to other users ({mode:o})", f"chmod 600 {path}")
    try:
        read()
    except RetinueError as error:
        return failed(name, error)
    return Check(name, "ok", f"{path} is accessible to its owner only ({mode:o})")


def check_database(state: State) -> Check:
    """Whether the database of the directory is intact."""
    path = state.database
    if not path.exists():
        return Check("database", "ok", "created by the first hub")
    remedy = f"stop the hub and move {path.name} away; the next hub rebuilds it from the registries"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)) as connection:
            answer = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return Check("database", "fail", f"{path}: {error}", remedy)
    if answer != "ok":
        return Check("database", "fail", f"{path}: {answer}", remedy)
    return Check("database", "ok", f"{path} is intact")


async def check_runs(settings: Settings, state: State) -> Check:
    """Whether the database of the runs is intact, or answers."""
    if settings.database is not None and not settings.database.startswith("sqlite:"):
        return await check_postgres(settings.database)
    file = RunsFile(state.runs)
    try:
        exists = file.check(thorough=True)
    except StateError as error:
        return failed("runs", error)
    return Check("runs", "ok", f"{file.path} is intact" if exists else "created by the first run")


async def check_postgres(url: str) -> Check:
    """Whether the configured database lets this process in, asked without the engine (slow to load)."""
    import psycopg

    place = url.rpartition("@")[2].partition("?")[0]

    def count_nodes() -> int | None:
        plain = url.replace("postgresql+psycopg:", "postgresql:", 1)
        with psycopg.connect(plain, connect_timeout=DATABASE_TIMEOUT_S) as connection:
            check_encoding(connection.info.parameter_status("server_encoding"))
            row = connection.execute("SELECT to_regclass('retinue.nodes')").fetchone()
            if row is None or row[0] is None:
                return None
            nodes = connection.execute(
                "SELECT count(*) FROM retinue.nodes WHERE expires > extract(epoch from clock_timestamp())"
            ).fetchone()
            return 0 if nodes is None else int(nodes[0])

    try:
        async with asyncio.timeout(2 * DATABASE_TIMEOUT_S):
            nodes = await asyncio.to_thread(count_nodes)
    except TimeoutError:
        problem = f"no answer within {2 * DATABASE_TIMEOUT_S} s"
    except InvalidSettingError as error:
        return failed("runs", error)
    except psycopg.Error as error:
        problem = str(error).strip().splitlines()[0] or type(error).__name__
    else:
        if nodes is None:
            return Check("runs", "ok", f"the database {place} answers; the first run creates its tables")
        return Check("runs", "ok", f"the database {place} answers; {nodes} nodes")
    remedy = "start it, or correct the setting database"
    return Check("runs", "fail", f"the database {place} does not answer: {problem}", remedy)


async def check_signatures(settings: Settings, state: State, home: LayoutRegistry) -> Check:
    """The cards in the state's registry that the policy refuses, and cards with a bad signature."""
    policy = settings.signatures.policy
    reading = await RegistrySource(
        "home", home, verifier=card_verifier(settings.signatures, state)
    ).read_all()
    refused = [problem.error for problem in reading.problems if isinstance(problem.error, CardSignatureError)]
    bad = [listing for listing in reading.listings if listing.signature in ("invalid", "unknown_key")]
    if refused:
        return Check("signatures", "fail", "; ".join(error.message for error in refused), refused[0].remedy)
    if bad:
        named = ", ".join(f"{listing.name} ({listing.signature})" for listing in bad)
        return Check("signatures", "warn", f"without a valid signature: {named}", "publish them again")
    signed = sum(listing.signature == "valid" for listing in reading.listings)
    return Check("signatures", "ok", f"policy {policy}; {signed} of {len(reading.listings)} cards are signed")


async def _verify(home: LayoutRegistry, reference: Reference) -> None:
    """Read an artifact and its content; raises RegistryError and StateDamagedError.

    Teams, signatures and foreign artifacts have no layer with a card or a workflow, so their blobs are read.
    """
    stored = await home.pull_manifest(reference)
    if stored.media_type == INDEX_TYPE:
        return  # it lists manifests, which are read by their own tags
    manifest = parse_manifest(stored.content, where=str(reference))
    if find_content_layer(manifest) is not None:
        await home.pull(reference)
        return
    for layer in manifest.layers:
        await home.pull_blob(reference.repository, layer)


async def check_layouts(home: LayoutRegistry) -> Check:
    """Pull every artifact of the state's registry, which verifies its digests."""
    repositories = await home.list_repositories()
    problems: list[RetinueError] = []
    count = 0
    for repository in repositories:
        try:
            for tag in await home.list_tags(repository):
                await _verify(home, Reference(repository, tag=tag))
                count += 1
        except RetinueError as error:
            problems.append(error)
    if problems:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return Check("registry", "fail", first.message + more, first.remedy)
    return Check("registry", "ok", f"{home.name}: {len(repositories)} repositories, {count} tags, verified")
