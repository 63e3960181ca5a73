"""Workflows that run workflows: read before the run, circles refused with their line, run as children."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from retinue.core.errors import DefinitionError, NotAllowedError, StepFailedError, UnknownWorkflowError
from retinue.workflows.definitions.loading import load
from retinue.workflows.library import MAX_WORKFLOW_DEPTH, Library, StoredText, bundle
from retinue.workflows.runs.records import RunRecord
from tests.workflows.running import Bench, failing


class Texts:
    """A shelf of texts by name, or by name and version."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    async def list_names(self) -> Sequence[str]:
        return [name for name in self._texts if "@" not in name]

    async def find_text(self, name: str, version: str | None = None) -> StoredText | None:
        key = name if version is None else f"{name}@{version}"
        text = self._texts.get(key)
        return None if text is None else StoredText(text, f"{key}.yaml", f"sha256:{key}")


def library(**texts: str) -> Library:
    return Library([Texts({name.replace("__", "@"): text for name, text in texts.items()})])


async def run(bench: Bench, shelf: Library, text: str, given: Any = None, **more: Any) -> RunRecord:
    found = await bundle(shelf, load(text, source="flow.yaml"))
    return await bench.orchestrator.run(found.loaded.definition, given or {}, nested=found.nested, **more)


INNER = """
name: inner
input: {type: object, properties: {n: {type: integer}}, required: [n]}
steps:
  - {id: a, skill: tell, with: {n: "${{ input.n + 1 }}"}}
output: {n: "${{ steps.a.output.n }}", seen: "${{ has(input.secret) }}"}
"""
OUTER = """
name: outer
steps:
  - {id: seed, skill: tell, with: {n: 1}}
  - {id: sub, workflow: inner}
  - {id: again, workflow: inner, with: {n: "${{ steps.sub.output.n * 10 }}"}}
"""


async def test_a_nested_workflow_runs_as_a_child_and_gives_its_output(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    record = await run(bench, library(inner=INNER), OUTER, {"secret": 1}, run_id="r")
    assert record.get() == {"n": 21, "seen": False}
    keys = [call.idempotency_key for call in bench.caller.calls]
    assert keys == ["r/seed", "r/sub/a", "r/again/a"]


async def test_its_input_is_checked_by_its_schema(bench: Bench) -> None:
    bench.offer("tell", {"n": "three"})
    with pytest.raises(StepFailedError, match="step sub failed") as caught:
        (await run(bench, library(inner=INNER), OUTER)).get()
    assert caught.value.cause["type"] == "validation_error"


async def test_its_failure_has_the_path_of_the_step_inside_and_undoes_what_it_did(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    bench.offer("break", failing(NotAllowedError("no")))
    inner = """
name: inner
steps:
  - {id: a, skill: tell, with: {n: 1}, compensate: {skill: tell, with: {undo: a}}}
  - {id: b, skill: break}
"""
    with pytest.raises(StepFailedError, match=r"step sub/b ") as caught:
        (await run(bench, library(inner=inner), OUTER)).get()
    assert [one["step"] for one in caught.value.compensated] == ["sub/a"]


async def test_what_a_done_one_did_is_undone_when_a_later_step_fails(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    bench.offer("break", failing(NotAllowedError("no")))
    inner = (
        "name: inner\nsteps: [{id: a, skill: tell, with: {n: 1}, compensate: {skill: tell, with: {undo: a}}}]"
    )
    outer = "name: outer\nsteps: [{id: sub, workflow: inner}, {id: b, skill: break}]"
    await run(bench, library(inner=inner), outer)
    assert bench.arguments[-1] == {"undo": "a"}


async def test_a_tag_or_a_digest_names_one_version(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    shelf = library(
        inner="name: inner\nsteps: [{id: a, skill: tell, with: {v: newest}}]",
        inner__v1="name: inner\nsteps: [{id: a, skill: tell, with: {v: one}}]",
    )
    record = await run(
        bench,
        shelf,
        "name: w\nsteps: [{id: a, workflow: inner@v1}, {id: b, workflow: inner}]\n"
        "output: ['${{ steps.a.output.v }}', '${{ steps.b.output.v }}']",
    )
    assert record.get() == ["one", "newest"]
    nested = record.request.definition["nested"]
    assert nested["inner@v1"]["digest"] == "sha256:inner@v1"


CIRCLE = {
    "a": "name: a\nsteps:\n  - {id: x, workflow: b}\n",
    "b": "name: b\nsteps:\n  - {id: first, skill: s}\n  - {id: y, workflow: a}\n",
}


async def test_workflows_in_a_circle_are_refused_with_the_line_that_closes_it() -> None:
    with pytest.raises(DefinitionError, match=r"b\.yaml:4: .*in a circle: a → b → a") as caught:
        await bundle(library(**CIRCLE), load(CIRCLE["a"], source="a.yaml"))
    assert (caught.value.source, caught.value.line) == ("b.yaml", 4)


async def test_a_workflow_that_runs_itself_is_refused() -> None:
    text = "name: me\nsteps:\n  - {id: x, workflow: me}\n"
    with pytest.raises(DefinitionError, match=r"me.yaml:3: .*circle: me → me"):
        await bundle(library(me=text), load(text, source="me.yaml"))


async def test_workflows_nested_too_deep_are_refused_with_the_line() -> None:
    texts = {f"w{n}": f"name: w{n}\nsteps:\n  - {{id: x, workflow: w{n + 1}}}\n" for n in range(9)}
    texts["w9"] = "name: w9\nsteps: [{id: x, skill: s}]"
    with pytest.raises(DefinitionError, match=f"deeper than {MAX_WORKFLOW_DEPTH}: w0 → w1") as caught:
        await bundle(library(**texts), load(texts["w0"], source="w0.yaml"))
    assert caught.value.line == 3


async def test_a_diamond_is_no_circle_and_is_read_once() -> None:
    texts = {
        "left": "name: left\nsteps: [{id: x, workflow: end}]",
        "right": "name: right\nsteps: [{id: x, workflow: end}]",
        "end": "name: end\nsteps: [{id: x, skill: s}]",
    }
    found = await bundle(
        library(**texts), load("name: w\nsteps: [{id: l, workflow: left}, {id: r, workflow: right}]")
    )
    assert sorted(found.nested) == ["end", "left", "right"]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"inner": "name: inner\nsteps: []\n"}, r"inner\.yaml:2: steps: no steps"),
        ({"iner": INNER}, r"flow\.yaml:3: steps\[0\]\.workflow: Unknown workflow: inner"),
    ],
)
async def test_a_nested_workflow_that_cannot_be_read_is_a_fault_with_its_line(
    texts: Any, problem: str
) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        await bundle(
            library(**texts), load("name: w\nsteps:\n  - {id: s, workflow: inner}\n", source="flow.yaml")
        )
    assert caught.value.remedy


async def test_a_computed_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match="cannot be computed"):
        load("name: w\nsteps: [{id: s, workflow: '${{ input.name }}'}]")


async def test_an_unknown_name_suggests_the_near_one() -> None:
    with pytest.raises(UnknownWorkflowError) as caught:
        await library(inner=INNER).get("iner")
    assert "inner" in caught.value.remedy


async def test_a_built_in_name_cannot_be_taken_over() -> None:
    shelf = library(direct="name: other\nsteps: [{id: s, skill: s}]")
    assert (await shelf.get("direct")).definition.name == "direct"
    assert [one.origin for one in await shelf.list_all() if one.name == "direct"] == ["built-in"]
