"""What the steps of a run have given so far, and how expressions see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Scope:
    """The workflow's input and the outputs of its steps, the nearest last.

    Every step of the definition is an object to expressions, an empty one until it has given an
    output, so that ``has(steps.check.output)`` is false and no fault before the first round.
    ``mark`` grows with each output: what was recorded since can be listed.
    """

    def __init__(self, workflow_input: Any, known: Iterable[str]) -> None:
        self.input = workflow_input
        self.known = tuple(known)
        self.loop: Mapping[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._written: dict[str, int] = {}
        self.mark = 0
        self._steps: dict[str, dict[str, Any]] = {step_id: {} for step_id in self.known}

    @property
    def variables(self) -> Mapping[str, Any]:
        """What expressions read: ``input``, ``steps`` and ``loop``."""
        return {"input": self.input, "steps": self._steps, "loop": self.loop}

    @property
    def outputs(self) -> tuple[tuple[str, Any], ...]:
        """Each step's newest output, the nearest last."""
        return tuple(self._outputs.items())

    def record(self, step_id: str, output: Any) -> None:
        """Keep what a step gave; it is now the nearest."""
        self._outputs.pop(step_id, None)
        self._outputs[step_id] = output
        self._steps[step_id] = {"output": output}
        self.mark += 1
        self._written[step_id] = self.mark

    def list_since(self, mark: int) -> tuple[tuple[str, Any], ...]:
        """The outputs recorded after the scope had this ``mark``, the nearest last."""
        return tuple(pair for pair in self._outputs.items() if self._written[pair[0]] > mark)

    def find_nearest(self) -> Any:
        """The nearest output, None before the first."""
        return self._outputs[next(reversed(self._outputs))] if self._outputs else None
