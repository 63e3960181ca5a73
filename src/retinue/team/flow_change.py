"""The difference between the prompts and workflows of two digests: their words, and what they may call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from retinue.core.errors import RetinueError
from retinue.team.change import (
    MAX_SHOWN,
    Change,
    TeamContent,
    changed_files,
    compare_words,
    count_places,
    is_more,
)

if TYPE_CHECKING:  # they load YAML and CEL
    from retinue.workflows.definitions.definition import Definition, Step
    from retinue.workflows.definitions.think import Think

_ANY = ("auto", None)
"""In the place of an agent: the choice is left open."""

_MAY_CALL = "may call "
_ANY_CALL = f"{_MAY_CALL}any skill that it finds"


def compare_prompts(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    """The differences of the agents in Markdown that both digests have."""
    for path, before, after in changed_files(old, new, "prompts"):
        if before is None or after is None:
            continue  # a program, which is told as one
        one, other = _read_prompt(before), _read_prompt(after)
        if other is None:
            yield Change("prompt", path, "changed", "what it may call cannot be read", is_wider=True)
        else:
            reach_before, reach_after = set() if one is None else {*_list_reach(one)}, {*_list_reach(other)}
            for reach in _find_new(reach_before, reach_after):
                yield Change("prompt", path, "changed", f"its model {reach}", is_wider=True)
            for reach in sorted(reach_before - reach_after):
                yield Change("prompt", path, "changed", f"its model no longer {reach}")
            if one is not None:
                for text in _list_loosened(one, other):
                    yield Change("prompt", path, "changed", text, is_wider=True)
        words = compare_words(before, after)
        yield Change("prompt", path, "changed", count_places(words), details=tuple(words[:MAX_SHOWN]))


def compare_workflows(old: TeamContent, new: TeamContent) -> Iterator[Change]:
    """The differences of the workflows, by step and by what they call."""
    before = {name: old.text_of(path) for name, path in old.team.workflows.items()}
    after = {name: new.text_of(path) for name, path in new.team.workflows.items()}
    known = {call for text in before.values() for call in _list_calls(_read_workflow(text))}
    for name in sorted(before.keys() - after.keys()):
        yield Change("workflow", name, "removed", "is gone", is_breaking=True)
    for name in sorted(after.keys() - before.keys()):
        definition = _read_workflow(after[name])
        calls = _find_new(known, _list_calls(definition))
        text = f"is new; it {', '.join(calls)}" if calls else "is new"
        text = text if definition else "is new; what it calls cannot be read"
        yield Change("workflow", name, "added", text, is_wider=bool(calls) or definition is None)
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield from _compare_workflow(name, _read_workflow(before[name]), _read_workflow(after[name]))


def _compare_workflow(name: str, before: Definition | None, after: Definition | None) -> Iterator[Change]:
    if after is None:
        yield Change("workflow", name, "changed", "what it calls cannot be read", is_wider=True)
        return
    steps_before, steps_after = _steps_of(before), _steps_of(after)
    yield from _compare_steps(name, steps_before, steps_after)
    calls = _find_new(_list_calls(before), _list_calls(after))
    loosened = [
        f"the step {key}: {text}"
        for key, step in steps_after.items()
        if (former := steps_before.get(key)) is not None and former.think and step.think
        for text in _list_loosened(former.think, step.think)
    ]
    if not calls and steps_before == steps_after:
        yield Change("workflow", name, "changed", "its input, output or text changes")
    for text in (*(f"it {call}" for call in calls), *loosened):
        yield Change("workflow", name, "changed", text, is_wider=True)


def _compare_steps(name: str, before: Mapping[str, Step], after: Mapping[str, Step]) -> Iterator[Change]:
    for key in sorted(before.keys() - after.keys()):
        yield Change("workflow", name, "changed", f"the step {key} is gone")
    for key, step in after.items():
        if key not in before:
            yield Change("workflow", name, "changed", f"the step {key} is new")
        elif before[key] != step:
            one, other = _as_json(before[key]), _as_json(step)
            keys = sorted(part for part in one.keys() | other.keys() if one.get(part) != other.get(part))
            details = tuple(f"{part}: {one.get(part)!s:.80} → {other.get(part)!s:.80}" for part in keys)
            text = f"the step {key} changes {', '.join(keys)}"
            yield Change("workflow", name, "changed", text, details=details)


def _list_calls(definition: Definition | None) -> set[str]:
    """What the steps of a workflow call, ask, run and use, each as the end of a sentence."""
    from retinue.workflows.definitions.definition import iterate_steps

    calls: set[str] = set()
    if definition is None:
        return calls
    if definition.runs_as == "mesh":
        calls.add("runs with the rights of the mesh")
    for step in iterate_steps(definition.steps):
        for agent, skill in (
            (step.agent, step.skill),
            *([] if step.compensate is None else [(step.compensate.agent, step.compensate.skill)]),
        ):
            if skill is not None:
                calls.add(f"calls {skill if agent in _ANY else f'{agent}/{skill}'}")
        if step.skill is None and step.agent not in _ANY:
            calls.add(f"asks {step.agent}")
        roles, agents = [step.role], []
        if step.parallel is not None:
            roles.append(step.parallel.role)
            agents = [*_as_list(step.parallel.agents), *_as_list(step.parallel.reviewer)]
        calls |= {f"asks the role {role}" for role in roles if role not in _ANY}
        calls |= {f"asks {name}" for name in agents if name not in _ANY}
        if step.workflow is not None:
            calls.add(f"runs the workflow {step.workflow}")
        if step.think is not None:
            calls |= {f"has a model that {reach}" for reach in _list_reach(step.think)}
    return calls


def _list_reach(think: Think) -> Iterator[str]:
    """What the model of a loop may call, and which one it is, each as the end of a sentence."""
    from retinue.thinking.toolbox import SEARCH

    for tool in think.tools:
        yield _ANY_CALL if tool == SEARCH else f"{_MAY_CALL}{tool}"
    if think.model is not None:
        yield f"is {think.model}"


def _find_new(before: set[str], after: set[str]) -> list[str]:
    """What is new in a reach; a model that finds any skill may call each one already."""
    has_all = any(reach.endswith(_ANY_CALL) for reach in before)
    return sorted(reach for reach in after - before if not (has_all and _MAY_CALL in reach))


def _list_loosened(before: Think, after: Think) -> Iterator[str]:
    """Which calls are no longer denied or approved, and which limits of a loop are higher."""
    for pattern in sorted({*before.deny} - {*after.deny}):
        yield f"its model is no longer denied {pattern}"
    for pattern in sorted({*before.approve} - {*after.approve}):
        yield f"its model needs no person for {pattern}"
    for key in type(before.limits).model_fields:
        one, other = getattr(before.limits, key), getattr(after.limits, key)
        numbers = (before.limits.time_s, after.limits.time_s) if key == "time" else (one, other)
        if is_more(*numbers):
            yield f"limits.{key} {one} → {other}"


def _read_prompt(text: str) -> Think | None:
    """The loop of an agent in Markdown; None where it cannot be read."""
    from retinue.markdown.definition import parse_agent

    try:
        return parse_agent(text, "prompt", name="prompt").think
    except RetinueError:
        return None


def _read_workflow(text: str) -> Definition | None:
    """A workflow; None where it cannot be read."""
    from retinue.workflows.definitions.loading import load_definition

    try:
        return load_definition(text, source="workflow")
    except RetinueError:
        return None


def _steps_of(definition: Definition | None) -> dict[str, Step]:
    """The steps by id, those of branches too."""
    from retinue.workflows.definitions.definition import iterate_steps

    return {} if definition is None else {step.id: step for step in iterate_steps(definition.steps)}


def _as_json(step: Step) -> dict[str, Any]:
    from retinue.workflows.definitions.definition import step_to_json

    return step_to_json(step)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)
