"""The data model: the module under test and its targets, with the way to call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ParameterKind = Literal["positional", "either", "keyword", "rest", "options"]


@dataclass(frozen=True, slots=True)
class TargetParameter:
    """One parameter; ``annotation`` and ``default`` are Python source, None if absent."""

    name: str
    kind: ParameterKind
    annotation: str | None = None
    default: str | None = None

    @property
    def required(self) -> bool:
        return self.default is None


@dataclass(frozen=True, slots=True)
class ProbedTarget:
    """One thing to test: a function, a constructor, a method, a property or an operator of a class.

    ``template`` is the call as source, with ``{arguments}`` for the argument list and ``{0}``, ``{1}`` for
    operands, which come first in ``parameters``. ``raises`` holds the exceptions that the source raises or
    the docstring names.
    """

    name: str
    template: str
    operands: int = 0
    parameters: tuple[TargetParameter, ...] = ()
    returns: str | None = None
    doc: str = ""
    raises: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()
    builds: str = ""
    """The name of the class if this target is its constructor."""
    is_async: bool = False

    @property
    def is_overload(self) -> bool:
        """Whether this is an additional signature of another target."""
        return self.name.endswith(")")


@dataclass(frozen=True, slots=True)
class Untestable:
    """A target without tests, and the reason."""

    name: str
    why: str

    def as_json(self) -> dict[str, str]:
        return {"name": self.name, "why": self.why}


@dataclass(frozen=True, slots=True)
class Subject:
    """A module under test, as described by its source and stubs.

    ``root`` is the folder to import it from, ``python`` its interpreter, ``version`` the interpreter's
    version, and ``tools`` those of hypothesis, pytest and coverage that the interpreter has.
    """

    module: str
    source: str
    root: str
    python: str
    version: tuple[int, ...]
    digest: str = ""
    """SHA-256 of the source file, "" without one."""
    search_path: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    targets: tuple[ProbedTarget, ...] = ()
    classes: tuple[str, ...] = ()
    same: tuple[tuple[str, str], ...] = ()
    """Pairs (alias, original) of public names of the same function."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Type aliases, type variables and new types: name → source."""
    untestable: tuple[Untestable, ...] = ()

    def get_target(self, name: str) -> ProbedTarget:
        return next(target for target in self.targets if target.name == name)


def read_parameters(described: Sequence[dict[str, Any]]) -> tuple[TargetParameter, ...]:
    """Read parameters as printed by ``inside/outline.py``."""
    return tuple(
        TargetParameter(entry["name"], entry["kind"], entry["annotation"], entry["default"])
        for entry in described
    )
