"""Reads a request for orchestration, and builds the definition and the input of its run.

Pure, except that a preferred agent is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from retinue.core.text import fence
from retinue.mesh.directory.routing import CAPABILITIES
from retinue.workflows.definitions.definition import (
    AUTO,
    DEFAULT_ROLE,
    DEFAULT_STEP_TIMEOUT_S,
    Definition,
    Parallel,
    Retry,
    Step,
    iterate_steps,
)
from retinue.workflows.definitions.values import render_duration
from retinue.workflows.interpreter.arguments import address_prompt
from retinue.workflows.interpreter.branch_inputs import find_branch_reads

Json = dict[str, Any]

TIED = "tied"
"""The member of ``context`` with which a run that has an id ends with its callers."""

_EXPRESSION = "${{"


@dataclass(frozen=True, slots=True)
class OrchestrationRequest:
    """One request; ``run_input`` is the prompt, or for a workflow of the caller's own any value.

    ``reads_cache`` and ``keeps`` = whether an answer may be taken from the cache, and put there. ``context``
    goes to the agents, ``echoed`` only to the run. ``is_tied`` = the run, which has an id, ends
    when its callers are gone; the same request again lets it go on.
    """

    tool: str
    workflow: str | Json
    run_input: Any
    agent: str = AUTO
    role: str = AUTO
    reads_cache: bool = False
    keeps: bool = False
    timeout_s: float | None = None
    retries: int | None = None
    parallel: bool | None = None
    run: str | None = None
    is_tied: bool = False
    session: str | None = None
    context: Mapping[str, Any] = field(default_factory=dict)
    echoed: Mapping[str, Any] = field(default_factory=dict)
    overrides: Json | None = None

    @property
    def prompt(self) -> str:
        """The prompt: the given text, or the property ``prompt`` of a given object; "" for neither."""
        prompt = self.run_input.get("prompt") if isinstance(self.run_input, Mapping) else self.run_input
        return prompt if isinstance(prompt, str) else ""


def ask_all(mode: str, agents: list[str], role: str) -> Json:
    """The definition of one prompt to several agents (L-13 … L-16)."""
    parallel: Json = {"mode": mode, "role": role, "prompt": "${{ input.prompt }}"}
    output: Json = {"output": "${{ steps.ask.output }}", "ballots": "${{ steps.ask.ballots }}"}
    if agents:
        parallel["agents"] = agents
    if mode != "all":
        output["agent"] = "${{ steps.ask.agent }}"
    if mode == "vote":
        output |= {"decidedBy": "${{ steps.ask.decided_by }}", "votes": "${{ steps.ask.votes }}"}
    return {"name": f"parallel-{mode}", "steps": [{"id": "ask", "parallel": parallel}], "output": output}


def list_open_roles(definition: Definition, role: str) -> list[str]:
    """The roles for which an agent is chosen, in the order of first use; ``role`` is the one asked for."""
    roles: list[str] = []
    for step in iterate_steps(definition.steps):
        if step.kind == "role" and is_open(step.agent):
            roles.append(role_of(step.role, role))
        elif step.asks_agents and step.parallel is not None and not step.parallel.agents:
            roles.append(role_of(step.parallel.role, role))
    return list(dict.fromkeys(roles))


def list_open_models(definition: Definition) -> list[str | None]:
    """The models of steps ``think``, as written, that are chosen when the steps run."""
    models = [step.think.model for step in iterate_steps(definition.steps) if step.think is not None]
    return [model for model in models if _is_open_model(model)]


def _is_open_model(model: str | None) -> bool:
    return is_open(model) or model in CAPABILITIES


def is_open(agent: str | None) -> bool:
    """Whether a step leaves the choice of its agent open, as far as its definition tells."""
    return agent is None or agent == AUTO or _EXPRESSION in agent


def role_of(written: str | None, default: str) -> str:
    """The role of a step as written, or the one asked for where it is computed at run time."""
    if written is not None and written != AUTO and _EXPRESSION not in written:
        return written
    return DEFAULT_ROLE if default == AUTO or written is None else default


def set_role(definition: Definition, role: str) -> Definition | None:
    """The definition with another role where all its calls have one and the same; None for others."""
    steps = list(iterate_steps(definition.steps))
    if len(steps) != 1 or steps[0].kind not in ("role", "parallel", "think"):
        return None
    step = steps[0]
    if step.think is not None:
        changed = step.model_copy(update={"think": step.think.model_copy(update={"model": role})})
    elif step.parallel is not None:
        if not step.asks_agents:
            return None
        changed = step.model_copy(update={"parallel": step.parallel.model_copy(update={"role": role})})
    else:
        changed = step.model_copy(update={"role": role})
    return definition.model_copy(update={"steps": (changed,)})


def prefer_agent(definition: Definition, agent: str, roles: frozenset[str], role: str) -> Definition:
    """The definition with this agent in each step whose role it has, and whose agent is open."""

    def change(step: Step) -> Step:
        if step.kind == "role" and is_open(step.agent) and role_of(step.role, role) in roles:
            return step.model_copy(update={"agent": agent.replace(_EXPRESSION, f"${_EXPRESSION}")})
        return step

    return _map_steps(definition, change)


def prefer_model(definition: Definition, agent: str) -> Definition:
    """The definition with this model in each step ``think`` whose model is open."""

    def change(step: Step) -> Step:
        if step.think is None or not _is_open_model(step.think.model):
            return step
        model = agent.replace(_EXPRESSION, f"${_EXPRESSION}")
        return step.model_copy(update={"think": step.think.model_copy(update={"model": model})})

    return _map_steps(definition, change)


def apply_options(definition: Definition, request: OrchestrationRequest) -> Definition:
    """The definition with the time limit, the retries and the concurrency that were asked for."""
    if request.retries is None and request.timeout_s is None and request.parallel is None:
        return definition
    settings = definition.settings
    if request.retries is not None:
        settings = settings.model_copy(update={"retry": Retry(attempts=request.retries + 1)})
    if request.timeout_s is not None:
        settings = settings.model_copy(update={"max_duration": render_duration(request.timeout_s)})
    definition = definition.model_copy(update={"settings": settings})
    if request.parallel:
        definition = join_independent(definition)

    def change(step: Step) -> Step:
        update: Json = {}
        is_limited = step.timeout is not None or step.kind not in ("role", "skill", "parallel")
        if request.timeout_s is not None and request.timeout_s > DEFAULT_STEP_TIMEOUT_S and not is_limited:
            update["timeout"] = render_duration(request.timeout_s)
        concurrency = {None: ..., True: None, False: 1}[request.parallel]
        if concurrency is not ... and step.parallel is not None:
            update["parallel"] = step.parallel.model_copy(update={"concurrency": concurrency})
        if concurrency == 1 and step.foreach is not None:
            update["foreach"] = step.foreach.model_copy(update={"concurrency": 1})
        return step.model_copy(update=update) if update else step

    return _map_steps(definition, change)


def join_independent(definition: Definition) -> Definition:
    """The definition with outermost calls side by side that follow each other and read nothing of each other.

    Only where the output is written out: the last or the merged output depends on the order. A step that
    jumps, that is jumped to, that is skipped by a condition or undone keeps its place.
    """
    if isinstance(definition.output, str):
        return definition
    targets = {step.then for step in iterate_steps(definition.steps)}
    targets |= {
        step.on_error["goto"]
        for step in iterate_steps(definition.steps)
        if isinstance(step.on_error, Mapping)
    }
    joined: list[Step] = []
    group: list[Step] = []

    def close() -> None:
        if len(group) > 1:
            parallel = Parallel(mode="all")
            name = f"at-once-{len(joined) + 1}"
            joined.append(Step(id=name, parallel=parallel, steps=tuple(group)))
        else:
            joined.extend(group)
        group.clear()

    for step in definition.steps:
        # a prompt is all that a role is asked; without one the result of the step before is passed
        asking = (
            step if step.prompt is None or step.with_ is not None else step.model_copy(update={"with_": {}})
        )
        reads = find_branch_reads((asking,)).steps
        is_bound = step.when or step.then or step.compensate or isinstance(step.on_error, Mapping)
        if step.kind not in ("role", "skill") or reads is None or is_bound or step.id in targets:
            close()
            joined.append(step)
            continue
        if reads & {step.id for step in group}:
            close()
        group.append(step)
    close()
    return definition.model_copy(update={"steps": tuple(joined)})


def shape_input(definition: Definition, request: OrchestrationRequest, history: str) -> Any:
    """The workflow's input: a text goes where its schema wants the prompt (specification 7.3).

    A text that is a JSON object is that object where an object is declared. Context and conversation are
    added to the prompt, as data.
    """
    run_input = request.run_input
    declared = definition.input or {}
    takes_object = declared.get("type") == "object" or "properties" in declared
    if isinstance(run_input, str) and takes_object and run_input.lstrip().startswith("{"):
        run_input = _read_object(run_input)
    if isinstance(run_input, Mapping):
        values = dict(run_input)
        place = address_prompt(definition.input) or "prompt"
        if history and isinstance(values.get(place), str):
            values[place] = f"{history}\n\n{values[place]}"
        return _add_context(values, declared, request)
    if not isinstance(run_input, str):
        return run_input
    prompt = run_input
    if request.context:
        context = orjson.dumps(dict(request.context), option=orjson.OPT_INDENT_2).decode()
        prompt = f"{prompt}\n\n{fence('the context of the request', context)}"
    if history:
        prompt = f"{history}\n\n{prompt}"
    if not takes_object and not request.context and not request.echoed and definition.input is None:
        return prompt
    if declared.get("type") == "string":
        return prompt
    place = address_prompt(definition.input) or "prompt"
    return _add_context({place: prompt}, declared, request)


def _add_context(run_input: Json, declared: Mapping[str, Any], request: OrchestrationRequest) -> Json:
    context = {**request.context, **request.echoed}
    is_closed = declared.get("additionalProperties") is False and "context" not in (
        declared.get("properties") or {}
    )
    return run_input if not context or is_closed else {**run_input, "context": context}


def _read_object(text: str) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text  # a prompt that happens to begin so
    return value if isinstance(value, dict) else text


def _map_steps(definition: Definition, change: Callable[[Step], Step]) -> Definition:
    def rebuild(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        rebuilt = []
        for step in steps:
            nested: Json = {}
            if step.steps is not None:
                nested["steps"] = rebuild(step.steps)
            if step.branches is not None:
                nested["branches"] = {name: rebuild(inner) for name, inner in step.branches.items()}
            changed = change(step)
            rebuilt.append(changed.model_copy(update=nested) if nested else changed)
        return tuple(rebuilt)

    return definition.model_copy(update={"steps": rebuild(definition.steps)})
