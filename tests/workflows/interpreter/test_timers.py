"""A timer: a step that waits for a length of time, or until a point in time."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.core.errors import DefinitionError, StepFailedError
from retinue.testing.memory_runs import MemoryRuns
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.interpreter.frame import Tools
from retinue.workflows.interpreter.step_loop import Interpreter
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.runs.records import RunRecord
from retinue.workflows.runs.tree import draw_tree
from retinue.workflows.times import parse_time, render_time
from tests.workflows.running import Bench

AT = parse_time("2026-12-01T08:00:00Z")


class Clocked(Bench):
    """A bench whose clock shows 2026-12-01T08:00:00Z, plus what its runs slept."""

    def __post_init__(self) -> None:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        def clock() -> float:
            return AT + sum(self.slept)

        body = Interpreter(Tools(self.caller, clock=clock)).run
        self.runs = MemoryRuns(body, sleep=sleep, clock=clock)
        self.orchestrator = Orchestrator(self.runs)


async def run(step: str, given: Any = None, *, settings: str = "") -> tuple[Clocked, RunRecord]:
    bench = Clocked()
    bench.offer("work", lambda arguments: arguments)
    head = f"name: w\n{settings}steps:\n- {{id: first, skill: work, with: {{n: 1}}}}\n"
    record = await bench.run(f"{head}- {step}\n- {{id: last, skill: work}}\n", given, run_id="r")
    return bench, record


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        ("10m", 600),
        ("30d", 30 * 86_400),
        ("{for: 10m}", 600),
        ("{until: 2026-12-01T08:30:00Z}", 1_800),
        ("{until: '2026-12-01T10:00:00.5+01:00'}", 3_600.5),
        ("{until: '${{ input.at }}'}", 90),
        ("{until: '2026-12-${{ input.day }}T08:00:00Z'}", 86_400),
    ],
)
async def test_a_timer_waits_and_leaves_the_data_between_its_neighbours(wait: str, seconds: float) -> None:
    given = {"at": "2026-12-01T08:01:30Z", "day": "02"}
    bench, record = await run(f"{{id: t, wait: {wait}}}", given)
    assert bench.slept == [seconds]
    assert record.get() == {"n": 1}


@pytest.mark.parametrize("wait", ["{until: 2026-12-01T08:00:00Z}", "{until: 1999-01-01T00:00:00Z}"])
async def test_a_time_that_is_over_is_not_waited_for(wait: str) -> None:
    bench, record = await run(f"{{id: t, wait: {wait}}}")
    assert bench.slept == []
    assert record.get() == {"n": 1}


@pytest.mark.parametrize("value", ["tomorrow", 5, "2026-12-01T08:00:00", "2026-13-01T08:00:00Z", None])
async def test_an_expression_that_gives_no_time_fails_the_step(value: Any) -> None:
    bench, record = await run("{id: t, wait: {until: '${{ input.at }}'}}", {"at": value})
    with pytest.raises(StepFailedError, match="is no time") as caught:
        record.get()
    assert caught.value.step == "t"
    assert bench.called == ["work"]


@pytest.mark.parametrize(
    ("step", "settings", "setting"),
    [
        ("{id: t, wait: 2h, timeout: 1h}", "", "timeout of step t"),
        ("{id: t, wait: 2h}", "settings: {max_duration: 1h}\n", "settings.max_duration"),
        ("{id: t, wait: {until: 2027-01-01T00:00:00Z}, timeout: 1h}", "", "timeout of step t"),
    ],
)
async def test_a_limit_around_a_timer_ends_it_with_a_failure(step: str, settings: str, setting: str) -> None:
    bench, record = await run(step, settings=settings)
    assert bench.slept == [3_600]
    with pytest.raises(StepFailedError, match="did not answer within 1 h") as caught:
        record.get()
    assert caught.value.remedy == f"raise {setting}"


async def test_a_timer_shows_until_when_it_waits() -> None:
    bench, _ = await run("{id: t, wait: 10m}")
    events = await bench.events("r")
    started = next(one for one in events if one.step == "t" and one.kind == "step_started")
    assert started.facts["until"] == "2026-12-01T08:10:00Z"
    before = draw_tree([one for one in events if one.seq <= started.seq], [], ended=None)
    row = next(one for one in before if one["step"] == "t")
    assert (row["kind"], row["status"], row["until"]) == ("timer", "waiting", "2026-12-01T08:10:00Z")
    after = next(one for one in draw_tree(events, [], ended="done") if one["step"] == "t")
    assert after["status"] == "done"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ("{id: t, wait: 10}", "10 has no unit: write 10s, 10m or 10ms"),
        ("{id: t, wait: soon}", "'soon' is no duration"),
        ("{id: t, wait: 4000d}", "at most 87600h"),
        ("{id: t, wait: {until: noon}}", "'noon' is no time: write it with a time zone"),
        ("{id: t, wait: {until: '2026-12-01T08:00:00'}}", "is no time"),
        ("{id: t, wait: {}}", "wait has one of for and until"),
        ("{id: t, wait: {for: 1m, until: '2026-12-01T08:00:00Z'}}", "wait has one of for and until"),
        ("{id: t, wait: {untill: '2026-12-01T08:00:00Z'}}", "unknown key 'untill'"),
        ("{id: t, wait: {until: '${{ steps.later.output }}'}}", "no step has the id 'later'"),
        ("{id: t, wait: 1m, with: {a: 1}}", "'with' does not belong to a wait step"),
        ("{id: t, wait: 1m, skill: work}", "has skill and wait"),
        ("{id: t, wait: 1m, transform: 1}", "on a timer, which has no output"),
        ("{id: t, wait: 1m, validate: 'true'}", "on a timer, which has no output"),
    ],
)
def test_a_wrong_timer_is_refused_when_it_is_loaded(step: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        load_definition(f"name: w\nsteps:\n- {step}\n")


def test_the_stored_form_of_a_timer_can_be_read_again() -> None:
    definition = load_definition("name: w\nsteps:\n- {id: t, wait: 9d}\n")
    assert definition.to_json()["steps"] == [{"id": "t", "wait": {"for": "9d"}}]
    assert Definition.from_json(definition.to_json()) == definition


def test_times_are_rendered_in_utc() -> None:
    assert render_time(parse_time("2026-12-01T09:00:00.75+01:00")) == "2026-12-01T08:00:00Z"
