"""A workflow together with those that it runs: all read and checked before the first step.

A run stores what it is given and reads nothing later, so that a resumed one runs the same steps. Here
cycles and depth are refused too, with the line of the step that closes or deepens the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retinue.core.errors import DefinitionError, RetinueError
from retinue.workflows.caching import cache_key
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.definitions.step_checks import iterate_places
from retinue.workflows.shelf import Library

MAX_WORKFLOW_DEPTH = 5
MAX_NESTED_WORKFLOWS = 50


@dataclass(frozen=True, slots=True)
class Bundle:
    """A definition, and those that its ``workflow`` steps name, by that name.

    ``nested``: reference → ``{"definition": canonical JSON, "digest": …}``.
    """

    loaded: Loaded
    nested: Mapping[str, Any] = field(default_factory=dict)


async def bundle(library: Library, loaded: Loaded) -> Bundle:
    """Read all workflows that a definition runs, theirs included.

    Raises DefinitionError for one that is unknown, wrong, in a circle or too deep; RegistryError.
    """
    gathering = _Gathering(library)
    await gathering.visit(loaded, ((loaded.definition.name, _key_of(loaded)),))
    return Bundle(loaded, gathering.found)


class _Gathering:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._done: set[str] = set()
        self.found: dict[str, Any] = {}

    async def visit(self, loaded: Loaded, chain: tuple[tuple[str, str], ...]) -> None:
        """Follow every ``workflow`` of one definition; ``chain`` leads to it, as names and contents."""
        for path, step in iterate_places(loaded.definition.steps, ("steps",)):
            if step.workflow is None:
                continue
            place = (*path, "workflow")
            nested = await self._read(step.workflow, loaded, place)
            drawn = " → ".join((*(name for name, _ in chain), step.workflow))
            key = _key_of(nested)
            if any(key == known for _, known in chain):
                raise loaded.document.fault(place, f"workflows in a circle: {drawn}", "break the circle")
            if len(chain) >= MAX_WORKFLOW_DEPTH:
                raise loaded.document.fault(
                    place, f"workflows nested deeper than {MAX_WORKFLOW_DEPTH}: {drawn}", "make it flatter"
                )
            if len(self.found) >= MAX_NESTED_WORKFLOWS and step.workflow not in self.found:
                raise loaded.document.fault(
                    place, f"more than {MAX_NESTED_WORKFLOWS} nested workflows", "use fewer"
                )
            self.found[step.workflow] = {
                "definition": nested.definition.to_json(),
                "digest": nested.digest,
            }
            if key not in self._done:
                await self.visit(nested, (*chain, (step.workflow, key)))
                self._done.add(key)

    async def _read(self, reference: str, loaded: Loaded, place: tuple[str | int, ...]) -> Loaded:
        try:
            return await self._library.get(reference)
        except DefinitionError:
            raise  # it names its own text and line
        except RetinueError as error:
            raise loaded.document.fault(place, error.message, error.remedy) from error


def _key_of(loaded: Loaded) -> str:
    return cache_key(loaded.definition.to_json())
