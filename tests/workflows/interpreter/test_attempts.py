"""Attempts of unknown outcome keep their key, and a saga undoes every attempt that may have happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from retinue.core.errors import (
    AgentUnreachableError,
    BusyError,
    CallTimedOutError,
    ExecutionFailedError,
    NotAllowedError,
    OutputInvalidError,
    Problem,
    RetinueError,
)
from retinue.workflows.caller import Choice
from retinue.workflows.runs.records import RunRecord
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

RETRY = "retry: {attempts: 3, delay: 1ms}"
CHARGE = """
name: w
steps:
- {id: charge, skill: charge, with: {n: 1}, %s, compensate: {skill: refund, with: {n: 1}}}
- {id: ship, skill: ship, with: {}}
"""
BY_OUTPUT = CHARGE.replace("refund, with: {n: 1}", 'refund, with: {n: "${{ steps.charge.output.id }}"}')


def late() -> CallTimedOutError:
    return CallTimedOutError("charge", 2, layer="caller", setting="the caller's timeout")


def lost() -> AgentUnreachableError:
    return AgentUnreachableError("charge-agent", "http://127.0.0.1:1", "reset", sent=True)


def refused() -> AgentUnreachableError:
    return AgentUnreachableError("charge-agent", "http://127.0.0.1:1", "connection refused")


def keys(bench: Bench, skill: str) -> list[str]:
    return [call.idempotency_key for call in bench.caller.calls if call.skill == skill]


def offer(bench: Bench, *failures: RetinueError, then: Any = None) -> list[Any]:
    """The skills of the saga, whose shipping is refused; gives what is refunded."""
    refunded: list[Any] = []
    bench.offer("charge", failing(*failures, then={"id": "C1"} if then is None else then))
    bench.offer("refund", lambda given: refunded.append(given["n"]))
    bench.offer("ship", failing(*[NotAllowedError("no ships")] * 9))
    return refunded


def rows(record: RunRecord) -> list[dict[str, Any]]:
    assert record.fault is not None
    found: list[dict[str, Any]] = record.fault.data.get("compensated", [])
    return found


@requirement("P-31")
@pytest.mark.parametrize("unknown", [late, lost], ids=["time-out", "lost"])
async def test_an_attempt_of_unknown_outcome_is_repeated_with_its_key_and_undone_once(
    bench: Bench, unknown: Any
) -> None:
    refunded = offer(bench, unknown(), unknown())
    record = await bench.run(CHARGE % RETRY, run_id="r")
    assert keys(bench, "charge") == ["r/charge"] * 3
    assert refunded == [1]
    assert not record.is_half_undone


async def test_a_key_of_its_own_follows_only_an_answered_failure(bench: Bench) -> None:
    """A refusal tells nothing about an attempt before it."""
    failures = [ExecutionFailedError("declined"), late(), BusyError("full", 0), refused(), late()]
    offer(bench, *failures, ExecutionFailedError("declined"))
    await bench.run(CHARGE % "retry: {attempts: 7, delay: 1ms}", run_id="r")
    assert keys(bench, "charge") == ["r/charge", *["r/charge@2"] * 5, "r/charge@6"]


async def test_an_agent_that_refuses_to_tell_an_outcome_is_asked_again_with_the_same_key(
    bench: Bench,
) -> None:
    refunded = offer(bench, late(), BusyError("full", 0))
    record = await bench.run(BY_OUTPUT % "timeout: 2s", run_id="r")
    assert (refunded, set(keys(bench, "charge")), record.is_half_undone) == (["C1"], {"r/charge"}, False)


@requirement("P-31")
async def test_a_step_that_fails_in_doubt_is_asked_for_its_outcome_and_undone_with_it(bench: Bench) -> None:
    """The agent ends after its last attempt was given up: what it did is known, and undone."""
    refunded = offer(bench, late(), late())
    record = await bench.run(BY_OUTPUT % "retry: {attempts: 2, delay: 1ms}", run_id="r")
    assert keys(bench, "charge") == ["r/charge"] * 3
    assert refunded == ["C1"]
    assert keys(bench, "refund") == ["r/charge/undo"]
    assert keys(bench, "ship") == []
    (row,) = rows(record)
    assert (row["step"], row["ok"], row["key"]) == ("charge", True, "r/charge")


async def test_a_step_whose_last_attempt_turns_out_to_have_failed_is_not_undone(bench: Bench) -> None:
    refunded = offer(bench, late(), RuntimeError("declined"))  # type: ignore[arg-type]
    record = await bench.run(CHARGE % "timeout: 2s", run_id="r")
    assert (refunded, rows(record), record.is_half_undone) == ([], [], False)


@requirement("P-31")
async def test_an_outcome_that_stays_unknown_leaves_the_run_half_undone_with_attempt_and_key(
    bench: Bench,
) -> None:
    refunded = offer(bench, *[late()] * 5)
    record = await bench.run(BY_OUTPUT % RETRY, run_id="r")
    assert record.is_half_undone
    (row,) = rows(record)
    assert (row["step"], row["attempt"], row["key"], row["ok"]) == ("charge", "charge@3", "r/charge", False)
    assert "charge@3 (key r/charge) at charge-agent is unknown" in row["error"]["message"]
    assert (refunded, len(keys(bench, "charge"))) == ([], 4)
    await bench.runs.resume("r")
    record = await bench.runs.finish("r")
    assert (record.is_half_undone, len(keys(bench, "charge"))) == (True, 5)
    await bench.runs.resume("r")
    record = await bench.runs.finish("r")
    assert not record.is_half_undone
    assert refunded == ["C1"]
    assert set(keys(bench, "charge")) == {"r/charge"}


async def test_each_attempt_at_an_agent_without_keys_is_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged twice and refunded twice; the one that gave the result by its output."""
    refunded = offer(bench, late())
    let_choose(bench, monkeypatch, keeps_keys=False)
    record = await bench.run(CHARGE % RETRY, run_id="r")
    assert (len(keys(bench, "charge")), refunded, record.is_half_undone) == (2, [1, 1], False)
    assert keys(bench, "refund") == ["r/charge/undo", "r/charge@1/undo"]


async def test_an_attempt_whose_output_never_came_and_is_needed_leaves_the_run_half_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refunded = offer(bench, late())
    let_choose(bench, monkeypatch, keeps_keys=False)
    record = await bench.run(BY_OUTPUT % RETRY, run_id="r")
    assert (refunded, record.is_half_undone) == (["C1"], True)
    done, left = rows(record)
    assert (done["ok"], left["ok"], left["attempt"], left["key"]) == (True, False, "charge", "r/charge")
    assert "its output never came" in left["error"]["message"]


async def test_a_skill_that_may_be_repeated_is_undone_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    refunded = offer(bench, late())
    let_choose(bench, monkeypatch, keeps_keys=False, is_repeatable=True)
    await bench.run(CHARGE % RETRY, run_id="r")
    assert refunded == [1]


async def test_a_result_that_is_refused_is_undone_as_well(bench: Bench) -> None:
    """The skill came to its end each time: three charges, three refunds, each by its own output."""
    answers = iter([{"id": "C1"}, {"id": "C2"}, {"id": "C3"}])
    refunded = offer(bench)
    bench.offer("charge", lambda _: next(answers))
    await bench.run(BY_OUTPUT % (RETRY + ', validate: steps.charge.output.id == "C3"'), run_id="r")
    assert refunded == ["C3", "C2", "C1"]


async def test_an_output_that_breaks_its_schema_is_that_of_an_effect(bench: Bench) -> None:
    refunded = offer(bench, OutputInvalidError("charge", [Problem("id", "missing")]))
    record = await bench.run(CHARGE % RETRY, run_id="r")
    assert (refunded, record.is_half_undone) == ([1], False)


async def test_a_step_whose_transform_fails_has_happened(bench: Bench) -> None:
    refunded = offer(bench)
    await bench.run(CHARGE % 'transform: {x: "${{ steps.charge.output.absent }}"}', run_id="r")
    assert refunded == [1]


@pytest.mark.parametrize("is_repeatable", [False, True])
async def test_a_step_to_be_undone_moves_to_another_agent_only_if_it_may_run_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_repeatable: bool
) -> None:
    refunded = offer(bench, lost())
    bench.offer("charge", {"id": "other"}, agent="other-agent")
    let_choose(bench, monkeypatch, "other-agent", is_repeatable=is_repeatable)
    await bench.run(CHARGE % RETRY, run_id="r")
    asked = Counter(call.agent for call in bench.caller.calls if call.skill == "charge")
    assert asked == ({"charge-agent": 1, "other-agent": 1} if is_repeatable else {"charge-agent": 2})
    assert (set(keys(bench, "charge")), refunded) == ({"r/charge"}, [1])


async def test_a_compensation_of_unknown_outcome_keeps_its_key_even_when_it_is_resumed(bench: Bench) -> None:
    offer(bench)
    bench.offer("refund", failing(*[late()] * 4))
    record = await bench.run(CHARGE % RETRY, run_id="r")
    assert record.is_half_undone
    (row,) = rows(record)
    assert (row["attempt"], row["key"]) == ("charge/undo@3", "r/charge/undo")
    await bench.runs.resume("r")
    assert not (await bench.runs.finish("r")).is_half_undone
    assert keys(bench, "refund") == ["r/charge/undo"] * 5


async def test_attempts_in_branches_and_items_are_undone_by_the_run_around_them(bench: Bench) -> None:
    refunded = offer(bench, late(), late(), late())
    record = await bench.run(
        """
        name: w
        steps:
        - id: each
          foreach: {in: [1, 2]}
          steps:
          - id: charge
            skill: charge
            with: {n: "${{ loop.item }}"}
            retry: {attempts: 1}
            compensate: {skill: refund, with: {n: "${{ loop.item }} ${{ steps.charge.output.id }}"}}
        """,
        run_id="r",
    )
    assert record.status == "failed"
    # both gave up; the first that asks again still gets no answer, and is resumed by the outermost run
    (told,) = [one for one in rows(record) if not one["ok"]]
    assert (told["step"], told["key"]) == (told["attempt"], f"r/{told['step']}")
    await bench.runs.resume("r")
    assert not (await bench.runs.finish("r")).is_half_undone
    assert sorted(refunded) == ["1 C1", "2 C1"]


def let_choose(bench: Bench, monkeypatch: pytest.MonkeyPatch, *others: str, **facts: Any) -> None:
    """Let the directory say more about the agents of the bench, and name others for a skill called before."""
    choose = bench.caller.choose

    async def choose_known(skill: str, agent: str | None = None, *given: Any, **named: Any) -> Choice:
        agents = [agent, *others] if skill in bench.called else [agent]
        return replace(await choose(skill, agents[-1], *given, **named), **facts)

    monkeypatch.setattr(bench.caller, "choose", choose_known)
