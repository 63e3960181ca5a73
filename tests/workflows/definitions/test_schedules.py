"""The key ``schedule`` of a workflow."""

from __future__ import annotations

import pytest

from retinue.core.errors import DefinitionError
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import load_definition
from retinue.workflows.definitions.starts import Schedule

STEPS = "steps:\n- {id: a, skill: s}\n"


def load_schedule(text: str) -> Schedule:
    schedule = load_definition(f"name: w\nschedule: {text}\n{STEPS}").schedule
    assert schedule is not None
    return schedule


def test_a_schedule_has_times_and_rules() -> None:
    schedule = load_schedule(
        '{cron: "0 3 * * mon-fri", timezone: Europe/Berlin, input: {n: 1}, missed: all, overlap: queue}'
    )
    assert (schedule.timezone, schedule.input, schedule.missed, schedule.overlap) == (
        "Europe/Berlin",
        {"n": 1},
        "all",
        "queue",
    )


def test_missed_times_start_one_run_and_overlapping_ones_none_by_default() -> None:
    schedule = load_schedule("{every: 15m}")
    assert (schedule.timezone, schedule.missed, schedule.overlap) == ("UTC", "once", "skip")


def test_a_text_is_a_cron_expression() -> None:
    assert load_schedule('"0 3 * * *"') == Schedule(cron="0 3 * * *")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "one of cron and every"),
        ('{cron: "0 3 * * *", every: 1h}', "one of cron and every"),
        ('{cron: "0 3 * *"}', "has 4 fields"),
        ("{every: 500ms}", "no number of whole seconds"),
        ("{every: 15}", "15 has no unit"),
        ('{cron: "0 3 * * *", timezone: Mars}', "is no time zone"),
        ('{cron: "0 3 * * *", missed: never}', "'skip', 'once' or 'all'"),
        ('{cron: "0 3 * * *", overlap: kill}', "'skip', 'queue' or 'cancel'"),
        ('{crom: "0 3 * * *"}', "unknown key .crom."),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        load_schedule(text)
    assert caught.value.line == 2


def test_the_stored_form_can_be_read_again() -> None:
    definition = load_definition(f'name: w\nschedule: {{cron: "0 3 * * *", missed: skip}}\n{STEPS}')
    assert definition.to_json()["schedule"] == {"cron": "0 3 * * *", "missed": "skip"}
    assert Definition.from_json(definition.to_json()) == definition
