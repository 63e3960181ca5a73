"""Parallel steps: what runs side by side, be it branches or one question to several agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retinue.core.errors import EmptyOutputError, ExpressionError, RoleNotOfferedError, StepFailedError
from retinue.workflows.caller import Choice
from retinue.workflows.definitions.definition import AUTO, Step
from retinue.workflows.expressions.scope import Entry
from retinue.workflows.interpreter.branches import (
    Branch,
    Ended,
    adopt_undo,
    branch_failure,
    fault_of,
    first_failure,
    read_error,
    run_branches,
)
from retinue.workflows.interpreter.call_steps import read_role
from retinue.workflows.interpreter.frame import Frame, Result
from retinue.workflows.interpreter.modes import MERGE_ROLES, Electorate, settle
from retinue.workflows.interpreter.notes import fail
from retinue.workflows.interpreter.texts import is_nothing
from retinue.workflows.interpreter.voting import Ballot, count_votes
from retinue.workflows.run_records import Fault

LIST_TIMEOUT_S = 60.0


async def run_parallel(frame: Frame, step: Step, path: str) -> Result:
    """Run a parallel step in its mode."""
    assert step.parallel is not None
    await _check_reviewer(frame, step, path)
    if step.asks_agents:
        return await _ask_agents(frame, step, path)
    named = step.list_branches()
    branches = [
        Branch(f"{path}.{name}", frame.branch_request(f"{path}.{name}", steps)) for name, steps in named
    ]
    names = [name for name, _ in named]
    if step.parallel.mode == "all":
        return await _gather(frame, step, path, names, branches)
    task = "" if step.parallel.prompt is None else await frame.render(step.parallel.prompt, path)
    voters = Electorate(tuple(names), (None,) * len(names), str(task or step.description))
    ended = await _run(frame, step, path, branches, voters)
    for place in sorted(ended):
        if ended[place].status == "done":
            adopt_undo(frame, ended[place])
            _keep_entries(frame, ended[place].value["entries"])
    return await settle(frame, step, path, voters, _list_ballots(ended, voters))


async def _gather(
    frame: Frame, step: Step, path: str, names: Sequence[str], branches: Sequence[Branch]
) -> Result:
    """Every branch's output by its name; one failure fails the step, once all have ended."""
    assert step.parallel is not None
    ended = await run_branches(frame, path, branches, concurrency=step.parallel.concurrency)
    for place in sorted(ended):
        if ended[place].status == "done":
            adopt_undo(frame, ended[place])
    if (failed := first_failure(ended)) is not None:
        raise branch_failure(failed)
    for place in range(len(names)):
        _keep_entries(frame, ended[place].value["entries"])
    return Result({name: ended[place].value["output"] for place, name in enumerate(names)})


async def _ask_agents(frame: Frame, step: Step, path: str) -> Result:
    """The same prompt to each agent that has the role, each in a child run."""
    assert step.parallel is not None
    role = await read_role(frame, step.parallel.role, path)
    choices = await _list_agents(frame, step, path, role)
    names = _name_apart([choice.agent for choice in choices])
    branches = []
    for name, choice in zip(names, choices, strict=True):
        asked = _single_call(step, role, choice.agent)
        branches.append(Branch(f"{path}.{name}", frame.branch_request(f"{path}.{name}", (asked,))))
    prompt = step.parallel.prompt
    task = frame.scope.input if prompt is None else await frame.render(prompt, f"{path}/task", step=path)
    task = task.get("prompt", "") if isinstance(task, Mapping) else task
    agents = tuple(choice.agent for choice in choices)
    scores = tuple(choice.score for choice in choices)
    voters = Electorate(agents, scores, str(task or ""), allow_empty=step.allow_empty)
    ended = await _run(frame, step, path, branches, voters)
    return await settle(frame, step, path, voters, _list_ballots(ended, voters))


async def _check_reviewer(frame: Frame, step: Step, path: str) -> None:
    """Refuse a named reviewer that there is not, before anybody works: a tie may come or not."""
    reviewer = None if step.parallel is None else step.parallel.reviewer
    if reviewer is None:
        return

    async def effect() -> None:
        missing: RoleNotOfferedError | None = None
        for role in MERGE_ROLES:
            try:
                await frame.tools.caller.list_role(role, [reviewer], frame.scopes)
                return
            except RoleNotOfferedError as error:
                missing = missing or error
        if missing is not None:
            raise missing

    facts = {"kind": "choose", "role": "review", "skill": "review", "below": "/reviewer"}
    outcome = await frame.context.step(f"{path}/reviewer", effect, timeout_s=LIST_TIMEOUT_S, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, reviewer, outcome.fault.to_json())


async def _list_agents(frame: Frame, step: Step, path: str, role: str) -> list[Choice]:
    """Who is asked, recorded once, so that a resumed run asks the same."""
    assert step.parallel is not None
    agents = step.parallel.agents or []
    if isinstance(agents, str):
        agents = await frame.render(agents, path) or []
        agents = [agents] if isinstance(agents, str) else agents
        if not isinstance(agents, list) or not all(isinstance(name, str) for name in agents):
            error = ExpressionError(str(step.parallel.agents), "gives no list of names")
            raise await fail(frame.context, path, error)
    named = tuple(name for name in agents if name != AUTO)

    async def effect() -> Any:
        found = await frame.tools.caller.list_role(role, named, frame.scopes)
        return [choice.to_json() for choice in found]

    facts = {"kind": "choose", "role": role, "skill": role, "below": "/agents"}
    outcome = await frame.context.step(f"{path}/agents", effect, timeout_s=LIST_TIMEOUT_S, facts=facts)
    if outcome.fault is not None:
        raise StepFailedError(path, None, outcome.fault.to_json())
    return [Choice.from_json(choice) for choice in outcome.value]


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
    """What each branch that has ended gave, in the order of the definition."""
    ballots = []
    for place in sorted(ended):
        outcome, name, score = ended[place], voters.names[place], voters.scores[place]
        output, fault = None, None
        if outcome.status != "done":
            fault = fault_of(outcome)
        elif is_nothing(output := outcome.value["output"]) and not voters.allow_empty:
            fault = Fault.from_error(EmptyOutputError(f"branch {name}"))
        error = None if fault is None else read_error(fault)
        ballots.append(Ballot(name, output, error, score, outcome.duration_ms))
    return ballots


def _single_call(step: Step, role: str, agent: str) -> Step:
    """The one step of the branch that asks one agent; its prompt is rendered there, once."""
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
    """Names for paths, each another: the second ``claude`` is ``claude-2``."""
    found: list[str] = []
    for name in names:
        plain = "".join("~" if mark in "/@#." else mark for mark in name)
        number, unique = 1, plain
        while unique in found:
            number += 1
            unique = f"{plain}-{number}"
        found.append(unique)
    return found


def _keep_entries(frame: Frame, entries: Sequence[tuple[str, Entry]]) -> None:
    for step_id, entry in entries:
        frame.scope.keep(step_id, entry)
