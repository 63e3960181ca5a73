"""A team as an OCI artifact: one image manifest, a config of canonical JSON, one tar layer for each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import rfc8785

from retinue.core.errors import InvalidSettingError, TeamRefusedError
from retinue.oci.codec.artifacts import Package
from retinue.oci.codec.manifest import MANIFEST_TYPE, TITLE, Descriptor, Manifest, describe, render_manifest
from retinue.oci.codec.reference import digest_of
from retinue.team.definition import TeamDefinition, read_definition
from retinue.team.files import (
    ARCHIVES_LAYER,
    LAYERS,
    WHEELS_LAYER,
    FileRow,
    TeamFile,
    find_list_problem,
)
from retinue.team.layers import read_layer, render_layer
from retinue.team.lock import TeamLock, check_access, find_misfit, read_lock

ARTIFACT_TYPE = "application/vnd.retinue.team.v1"
CONFIG_TYPE = "application/vnd.retinue.team.config.v1+json"
MAX_CONFIG_BYTES = 16 * 1024 * 1024

MAX_CONFIG_DEPTH = 200
"""Schemas of skills have a few levels; readers call themselves for each one."""

PREFIX = "teams/"
"""The repositories of teams."""

_SCHEMA = 1
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Team:
    """The contents of a config: definition, lock and list of files of one digest."""

    digest: str
    definition: TeamDefinition
    lock: TeamLock
    files: tuple[FileRow, ...]

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def version(self) -> str:
        return self.definition.version

    @property
    def names(self) -> frozenset[str]:
        """The names of its agents and imports, by which the mesh calls them."""
        return list_names(self.definition, self.lock)

    @property
    def agent_names(self) -> frozenset[str]:
        """The names of its agents."""
        return frozenset(locked.name for locked in self.lock.agents.values())

    @property
    def claims(self) -> frozenset[str]:
        """The full names of its agents and imports, which no other team has."""
        return frozenset(map(self.full_name, self.names))

    def full_name(self, name: str) -> str:
        """``NAME@TEAM`` for an agent or import of the team; any other name as it is."""
        return f"{name}@{self.name}" if name in self.names else name

    @property
    def policies(self) -> list[str]:
        """The paths of the files of policies."""
        return [row.path for row in self.files if row.layer == "policies" and row.path.endswith(".cedar")]

    @property
    def traces(self) -> list[str]:
        """The paths of the recorded traces."""
        return [row.path for row in self.files if row.layer == "traces"]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(row.size_bytes for row in self.files)

    @property
    def is_vendored(self) -> bool:
        """Whether it has the packages of its locks, so that no index is asked for them."""
        return any(row.layer in (WHEELS_LAYER, ARCHIVES_LAYER) for row in self.files)

    @property
    def workflows(self) -> dict[str, str]:
        """The paths of the workflows by their names, which are those of their files."""
        paths = [row.path for row in self.files if row.layer == "workflows"]
        return {path.rpartition("/")[2].rpartition(".")[0]: path for path in paths}

    @property
    def workflow_names(self) -> frozenset[str]:
        """The names by which its workflows are started: plain, and ``NAME@TEAM``."""
        return frozenset(shown for name in self.workflows for shown in (name, f"{name}@{self.name}"))


def list_names(definition: TeamDefinition, lock: TeamLock) -> frozenset[str]:
    """The names of the agents and imports of a team, by which the mesh calls them."""
    return frozenset({*(locked.name for locked in lock.agents.values()), *definition.imports})


def layer_type(layer: str) -> str:
    """The media type of the layer of this kind."""
    return f"application/vnd.retinue.team.{layer}.v1.tar"


def pack_team(definition: TeamDefinition, lock: TeamLock, files: Sequence[TeamFile]) -> Package:
    """The artifact of a team. Equal content gives equal bytes; nothing of the machine or the time is in them.

    Raises InvalidSettingError for files that no reader accepts.
    """
    rows = sorted((file.row for file in files), key=lambda row: row.path.encode())
    if problem := find_list_problem(rows):
        raise InvalidSettingError(
            "team", problem, remedy="move it out of the folder of its agent, or rename it"
        )
    config = render_config(definition, lock, rows)
    layers: list[Descriptor] = []
    blobs = {digest_of(config): config}
    for layer in LAYERS:
        if members := [file for file in files if file.layer == layer]:
            archive = render_layer(members)
            descriptor = describe(archive, layer_type(layer), title=f"{layer}.tar")
            layers.append(descriptor)
            blobs[descriptor.digest] = archive
    manifest = Manifest(
        describe(config, CONFIG_TYPE),
        tuple(layers),
        ARTIFACT_TYPE,
        {TITLE: definition.name, "org.opencontainers.image.version": definition.version},
        MANIFEST_TYPE,
    )
    content = render_manifest(manifest)
    return Package(manifest, content, digest_of(content), blobs)


def render_config(definition: TeamDefinition, lock: TeamLock, rows: Sequence[FileRow]) -> bytes:
    """The canonical JSON of a definition, its lock and its list of files."""
    files: list[dict[str, Any]] = [
        {"path": row.path, "layer": row.layer, "size": row.size_bytes, "sha256": row.sha256} for row in rows
    ]
    return rfc8785.dumps(
        {"schema": _SCHEMA, "team": definition.as_json(), "lock": lock.as_json(), "files": files}
    )


def check_manifest(manifest: Manifest, *, where: str) -> None:
    """Raise TeamRefusedError unless the manifest is that of a team, with layers in their form."""
    if manifest.artifact_type != ARTIFACT_TYPE or manifest.config.media_type != CONFIG_TYPE:
        shown = (manifest.artifact_type or manifest.config.media_type)[:80]
        raise TeamRefusedError("not_a_team", where, f"it is {shown}, not a team")
    if manifest.config.size_bytes > MAX_CONFIG_BYTES:
        raise TeamRefusedError("too_large", where, f"its config is over {MAX_CONFIG_BYTES:,} bytes")
    types = [layer.media_type for layer in manifest.layers]
    if types != [layer_type(layer) for layer in LAYERS if layer_type(layer) in types]:
        raise TeamRefusedError("not_a_team", where, "its layers are not those of a team in their order")


def open_team(manifest: Manifest, config: bytes, *, digest: str, where: str) -> Team:
    """The team of a manifest and its config, of which every field is checked.

    Raises TeamRefusedError for a config that the digest does not name, or that `pack_team` does not write.
    """
    check_manifest(manifest, where=where)
    if digest_of(config) != manifest.config.digest:
        raise TeamRefusedError("changed", where, "its config does not have the digest of the manifest")
    team = read_config(config, digest=digest, where=where)
    layers = {row.layer for row in team.files}
    if [layer_type(layer) for layer in LAYERS if layer in layers] != [
        layer.media_type for layer in manifest.layers
    ]:
        raise TeamRefusedError("changed", where, "its layers are not those of its list of files")
    if manifest.annotations.get(TITLE) != team.name:
        raise TeamRefusedError("changed", where, "the title of its manifest is not the name of the team")
    return team


def read_config(config: bytes, *, digest: str, where: str, is_installed: bool = False) -> Team:
    """The team in the bytes of a config; an installed one may have a name with a dot, as earlier ones had.

    Raises TeamRefusedError.
    """
    try:
        document = orjson.loads(config)
        if _is_deeper(document, MAX_CONFIG_DEPTH):
            raise ValueError(f"its config is nested over {MAX_CONFIG_DEPTH} levels deep")
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise ValueError("its schema is not 1; a newer Retinue may read it")
        if rfc8785.dumps(document) != config:
            raise ValueError("its config is not canonical JSON")
        definition = read_definition(document["team"], where="config: team", is_installed=is_installed)
        lock = read_lock(document["lock"], where="config: lock")
        rows = tuple(_row_of(row) for row in document["files"])
        if not is_installed:
            check_access(definition, lock)
    except InvalidSettingError as error:
        raise TeamRefusedError("not_a_team", where, error.message) from error
    except (*_UNREADABLE, rfc8785.CanonicalizationError) as error:
        problem = str(error) if type(error) is ValueError else "its config cannot be read"
        raise TeamRefusedError("not_a_team", where, problem) from error
    if problem := find_list_problem(rows):
        raise TeamRefusedError("path_refused", where, problem)
    if problem := find_misfit(definition, lock, rows):
        raise TeamRefusedError("not_a_team", where, problem)
    return Team(digest, definition, lock, rows)


def read_files(
    team: Team, layers: Mapping[str, bytes], *, where: str, kinds: Sequence[str] = LAYERS
) -> list[TeamFile]:
    """The checked files of a team; ``layers`` are the archives by kind. Raises TeamRefusedError."""
    files: list[TeamFile] = []
    for layer in kinds:
        rows = [row for row in team.files if row.layer == layer]
        if rows:
            files += read_layer(layers.get(layer, b""), rows, where=where)
    return files


def layers_by_kind(manifest: Manifest) -> dict[str, Descriptor]:
    """The descriptors of the layers by kind. Raises TeamRefusedError."""
    kinds = {layer_type(layer): layer for layer in LAYERS}
    return {kinds[descriptor.media_type]: descriptor for descriptor in manifest.layers}


def _is_deeper(document: Any, limit: int) -> bool:
    level = [document]
    for _ in range(limit):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


def _row_of(row: Any) -> FileRow:
    path, layer, size_bytes, sha256 = row["path"], row["layer"], row["size"], row["sha256"]
    if not (isinstance(path, str) and isinstance(layer, str) and isinstance(sha256, str)):
        raise TypeError("a row of files")
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool):
        raise TypeError("a row of files")
    return FileRow(path, layer, size_bytes, sha256)


def team_repository(name: str) -> str:
    """The repository of a team: ``teams/NAME``."""
    return f"{PREFIX}{name}"
