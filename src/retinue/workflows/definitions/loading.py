"""Definitions from texts, inline objects and the package's own folder; each checked when loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from retinue.core.errors import UnknownWorkflowError
from retinue.workflows.definitions.checks import check_document, suggest
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.documents import Document, document_of, read_text
from retinue.workflows.definitions.naming import name_steps
from retinue.workflows.definitions.spelling_001 import is_seed_001, read_seed_001
from retinue.workflows.definitions.spelling_002 import is_seed_002, read_seed_002

INLINE = "definition"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked definition with the document it was read from, which knows its lines.

    ``digest`` is that of the artifact it came in, where it came in one.
    """

    definition: Definition
    document: Document
    digest: str | None = None


def load(text: str | Mapping[str, Any], *, source: str = INLINE, digest: str | None = None) -> Loaded:
    """The definition of a YAML or JSON text, or of an inline object, in any known spelling.

    ``source`` names the text in errors (a file name). Raises DefinitionError with source, line
    and remedy.
    """
    document = read_text(text, source) if isinstance(text, str) else document_of(dict(text), source)
    canonical = _to_canonical(document)
    return Loaded(check_document(canonical), canonical, digest)


def load_definition(text: str | Mapping[str, Any], *, source: str = INLINE) -> Definition:
    """As `load`, the definition alone."""
    return load(text, source=source).definition


@cache
def load_builtin(name: str) -> Loaded:
    """The built-in workflow of this name; raises UnknownWorkflowError."""
    for file in resources.files("retinue.workflows").joinpath("builtin").iterdir():
        if file.name == f"{name}.yaml":
            return load(file.read_text(encoding="utf-8"), source=file.name)
    near = suggest(name, list_builtins())
    raise UnknownWorkflowError(name, near=[near] if near else ())


def list_builtins() -> tuple[str, ...]:
    """The names of the built-in workflows, sorted."""
    folder = resources.files("retinue.workflows").joinpath("builtin")
    if not folder.is_dir():
        return ()
    return tuple(sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml")))


def _to_canonical(document: Document) -> Document:
    if is_seed_001(document.value):
        return read_seed_001(document)
    return name_steps(read_seed_002(document) if is_seed_002(document.value) else document)
