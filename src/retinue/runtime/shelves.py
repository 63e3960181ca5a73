"""Workflow shelves: a folder of files, or an OCI registry with ``workflows/<name>`` (P-29)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.core.errors import DefinitionError, MalformedArtifactError
from retinue.oci.codec.reference import Reference, choose_tag, is_digest, workflow_repository
from retinue.oci.registry import Registry, list_published
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.workflows.definitions.documents import MAX_TEXT_BYTES
from retinue.workflows.library import Shelf, StoredText

WORKFLOW_FOLDER = "workflows"
"""Subfolder of the state folder that holds custom workflows."""

ENDINGS = (".yaml", ".yml", ".json")

_PREFIX = "workflows/"


class FolderShelf:
    """The workflows of one folder; the name of a workflow is its file's name without the suffix.

    Files are read at each call, so a saved change takes effect at once. A missing folder is empty.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def list_names(self) -> Sequence[str]:
        return await asyncio.to_thread(self._list_names)

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        """As ``Shelf.find_text``; files have no versions. Raises DefinitionError for an unreadable file."""
        if version is not None or not name or Path(name).name != name:
            return None
        return await asyncio.to_thread(self._read, name)

    def _list_names(self) -> Sequence[str]:
        if not self._folder.is_dir():
            return ()
        files = (path for path in self._folder.iterdir() if path.suffix in ENDINGS and path.is_file())
        return sorted({path.stem for path in files if not path.name.startswith(".")})

    def _read(self, name: str) -> StoredText | None:
        path = next((p for p in (self._folder / f"{name}{e}" for e in ENDINGS) if _is_file(p)), None)
        if path is None:
            return None
        # A caller that lists or runs workflows is told the name of the file, but not where the state is.
        shown = f"{self._folder.name}/{path.name}"
        try:
            if path.stat().st_size > MAX_TEXT_BYTES:
                raise ValueError(f"larger than {MAX_TEXT_BYTES // 1024} kB")
            return StoredText(path.read_text("utf-8"), shown, is_own=True)
        except (OSError, ValueError) as error:
            problem = error.strerror if isinstance(error, OSError) else error
            raise DefinitionError(
                f"it cannot be read: {problem}", source=shown, remedy="fix the file"
            ) from None


def _is_file(path: Path) -> bool:
    """Whether there is such a file; a name that is too long for one has none."""
    try:
        return path.is_file()
    except OSError:
        return False


class RegistryShelf:
    """The workflows of one registry, addressable by tag or digest; ``is_own`` = that of this state."""

    def __init__(self, registry: Registry, *, is_own: bool = False) -> None:
        self._registry = registry
        self._is_own = is_own

    async def list_names(self) -> Sequence[str]:
        repositories = await list_published(self._registry)
        return [
            repository.removeprefix(_PREFIX) for repository in repositories if repository.startswith(_PREFIX)
        ]

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        """As ``Shelf.find_text``; raises RegistryError."""
        repository = workflow_repository(name)
        tags = await self._registry.list_tags(repository)
        if not tags:
            return None
        if version is not None and is_digest(version):
            reference = Reference(repository, digest=version)
        else:
            tag = choose_tag(tags, version)
            if tag is None:
                return None
            reference = Reference(repository, tag=tag)
        artifact = await self._registry.pull(reference)
        shown = f"{repository}@{version}" if reference.tag is None else f"{repository}:{reference.tag}"
        if artifact.form != "workflow":
            raise MalformedArtifactError(shown, f"it holds {artifact.media_type}, not a workflow")
        try:
            return StoredText(artifact.content.decode("utf-8"), shown, artifact.digest, self._is_own)
        except UnicodeDecodeError as error:
            raise MalformedArtifactError(shown, "its text is not UTF-8") from error


class TeamShelf:
    """The workflows of the teams that this state runs: `retinue.workflows.library.TeamTexts`.

    ``chosen`` gives the digest of a team, by its mark, of which they are; of others it is the one that lists
    show.
    """

    def __init__(self, state: State, chosen: Mapping[str, str] = {}) -> None:
        self._state = state
        self._chosen = chosen

    def list_teams(self) -> Mapping[str, Sequence[str]]:
        return {name: sorted(places) for name, places in self._find().items()}

    async def find_text(self, name: str, team: str) -> StoredText | None:
        """As ``TeamTexts.find_text``; the digest of the team stands for a version."""
        path = self._find().get(name, {}).get(team)
        if path is None:
            return None
        text = await asyncio.to_thread(path.read_text, "utf-8")
        return StoredText(text, f"teams/{team}/{path.name}", is_own=True, team=team)

    def _find(self) -> dict[str, dict[str, Path]]:
        if not (self._state.root / "teams" / "teams.json").exists():
            return {}
        from retinue.runtime.teams.programs import list_workflows  # only states with teams load this

        return list_workflows(self._state, self._chosen)


def open_shelves(
    settings: Settings, state: State, registries: Mapping[str, Registry], *, own: str
) -> list[Shelf]:
    """The shelves in order of precedence: the folder of custom workflows, then every registry.

    ``own`` is the name of the state's registry.
    """
    folder = settings.workflows.directory or state.root / WORKFLOW_FOLDER
    named = registries.items()
    return [
        FolderShelf(folder),
        *(RegistryShelf(registry, is_own=name == own) for name, registry in named),
    ]
