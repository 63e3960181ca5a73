"""Starting runs: the input is checked, the id decides, the caller's view travels."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.call import MAX_KEY_LENGTH, TraceContext
from retinue.core.errors import InvalidParametersError, RunConflictError
from retinue.workflows.runs.records import Origin
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
    other = Origin(trace=TraceContext("another"))
    assert await bench.run(DEFINITION, {"n": 1}, run_id="r", origin=other) == first
    assert len(bench.called) == 1
    with pytest.raises(RunConflictError):
        await bench.run(DEFINITION, {"n": 2}, run_id="r")


@pytest.mark.parametrize("run_id", ["", "a b", "bank/e#1", "line\nbreak", "n" * 101, "-dash", "ü"])
async def test_an_id_that_could_be_taken_for_a_branch_or_breaks_a_line_is_refused(
    run_id: str, bench: Bench
) -> None:
    with pytest.raises(InvalidParametersError, match="no id of a run"):
        await bench.run(DEFINITION, {"n": 1}, run_id=run_id)
    assert await bench.runs.list_all() == ()


async def test_a_deep_step_has_a_key_that_every_endpoint_takes_and_no_other_step_has(bench: Bench) -> None:
    keys: list[str] = []
    call = bench.caller.call

    async def note_key(*arguments: Any, idempotency_key: str, **more: Any) -> Any:
        keys.append(idempotency_key)
        return await call(*arguments, idempotency_key=idempotency_key, **more)

    bench.caller.call = note_key  # type: ignore[method-assign]
    bench.offer("a", {})
    names = [letter * 56 for letter in "abcd"]
    inner = [{"id": names[2], "skill": "a"}, {"id": names[3], "skill": "a"}]
    branch = {"id": names[1], "parallel": {}, "branches": {"x" * 56: inner}}
    each = {"id": names[0], "foreach": {"in": [1]}, "steps": [branch]}
    await bench.run({"name": "w", "steps": [each]}, {}, run_id="r" * 90)
    assert len(set(keys)) == len(keys) == 2
    assert max(map(len, keys)) <= MAX_KEY_LENGTH


async def test_runs_without_an_id_are_runs_of_their_own(bench: Bench) -> None:
    bench.offer("a", {})
    one, two = await bench.run(DEFINITION, {"n": 1}), await bench.run(DEFINITION, {"n": 1})
    assert one.id != two.id


async def test_steps_see_with_the_scopes_of_their_run(bench: Bench) -> None:
    seen: list[frozenset[str]] = []
    choose = bench.caller.choose

    async def note(skill, agent=None, version_range=None, scopes=frozenset(), *rights):  # type: ignore[no-untyped-def]
        seen.append(scopes)
        return await choose(skill, agent, version_range, scopes, *rights)

    bench.caller.choose = note  # type: ignore[method-assign]
    bench.offer("a", {})
    await bench.run(DEFINITION, {"n": 1}, origin=Origin(frozenset({"exposed"})))
    await bench.run(DEFINITION, {"n": 1})
    assert seen == [frozenset({"exposed"}), frozenset({"exposed", "mesh"})]
