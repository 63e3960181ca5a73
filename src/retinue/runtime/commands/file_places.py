"""Names the file and the line of a workflow's steps in errors of its run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import DefinitionError, RemoteFaultError, RetinueError, StepFailedError
from retinue.workflows.definitions.documents import Document
from retinue.workflows.definitions.loading import INLINE, Loaded
from retinue.workflows.definitions.step_checks import iterate_places

_PATH_MARKS = re.compile(r"[./#@]")
"""Between the ids of steps, and before numbers of rounds, items and attempts."""


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """The name of a definition's text and the line of each step by id.

    The steps in ``others`` run workflows, whose own steps are in other texts. ``document`` is the text where
    it is at hand.
    """

    source: str
    lines: Mapping[str, int]
    others: frozenset[str] = frozenset()
    document: Document | None = None

    @classmethod
    def of(cls, loaded: Loaded) -> FilePlaces:
        document = loaded.document
        places = list(iterate_places(loaded.definition.steps, ("steps",)))
        lines = {step.id: document.place_of(path).line for path, step in places}
        others = frozenset(step.id for _, step in places if step.workflow is not None)
        return cls(document.source, lines, others, document)

    def locate(self, error: RetinueError) -> RetinueError:
        """The error with file and line, where they are known; else the error itself."""
        if isinstance(error, StepFailedError):
            if (line := self._find_line(error.step)) and not error.message.startswith(self.source):
                error.message = f"{self.source}:{line}: {error.message}"
                error.args = (error.message,)
            return error
        facts = _read_fault(error)
        if self.document is None or facts is None or facts.get("source") != INLINE:
            return error
        path = tuple(facts["path"])
        line, column = self.document.place_of(path)
        remedy = facts.get("remedy") or error.remedy
        return DefinitionError(
            facts["problem"], source=self.source, line=line, column=column, path=path, remedy=remedy
        )

    def name(self, fault: Mapping[str, Any]) -> str:
        """File and line of the data of a DefinitionError."""
        source, line = fault["source"], fault["line"]
        if self.document is not None and source == INLINE:
            source, line = self.source, self.document.place_of(tuple(fault["path"])).line
        return f"{source}:{line}" if line else str(source)

    def _find_line(self, path: str) -> int:
        """The line of the innermost step of a path that is in this text; 0 without one."""
        line = 0
        for step in _PATH_MARKS.split(path):
            line = self.lines.get(step, line)
            if step in self.others:
                break
        return line


def _read_fault(error: RetinueError) -> Mapping[str, Any] | None:
    """The data of a DefinitionError, also of one of another process; None for any other error."""
    if isinstance(error, DefinitionError):
        return error.data
    if isinstance(error, RemoteFaultError) and error.remote_type == DefinitionError.type:
        facts = error.fault_data
        return facts if isinstance(facts, Mapping) and "path" in facts and "problem" in facts else None
    return None
