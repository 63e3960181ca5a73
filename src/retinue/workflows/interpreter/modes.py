"""What a parallel step makes of its branches' results: race, all, vote, merge (SPEC 3, doubt 9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import StepFailedError
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import Step
from retinue.workflows.interpreter.calls import Ask, CallSteps
from retinue.workflows.interpreter.chaining import chain_arguments
from retinue.workflows.interpreter.frame import Frame, Result
from retinue.workflows.interpreter.prompting import address_prompt
from retinue.workflows.interpreter.reviewing import (
    concatenate,
    order_candidates,
    read_choice,
    write_choice_prompt,
    write_merge_prompt,
)
from retinue.workflows.interpreter.texts import text_of
from retinue.workflows.interpreter.voting import Ballot, count_votes, rank_of

MERGE_ROLES = ("review", "plan")
"""Who makes one result of several (SPEC 3, doubt 9): a reviewer, else a planner."""


@dataclass(frozen=True, slots=True)
class Electorate:
    """Who was asked what: the names and scores in the order of the branches, and the task."""

    names: tuple[str, ...]
    scores: tuple[float | None, ...]
    task: str
    allow_empty: bool = False


async def settle(
    frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]
) -> Result:
    """The step's output, with the ballots; raises StepFailedError when nobody gave a result."""
    assert step.parallel is not None
    mode = step.parallel.mode
    good = [ballot for ballot in ballots if ballot.ok]
    if not good:
        raise _all_failed(path, ballots)
    if mode == "race":
        return _give(good[0].output, ballots, agent=good[0].voter)
    if mode == "all":
        rows = [ballot.to_json() for ballot in ballots]
        return Result(rows, {"ballots": rows})
    if mode == "vote":
        return await _vote(frame, step, path, voters, ballots)
    return await _merge(frame, step, path, voters, ballots)


async def _vote(frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]) -> Result:
    tally = count_votes(ballots)
    leaders = tally.leaders
    if len(leaders) == 1:
        winner, decided = leaders[0][0], "majority"
    else:
        candidates = order_candidates([group[0] for group in leaders])
        prompt = write_choice_prompt(voters.task, candidates)
        answer = await _review(frame, step, path, prompt, ("review",))
        chosen = None if answer is None else read_choice(answer.output, candidates)
        decided = "reviewer" if chosen is not None else "score"
        winner = chosen or min(candidates, key=rank_of)
    rows = [ballot.to_json() for ballot in ballots]
    votes = {"votes": tally.counts, "decided_by": decided}
    return Result(
        winner.output, {"agent": winner.voter, "text": text_of(winner.output), "ballots": rows, **votes}
    )


async def _merge(
    frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]
) -> Result:
    good = [ballot for ballot in ballots if ballot.ok]
    if len(good) == 1:
        return _give(good[0].output, ballots, agent=good[0].voter)
    prompt = write_merge_prompt(voters.task, order_candidates(good))
    merged = await _review(frame, step, path, prompt, MERGE_ROLES)
    if merged is None:
        return _give(concatenate(good), ballots, agent=None)
    return _give(merged.output, ballots, agent=merged.facts["agent"])


def _give(output: Any, ballots: Sequence[Ballot], *, agent: str | None) -> Result:
    rows = [ballot.to_json() for ballot in ballots]
    return Result(output, {"agent": agent, "text": text_of(output), "ballots": rows})


async def _review(frame: Frame, step: Step, path: str, prompt: str, roles: Sequence[str]) -> Result | None:
    """A reviewer's answer; None when there is nobody, or nobody answers well: a fallback decides then."""
    assert step.parallel is not None
    for role in roles:
        ask = Ask(
            step_id=step.id,
            arguments_for=_with_prompt(frame, step, prompt),
            role=role,
            agent=step.parallel.reviewer,
            timeout_s=step.timeout_s,
            kind="review",
            # without a reviewer the mode has an answer of its own
            is_expected=step.parallel.reviewer is not None,
        )
        try:
            return await CallSteps(frame).run(ask, f"{path}/{role}")
        except StepFailedError as error:
            if frame.is_overdue(error):
                raise
    return None


def _with_prompt(frame: Frame, step: Step, prompt: str) -> Callable[[Choice], Any]:
    def arguments_for(choice: Choice) -> Any:
        place = address_prompt(choice.input_schema) or "prompt"
        return chain_arguments(step.id, choice.skill, choice.input_schema, frame.scope, taken={place: prompt})

    return arguments_for


def _all_failed(path: str, ballots: Sequence[Ballot]) -> StepFailedError:
    """The failure of a step where nobody gave a result: the first one's cause, and everybody's ballot."""
    rows = [ballot.to_json() for ballot in ballots]
    if not ballots or ballots[0].error is None:
        return StepFailedError(path, None, {"type": "failed", "message": "nobody was asked", "data": {}})
    first = dict(ballots[0].error)
    said = "; ".join(f"{one.voter}: {(one.error or {}).get('message', '')}" for one in ballots[:5])
    first["message"] = first.get("message", "") if len(ballots) == 1 else f"no agent succeeded: {said}"
    first["data"] = {**first.get("data", {}), "ballots": rows}
    agent = ballots[0].voter if len(ballots) == 1 else None
    for key in ("step", "agent", "compensated"):
        first.pop(key, None)
    return StepFailedError(path, agent, first)
