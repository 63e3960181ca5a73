"""The step grammar of seed 002 is read into the canonical one, with the lines of the text as written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import DefinitionError
from retinue.core.text import fence
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from tests.requirements import requirement
from tests.workflows.running import Bench

pytestmark = requirement("L-35")

EVERYTHING = """
name: refine-it
description: one of each
version: 1.0.0
settings:
  maxDuration: 600000
  errorHandling: continue
  cacheStrategy: step
  maxIterations: 3
  metricsLevel: debug
steps:
  - name: Make a plan
    agent: claude
    role: planning
    timeout: 30000
    retry: {attempts: 3, delay: 500, backoffFactor: 2}
    onSuccess: Build it
  - name: never
    agent: auto
    role: auto
  - name: Build it
    agent: [claude, gemini]
    role: execute
    mode: vote
    condition: has(steps["make-a-plan"].output)
    onFailure: Tidy up
  - name: everybody
    parallel: true
    role: review
  - name: single
    agent: auto
    parallel: false
    validate: size(output) > 0
    transform: "{'said': result}"
    stopOnError: true
  - name: Tidy up
    agent: gemini
    onFailure: retry
"""


def test_each_key_has_its_canonical_place() -> None:
    definition = load_definition(EVERYTHING)
    settings = definition.settings
    assert (settings.max_duration, settings.on_error, settings.cache, settings.max_iterations) == (
        "600s",
        "continue",
        "step",
        3,
    )
    plan, never, build, everybody, single, tidy = definition.steps
    assert [step.id for step in definition.steps] == [
        "make-a-plan",
        "never",
        "build-it",
        "everybody",
        "single",
        "tidy-up",
    ]
    assert (plan.agent, plan.role, plan.timeout_s, plan.then) == ("claude", "planning", 30, "build-it")
    assert plan.retry is not None
    assert (plan.retry.attempts, plan.retry.delay, plan.retry.backoff) == (3, "0.5s", 2.0)
    assert (never.kind, never.agent) == ("role", None)
    assert build.parallel is not None
    assert (build.parallel.mode, build.parallel.agents, build.parallel.role) == (
        "vote",
        ["claude", "gemini"],
        "execute",
    )
    assert (build.when, build.on_error) == ('has(steps["make-a-plan"].output)', {"goto": "tidy-up"})
    assert everybody.parallel is not None
    assert (everybody.parallel.mode, everybody.parallel.agents) == ("all", None)
    assert (single.validate_, single.on_error) == ('size(steps["single"].output) > 0', "stop")
    assert single.transform == "${{ {'said': steps[\"single\"].output} }}"
    assert tidy.retry is not None
    assert tidy.retry.attempts == 3


@requirement("L-10")
def test_the_inline_definition_of_the_seed_is_read() -> None:
    definition = load_definition(
        {
            "name": "custom",
            "steps": [
                {"agent": "gemini", "role": "plan"},
                {"agent": "claude", "role": "execute", "timeout": 1500},
            ],
        }
    )
    assert [(step.id, step.agent, step.role) for step in definition.steps] == [
        ("plan", "gemini", "plan"),
        ("execute", "claude", "execute"),
    ]
    assert definition.steps[1].timeout_s == 1.5


async def test_it_runs(bench: Bench) -> None:
    for name, score in (("claude", 0.9), ("gemini", 0.5)):
        bench.offer("plan", "1. do it", agent=name, roles=["plan"], score=score)
        bench.offer("do", f"by {name}", agent=name, roles=["execute"], score=score)
    record = await bench.run(
        """
        name: w
        steps:
          - {name: Plan it, agent: gemini, role: plan}
          - {name: both, agent: [claude, gemini], mode: all, transform: "size(output)"}
        """,
        {"prompt": "x"},
    )
    assert record.get() == 2
    assert [call.agent for call in bench.caller.calls] == ["gemini", "claude", "gemini"]
    assert bench.arguments[1]["prompt"] == "x\n\n" + fence("the result of step plan-it", "1. do it")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("validate: size(output) > 0", "validate: (r) => r.length > 0", "a JavaScript function"),
        (
            "transform: \"{'said': result}\"",
            "transform: 'function (r) { return r }'",
            "a JavaScript function",
        ),
        ("validate: size(output) > 0", "validate: size(output", "is missing at the end"),
        ("condition: has(", "condition: haz(", "there is no function haz"),
        ("onFailure: Tidy up", "onFailure: Tidy upp", "'Tidy upp'"),
        ("onSuccess: Build it", "onSuccess: nowhere", "'nowhere'"),
        ("onFailure: Tidy up", "onFailure: Make a plan", "a jump back"),
        ("mode: vote", "mode: majority", "'race', 'all', 'vote' or 'merge'"),
        ("stopOnError: true", "stopOnEror: true", "unknown key 'stopOnEror'"),
        ("timeout: 30000", "timeout: 0", "out of range"),
        ("role: planning", "role: planing", "Unknown role: planing"),
        ("metricsLevel: debug", "metricsLevel: all", "is no level"),
        ("errorHandling: continue", "errorHandling: pray", "is no way to handle errors"),
        ("cacheStrategy: step", "cacheStrategy: all", "'none', 'step' or 'workflow'"),
        ("maxDuration: 600000", "maxDuratoin: 600000", "unknown key 'maxDuratoin'"),
    ],
)
def test_a_fault_has_the_line_of_the_text_as_written(old: str, new: str, problem: str) -> None:
    line = EVERYTHING[: EVERYTHING.index(old)].count("\n") + 1
    with pytest.raises(DefinitionError) as caught:
        load_definition(EVERYTHING.replace(old, new), source="flow.yaml")
    assert problem in caught.value.message
    assert caught.value.line == line
    assert caught.value.remedy


KEYS = [
    "name",
    "id",
    "agent",
    "role",
    "condition",
    "transform",
    "validate",
    "retry",
    "timeout",
    "parallel",
    "mode",
    "onSuccess",
    "onFailure",
    "stopOnError",
    "prompt",
    "skill",
]
VALUES = st.sampled_from(
    [
        True,
        False,
        None,
        3,
        1500,
        "auto",
        "all",
        "stop",
        "x",
        "a",
        "output",
        "size(output)",
        ["x"],
        {"attempts": 2},
        {},
    ]
)


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5), max_size=4))
def test_no_mixture_of_keys_crashes_the_reader(steps: list[dict[str, Any]]) -> None:
    try:
        definition = load_definition({"name": "w", "steps": steps})
    except DefinitionError as error:
        assert error.remedy  # noqa: PT017  # many mixtures are no workflows
        return
    assert Definition.from_json(definition.to_json()) == definition
