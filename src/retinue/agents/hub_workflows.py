"""The hub's skills about workflows: list them, run one and wait, or start one and follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.agents.hub_run_rights import check_unlimited, reaches
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import TraceContext
from retinue.core.errors import InvalidParametersError, Problem, RunConflictError
from retinue.workflows.bundling import bundle
from retinue.workflows.choice import AUTO, Selection, choose_workflow
from retinue.workflows.definitions.definition import Definition, iterate_steps, list_agents, list_calls
from retinue.workflows.definitions.loading import load
from retinue.workflows.definitions.overrides import apply_overrides
from retinue.workflows.dispatching import render_origin
from retinue.workflows.orchestrator import MESH_SCOPES, Orchestrator
from retinue.workflows.run_records import RunRecord
from retinue.workflows.shelf import Library, Stored

Json = dict[str, Any]

WORKFLOW_TIMEOUT_S = 24 * 3600.0
"""A run bounds itself by the limits of its steps; this only keeps the door from cutting it short."""

_OVERRIDES = ("agents", "timeouts")


@dataclass(frozen=True, slots=True)
class _Started:
    """A run, and how its workflow was chosen where it was left open."""

    record: RunRecord
    choice: Selection | None

    def render(self) -> Json:
        row: Json = {"run": self.record.id, "workflow": self.record.request.name}
        return row if self.choice is None else row | {"choice": self.choice.to_json()}


def add_skills(agent: Agent, orchestrator: Orchestrator, library: Library) -> None:
    """Give the hub's agent its workflow skills."""
    runs = orchestrator.runs

    async def start(
        workflow: str | Json,
        given: Any,
        run: str | None,
        overrides: Json | None,
        ctx: Context,
        trace: TraceContext,
    ) -> _Started:
        check_unlimited(ctx.principal)
        scopes, choice = ctx.principal.scopes, None
        if workflow == AUTO:
            choice = choose_workflow(_prompt_of(given))
            workflow = choice.workflow
        if isinstance(workflow, str):
            loaded = await library.get(workflow)
            # a stored workflow acts with the mesh's view; running code still wants the caller's right
            scopes = MESH_SCOPES | (scopes & {"runs_code"})
        else:
            loaded = load(workflow)
        bundled = await bundle(library, loaded)
        record = await orchestrator.start(
            _override(loaded.definition, overrides or {}),
            given,
            run_id=run,
            scopes=scopes,
            trace=render_origin(trace, ctx.principal.id, scopes),
            nested=bundled.nested,
            digest=loaded.digest,
        )
        if not reaches(scopes, record):
            # the id is that of a run with more rights, whose output is not for this caller
            raise RunConflictError(record.id)
        return _Started(record, choice)

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
        input: Annotated[Any, Field(description="What the workflow is given")],  # noqa: A002 - the seed's name
        ctx: Context,
        run: Annotated[str | None, Field(description="Run id, an idempotency key")] = None,
        overrides: Annotated[
            Json | None, Field(description="agents and timeouts (ms) per step id or position")
        ] = None,
    ) -> Json:
        """Runs a workflow of agents and waits for its output."""
        with ctx.entrust() as departure:
            departure.told(0)
            started = await start(workflow, input, run, overrides, ctx, departure.trace)
            departure.told(None)
            try:
                record = await runs.finish(started.record.id)
            except asyncio.CancelledError:
                await runs.cancel(started.record.id)
                raise
            departure.told(record.calls)
        return started.render() | {"output": record.get()}

    @agent.skill
    async def start_run(
        workflow: str | Json,
        ctx: Context,
        input: Any = None,  # noqa: A002 - as in orchestrate_workflow
        run: str | None = None,
        overrides: Json | None = None,
    ) -> Json:
        """Starts a workflow and comes back at once; the run id is an idempotency key."""
        with ctx.entrust() as departure:
            departure.told(0)
            started = await start(workflow, input, run, overrides, ctx, departure.trace)
            # the run goes on when this call has ended, and keeps what it was given
            departure.told(None)
        return started.render()


def _prompt_of(given: Any) -> str:
    """The text by which a workflow is chosen."""
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
    if agents := list_agents(definition):
        row["agents"] = list(agents)
    if any(step.parallel is not None for step in iterate_steps(definition.steps)):
        row["parallel"] = True
    if detailed:
        row["definition"] = definition.to_json()
    return row
