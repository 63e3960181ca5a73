"""Which code a run of a workflow in Python needs, and which code a node has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

CODE = "code"
"""The key of a stored definition whose run is executed by Python code."""

_SHOWN_DIGEST = len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class RunCode:
    """The code that a run was begun with; ``name`` is the name of the workflow.

    The name counts as well, because workflows that one function makes have the same code.
    """

    name: str
    file: str
    function: str
    digest: str

    @classmethod
    def find(cls, definition: Mapping[str, Any]) -> RunCode | None:
        """The code that a stored definition needs; None for a workflow in YAML."""
        code = definition.get(CODE)
        if code is None:
            return None
        return cls(definition["name"], code["file"], code["function"], code["digest"])

    def describe(self) -> str:
        """For people, as ``flows.py:nightly (sha256:1234567890ab…)``."""
        return f"{self.file}:{self.function} ({self.digest[:_SHOWN_DIGEST]}…)"


@dataclass(frozen=True, slots=True)
class HostedWorkflow:
    """A workflow in Python that a process executes; ``definition`` is its JSON form.

    ``continues`` are the digests of earlier code whose runs its code goes on with.
    """

    code: RunCode
    definition: Mapping[str, Any]
    continues: frozenset[str] = frozenset()

    def executes(self, code: RunCode) -> bool:
        """Whether runs that began with this code may go on with it."""
        own = self.code
        is_function = (own.name, own.function) == (code.name, code.function)
        return is_function and code.digest in {own.digest, *self.continues}

    def to_json(self) -> dict[str, Any]:
        return {"definition": dict(self.definition), "continues": sorted(self.continues)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> HostedWorkflow:
        """Reads what `to_json` gave; raises LookupError and TypeError for another value."""
        definition = stored["definition"]
        code = RunCode.find(definition)
        if code is None:
            raise LookupError(CODE)
        return cls(code, definition, frozenset(stored["continues"]))


def explain_missing(code: RunCode, living: Iterable[HostedWorkflow]) -> str | None:
    """Which worker a run of this code waits for; None where a living node has the code.

    ``living`` are the workflows of all living nodes.
    """
    hosted = list(living)
    if any(workflow.executes(code) for workflow in hosted):
        return None
    others = sorted(
        {workflow.code.digest[:_SHOWN_DIGEST] for workflow in hosted if workflow.code.name == code.name}
    )
    has = f"; running workers have {', '.join(f'{digest}…' for digest in others)}" if others else ""
    remedy = f"start one with the file: retinue worker {code.file}"
    return f"{code.describe()}: no running worker has this code{has}; {remedy}"
