"""Finds stored workflows by name: built-in ones first, then those in Python, folders and registries.

A workflow and its nested workflows are read and checked before the first step, because a run stores its
definitions and a resumed run executes the same steps. Cycles and chains that are too deep are refused with
the line of the step that closes or deepens the chain.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

from retinue.core.errors import DefinitionError, RetinueError, StateError, UnknownWorkflowError
from retinue.core.text import suggest
from retinue.workflows.caller import cache_key
from retinue.workflows.definitions.definition import CodeDefinition, Definition
from retinue.workflows.definitions.loading import (
    Loaded,
    list_broken,
    list_builtins,
    load,
    load_announced,
    load_builtin,
    read_builtin,
)
from retinue.workflows.definitions.run_forms import Bundled, BundledWorkflow
from retinue.workflows.definitions.step_checks import iterate_places
from retinue.workflows.expressions.expression import shorten
from retinue.workflows.runs.hosting import HostedWorkflow

Origin = Literal["built-in", "custom"]

MAX_REFERENCE = 300
"""Characters of a name with a tag or a digest."""

LONG_TEXT = 4 * 1024
"""Characters of a text whose parsing takes about 10 ms."""


@dataclass(frozen=True, slots=True)
class StoredText:
    """The text of one stored workflow, the reference it came from, and its digest where it has one.

    ``is_own`` = it is stored in this state, not in a registry of others. ``team`` is the team whose it is.
    """

    text: str
    reference: str
    digest: str | None = None
    is_own: bool = False
    team: str = ""


class Shelf(Protocol):
    """A place that keeps workflow texts by name."""

    async def list_names(self) -> Sequence[str]:
        """The names that are kept here; raises RegistryError."""

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        """The text of this name, of a tag or a digest if ``version`` is one; None when it is not here.

        Raises RegistryError.
        """


class TeamTexts(Protocol):
    """The workflows of the teams that run. Two of them may have one of the same name: ``NAME@TEAM``."""

    def list_teams(self) -> Mapping[str, Sequence[str]]:
        """The teams that have a workflow, in order, by its name."""

    async def find_text(self, name: str, team: str) -> StoredText | None:
        """The text of this workflow of a team; None when it is not here."""


class NoTeams:
    """`TeamTexts` of a state without teams."""

    def list_teams(self) -> Mapping[str, Sequence[str]]:
        return {}

    async def find_text(self, name: str, team: str) -> StoredText | None:
        return None


@dataclass(frozen=True, slots=True)
class StoredWorkflow:
    """A stored workflow: its name, its shelf, and its definition or the problem of reading it."""

    name: str
    origin: Origin
    definition: Definition | None
    problem: RetinueError | None = None


class Library:
    """All stored workflows; a built-in name cannot be taken over by a folder or a registry.

    Nor can that of ``code``, the workflows in Python of this process, and of those that ``list_hosted``
    gives, which workers of the same database have. A plain name means the workflow of a team, of ``teams``,
    where nothing else has it; another workflow of a team, and every one by ``NAME@TEAM``, comes first.
    """

    def __init__(
        self,
        shelves: Sequence[Shelf] = (),
        *,
        code: Sequence[Loaded] = (),
        list_hosted: Callable[[], Awaitable[Sequence[HostedWorkflow]]] | None = None,
        teams: TeamTexts | None = None,
    ) -> None:
        self._shelves = tuple(shelves)
        self._code = {loaded.definition.name: loaded for loaded in code}
        self._list_hosted = list_hosted
        self._teams = teams or NoTeams()

    def with_teams(self, teams: TeamTexts) -> Library:
        """The same library with the workflows of other digests of teams."""
        code = tuple(self._code.values())
        return Library(self._shelves, code=code, list_hosted=self._list_hosted, teams=teams)

    async def get(self, reference: str, *, team: str = "") -> Loaded:
        """The workflow ``name``, ``name@team``, ``name@tag`` or ``name@sha256:…``.

        A plain name that ``team`` has means its own one. Raises UnknownWorkflowError, also for a plain name
        that two teams have, DefinitionError, RegistryError.
        """
        if len(reference) > MAX_REFERENCE:
            raise UnknownWorkflowError(
                shorten(reference), remedy="send a definition as a JSON object, not as text"
            )
        name, _, version = reference.partition("@")
        teams = self._teams.list_teams().get(name, ())
        if (owner := version or team) in teams:
            is_shared = len(teams) > 1 or await self._has_besides_teams(name)
            return await self._get_of_team(name, owner, is_shared=is_shared)
        if (found := await self._find_besides_teams(name, version)) is not None:
            return found
        if teams and not version:
            if len(teams) > 1:
                raise UnknownWorkflowError(reference, near=[f"{name}@{owner}" for owner in teams])
            return await self._get_of_team(name, teams[0], is_shared=False)
        known = [
            *list_builtins(),
            *[workflow.name for workflow in await self.list_all() if workflow.origin == "custom"],
        ]
        raise UnknownWorkflowError(
            reference, near=suggest(name, [known_name for known_name in known if known_name != reference])
        )

    async def _find_besides_teams(self, name: str, version: str = "") -> Loaded | None:
        """The workflow of a name that is of no team: built-in, in Python, of a folder or of a registry."""
        if name in list_builtins() and not version:
            return load_builtin(name)
        if not version and (code := self._code.get(name) or await self._find_hosted(name)) is not None:
            return code
        for shelf in self._shelves:
            stored = await shelf.find_text(name, version or None)
            if stored is not None:
                return await _load(stored)
        return None

    async def _has_besides_teams(self, name: str) -> bool:
        try:
            return await self._find_besides_teams(name) is not None
        except RetinueError:
            return True  # a broken workflow has its name all the same

    async def _get_of_team(self, name: str, team: str, *, is_shared: bool) -> Loaded:
        """A workflow of a team, under its full name where something else has the plain one."""
        stored = await self._teams.find_text(name, team)
        if stored is None:
            raise UnknownWorkflowError(f"{name}@{team}")
        loaded = replace(await _load(stored), team=team)
        return replace(loaded, shown_as=f"{name}@{team}") if is_shared else loaded

    async def list_all(self, *, checks_builtins: bool = True) -> list[StoredWorkflow]:
        """Every stored workflow; an unreadable workflow is listed with its problem.

        Without ``checks_builtins`` the steps of built-in workflows are not checked: see `read_builtin`.
        """
        workflows = [self._read_builtin(name, checks=checks_builtins) for name in list_builtins()]
        workflows += [StoredWorkflow(f"({name})", "built-in", None, error) for name, error in list_broken()]
        workflows += await self._list_code()
        seen = {workflow.name for workflow in workflows}
        for shelf in self._shelves:
            try:
                names = await shelf.list_names()
            except RetinueError as error:
                workflows.append(StoredWorkflow("(registry)", "custom", None, error))
                continue
            for name in names:
                if name not in seen:
                    seen.add(name)
                    workflows.append(await self._read(shelf, name))
        for name, teams in sorted(self._teams.list_teams().items()):
            is_plain = len(teams) == 1 and name not in seen
            for team in teams:
                shown = name if is_plain else f"{name}@{team}"
                reading = self._get_of_team(name, team, is_shared=not is_plain)
                workflows.append(await _read_listed(shown, reading))
        return workflows

    async def _find_hosted(self, name: str) -> Loaded | None:
        """The workflow in Python of this name that a worker has; raises DefinitionError."""
        try:
            hosted = (await self._read_hosted()).get(name)
        except StateError:
            return None  # without the database of the runs, starting one reports why
        return None if hosted is None else load_announced(hosted)

    async def _list_code(self) -> list[StoredWorkflow]:
        """The workflows in Python of this process and of workers."""
        workflows = [StoredWorkflow(name, "custom", code.definition) for name, code in self._code.items()]
        try:
            hosted = await self._read_hosted()
        except StateError as error:
            return [*workflows, StoredWorkflow("(workers)", "custom", None, error)]
        for name in sorted(hosted.keys() - self._code.keys()):
            try:
                workflows.append(StoredWorkflow(name, "custom", load_announced(hosted[name]).definition))
            except DefinitionError as error:
                workflows.append(StoredWorkflow(name, "custom", None, error))
        return workflows

    async def _read_hosted(self) -> dict[str, HostedWorkflow]:
        """The workflows in Python of all workers; of several digests the one that most of them have."""
        hosted = [] if self._list_hosted is None else await self._list_hosted()
        count = Counter(workflow.code for workflow in hosted)
        ranked = sorted(hosted, key=lambda workflow: (count[workflow.code], workflow.code.digest))
        return {workflow.code.name: workflow for workflow in ranked}

    @staticmethod
    def _read_builtin(name: str, *, checks: bool) -> StoredWorkflow:
        try:
            definition = load_builtin(name).definition if checks else read_builtin(name)
            return StoredWorkflow(name, "built-in", definition)
        except RetinueError as error:
            return StoredWorkflow(name, "built-in", None, error)

    @staticmethod
    async def _read(shelf: Shelf, name: str) -> StoredWorkflow:
        try:
            stored = await shelf.find_text(name)
            if stored is None:
                raise UnknownWorkflowError(name)
            return StoredWorkflow(name, "custom", (await _load(stored)).definition)
        except RetinueError as error:
            return StoredWorkflow(name, "custom", None, error)


async def _read_listed(name: str, reading: Awaitable[Loaded]) -> StoredWorkflow:
    try:
        return StoredWorkflow(name, "custom", (await reading).definition)
    except RetinueError as error:
        return StoredWorkflow(name, "custom", None, error)


async def _load(stored: StoredText) -> Loaded:
    """The workflow of a text; a long one is parsed in a thread, because that takes up to some seconds."""
    read = partial(load, stored.text, source=stored.reference, digest=stored.digest, is_own=stored.is_own)
    return read() if len(stored.text) < LONG_TEXT else await asyncio.to_thread(read)


def is_run_as_mesh(loaded: Loaded) -> bool:
    """Whether runs of this workflow have the scopes of the mesh, independent of their starter.

    Raises DefinitionError where a definition asks for that and is not stored in this state: the author of
    an inline one, or of one in a registry of others, has no rights of this mesh to give.
    """
    if loaded.definition.runs_as == "caller":
        return False
    if not loaded.is_own:
        raise loaded.document.fault(
            ("runs_as",),
            "only a workflow that is stored in this state may run as the mesh",
            "remove runs_as, or store the workflow here: retinue publish FILE",
        )
    return True


MAX_WORKFLOW_DEPTH = 5

MAX_NESTED_WORKFLOWS = 50


@dataclass(frozen=True, slots=True)
class WorkflowBundle:
    """A definition, and by name the definitions of its ``workflow`` steps; ``texts`` know their lines."""

    loaded: Loaded
    nested: Bundled = field(default_factory=dict)
    texts: Mapping[str, Loaded] = field(default_factory=dict)


async def bundle(library: Library, loaded: Loaded) -> WorkflowBundle:
    """Read all workflows that a definition runs, theirs included.

    Raises DefinitionError for one that is unknown, wrong, in a circle or too deep; RegistryError.
    """
    if not loaded.definition.runs_others:
        return WorkflowBundle(loaded)
    gathering = _Gathering(library)
    await gathering.visit(loaded, ((loaded.definition.name, _key_of(loaded)),))
    return WorkflowBundle(loaded, gathering.found, gathering.texts)


class _Gathering:
    def __init__(self, library: Library) -> None:
        self._library = library
        self._done: set[str] = set()
        self.found: dict[str, BundledWorkflow] = {}
        self.texts: dict[str, Loaded] = {}

    async def visit(self, loaded: Loaded, chain: tuple[tuple[str, str], ...]) -> None:
        """Follow every ``workflow`` of one definition; ``chain`` leads to it, as names and contents."""
        for path, step in iterate_places(loaded.definition.steps, ("steps",)):
            if step.workflow is None:
                continue
            place = (*path, "workflow")
            nested = await self._read(step.workflow, loaded, place)
            known = self.texts.get(step.workflow)
            if known is not None and known.team != nested.team:
                problem = f"two workflows are called {step.workflow}: of {known.team} and of {nested.team}"
                remedy = f"write {step.workflow}@{nested.team or known.team} in one of them"
                raise loaded.document.fault(place, problem, remedy)
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
            self.texts[step.workflow] = nested
            self.found[step.workflow] = BundledWorkflow(
                definition=nested.definition, digest=nested.digest, as_mesh=is_run_as_mesh(nested)
            )
            if key not in self._done:
                await self.visit(nested, (*chain, (step.workflow, key)))
                self._done.add(key)

    async def _read(self, reference: str, loaded: Loaded, place: tuple[str | int, ...]) -> Loaded:
        try:
            nested = await self._library.get(reference, team=loaded.team)
            if isinstance(nested.definition, CodeDefinition):
                raise loaded.document.fault(
                    place,
                    f"{reference} is a workflow in Python, which no step runs",
                    "start it by itself, or write this workflow in Python too",
                )
            return nested
        except DefinitionError:
            raise  # it names its own text and line
        except RetinueError as error:
            raise loaded.document.fault(place, error.message, error.remedy) from error


def _key_of(loaded: Loaded) -> str:
    return cache_key(loaded.definition.to_json())
