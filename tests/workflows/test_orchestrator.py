"""Starting runs: the input is checked, the id decides, the caller's view travels."""

from __future__ import annotations

import pytest

from retinue.core.errors import InvalidParametersError, RunConflictError
from tests.workflows.running import Bench

DEFINITION = {
    "name": "w",
    "input": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "steps": [{"id": "a", "skill": "a"}],
}


async def test_an_input_that_breaks_the_schema_starts_nothing(bench: Bench) -> None:
    bench.offer("a", {})
    with pytest.raises(InvalidParametersError, match="missing required field 'n'"):
        await bench.run(DEFINITION, {})
    assert await bench.runs.list_all() == ()


async def test_the_same_id_gives_the_first_run_and_other_input_is_a_conflict(bench: Bench) -> None:
    bench.offer("a", {"once": True})
    first = await bench.run(DEFINITION, {"n": 1}, run_id="r")
    assert await bench.run(DEFINITION, {"n": 1}, run_id="r", trace={"id": "another"}) == first
    assert len(bench.called) == 1
    with pytest.raises(RunConflictError):
        await bench.run(DEFINITION, {"n": 2}, run_id="r")


async def test_runs_without_an_id_are_runs_of_their_own(bench: Bench) -> None:
    bench.offer("a", {})
    one, two = await bench.run(DEFINITION, {"n": 1}), await bench.run(DEFINITION, {"n": 1})
    assert one.id != two.id


async def test_steps_see_with_the_scopes_of_their_run(bench: Bench) -> None:
    seen: list[frozenset[str]] = []
    choose = bench.caller.choose

    async def note(skill, agent=None, version_range=None, scopes=frozenset()):  # type: ignore[no-untyped-def]
        seen.append(scopes)
        return await choose(skill, agent, version_range, scopes)

    bench.caller.choose = note  # type: ignore[method-assign]
    bench.offer("a", {})
    await bench.run(DEFINITION, {"n": 1}, scopes=frozenset({"exposed"}))
    await bench.run(DEFINITION, {"n": 1})
    assert seen == [frozenset({"exposed"}), frozenset({"exposed", "mesh"})]
