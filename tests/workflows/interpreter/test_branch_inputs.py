"""A branch is given what its steps can read, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.workflows.definitions.definition import Step
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.branch_inputs import find_branch_reads
from tests.workflows.running import Bench


def steps_of(text: str) -> tuple[Step, ...]:
    return load_definition(f"name: w\nsteps:\n- {{id: a, skill: s}}\n- {{id: b, skill: s}}\n{text}").steps[2:]


@pytest.mark.parametrize(
    ("text", "keys", "ids"),
    [
        ('- {id: x, skill: s, with: {v: "${{ input.n + steps.a.output }}"}}', {"n"}, {"a", "x"}),
        ('- {id: x, skill: s, with: {v: "${{ input }}"}, when: has(steps.b.error)}', None, {"b", "x"}),
        ('- {id: x, skill: s, with: {v: "${{ steps }}"}}', set(), None),
        ("- {id: x, skill: s, with: {}, validate: 'steps.x.output == input.w'}", {"w"}, {"x"}),
        (
            "- {id: x, switch: input.k, branches: "
            '{y: [{id: z, skill: s, with: {v: "${{ steps.a.output }}"}}]}}',
            {"k"},
            {"x", "z", "a"},
        ),
        (
            "- {id: x, loop: {max: 1, until: input.u}, steps: [{id: z, skill: s, with: {}}]}",
            {"u"},
            {"x", "z"},
        ),
        ('- {id: x, wait_for: {topic: t, message: "${{ input.m }}"}}', {"m"}, {"x"}),
        ("- {id: x, skill: s}", None, None),
        ("- {id: x, prompt: hello}", None, None),
        ("- {id: x, skill: s, with: {}, compensate: {skill: u}}", None, None),
        ("- {id: x, parallel: {role: plan, prompt: p}}", None, None),
    ],
)
def test_what_steps_can_read_is_told_from_their_text(text: str, keys: Any, ids: Any) -> None:
    reads = find_branch_reads(steps_of(text))
    assert (reads.input_keys, reads.steps) == (keys, ids)


def test_other_workflows_are_handed_on_where_one_is_run() -> None:
    assert find_branch_reads(steps_of("- {id: x, workflow: w, with: {}}")).workflows
    assert not find_branch_reads(steps_of("- {id: x, skill: s}")).workflows


async def test_the_items_of_a_foreach_do_not_each_keep_the_whole_list(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    await bench.run(
        """
        name: w
        steps:
          - {id: big, skill: tell, with: {all: "${{ input.items }}"}}
          - id: each
            foreach: "${{ input.items }}"
            steps: [{id: a, skill: tell, with: {v: "${{ loop.item + input.more }}"}}]
        """,
        {"items": [1, 2, 3], "more": 10},
        run_id="r",
    )
    child = await bench.runs.get("r/each#2")
    assert child.request.input == {"input": {"more": 10}, "entries": [], "loop": {"index": 2, "item": 2}}
    assert child.value["output"] == {"v": 12}
