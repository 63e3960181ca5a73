"""The page on workflows is true: its examples load, its limits are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retinue.workflows.definitions.definition import DEFAULT_STEP_TIMEOUT_S, Definition, Step
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.definitions.step_checks import MAX_NESTING, MAX_STEPS
from retinue.workflows.expressions.caps import (
    MAX_MACRO_BYTES,
    MAX_MACRO_ITEMS,
    MAX_MACRO_LEVELS,
    MAX_RESULT_BYTES,
    MAX_SOURCE_BYTES,
)
from retinue.workflows.expressions.isolated import CPU_S, MEMORY_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_every_example_loads(block: str) -> None:
    assert load_definition(block, source="docs/workflows.md").steps


@pytest.mark.parametrize("model", [Definition, Step])
def test_every_key_is_on_the_page(model: type[Definition] | type[Step]) -> None:
    for name, field in model.model_fields.items():
        assert f"`{field.alias or name}`" in PAGE


def test_the_limits_on_the_page_are_the_real_ones() -> None:
    assert (MAX_STEPS, MAX_NESTING, DEFAULT_STEP_TIMEOUT_S) == (1_000, 8, 300)
    assert (MAX_SOURCE_BYTES, MAX_MACRO_LEVELS, MAX_MACRO_ITEMS) == (4 * 1024, 2, 1_000)
    assert (MAX_MACRO_BYTES, MAX_RESULT_BYTES) == (1024**2, 8 * 1024**2)
    assert (CPU_S, MEMORY_BYTES) == (1, 512 * 1024**2)
