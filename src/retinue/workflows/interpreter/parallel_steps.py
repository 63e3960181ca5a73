"""Parallel steps: branches, or one prompt to several agents, with modes that combine the results.

Modes: ``all``, ``race``, ``vote`` and ``merge`` (specification 3, doubt 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import EmptyOutputError, ExpressionError, RoleNotOfferedError, StepFailedError
from retinue.core.json_values import text_of
from retinue.workflows.caller import Choice, Wanted
from retinue.workflows.definitions.definition import AUTO, Step
from retinue.workflows.interpreter.arguments import address_prompt, chain_arguments
from retinue.workflows.interpreter.branches import (
    Branch,
    BranchPlan,
    BranchResult,
    Ended,
    adopt_done,
    fault_of,
    find_failure,
    output_of,
    read_error,
    run_branches,
)
from retinue.workflows.interpreter.call_steps import read_role
from retinue.workflows.interpreter.calls import Ask, CallSteps, is_nothing
from retinue.workflows.interpreter.frame import Frame, StepResult, record_failure
from retinue.workflows.interpreter.voting import (
    Ballot,
    concatenate,
    count_votes,
    order_candidates,
    rank_of,
    read_choice,
    write_choice_prompt,
    write_merge_prompt,
)
from retinue.workflows.runs.records import Fault, as_json, read_json

MERGE_ROLES = ("review", "plan")
"""The roles that may merge results, in this order (specification 3, doubt 9)."""


@dataclass(frozen=True, slots=True)
class Electorate:
    """Names and scores of the branches, in their order, and the task."""

    names: tuple[str, ...]
    scores: tuple[float | None, ...]
    task: str
    allow_empty: bool = False


async def settle(
    frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]
) -> StepResult:
    """Combine the ballots in the mode of the step; raises StepFailedError if all failed."""
    assert step.parallel is not None
    mode = step.parallel.mode
    good = [ballot for ballot in ballots if ballot.ok]
    if not good:
        raise _all_failed(path, ballots)
    if mode == "race":
        return _give(good[0].output, ballots, agent=good[0].voter)
    if mode == "all":
        rows = [ballot.to_json() for ballot in ballots]
        return StepResult(rows, {"ballots": rows})
    if mode == "vote":
        return await _vote(frame, step, path, voters, ballots)
    return await _merge(frame, step, path, voters, ballots)


async def _vote(
    frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]
) -> StepResult:
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
    return StepResult(
        winner.output, {"agent": winner.voter, "text": text_of(winner.output), "ballots": rows, **votes}
    )


async def _merge(
    frame: Frame, step: Step, path: str, voters: Electorate, ballots: Sequence[Ballot]
) -> StepResult:
    good = [ballot for ballot in ballots if ballot.ok]
    if len(good) == 1:
        return _give(good[0].output, ballots, agent=good[0].voter)
    prompt = write_merge_prompt(voters.task, order_candidates(good))
    merged = await _review(frame, step, path, prompt, MERGE_ROLES)
    if merged is None:
        return _give(concatenate(good), ballots, agent=None)
    return _give(merged.output, ballots, agent=merged.facts["agent"])


def _give(output: Any, ballots: Sequence[Ballot], *, agent: str | None) -> StepResult:
    rows = [ballot.to_json() for ballot in ballots]
    return StepResult(output, {"agent": agent, "text": text_of(output), "ballots": rows})


async def _review(
    frame: Frame, step: Step, path: str, prompt: str, roles: Sequence[str]
) -> StepResult | None:
    """Ask a reviewer; None if there is none or the call fails, for the fallback of the mode."""
    assert step.parallel is not None
    for role in roles:
        ask = Ask(
            step_id=step.id,
            arguments_for=_with_prompt(frame, step, prompt),
            role=role,
            agent=step.parallel.reviewer,
            timeout_s=step.timeout_s,
            kind="review",
            # A reviewer that is not named is optional: each mode has a fallback.
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
    """The failure of a step whose branches all failed: the first cause, with all ballots."""
    rows = [ballot.to_json() for ballot in ballots]
    if not ballots or ballots[0].error is None:
        return StepFailedError(path, None, {"type": "failed", "message": "no agent was asked", "data": {}})
    first = dict(ballots[0].error)
    reasons = "; ".join(
        f"{ballot.voter}: {(ballot.error or {}).get('message', '')}" for ballot in ballots[:5]
    )
    first["message"] = first.get("message", "") if len(ballots) == 1 else f"no agent succeeded: {reasons}"
    first["data"] = {**first.get("data", {}), "ballots": rows}
    agent = ballots[0].voter if len(ballots) == 1 else None
    for key in ("step", "agent", "compensated"):
        first.pop(key, None)
    return StepFailedError(path, agent, first)


LIST_TIMEOUT_S = 60.0


async def run_parallel(frame: Frame, step: Step, path: str) -> StepResult:
    """Run a parallel step in its mode."""
    assert step.parallel is not None
    await _check_reviewer(frame, step, path)
    if step.asks_agents:
        return await _ask_agents(frame, step, path)
    named = step.list_branches()
    branches = [BranchPlan.of(frame, steps).branch(f"{path}.{name}") for name, steps in named]
    names = [name for name, _ in named]
    if step.parallel.mode == "all":
        return await _gather(frame, step, path, names, branches)
    task = "" if step.parallel.prompt is None else await frame.render(step.parallel.prompt, path)
    voters = Electorate(tuple(names), (None,) * len(names), str(task or step.description))
    ended = await _run(frame, step, path, branches, voters)
    for result in adopt_done(frame, ended).values():
        _keep_entries(frame, result)
    return await settle(frame, step, path, voters, _list_ballots(ended, voters))


async def _gather(
    frame: Frame, step: Step, path: str, names: Sequence[str], branches: Sequence[Branch]
) -> StepResult:
    """The output of each branch by name; fails after all have ended if one failed."""
    assert step.parallel is not None
    ended = await run_branches(frame, path, branches, concurrency=step.parallel.concurrency)
    done = adopt_done(frame, ended)
    if (failed := find_failure(ended)) is not None:
        raise failed
    for place in range(len(names)):
        _keep_entries(frame, done[place])
    return StepResult({name: done[place].output for place, name in enumerate(names)})


async def _ask_agents(frame: Frame, step: Step, path: str) -> StepResult:
    """Send the same prompt to each agent of the role, each in a child run."""
    assert step.parallel is not None
    role = await read_role(frame, step.parallel.role, path)
    choices = await _list_agents(frame, step, path, role)
    names = _name_apart([choice.agent for choice in choices])
    branches = [
        BranchPlan.of(frame, (_single_call(step, role, choice.agent),)).branch(f"{path}.{name}")
        for name, choice in zip(names, choices, strict=True)
    ]
    prompt = step.parallel.prompt
    task = frame.scope.input if prompt is None else await frame.render(prompt, f"{path}/task", step=path)
    task = task.get("prompt", "") if isinstance(task, Mapping) else task
    agents = tuple(choice.agent for choice in choices)
    scores = tuple(choice.score for choice in choices)
    voters = Electorate(agents, scores, str(task or ""), allow_empty=step.allow_empty)
    ended = await _run(frame, step, path, branches, voters)
    return await settle(frame, step, path, voters, _list_ballots(ended, voters))


async def _check_reviewer(frame: Frame, step: Step, path: str) -> None:
    """Check before the branches start that a named reviewer exists."""
    reviewer = None if step.parallel is None else step.parallel.reviewer
    if reviewer is None:
        return

    async def effect() -> None:
        missing: RoleNotOfferedError | None = None
        for role in MERGE_ROLES:
            try:
                await frame.tools.caller.list_role(role, [reviewer], frame.scopes, frame.caller, frame.reach)
                return
            except RoleNotOfferedError as error:
                missing = missing or error
        if missing is not None:
            raise missing

    facts = {"kind": "choose", "role": "review", "skill": "review", "below": "/reviewer"}
    outcome = await frame.context.step(f"{path}/reviewer", effect, timeout_s=LIST_TIMEOUT_S, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, reviewer, as_json(outcome.fault))


async def _list_agents(frame: Frame, step: Step, path: str, role: str) -> list[Choice]:
    """List the agents to ask; recorded, so that a resumed run asks the same ones."""
    assert step.parallel is not None
    agents = step.parallel.agents or []
    if isinstance(agents, str):
        agents = await frame.render(agents, path) or []
        agents = [agents] if isinstance(agents, str) else agents
        if not isinstance(agents, list) or not all(isinstance(name, str) for name in agents):
            error = ExpressionError(str(step.parallel.agents), "gives no list of names")
            raise await record_failure(frame.context, path, error)
    named = tuple(name for name in agents if name != AUTO)

    async def effect() -> Any:
        caller, ask = frame.tools.caller, step.ask
        if ask is None:
            choices = await caller.list_role(role, named, frame.scopes, frame.caller, frame.reach)
        else:
            wanted = Wanted(role=role, agents=named, capabilities=ask.capabilities, timeout_s=ask.timeout_s)
            choices = await caller.list_willing(wanted, frame.request.origin)
        return as_json(tuple(choices))

    facts = {"kind": "choose", "role": role, "skill": role, "below": "/agents"}
    timeout_s = LIST_TIMEOUT_S + (0.0 if step.ask is None else step.ask.timeout_s)
    outcome = await frame.context.step(f"{path}/agents", effect, timeout_s=timeout_s, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, None, as_json(outcome.fault))
    return [read_json(Choice, choice) for choice in outcome.value]


async def _run(
    frame: Frame, step: Step, path: str, branches: Sequence[Branch], voters: Electorate
) -> dict[int, Any]:
    parallel = step.parallel
    assert parallel is not None

    def is_won(ended: Ended) -> bool:
        return any(ballot.ok for ballot in _list_ballots(ended, voters))

    def is_ahead(ended: Ended) -> bool:
        return count_votes(_list_ballots(ended, voters)).lead >= (parallel.k or 0)

    is_decided = None
    if parallel.mode == "race":
        is_decided = is_won
    elif parallel.mode == "vote" and parallel.k is not None:
        is_decided = is_ahead
    return await run_branches(frame, path, branches, concurrency=parallel.concurrency, is_decided=is_decided)


def _list_ballots(ended: Ended, voters: Electorate) -> list[Ballot]:
    """The ballots of the ended branches, in the order of the definition."""
    ballots = []
    for place in sorted(ended):
        outcome, name, score = ended[place], voters.names[place], voters.scores[place]
        output, fault = None, None
        if outcome.status != "done":
            fault = fault_of(outcome)
        elif is_nothing(output := output_of(outcome)) and not voters.allow_empty:
            fault = Fault.from_error(EmptyOutputError(f"branch {name}"))
        error = None if fault is None else read_error(fault)
        ballots.append(Ballot(name, output, error, score, outcome.duration_ms))
    return ballots


def _single_call(step: Step, role: str, agent: str) -> Step:
    """The step of a branch that asks one agent; its prompt is rendered in the branch."""
    assert step.parallel is not None
    return Step.model_validate(
        {
            "id": role,
            "role": role,
            "agent": agent.replace("${{", "$${{"),
            "on_error": "stop",
            "allow_empty": step.allow_empty,
        }
        | ({} if step.parallel.prompt is None else {"prompt": step.parallel.prompt})
        | ({} if step.timeout is None else {"timeout": step.timeout})
        | ({} if step.retry is None else {"retry": step.retry.model_dump()})
        | ({} if step.cache is None else {"cache": step.cache})
    )


def _name_apart(names: Sequence[str]) -> list[str]:
    """Unique names for paths: the second ``claude`` becomes ``claude-2``."""
    unique_names: list[str] = []
    for name in names:
        plain = "".join("~" if mark in "/@#." else mark for mark in name)
        number, unique = 1, plain
        while unique in unique_names:
            number += 1
            unique = f"{plain}-{number}"
        unique_names.append(unique)
    return unique_names


def _keep_entries(frame: Frame, result: BranchResult) -> None:
    for step_id, entry in result.entries:
        frame.scope.keep(step_id, entry)
