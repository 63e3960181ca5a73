"""The automatic choice of a workflow: every rule, and the reason with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.workflows.definitions.loading import list_builtins
from retinue.workflows.orchestrator import RULES, choose_workflow, measure_complexity
from tests.requirements import requirement

pytestmark = [requirement("L-30"), requirement("L-35")]

LONG = "word " * 501


@pytest.mark.parametrize(
    ("prompt", "parallel", "workflow", "because"),
    [
        ("What is 2 + 2?", None, "direct", "one simple task"),
        ("", None, "direct", "one simple task"),
        ("Review this code:\ndef f(): pass", None, "code-review", "review of code"),
        ("Do a security audit of login.py", None, "code-review", "review of code"),
        ("Give me three alternatives for a cache", None, "competitive", "several answers"),
        ("Give me three alternatives for a cache", False, "direct", "one simple task"),
        ("What is 2 + 2?", True, "competitive", "parallel work"),
        ("Polish this text until it shines", None, "iterative", "improved until it is good"),
        (LONG, None, "plan-execute", "complex task"),
        ("x\n" * 51, None, "plan-execute", "complex task"),
        ("Design the schema of a small shop", None, "plan-execute", "a design or a plan"),
        ("Make a plan", None, "direct", "one simple task"),
        ("Implement this:\n" + "- part\n" * 12, None, "plan-execute", "several parts"),
        ("Implement fizzbuzz", None, "direct", "one simple task"),
    ],
)
def test_the_first_rule_that_fits_decides(
    prompt: str, parallel: bool | None, workflow: str, because: str
) -> None:
    chosen = choose_workflow(prompt, parallel=parallel)
    assert chosen.workflow == workflow
    assert because in chosen.because


def test_every_rule_leads_to_a_built_in_workflow() -> None:
    assert {rule.workflow for rule in RULES} <= set(list_builtins())


@pytest.mark.parametrize(
    ("words", "lines", "complexity"),
    [
        (100, 10, "low"),
        (101, 1, "medium"),
        (1, 11, "medium"),
        (500, 50, "medium"),
        (501, 1, "high"),
        (1, 51, "high"),
    ],
)
def test_complexity_is_measured_by_words_and_lines(words: int, lines: int, complexity: str) -> None:
    assert measure_complexity(words, lines) == complexity


@given(st.text(max_size=300), st.sampled_from([None, True, False]))
def test_every_prompt_has_a_workflow_and_always_the_same(prompt: str, parallel: bool | None) -> None:
    chosen = choose_workflow(prompt, parallel=parallel)
    assert chosen == choose_workflow(prompt, parallel=parallel)
    assert chosen.because
