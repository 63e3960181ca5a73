"""Parallel modes over agents and branches: race, all, vote, merge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from retinue.core.errors import NotAllowedError, StepFailedError
from retinue.workflows.definitions.loading import load_definition
from tests.requirements import requirement
from tests.workflows.running import Bench, failing

pytestmark = requirement("L-15")


def workflow(parallel: str, output: str = "") -> str:
    step = f"  - id: d\n    parallel: {{role: execute, prompt: 'What is ${{{{ input.q }}}}?', {parallel}}}\n"
    return f"name: w\nsteps:\n{step}{output}"


EVERYTHING = """output:
  output: "${{ steps.d.output }}"
  agent: "${{ steps.d.agent }}"
  by: "${{ has(steps.d.decided_by) ? steps.d.decided_by : '' }}"
  rows: "${{ steps.d.ballots }}"
"""


def offer_agents(bench: Bench, *answers: Any, role: str = "execute") -> None:
    """Agents ``a``, ``b``, … that have the role, with falling scores."""
    for place, answer in enumerate(answers):
        name = "abcdefgh"[place]
        bench.offer(f"ask_{role}", answer, agent=name, roles=[role], score=0.9 - place / 10)


def says(text: Any) -> Callable[[Any], Any]:
    return lambda given: text


async def hang(given: Any) -> Any:
    await asyncio.Event().wait()


async def test_all_gives_every_result_with_agent_ok_and_duration(bench: Bench) -> None:
    offer_agents(bench, says("x"), failing(NotAllowedError("no")), says({"z": 1}))
    rows = (await bench.run(workflow("mode: all"), {"q": "it"})).get()
    assert [(row["agent"], row["ok"]) for row in rows] == [("a", True), ("b", False), ("c", True)]
    assert [row.get("output") for row in rows] == ["x", None, {"z": 1}]
    assert rows[1]["error"]["type"] == "not_allowed"
    assert all(row["duration_ms"] >= 0 for row in rows)
    assert bench.arguments == [{"prompt": "What is it?"}] * 3


async def test_nobody_succeeding_fails_the_step_with_every_ballot(bench: Bench) -> None:
    offer_agents(bench, failing(NotAllowedError("no")), failing(ValueError("worse")))
    with pytest.raises(StepFailedError, match="no agent succeeded: a: no; b: worse") as caught:
        (await bench.run(workflow("mode: all"), {"q": "it"})).get()
    assert [row["ok"] for row in caught.value.cause["data"]["ballots"]] == [False, False]


async def test_a_race_goes_to_the_first_success_and_the_others_are_cut_off(bench: Bench) -> None:
    cut: list[str] = []

    async def slow(given: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append("slow")
            raise

    offer_agents(bench, slow, failing(ValueError("first to end, and no success")), says("won"))
    record = await bench.run(workflow("mode: race", EVERYTHING), {"q": "it"})
    assert (record.get()["output"], record.get()["agent"]) == ("won", "c")
    assert cut == ["slow"]
    ended = {r.id: r.status for r in await bench.runs.list_all(children=True) if r.parent_id}
    assert {name.rpartition(".")[2]: status for name, status in ended.items()} == {
        "a": "cancelled",
        "b": "failed",
        "c": "done",
    }


async def test_a_race_of_branches_keeps_what_the_winner_did(bench: Bench) -> None:
    bench.offer("slow", hang)
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - id: r
            parallel: {mode: race}
            branches:
              x: [{id: a, skill: tell, with: {n: 1}}, {id: b, skill: slow, with: {}}]
              y:
                - {id: c, skill: tell, with: {n: 2}}
                - {id: d, skill: tell, with: {n: "${{ steps.c.output.n + 1 }}"}}
        output:
          won: "${{ steps.r.output }}"
          by: "${{ steps.r.agent }}"
          c: "${{ steps.c.output.n }}"
          a: "${{ has(steps.a.output) }}"
        """
    )
    assert record.get() == {"won": {"n": 3}, "by": "y", "c": 2, "a": False}


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
async def test_a_vote_goes_to_the_majority_whatever_the_order_and_spelling(bench: Bench, names: Any) -> None:
    offer_agents(bench, says("Rome"), says({"answer": "  PARIS. "}), says("`paris`"))
    record = await bench.run(workflow(f"mode: vote, agents: [{', '.join(names)}]", EVERYTHING), {"q": "it"})
    got = record.get()
    assert (got["output"], got["agent"], got["by"]) == ({"answer": "  PARIS. "}, "b", "majority")
    assert [row["agent"] for row in got["rows"]] == list(names)


async def test_a_tie_goes_to_a_reviewer_who_sees_no_names(bench: Bench) -> None:
    asked: list[str] = []

    def review(given: Any) -> Any:
        asked.append(given["prompt"])
        return "B."

    offer_agents(bench, says("zinc"), says("gold"))
    bench.offer("look", review, agent="judge", roles=["review"])
    got = (await bench.run(workflow("mode: vote", EVERYTHING), {"q": "it"})).get()
    assert (got["output"], got["by"], got["agent"]) == ("zinc", "reviewer", "a")
    (prompt,) = asked
    assert prompt.index("gold") < prompt.index("zinc")  # in the order of the texts
    assert "What is it?" in prompt
    assert not {"agent a", "agent b", "Result a"} & set(prompt.splitlines())


@pytest.mark.parametrize("answer", [None, says("both are good"), failing(*[ValueError("x")] * 9)])
async def test_a_tie_without_a_usable_reviewer_goes_to_the_highest_score(bench: Bench, answer: Any) -> None:
    offer_agents(bench, says("zinc"), says("gold"))
    if answer is not None:
        bench.offer("look", answer, agent="judge", roles=["review"])
    got = (await bench.run(workflow("mode: vote", EVERYTHING), {"q": "it"})).get()
    assert (got["output"], got["by"]) == ("zinc", "score")


async def test_a_vote_ends_once_one_answer_leads_by_k(bench: Bench) -> None:
    offer_agents(bench, says("x"), says("x"), hang)
    got = (await bench.run(workflow("mode: vote, k: 2", EVERYTHING), {"q": "it"})).get()
    assert (got["output"], len(got["rows"])) == ("x", 2)


async def test_a_failed_voter_is_a_failed_ballot(bench: Bench) -> None:
    offer_agents(bench, failing(ValueError("x")), says("yes"), says("  "))
    got = (await bench.run(workflow("mode: vote", EVERYTHING), {"q": "it"})).get()
    assert got["output"] == "yes"
    assert [row["ok"] for row in got["rows"]] == [False, True, False]
    assert got["rows"][2]["error"]["type"] == "empty_output"


async def test_a_merge_is_written_by_a_reviewer(bench: Bench) -> None:
    offer_agents(bench, says("one part"), says("the other"))
    bench.offer(
        "look",
        lambda given: "merged of " + str(given["prompt"].count("[begin of result")),
        roles=["review"],
        agent="judge",
    )
    got = (await bench.run(workflow("mode: merge", EVERYTHING), {"q": "it"})).get()
    assert (got["output"], got["agent"]) == ("merged of 2", "judge")
    assert len(got["rows"]) == 2


async def test_a_merge_is_written_by_a_planner_where_there_is_no_reviewer(bench: Bench) -> None:
    offer_agents(bench, says("one part"), says("the other"))
    bench.offer("make", says("planned"), roles=["plan"], agent="planner")
    assert (await bench.run(workflow("mode: merge"), {"q": "it"})).get() == "planned"


async def test_a_merge_that_nobody_writes_is_a_labelled_concatenation(bench: Bench) -> None:
    offer_agents(bench, says("one part"), says({"text": "the other"}))
    record = await bench.run(workflow("mode: merge"), {"q": "it"})
    assert record.get() == "## a\n\none part\n\n## b\n\nthe other"


async def test_a_named_reviewer_is_the_one_asked(bench: Bench) -> None:
    offer_agents(bench, says("x"), says("y"))
    for name, letter in (("strict", "A"), ("kind", "B")):
        bench.offer("look", says(letter), agent=name, roles=["review"], score=0.5)
    got = (await bench.run(workflow("mode: vote, reviewer: kind", EVERYTHING), {"q": "it"})).get()
    assert got["output"] == "y"


@requirement("L-14")
async def test_named_agents_are_asked_in_order_and_an_unknown_one_fails_the_step(bench: Bench) -> None:
    offer_agents(bench, says("x"), says("y"), says("z"))
    rows = (await bench.run(workflow("agents: [c, a]"), {"q": "it"})).get()
    assert [row["agent"] for row in rows] == ["c", "a"]
    with pytest.raises(StepFailedError, match="Unknown agent: nobody"):
        (await bench.run(workflow("agents: [a, nobody]"), {"q": "it"})).get()


@requirement("L-14")
async def test_no_agents_named_means_every_available_one(bench: Bench) -> None:
    offer_agents(bench, says("x"), says("y"))
    bench.offer("other", says("o"), agent="planner", roles=["plan"])
    rows = (await bench.run(workflow("agents: []"), {"q": "it"})).get()
    assert [row["agent"] for row in rows] == ["a", "b"]


async def test_one_agent_can_be_asked_several_times(bench: Bench) -> None:
    answers = ["1", "2", "2"]
    offer_agents(bench, lambda given: answers.pop(0))
    record = await bench.run(
        workflow("mode: vote, agents: [a, a, a], concurrency: 1", EVERYTHING), {"q": "it"}, run_id="r"
    )
    assert record.get()["output"] == "2"
    children = [r.id for r in await bench.runs.list_all(children=True) if r.parent_id == "r"]
    assert sorted(children) == ["r/d.a", "r/d.a-2", "r/d.a-3"]


async def test_the_prompt_is_rendered_once_whatever_it_holds(bench: Bench) -> None:
    offer_agents(bench, lambda given: given["prompt"])
    record = await bench.run(workflow("mode: race"), {"q": "${{ input.secret }}"})
    assert record.get() == "What is ${{ input.secret }}?"


async def test_a_race_that_was_stopped_goes_on_and_ends(bench: Bench) -> None:
    reached, let_go = asyncio.Event(), asyncio.Event()

    async def slow(given: Any) -> Any:
        reached.set()
        await let_go.wait()
        return "late"

    offer_agents(bench, slow, hang)
    await bench.orchestrator.start(load_definition(workflow("mode: race")), {"q": "it"}, run_id="r")
    async with asyncio.timeout(60):
        await reached.wait()
        await bench.runs.cancel("r")
        let_go.set()
        await bench.runs.resume("r")
        assert (await bench.runs.finish("r")).get() == "late"


async def test_a_named_reviewer_that_there_is_not_is_refused_before_anybody_works(bench: Bench) -> None:
    offer_agents(bench, says("x"), says("x"))
    for name, problem in (("nobody", "Unknown agent: nobody"), ("a", "Agent a does not have the role")):
        with pytest.raises(StepFailedError, match=problem):
            (await bench.run(workflow(f"mode: vote, reviewer: {name}"), {"q": "it"})).get()
    assert bench.called == []


async def test_an_agent_that_is_too_slow_is_a_failed_ballot(bench: Bench) -> None:
    offer_agents(bench, says("x"), hang)
    text = workflow("mode: all").replace("  - id: d\n", "  - id: d\n    timeout: 50ms\n")
    rows = (await bench.run(text, {"q": "it"})).get()
    assert [(row["ok"], row.get("error", {}).get("type")) for row in rows] == [
        (True, None),
        (False, "timeout"),
    ]


async def test_a_branch_that_gives_nothing_wins_no_race(bench: Bench) -> None:
    bench.offer("tell", lambda given: given)
    record = await bench.run(
        """
        name: w
        steps:
          - id: r
            parallel: {mode: race, concurrency: 1}
            steps:
              - {id: a, skill: tell, when: "false", with: {n: 1}}
              - {id: b, skill: tell, with: {n: 2}}
        output: {won: "${{ steps.r.output }}", ok: "${{ steps.r.ballots.map(b, b.ok) }}"}
        """
    )
    assert record.get() == {"won": {"n": 2}, "ok": [False, True]}
