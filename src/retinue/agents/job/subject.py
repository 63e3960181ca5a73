"""The nouns of the job: the module under test, what it offers, and how each of it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ParameterKind = Literal["positional", "either", "keyword", "rest", "options"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; ``annotation`` and ``default`` are Python source, None when absent."""

    name: str
    kind: ParameterKind
    annotation: str | None = None
    default: str | None = None

    @property
    def required(self) -> bool:
        return self.default is None


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to test: a function, a constructor, a method, a property or an operator of a class.

    ``template`` is the call as source: ``{arguments}`` stands for the argument list, ``{0}``, ``{1}`` for
    single operands; the operands come first in ``parameters``.
    ``raises`` are the names of exceptions that the source raises or the docstring names.
    """

    name: str
    template: str
    operands: int = 0
    parameters: tuple[Parameter, ...] = ()
    returns: str | None = None
    doc: str = ""
    raises: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()
    builds: str = ""
    """The name of the class, when this target is its constructor."""
    is_async: bool = False

    @property
    def is_overload(self) -> bool:
        """Whether this is a further signature of a target that is tested anyway."""
        return self.name.endswith(")")


@dataclass(frozen=True, slots=True)
class Untestable:
    """What is left out of the tests, and why."""

    name: str
    why: str

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "why": self.why}


@dataclass(frozen=True, slots=True)
class Subject:
    """A module under test, as its source and stubs describe it.

    ``root`` is the folder to import it from, ``python`` the interpreter it belongs to,
    ``version`` that interpreter's version, ``tools`` what of hypothesis, pytest and coverage it has.
    """

    module: str
    source: str
    root: str
    python: str
    version: tuple[int, ...]
    digest: str = ""
    """sha256 of the source file, empty when there is none."""
    search_path: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    classes: tuple[str, ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    """Pairs (alias, original) of public names that are one function."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Type aliases, type variables and new types: name → source."""
    untestable: tuple[Untestable, ...] = ()

    def get_target(self, name: str) -> Target:
        return next(target for target in self.targets if target.name == name)


def read_parameters(described: Sequence[dict[str, Any]]) -> tuple[Parameter, ...]:
    """Parameters of the form that ``inside/outline.py`` prints."""
    return tuple(
        Parameter(entry["name"], entry["kind"], entry["annotation"], entry["default"]) for entry in described
    )
