"""The results of a run's steps so far, in the form that expressions read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from retinue.core.parts import PARTS_FIELD
from retinue.core.text import fence

StepState = Mapping[str, Any]
"""The state of a step: ``output`` when it is done, ``error`` when it failed and the run went on; ``agent``,
``cached``, ``text``, ``parts`` beside the output, and of a parallel step ``ballots``, ``votes``,
``decided_by``, where there are such.
Expressions see ``fenced`` as well: the text as data for a prompt.
"""

ENTRY_KEYS = (
    "output",
    "error",
    "agent",
    "cached",
    "text",
    "fenced",
    "parts",
    "ballots",
    "votes",
    "decided_by",
)


class Scope:
    """The workflow's input and the entries of its steps, the nearest last.

    Every step of the definition is an object to expressions, an empty one until it has given an output, so
    that ``has(steps.check.output)`` is false and no fault before the first round. ``mark`` grows with each
    entry, so that later entries can be listed.
    """

    def __init__(self, workflow_input: Any, known: Iterable[str]) -> None:
        self.input = workflow_input
        self.known = tuple(known)
        self.loop: Mapping[str, Any] = {}
        self._entries: dict[str, StepState] = {}
        self._written: dict[str, int] = {}
        self.mark = 0
        self._steps: dict[str, StepState] = {step_id: {} for step_id in self.known}

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables of expressions: ``input``, ``steps`` and ``loop``."""
        return {"input": self.input, "steps": self._steps, "loop": self.loop}

    @property
    def entries(self) -> tuple[tuple[str, StepState], ...]:
        """Each step's newest entry, the nearest last."""
        return tuple(self._entries.items())

    @property
    def outputs(self) -> tuple[tuple[str, Any], ...]:
        """Each step's newest output, the nearest last; failed steps gave none."""
        return tuple((step_id, e["output"]) for step_id, e in self._entries.items() if "output" in e)

    def record(self, step_id: str, output: Any, **facts: Any) -> None:
        """Record the output of a step and further facts of ``ENTRY_KEYS``; it is now the nearest entry."""
        self.keep(step_id, {"output": output, **facts})

    def record_error(self, step_id: str, error: Mapping[str, Any]) -> None:
        """Record the error of a step; its output of an earlier round is removed."""
        self.keep(step_id, {"error": dict(error)})

    def keep(self, step_id: str, entry: StepState) -> None:
        """Store an entry unchanged, such as an entry of a branch."""
        self._entries.pop(step_id, None)
        self._entries[step_id] = entry
        self._steps[step_id] = _with_fenced(step_id, entry)
        self.mark += 1
        self._written[step_id] = self.mark

    def find(self, step_id: str) -> StepState:
        """The entry of a step, empty before it has one."""
        return self._steps.get(step_id, {})

    def list_since(self, mark: int) -> tuple[tuple[str, StepState], ...]:
        """The entries recorded after the scope had this ``mark``, the nearest last."""
        return tuple(pair for pair in self._entries.items() if self._written[pair[0]] > mark)

    def find_nearest(self) -> Any:
        """The nearest output, None before the first."""
        outputs = self.outputs
        return outputs[-1][1] if outputs else None

    def find_nearest_with_parts(self) -> Any:
        """The nearest output; where parts stand beside it, an object with it as ``result`` and ``parts``."""
        entries = [entry for entry in self._entries.values() if "output" in entry]
        if not entries or not entries[-1].get(PARTS_FIELD):
            return self.find_nearest()
        return {"result": entries[-1]["output"], PARTS_FIELD: entries[-1][PARTS_FIELD]}


def nearest_output(entries: Iterable[tuple[str, StepState]]) -> Any:
    """The last output among entries, None when there is none."""
    outputs = [entry["output"] for _, entry in entries if "output" in entry]
    return outputs[-1] if outputs else None


def _with_fenced(step_id: str, entry: StepState) -> StepState:
    """The entry as expressions see it; ``fenced`` is made here, so that no run stores the text twice."""
    text = entry.get("text")
    if not isinstance(text, str):
        return entry
    return {**entry, "fenced": fence(f"the result of step {step_id}", text)}
