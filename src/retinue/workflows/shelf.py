"""Where stored workflows are found by name: the built-in ones, then those of folders and registries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from retinue.core.errors import RetinueError, UnknownWorkflowError
from retinue.mesh.suggest import suggest
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import Loaded, list_builtins, load, load_builtin

Origin = Literal["built-in", "custom"]


@dataclass(frozen=True, slots=True)
class StoredText:
    """The text of one stored workflow, the reference it came from, and its digest where it has one."""

    text: str
    reference: str
    digest: str | None = None


class Shelf(Protocol):
    """A place that keeps workflow texts by name."""

    async def list_names(self) -> Sequence[str]:
        """The names that are kept here; raises RegistryError."""

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        """The text of this name, of a tag or a digest if ``version`` is one; None when it is not here.

        Raises RegistryError.
        """


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored workflow: its name, where it is from, and its definition or why there is none."""

    name: str
    origin: Origin
    definition: Definition | None
    problem: RetinueError | None = None


class Library:
    """All stored workflows; a built-in name cannot be taken over by a folder or a registry."""

    def __init__(self, shelves: Sequence[Shelf] = ()) -> None:
        self._shelves = tuple(shelves)

    async def get(self, reference: str) -> Loaded:
        """The workflow ``name``, ``name@tag`` or ``name@sha256:…``.

        Raises UnknownWorkflowError, DefinitionError, RegistryError.
        """
        name, _, version = reference.partition("@")
        if name in list_builtins() and not version:
            return load_builtin(name)
        for shelf in self._shelves:
            stored = await shelf.find_text(name, version or None)
            if stored is not None:
                return load(stored.text, source=stored.reference, digest=stored.digest)
        known = [*list_builtins(), *[one.name for one in await self.list_all() if one.origin == "custom"]]
        raise UnknownWorkflowError(reference, near=suggest(name, [one for one in known if one != reference]))

    async def list_all(self) -> list[Stored]:
        """Every stored workflow; one that cannot be read is listed with its problem."""
        found = [Stored(name, "built-in", load_builtin(name).definition) for name in list_builtins()]
        seen = {one.name for one in found}
        for shelf in self._shelves:
            try:
                names = await shelf.list_names()
            except RetinueError as error:
                found.append(Stored("(registry)", "custom", None, error))
                continue
            for name in names:
                if name not in seen:
                    seen.add(name)
                    found.append(await self._read(shelf, name))
        return found

    @staticmethod
    async def _read(shelf: Shelf, name: str) -> Stored:
        try:
            stored = await shelf.find_text(name)
            if stored is None:
                raise UnknownWorkflowError(name)
            return Stored(name, "custom", load(stored.text, source=stored.reference).definition)
        except RetinueError as error:
            return Stored(name, "custom", None, error)
