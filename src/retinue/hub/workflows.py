"""The hub's skills about workflows: list workflows, run one to its end, or start one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import TraceContext
from retinue.core.errors import InvalidParametersError, NotAllowedError, Problem, RunConflictError
from retinue.hub.run_access import RunAccess, reject_limited
from retinue.mesh.permissions import covers
from retinue.workflows.definitions.definition import Definition, iterate_steps, list_agents, list_calls
from retinue.workflows.definitions.loading import load
from retinue.workflows.definitions.overrides import apply_overrides
from retinue.workflows.library import Library, Stored, bundle, is_run_as_mesh
from retinue.workflows.orchestrator import AUTO, Orchestrator, Selection, choose_workflow
from retinue.workflows.runs.records import MESH_SCOPES, Origin, RunRecord, as_json, check_run_id

Json = dict[str, Any]

WORKFLOW_TIMEOUT_S = 24 * 3600.0
"""Time-out of the skill; a run is limited by the time-outs of its steps."""

_OVERRIDES = ("agents", "timeouts")


@dataclass(frozen=True, slots=True)
class _Started:
    """A run, and how its workflow was chosen if the caller asked for ``auto``."""

    record: RunRecord
    shown_id: str
    choice: Selection | None

    def render(self) -> Json:
        row: Json = {"run": self.shown_id, "workflow": self.record.request.name}
        return row if self.choice is None else row | {"choice": as_json(self.choice)}


def add_workflow_skills(
    agent: Agent, orchestrator: Orchestrator, library: Library, access: RunAccess
) -> None:
    """Add the skills about workflows to the hub's agent."""
    runs = orchestrator.runs

    async def start(
        workflow: str | Json,
        given: Any,
        run: str | None,
        overrides: Json | None,
        ctx: Context,
        trace: TraceContext,
    ) -> _Started:
        reject_limited(ctx.principal)
        choice = None
        if workflow == AUTO:
            choice = choose_workflow(_prompt_of(given))
            workflow = choice.workflow
        if isinstance(workflow, str):
            loaded = await library.get(workflow)
        else:
            loaded = load(workflow)
        bundled = await bundle(library, loaded)
        origin = Origin(ctx.principal.scopes, ctx.principal.id, trace, loaded.digest)
        if is_run_as_mesh(loaded):
            if overrides and "agents" in overrides and not covers(origin.scopes, MESH_SCOPES):
                # its owner chose the agents that a caller without these rights reaches through it
                raise NotAllowedError(
                    f"workflow {loaded.definition.name} runs as the mesh: its agents cannot be overridden",
                    remedy="leave away overrides.agents, or use a token with the scope mesh",
                )
            origin = origin.as_mesh()
        try:
            record = await orchestrator.start(
                _override(loaded.definition, overrides) if overrides else loaded.definition,
                given,
                run_id=None if run is None else access.stored_id(check_run_id(run), ctx.principal),
                origin=origin,
                nested=bundled.nested,
            )
        except RunConflictError:
            raise RunConflictError(run or "") from None
        if not access.may_access(replace(ctx.principal, scopes=origin.scopes), record):
            # the id belongs to a run that the caller may not access, such as one of an earlier release
            raise RunConflictError(run or record.id)
        return _Started(record, access.shown_id(record.id, ctx.principal), choice)

    @agent.skill(expose=True, read_only=True)
    async def list_workflows(
        filter: Annotated[  # noqa: A002 - the seed's name for it (L-17)
            Literal["all", "built-in", "custom"], Field(description="Which workflows")
        ] = "all",
        detailed: Annotated[bool, Field(description="Include the definitions")] = False,
    ) -> Json:
        """Lists the stored workflows."""
        stored = await library.list_all()
        chosen = [one for one in stored if filter in ("all", one.origin)]
        return {"workflows": [_render_workflow(one, detailed) for one in chosen]}

    @agent.skill(expose=True, timeout_s=WORKFLOW_TIMEOUT_S)
    async def orchestrate_workflow(
        workflow: Annotated[str | Json, Field(description="Workflow name, auto, or inline definition")],
        input: Annotated[Any, Field(description="The input of the workflow")],  # noqa: A002 - the seed's name
        ctx: Context,
        run: Annotated[str | None, Field(description="Run id, an idempotency key")] = None,
        overrides: Annotated[
            Json | None, Field(description="agents and timeouts (ms) by step id or position")
        ] = None,
    ) -> Json:
        """Runs a workflow of agents and waits for its output."""
        with ctx.entrust() as outgoing:
            outgoing.record_usage(0)
            started = await start(workflow, input, run, overrides, ctx, outgoing.trace)
            outgoing.record_usage(None)
            try:
                record = await runs.finish(started.record.id)
            except asyncio.CancelledError:
                await runs.cancel(started.record.id)
                raise
            outgoing.record_usage(record.calls)
        return started.render() | {"output": record.get()}

    @agent.skill
    async def start_run(
        workflow: str | Json,
        ctx: Context,
        input: Any = None,  # noqa: A002 - as in orchestrate_workflow
        run: str | None = None,
        overrides: Json | None = None,
    ) -> Json:
        """Starts a workflow and returns at once; the run id is an idempotency key."""
        with ctx.entrust() as outgoing:
            outgoing.record_usage(0)
            started = await start(workflow, input, run, overrides, ctx, outgoing.trace)
            # the run outlives this call and keeps its call budget
            outgoing.record_usage(None)
        return started.render()


def _prompt_of(given: Any) -> str:
    """The prompt that chooses the workflow."""
    prompt = given.get("prompt") if isinstance(given, Mapping) else given
    if not isinstance(prompt, str):
        raise InvalidParametersError([Problem("input.prompt", "missing required field 'prompt'")])
    return prompt


def _override(definition: Definition, overrides: Json) -> Definition:
    for key, value in overrides.items():
        if key not in _OVERRIDES or not isinstance(value, Mapping):
            raise InvalidParametersError(
                [Problem(f"overrides.{key}", "it must be agents or timeouts by step")]
            )
    return apply_overrides(definition, **overrides)


def _render_workflow(stored: Stored, detailed: bool) -> Json:
    row: Json = {"name": stored.name, "origin": stored.origin}
    if stored.definition is None:
        row["error"] = stored.problem.message if stored.problem else "unreadable"
        return row
    definition: Definition = stored.definition
    row["description"] = definition.description
    row["steps"] = len(definition.steps)
    row["skills"] = list(list_calls(definition))
    if definition.runs_as != "caller":
        row["runs_as"] = definition.runs_as
    if agents := list_agents(definition):
        row["agents"] = list(agents)
    if any(step.parallel is not None for step in iterate_steps(definition.steps)):
        row["parallel"] = True
    if detailed:
        row["definition"] = definition.to_json()
    return row
