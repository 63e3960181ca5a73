"""Compensations: what is done is undone in reverse when what is around it fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retinue.core.errors import BusyError, NotAllowedError, StepFailedError
from retinue.workflows.definitions.loading import load_definition
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

TRIP = """
name: trip
steps:
  - id: flight
    skill: book_flight
    with: {to: Rome}
    compensate: {skill: cancel, with: {ref: "${{ steps.flight.output.ref }}"}}
  - id: hotel
    skill: book_hotel
    with: {to: Rome}
    compensate: {skill: cancel, with: {ref: "${{ steps.hotel.output.ref }}"}}
  - {id: pay, skill: pay, with: {n: 1}, compensate: {skill: cancel, with: {ref: never}}}
"""


def offer_trip(bench: Bench, pay: Any) -> list[str]:
    undone: list[str] = []

    def cancel(given: Any) -> Any:
        undone.append(given["ref"])
        return None

    bench.offer("book_flight", {"ref": "F1"})
    bench.offer("book_hotel", {"ref": "H1"})
    bench.offer("pay", pay)
    bench.offer("cancel", cancel)
    return undone


@requirement("P-31")
async def test_done_steps_are_undone_in_reverse_and_the_outcome_is_told(bench: Bench) -> None:
    undone = offer_trip(bench, failing(NotAllowedError("no money")))
    record = await bench.run(TRIP, run_id="r")
    assert undone == ["H1", "F1"]
    with pytest.raises(StepFailedError, match=r"step pay .*no money") as caught:
        record.get()
    assert [(one["step"], one["skill"], one["ok"]) for one in caught.value.compensated] == [
        ("hotel", "cancel", True),
        ("flight", "cancel", True),
    ]
    keys = [call.idempotency_key for call in bench.caller.calls if call.skill == "cancel"]
    assert keys == ["r/hotel/undo", "r/flight/undo"]


async def test_a_run_that_succeeds_undoes_nothing(bench: Bench) -> None:
    undone = offer_trip(bench, {"paid": True})
    assert (await bench.run(TRIP)).get() == {"paid": True}
    assert undone == []


async def test_a_compensation_that_fails_is_tried_again_told_and_keeps_no_other_from_being_undone(
    bench: Bench,
) -> None:
    undone = offer_trip(bench, failing(NotAllowedError("no money")))
    bench.offer("cancel_hotel", failing(*[BusyError("full", 0)] * 9))
    record = await bench.run(
        TRIP.replace(
            '{skill: cancel, with: {ref: "${{ steps.hotel',
            '{skill: cancel_hotel, with: {ref: "${{ steps.hotel',
        )
    )
    with pytest.raises(StepFailedError) as caught:
        record.get()
    first, second = caught.value.compensated
    assert (first["step"], first["ok"], first["error"]["type"]) == ("hotel", False, "busy")
    assert (second["step"], second["ok"]) == ("flight", True)
    assert bench.called.count("cancel_hotel") == 3
    assert undone == ["F1"]


async def test_a_failure_that_is_taken_inside_undoes_what_was_done_in_it_and_no_more(bench: Bench) -> None:
    undone = offer_trip(bench, failing(NotAllowedError("no money")))
    record = await bench.run(
        """
        name: trip
        steps:
          - {id: flight, skill: book_flight, with: {}, compensate: {skill: cancel, with: {ref: flight}}}
          - id: l
            loop: {max: 2}
            on_error: continue
            steps:
              - id: hotel
                skill: book_hotel
                with: {}
                compensate: {skill: cancel, with: {ref: "hotel ${{ loop.index }}"}}
              - {id: pay, skill: pay, with: {}, when: loop.index == 2}
        output: "${{ steps.l.error.compensated }}"
        """
    )
    assert undone == ["hotel 2", "hotel 1"]
    assert [one["step"] for one in record.get()] == ["l#2.hotel", "l#1.hotel"]


async def test_done_branches_items_and_nested_runs_are_undone_with_the_rest(bench: Bench) -> None:
    undone = offer_trip(bench, failing(NotAllowedError("no money")))
    record = await bench.run(
        """
        name: trip
        steps:
          - id: p
            parallel: {mode: all}
            branches:
              a: [{id: x, skill: book_flight, with: {}, compensate: {skill: cancel, with: {ref: a}}}]
              b: [{id: y, skill: book_hotel, with: {}, compensate: {skill: cancel, with: {ref: b}}}]
          - id: each
            foreach: {in: [1, 2]}
            steps:
              - id: z
                skill: book_hotel
                with: {}
                compensate: {skill: cancel, with: {ref: "z${{ loop.item }}"}}
          - {id: pay, skill: pay, with: {}}
        """
    )
    assert record.status == "failed"
    assert undone == ["z2", "z1", "b", "a"]
    assert record.fault is not None
    assert [one["step"] for one in record.fault.data["compensated"]] == [
        "each#2/z",
        "each#1/z",
        "p.b/y",
        "p.a/x",
    ]


async def test_a_branch_that_fails_undoes_its_own_and_its_siblings_are_undone_after_it(bench: Bench) -> None:
    undone = offer_trip(bench, failing(NotAllowedError("no money")))
    record = await bench.run(
        """
        name: trip
        steps:
          - id: p
            parallel: {mode: all}
            branches:
              a: [{id: x, skill: book_flight, with: {}, compensate: {skill: cancel, with: {ref: a}}}]
              b:
                - {id: y, skill: book_hotel, with: {}, compensate: {skill: cancel, with: {ref: b}}}
                - {id: pay, skill: pay, with: {}}
        """
    )
    assert undone == ["b", "a"]
    assert record.fault is not None
    assert [one["step"] for one in record.fault.data["compensated"]] == ["p.b/y", "p.a/x"]


async def test_without_with_a_compensation_is_sent_what_its_schema_asks_for_by_the_agent_that_did_it(
    bench: Bench,
) -> None:
    sent: list[Any] = []
    schema = {"type": "object", "properties": {"ref": {}, "to": {}}, "required": ["ref", "to"]}
    for agent in ("first", "second"):
        bench.offer("cancel", sent.append, agent=agent, input_schema=schema)
    bench.offer("book", {"ref": "B7"}, agent="second")
    bench.offer("pay", failing(NotAllowedError("no")))
    await bench.run(
        "name: w\nsteps: [{id: b, skill: book, with: {to: Rome}, compensate: {skill: cancel}},"
        " {id: p, skill: pay}]"
    )
    assert sent == [{"ref": "B7", "to": "Rome"}]
    assert [call.agent for call in bench.caller.calls if call.skill == "cancel"] == ["second"]


async def test_a_compensation_whose_arguments_cannot_be_told_is_told_as_failed(bench: Bench) -> None:
    offer_trip(bench, failing(NotAllowedError("no")))
    record = await bench.run(
        """
        name: w
        steps:
          - id: f
            skill: book_flight
            with: {}
            compensate: {skill: cancel, with: {ref: "${{ input.absent }}"}}
          - {id: p, skill: pay, with: {}}
        """
    )
    assert record.fault is not None
    (told,) = record.fault.data["compensated"]
    assert (told["ok"], told["error"]["type"]) == (False, "expression_error")


async def test_a_cancelled_run_undoes_nothing_since_it_may_be_resumed(bench: Bench) -> None:
    reached = asyncio.Event()

    async def hang(given: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    undone = offer_trip(bench, hang)
    await bench.orchestrator.start(load_definition(TRIP), {}, run_id="r")
    async with asyncio.timeout(60):
        await reached.wait()
    assert (await bench.runs.cancel("r")).status == "cancelled"
    assert undone == []
