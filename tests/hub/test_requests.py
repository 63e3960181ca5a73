"""Which steps of a workflow are run at once when that is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.hub.orchestration.requests import join_independent
from retinue.workflows.definitions.loading import load
from tests.requirements import requirement


def ask(name: str, prompt: str = "x", **more: Any) -> dict[str, Any]:
    return {"id": name, "role": "execute", "prompt": prompt, **more}


def joined(*steps: dict[str, Any], output: Any = None) -> list[Any]:
    """The ids of the outermost steps; of those at once, a list."""
    definition = load({"name": "w", "steps": list(steps), "output": output or {"all": "done"}}).definition
    return [
        [inner.id for inner in step.steps] if step.steps is not None else step.id
        for step in join_independent(definition).steps
    ]


@requirement("L-08")
def test_steps_that_read_nothing_of_each_other_run_at_once() -> None:
    sum_up = ask("sum", "${{ steps.a.text }} ${{ steps.b.text }}")
    assert joined(ask("a"), ask("b"), sum_up, ask("c")) == [["a", "b"], ["sum", "c"]]
    assert joined(ask("a"), ask("b", "${{ steps.a.text }}")) == ["a", "b"]


@pytest.mark.parametrize(
    "steps",
    [
        [ask("a", when="true"), ask("b")],
        [ask("a", then="c"), ask("b"), ask("c")],
        [{"id": "a", "role": "execute"}, {"id": "b", "role": "execute"}],
        [ask("a"), ask("b", compensate={"skill": "undo"})],
    ],
    ids=["a condition", "a jump", "chained", "undone"],
)
def test_steps_whose_order_matters_keep_their_places(steps: list[dict[str, Any]]) -> None:
    assert joined(*steps) == [step["id"] for step in steps]


def test_a_workflow_whose_output_is_the_last_one_keeps_its_order() -> None:
    assert joined(ask("a"), ask("b"), output="last") == ["a", "b"]
