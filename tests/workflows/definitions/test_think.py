"""The grammar of the step think: what is refused, with its line."""

from __future__ import annotations

import pytest

from retinue.core.errors import DefinitionError
from retinue.workflows.definitions.loading import load_definition

HEAD = "name: w\nsteps:\n  - id: a\n    think:\n"


@pytest.mark.parametrize(
    ("keys", "line", "problem"),
    [
        ("      prompt: x\n      promts: x\n", 6, "unknown key 'promts'"),
        ("      instructions: x\n", 4, "'prompt' is missing"),
        ("      prompt: ''\n", 5, "at least 1 character"),
        ("      prompt: x\n      limits: {turn: 3}\n", 6, "unknown key 'turn'"),
        ("      prompt: x\n      limits: {turns: 0}\n", 6, "greater than or equal to 1"),
        ("      prompt: x\n      limits: {turns: 201}\n", 6, "less than or equal to 200"),
        ("      prompt: x\n      limits: {time: 10}\n", 6, "10 has no unit"),
        ("      prompt: x\n      limits: {dollars: 0}\n", 6, "greater than 0"),
        ("      prompt: x\n      output: {type: nothing}\n", 6, "schema of output refused"),
        ("      prompt: x\n      tools: {a: 1}\n", 6, "a list"),
        ("      prompt: x\n      context: {keep_results: 10}\n", 6, "greater than or equal to 1000"),
        ("      prompt: x\n      context: {compact_at: 0.95}\n", 6, "less than or equal to 0.9"),
        ("      prompt: x\n      session: ''\n", 6, "at least 1 character"),
        ("      prompt: x\n      parallel: 101\n", 6, "less than or equal to 100"),
        ("      prompt: '${{ steps.b.output }}'\n", 5, "no step has the id 'b'"),
        ("      prompt: '${{ input. }}'\n", 5, ""),
        ("      prompt: x\n    cache: true\n", 6, "'cache' does not belong to a think step"),
        (
            "      prompt: x\n    compensate: {skill: undo}\n",
            6,
            "'compensate' does not belong to a think step",
        ),
        ("      prompt: x\n    skill: y\n", 3, "has skill and think"),
    ],
)
def test_a_wrong_step_is_refused_with_its_line(keys: str, line: int, problem: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        load_definition(HEAD + keys)
    assert problem in refused.value.message
    assert refused.value.line == line


def test_defaults_are_those_of_the_manual() -> None:
    step = load_definition(HEAD + "      prompt: x\n").steps[0]
    assert step.kind == "think"
    think = step.think
    assert think is not None
    assert think.tools == ("search",)
    assert (think.limits.turns, think.limits.calls, think.limits.tokens) == (20, 60, 200_000)
    assert (think.limits.dollars, think.limits.time_s, think.parallel) == (None, 600, 8)


def test_a_step_is_stored_and_read_as_it_is() -> None:
    keys = "      prompt: x\n      tools: ['a/*', b]\n      deny: c\n      limits: {turns: 3, dollars: 1}\n"
    definition = load_definition(HEAD + keys + "    retry: {attempts: 2}\n")
    stored = definition.to_json()
    assert stored["steps"][0]["think"] == {
        "prompt": "x",
        "tools": ["a/*", "b"],
        "deny": ["c"],
        "limits": {"turns": 3, "dollars": 1.0},
    }
    assert type(definition).from_json(stored) == definition
