"""The hub's skills about workflows: list them, run one and wait, or start one and follow it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import TraceContext
from retinue.core.errors import NotAllowedError
from retinue.workflows.definition import Definition, list_calls
from retinue.workflows.dispatching import render_origin
from retinue.workflows.loading import load_definition
from retinue.workflows.orchestrator import MESH_SCOPES, Orchestrator
from retinue.workflows.runs import RunEvent, RunRecord
from retinue.workflows.shelf import Library, Stored

Json = dict[str, Any]

WORKFLOW_TIMEOUT_S = 24 * 3600.0
"""A run bounds itself by the limits of its steps; this only keeps the door from cutting it short."""

_LONGEST_WAIT_S = 25.0


def add_skills(agent: Agent, orchestrator: Orchestrator, library: Library) -> None:
    """Give the hub's agent its workflow skills."""
    runs = orchestrator.runs

    async def start(
        workflow: str | Json, given: Any, run: str | None, ctx: Context, trace: TraceContext
    ) -> RunRecord:
        if ctx.principal.agents:
            # a run calls with the view of the mesh, which is more than such a caller has
            raise NotAllowedError(
                "whoever is limited to some agents runs no workflows", remedy="call their skills one by one"
            )
        scopes = ctx.principal.scopes
        if isinstance(workflow, str):
            definition = await library.get(workflow)
            # a stored workflow acts with the mesh's view; running code still wants the caller's right
            scopes = MESH_SCOPES | (scopes & {"runs_code"})
        else:
            definition = load_definition(workflow)
        origin = render_origin(trace, ctx.principal.id, scopes)
        return await orchestrator.start(definition, given, run_id=run, scopes=scopes, trace=origin)

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
        workflow: Annotated[str | Json, Field(description="Workflow name or inline definition")],
        input: Annotated[Any, Field(description="What the workflow is given")],  # noqa: A002 - the seed's name
        ctx: Context,
        run: Annotated[str | None, Field(description="Run id, an idempotency key")] = None,
    ) -> Json:
        """Runs a workflow of agents and waits for its output."""
        with ctx.entrust() as departure:
            departure.told(0)
            record = await start(workflow, input, run, ctx, departure.trace)
            departure.told(None)
            try:
                record = await runs.finish(record.id)
            except asyncio.CancelledError:
                await runs.cancel(record.id)
                raise
            departure.told(orchestrator.spent_by(record.id) or 0)
        return {"run": record.id, "workflow": record.request.name, "output": record.get()}

    @agent.skill
    async def start_run(
        workflow: str | Json,
        ctx: Context,
        input: Any = None,  # noqa: A002 - as in orchestrate_workflow
        run: str | None = None,
    ) -> Json:
        """Starts a workflow and comes back at once; the run id is an idempotency key."""
        with ctx.entrust() as departure:
            departure.told(0)
            record = await start(workflow, input, run, ctx, departure.trace)
            # the run goes on when this call has ended, and keeps what it was given
            departure.told(None)
        return {"run": record.id, "workflow": record.request.name}

    @agent.skill(read_only=True)
    async def follow_run(run: str, after: int = 0, wait_s: float = 20.0) -> Json:
        """What happened in a run past ``after``; waits for something new at most ``wait_s`` seconds."""
        events = await _next_events(orchestrator, run, after, min(wait_s, _LONGEST_WAIT_S))
        record = await runs.get(run)
        # the end is told only together with the last event, so that nothing is missed in between
        last = events[-1] if events else None
        done = record.status != "running" and (last is None or last.kind == "run_finished")
        reply: Json = {
            "events": [_render_event(event) for event in events],
            "next": last.seq if last else after,
            "done": done,
            "status": record.status,
        }
        if done and record.status == "done":
            reply["output"] = record.value
        elif done and record.fault is not None:
            reply["error"] = record.fault.to_json()
        return reply

    @agent.skill
    async def cancel_run(run: str) -> Json:
        """Stops a run, its branches and the calls in flight."""
        record = await runs.cancel(run)
        return {"run": record.id, "status": record.status}


async def _next_events(orchestrator: Orchestrator, run: str, after: int, wait_s: float) -> list[RunEvent]:
    """What there is already; else the next event, and whatever came with it."""
    runs = orchestrator.runs
    found = list(await runs.list_events(run, after=after))
    if found or (await runs.get(run)).status != "running":
        return found
    following = runs.follow(run, after=after)
    try:
        async with asyncio.timeout(wait_s):
            await anext(following, None)
    except TimeoutError:
        return []
    return list(await runs.list_events(run, after=after))


def _render_event(event: RunEvent) -> Json:
    """``event`` says what happened, the step's own facts (its kind, agent, skill, duration) beside it."""
    return {"seq": event.seq, "event": event.kind, "step": event.step, "at": event.at, **event.facts}


def _render_workflow(stored: Stored, detailed: bool) -> Json:
    row: Json = {"name": stored.name, "origin": stored.origin}
    if stored.definition is None:
        row["error"] = stored.problem.message if stored.problem else "unreadable"
        return row
    definition: Definition = stored.definition
    row["description"] = definition.description
    row["steps"] = len(definition.steps)
    row["skills"] = list(list_calls(definition))
    if any(step.parallel is not None for step in definition.steps):
        row["parallel"] = True
    if detailed:
        row["definition"] = definition.to_json()
    return row
