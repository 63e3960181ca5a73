"""The JSON Schema of the grammar for editors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from retinue.workflows.definitions.definition import Definition, Step
from retinue.workflows.definitions.documents import read_text
from retinue.workflows.definitions.editor_schema import editor_schema, render_schema
from retinue.workflows.definitions.loading import list_builtins, list_installed_sources

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = re.findall(
    r"^```yaml\n(name:.*?)^```", (DOCS / "workflows.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
EXAMPLES = [text for text in EXAMPLES if "name: two-heads" not in text]  # the spelling of seed 002
SCHEMA = editor_schema()


def validate(value: Any) -> list[str]:
    return [error.message for error in jsonschema_rs.Draft202012Validator(SCHEMA).iter_errors(value)]


def with_step(**keys: Any) -> dict[str, Any]:
    return {"name": "w", "steps": [{"id": "a", **keys}]}


def test_the_published_schema_is_that_of_the_grammar() -> None:
    assert (DOCS / "workflow.schema.json").read_bytes() == render_schema(), (
        "run: python -m scripts.workflow_schema"
    )


def test_every_key_has_a_title_and_a_description() -> None:
    models = {"Workflow": SCHEMA, **SCHEMA["$defs"]}
    for model in models.values():
        assert model["title"]
        assert model["description"]
        for key, shown in model["properties"].items():
            assert shown["title"] == key
            assert shown["description"]
    for model, keys in ((Definition, SCHEMA), (Step, SCHEMA["$defs"]["Step"])):
        assert set(keys["properties"]) == {f.alias or name for name, f in model.model_fields.items()}


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.splitlines()[0])
def test_the_examples_of_the_reference_are_valid(text: str) -> None:
    assert validate(read_text(text, "docs/workflows.md").value) == []


@pytest.mark.parametrize("name", list_builtins())
def test_the_installed_workflows_are_valid(name: str) -> None:
    for file in list_installed_sources().files[name].values():
        value = read_text(file.read_text("utf-8"), name).value
        if "metadata" not in value:  # the spelling of another engine
            assert validate(value) == []


@pytest.mark.parametrize(
    "step",
    [
        {"foreach": "${{ input.items }}", "steps": [{"id": "b", "skill": "s"}]},
        {"foreach": [1, 2], "steps": [{"id": "b", "skill": "s"}]},
        {"foreach": {"in": [1], "concurrency": 2}, "steps": [{"id": "b", "skill": "s"}]},
        {"skill": "s", "with": "${{ input }}"},
        {"skill": "s", "with": {"n": 1, "text": "${{ input.text }}"}, "timeout": "1.5s"},
        {"skill": "s", "on_error": {"goto": "b"}, "cache": {"ttl": "5m"}, "ask": True},
        {"skill": "s", "on_error": "continue", "cache": True, "ask": {"capabilities": ["c"]}},
        {"wait_for": "approval"},
        {"wait_for": {"topic": "approval", "schema": {"type": "object"}}},
        {"wait": "10m"},
        {"wait": {"until": "${{ input.at }}"}},
        {"parallel": {"agents": "${{ input.agents }}", "prompt": "p"}},
        {"parallel": {"mode": "vote", "agents": ["a", "b"], "prompt": "p"}},
    ],
    ids=lambda step: "-".join(step),
)
def test_each_form_that_the_grammar_reads_is_valid(step: dict[str, Any]) -> None:
    assert validate(with_step(**step)) == []


@pytest.mark.parametrize(
    "value",
    [
        with_step(skil="s"),
        with_step(skill="s", timeout="5"),
        with_step(skill="s", timeout=5),
        with_step(skill="s", retry={"attempts": 0}),
        with_step(skill="s", on_error="retry"),
        with_step(skill="s", cache={"ttl": 5}),
        with_step(wait=10),
        with_step(wait={"to": "10m"}),
        with_step(parallel={"mode": "some"}),
        {"name": "w", "steps": [{"skill": "s"}]},
        {"steps": []},
    ],
    ids=lambda value: re.sub(r"\W+", "-", orjson.dumps(value).decode())[-40:],
)
def test_what_the_grammar_refuses_by_its_form_is_invalid(value: dict[str, Any]) -> None:
    assert validate(value) != []
