"""Loads definitions from texts, inline objects and installed packages, and checks each.

A step without an id gets the name of its role, ``execute``, ``execute-2``, … (specification 7.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import ValidationError

from retinue.core.errors import DefinitionError, InvalidSettingError, UnknownWorkflowError
from retinue.mesh.directory.routing import CAPABILITIES
from retinue.plugins import WORKFLOWS, Plugin, conflict, list_plugins
from retinue.workflows.definitions.checks import (
    check_document,
    inspect_document,
    read_definition,
    suggest,
)
from retinue.workflows.definitions.definition import DEFAULT_ROLE, CodeDefinition, Definition
from retinue.workflows.definitions.documents import Document, document_of, read_text
from retinue.workflows.definitions.spelling_001 import read_seed_001
from retinue.workflows.definitions.spelling_002 import OWN_KEYS, SETTINGS, read_seed_002
from retinue.workflows.definitions.values import STEP_ID
from retinue.workflows.runs.hosting import HostedWorkflow

_ASKS = ("agent", "role", "prompt")

_BY_CAPABILITY = {capability: role for role, capability in CAPABILITIES.items()}


def name_steps(document: Document) -> Document:
    """The document with an id on each step that asks for a role; other steps must have theirs."""
    if not isinstance(document.value, Mapping):
        return document
    # copied: in YAML two steps may be one object, which must become two ids
    value = {**document.value, "steps": _copy_steps(document.value.get("steps"))}
    if "steps" not in document.value:
        del value["steps"]
    steps = list(_iterate(value.get("steps")))
    taken = {str(step["id"]) for step in steps if "id" in step}
    for step in steps:
        role = _role_of(step)
        if "id" in step or role is None:
            continue
        number, name = 1, role
        while name in taken:
            number += 1
            name = f"{role}-{number}"
        taken.add(name)
        step["id"] = name
    return replace(document, value=value)


def _role_of(step: Mapping[str, Any]) -> str | None:
    """The role of a step's agent, None for a step without a role."""
    parallel = step.get("parallel")
    if isinstance(parallel, Mapping):
        if "steps" in step or "branches" in step:
            return None
        role = parallel.get("role")
    elif "skill" in step or not any(key in step for key in _ASKS):
        return None
    else:
        role = step.get("role")
    if not isinstance(role, str) or not STEP_ID.fullmatch(role) or role == "auto":
        return DEFAULT_ROLE
    return _BY_CAPABILITY.get(role, role)


def _copy_steps(steps: Any) -> Any:
    if not isinstance(steps, list):
        return steps
    return [_copy_step(step) for step in steps]


def _copy_step(step: Any) -> Any:
    if not isinstance(step, Mapping):
        return step
    copied = dict(step)
    if "steps" in copied:
        copied["steps"] = _copy_steps(copied["steps"])
    if isinstance(copied.get("branches"), Mapping):
        copied["branches"] = {name: _copy_steps(inner) for name, inner in copied["branches"].items()}
    return copied


def _iterate(steps: Any) -> Iterator[dict[str, Any]]:
    for step in steps if isinstance(steps, list) else ():
        if isinstance(step, dict):
            yield step
            yield from _iterate(step.get("steps"))
            branches = step.get("branches")
            for branch in branches.values() if isinstance(branches, Mapping) else ():
                yield from _iterate(branch)


INLINE = "definition"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked definition with the document it was read from, which knows its lines.

    ``digest`` is that of the artifact it came in, where it came in one. ``is_own`` = it is stored in this
    state, so that only its owner can have written it. ``team`` is the team that it belongs to, and
    ``shown_as`` its name in the mesh, ``NAME@TEAM``, where another workflow has that of its definition.
    """

    definition: Definition
    document: Document
    digest: str | None = None
    is_own: bool = False
    team: str = ""
    shown_as: str = ""


def load(
    text: str | Mapping[str, Any],
    *,
    source: str = INLINE,
    digest: str | None = None,
    is_own: bool = False,
) -> Loaded:
    """The definition of a YAML or JSON text, or of an inline object, in any known spelling.

    ``source`` names the text in errors (a file name). Raises DefinitionError with source, line
    and remedy.
    """
    document = read_text(text, source) if isinstance(text, str) else document_of(dict(text), source)
    canonical = _to_canonical(document)
    return Loaded(check_document(canonical), canonical, digest, is_own)


def inspect_text(text: str, *, source: str = INLINE) -> tuple[Loaded | None, list[DefinitionError]]:
    """As `load`, with all separate faults instead of the first."""
    try:
        canonical = _to_canonical(read_text(text, source))
    except DefinitionError as error:
        return None, [error]
    definition, faults = inspect_document(canonical)
    return (None if definition is None else Loaded(definition, canonical)), faults


def load_definition(text: str | Mapping[str, Any], *, source: str = INLINE) -> Definition:
    """As `load`, the definition alone."""
    return load(text, source=source).definition


def load_announced(workflow: HostedWorkflow) -> Loaded:
    """The definition of a workflow in Python that a worker announced.

    Raises DefinitionError for one that this release cannot read.
    """
    try:
        definition = CodeDefinition.model_validate(workflow.definition)
    except ValidationError as error:
        raise DefinitionError(
            f"a worker of another release has {workflow.code.describe()}, which cannot be read here",
            source=workflow.code.file,
            remedy="run the same release everywhere",
        ) from error
    return Loaded(definition, document_of(definition.to_json(), workflow.code.file), is_own=True)


@cache
def load_builtin(name: str) -> Loaded:
    """The installed workflow of this name.

    Raises UnknownWorkflowError, DefinitionError, and InvalidSettingError when two distributions have one of
    this name.
    """
    document = _read_builtin(name)
    return Loaded(check_document(document), document)


@cache
def read_builtin(name: str) -> Definition:
    """The installed workflow of this name without the checks of its steps; raises as `load_builtin`.

    The checks compile the expressions, and the expression engine takes 8 MB. A hub that starts no workflow
    reads the definitions for its prompts only.
    """
    return read_definition(_read_builtin(name))


def _read_builtin(name: str) -> Document:
    sources = list_installed_sources().files.get(name)
    if sources is None:
        near = suggest(name, list_builtins())
        raise UnknownWorkflowError(name, near=[near] if near else ())
    if len(sources) > 1:
        raise conflict(WORKFLOWS, name, list(sources))
    (file,) = sources.values()
    return _to_canonical(read_text(file.read_text(encoding="utf-8"), file.name))


def list_builtins() -> tuple[str, ...]:
    """The names of the workflows of Retinue and of installed distributions, sorted."""
    return tuple(sorted(list_installed_sources().files))


def list_broken() -> Sequence[tuple[str, InvalidSettingError]]:
    """The installed distributions whose workflows cannot be read, each with the reason."""
    return list_installed_sources().broken


@dataclass(frozen=True, slots=True)
class InstalledSources:
    """The files of each installed workflow, by distribution, and the distributions that cannot be read."""

    files: Mapping[str, Mapping[str, Traversable]]
    broken: Sequence[tuple[str, InvalidSettingError]]


@cache
def list_installed_sources() -> InstalledSources:
    """Read the installed distributions, once in the life of the process."""
    folders = [("retinue", resources.files("retinue.workflows").joinpath("builtin"))]
    broken = []
    for plugin in list_plugins(WORKFLOWS):
        if ":" in plugin.target:
            continue  # a workflow in Python
        try:
            folders.append((plugin.distribution, _open_package(plugin)))
        except InvalidSettingError as error:
            broken.append((plugin.distribution, error))
    files: dict[str, dict[str, Traversable]] = {}
    for distribution, folder in folders:
        for file in folder.iterdir():
            if file.name.endswith(".yaml"):
                files.setdefault(file.name.removesuffix(".yaml"), {})[distribution] = file
    return InstalledSources(files, tuple(broken))


def _open_package(plugin: Plugin) -> Traversable:
    """The package of a distribution; raises InvalidSettingError whatever keeps it from being read."""
    try:
        package = plugin.load(WORKFLOWS)
        if hasattr(package, "__path__"):
            return resources.files(package)
        problem = "is no package"
    except InvalidSettingError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - importing runs the distribution's own code
        problem = f"cannot be imported: {type(error).__name__}: {error}"
    raise InvalidSettingError(
        f"{WORKFLOWS}: {plugin.name}",
        f"{plugin.distribution} declares {plugin.target}, which {problem}",
        remedy=f"reinstall or uninstall {plugin.distribution}",
    )


def _to_canonical(document: Document) -> Document:
    if _is_seed_001(document.value):
        return read_seed_001(document)
    return name_steps(read_seed_002(document) if _is_seed_002(document.value) else document)


def _is_seed_001(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("metadata"), Mapping) and "steps" in value


def _is_seed_002(value: Any) -> bool:
    """Whether a document has a key, or a form, that only the spelling of seed 002 has."""
    if not isinstance(value, Mapping):
        return False
    settings, steps = value.get("settings"), value.get("steps")
    if isinstance(settings, Mapping) and any(key in settings for key in SETTINGS):
        return True
    kept = [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
    if any(_has_form_of_seed_002(step) for step in kept):
        return True
    return bool(kept) and all("id" not in step and ("agent" in step or "role" in step) for step in kept)


def _has_form_of_seed_002(step: Mapping[str, Any]) -> bool:
    return (
        any(key in step for key in OWN_KEYS)
        or isinstance(step.get("parallel"), bool)
        or isinstance(step.get("agent"), list)
    )
