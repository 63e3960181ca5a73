"""Definitions meant to harm are refused when they are loaded, soon, with the line."""

from __future__ import annotations

import json
import time

import pytest

from retinue.core.errors import DefinitionError
from retinue.workflows.definitions.loading import load_definition

BOMB = "name: w\nx: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"y{n}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for n, (before, after) in enumerate(zip("abcdefgh", "bcdefghi", strict=True))
)
FIRST = "name: w\nsteps:\n  - {id: first, skill: s}\n"


def step(text: str) -> str:
    return f"{FIRST}  - {text}\n"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (step("{id: a, skill: s, on_error: {goto: first}}"), 4, "round for ever"),
        (step("{id: a, skill: s, then: a}"), 4, "round for ever"),
        (step('{id: a, skill: s, with: {v: "${{ steps.a.output }}"}}'), 4, "has not run"),
        (FIRST + "".join(f"  - {{id: s{n}, skill: s}}\n" for n in range(2_000)), 1003, "at most 1,000"),
        (
            step("{id: a, foreach: {in: [1], concurrency: 1000000}, steps: [{id: b, skill: s}]}"),
            4,
            "less than",
        ),
        (
            step("{id: a, loop: {max: 1000000000}, steps: [{id: b, skill: s}]}"),
            4,
            "less than or equal to 1000",
        ),
        (step("{id: a, skill: s, retry: {attempts: 1000000}}"), 4, "less than or equal to 20"),
        (step("{id: a, skill: s, timeout: 999999999h}"), 4, "out of range"),
        (step(f"{{id: a, parallel: {{role: plan, agents: [{', '.join('x' * 101)}]}}}}"), 4, "at most 100"),
        (step(f"{{id: a, skill: s, when: '{'1 + ' * 1100}1'}}"), 4, "at most 4,096"),
        (
            step(
                "{id: a, skill: s, transform: '${{ "
                "[1].map(a,[1].map(b,[1].map(c,[1].map(d,[1].map(e, e))))) }}'}"
            ),
            4,
            "macros",
        ),
        (
            step("{id: a, switch: 'open(\"/etc/passwd\")', branches: {default: [{id: b, skill: s}]}}"),
            4,
            "there is no function open",
        ),
        (step("{id: a, wait_for: {topic: t, schema: {$ref: 'https://example.org/x'}}}"), 4, "refused"),
        (step("{id: a, workflow: '${{ input.w }}'}"), 4, "cannot be computed"),
        (BOMB + "steps: []\n", 6, "aliases written out"),
        (step("!!python/object/apply:os.system [x]"), 4, "tag"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else str(value),
)
def test_a_hostile_definition_is_refused_soon_with_the_line(text: str, line: int, problem: str) -> None:
    began = time.process_time()
    with pytest.raises(DefinitionError) as caught:
        load_definition(text, source="flow.yaml")
    assert time.process_time() - began < 5
    assert problem in caught.value.message
    assert (caught.value.source, caught.value.line) == ("flow.yaml", line)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "a:\n" + "- &a x\n" * 30_000,
        "".join(f"- &a{number} x\n" for number in range(16_000)),
        "[" + "a: b," * 30_000 + "]",
        "{" * 40_000,
        "? a\n" * 50_000,
        "# no value\n" * 20_000,
        "a\x85" * 20_000,
    ],
    ids=["one anchor", "anchors", "pairs", "brackets", "keys", "comments", "other line breaks"],
)
def test_a_yaml_text_with_too_many_values_is_refused_before_it_is_parsed(text: str) -> None:
    """Each value takes some 50 µs, and these texts are below the limit on their size."""
    began = time.process_time()
    with pytest.raises(DefinitionError, match=r"lines, commas and brackets; at most 15,000 in YAML"):
        load_definition(text)
    assert time.process_time() - began < 0.25


@pytest.mark.parametrize("opening", ["[", "{", "{a: ", "[{a: "])
def test_brackets_are_refused_at_the_first_one_too_many(opening: str) -> None:
    """Looking through all that are open for each further token took more than a second."""
    began = time.process_time()
    with pytest.raises(DefinitionError, match="nested deeper than 64 levels"):
        load_definition(opening * 3_500)
    assert time.process_time() - began < 0.25


def test_a_large_json_text_is_read_under_the_same_limits_without_being_parsed_as_yaml() -> None:
    steps = [{"id": f"s{number}", "skill": "s", "with": {"a": [1] * 45}} for number in range(900)]
    text = json.dumps({"name": "large", "steps": steps})
    began = time.process_time()
    assert len(load_definition(text).steps) == 900
    with pytest.raises(DefinitionError, match="more than 50,000 values"):
        load_definition('{"name": "x", "steps": [' + "1," * 60_000 + "1]}")
    with pytest.raises(DefinitionError, match="nested deeper than 64 levels"):
        load_definition('{"name": "x", "a": ' + "[" * 200 + "1," * 16_000 + "1" + "]" * 200 + "}")
    assert time.process_time() - began < 5
