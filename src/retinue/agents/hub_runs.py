"""The hub's skills about runs: list, show, follow, stop, go on, repeat, and answer those that wait."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.agents.hub_run_rights import get_reached, reach_of
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import AmbiguousNameError, InvalidParametersError, InvalidRequestError
from retinue.mesh.schema import compile_schema
from retinue.workflows.definitions.definition import Definition, Step
from retinue.workflows.run_records import RunEvent, RunRecord, check_run_id
from retinue.workflows.runs import Runs
from retinue.workflows.tree import draw_tree, list_effects

Json = dict[str, Any]

_LONGEST_WAIT_S = 25.0
_LISTED = 50
_AMID_CHILDREN = ("parallel", "foreach", "workflow")


def add_skills(agent: Agent, runs: Runs) -> None:
    """Give the hub's agent its skills about runs."""

    @agent.skill(read_only=True)
    async def list_runs(
        ctx: Context,
        status: Annotated[
            Literal["running", "done", "failed", "cancelled"] | None, Field(description="Only these")
        ] = None,
        workflow: Annotated[str | None, Field(description="Only runs of this workflow")] = None,
        limit: Annotated[int, Field(description="At most so many, newest first", ge=1, le=1000)] = _LISTED,
    ) -> Json:
        """Lists the runs, newest first."""
        accept = reach_of(ctx.principal)
        found = await runs.list_all(status=status, name=workflow, limit=limit, accept=accept)
        return {"runs": [_render_run(record) for record in found]}

    @agent.skill(read_only=True)
    async def show_run(run: str, ctx: Context) -> Json:
        """Shows one run: its steps as a tree, with agents, attempts, inputs, outputs and errors."""
        record = await get_reached(runs, run, ctx.principal)
        events = await runs.list_events(run)
        ended = None if record.status == "running" else record.status
        shown = _render_run(record) | {"input": record.request.input}
        if record.status == "done":
            shown["output"] = record.value
        if record.fault is not None:
            shown["error"] = record.fault.to_json()
        steps = draw_tree(events, await runs.list_steps(run), ended=ended)
        return shown | {"steps": steps, "effects": list_effects(events)}

    @agent.skill(read_only=True)
    async def follow_run(run: str, ctx: Context, after: int = 0, wait_s: float = 20.0) -> Json:
        """What happened in a run past ``after``; waits for something new at most ``wait_s`` seconds."""
        await get_reached(runs, run, ctx.principal)
        events = await _next_events(runs, run, after, min(wait_s, _LONGEST_WAIT_S))
        record = await runs.get(run)
        # the end is told only together with the last event, so that nothing is missed in between
        last = events[-1] if events else None
        told = last is None or (last.kind == "run_finished" and last.run_id == run)
        done = record.status != "running" and told
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
        if done and record.status == "cancelled":
            reply["effects"] = list_effects(await runs.list_events(run))
        return reply

    @agent.skill
    async def cancel_run(run: str, ctx: Context) -> Json:
        """Stops a run, its branches and the calls in flight; says which effects had happened."""
        await get_reached(runs, run, ctx.principal)
        record = await runs.cancel(run)
        effects = list_effects(await runs.list_events(run))
        return {"run": record.id, "status": record.status, "effects": effects}

    @agent.skill
    async def resume_run(run: str, ctx: Context) -> Json:
        """Goes on with a cancelled run where it stopped; what is recorded does not run again."""
        await get_reached(runs, run, ctx.principal)
        seen = await runs.list_events(run)
        record = await runs.resume(run)
        return {"run": record.id, "status": record.status, "after": seen[-1].seq if seen else 0}

    @agent.skill
    async def rerun_run(
        run: str,
        ctx: Context,
        from_step: Annotated[str, Field(description="Everything before this step is kept")],
        new_run: Annotated[str | None, Field(description="Id of the new run")] = None,
    ) -> Json:
        """Runs again from a step on, as a new run that keeps what was recorded before it."""
        await get_reached(runs, run, ctx.principal)
        new_run = uuid.uuid4().hex if new_run is None else check_run_id(new_run)
        record = await runs.fork(run, from_step=from_step, new_run_id=new_run)
        return {"run": record.id, "workflow": record.request.name, "from": run}

    @agent.skill
    async def signal_run(
        run: str,
        topic: str,
        ctx: Context,
        value: Annotated[Any, Field(description="What the waiting step gives")] = None,
        step: Annotated[str | None, Field(description="Which step, where several wait")] = None,
    ) -> Json:
        """Answers a step that waits for a signal, such as a person's approval."""
        record = await get_reached(runs, run, ctx.principal)
        if record.status != "running":
            raise InvalidRequestError(f"Run {run} has ended: {record.status}", remedy="see retinue runs ID")
        waits = _list_waits(await runs.list_events(run))
        waiting = [one for one in waits if one.facts["topic"] == topic and step in (None, one.step)]
        if len(waiting) > 1:
            raise AmbiguousNameError(topic, [one.step for one in waiting])
        if not waiting:
            _check_topic(record, topic, step, waits)
            await runs.signal(run, topic, value)
            return {"run": run, "topic": topic, "step": None}
        (wait,) = waiting
        schema = wait.facts.get("schema")
        if schema is not None and (problems := compile_schema(schema, f"signal {topic}").problems(value)):
            raise InvalidParametersError(problems)
        if await runs.count_signals(wait.run_id, topic):
            # the next would go to whoever asks for the topic after this step
            raise InvalidRequestError(
                f"Step {wait.step} of run {run} was answered already", remedy="wait until it has gone on"
            )
        await runs.signal(wait.run_id, topic, value)
        return {"run": run, "topic": topic, "step": wait.step}


async def _next_events(runs: Runs, run: str, after: int, wait_s: float) -> list[RunEvent]:
    """What there is already; else the next event, and whatever came with it."""
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
    facts = {key: value for key, value in event.facts.items() if key != "input"}
    return {"seq": event.seq, "event": event.kind, "step": event.step, "at": event.at, **facts}


def _render_run(record: RunRecord) -> Json:
    row: Json = {
        "run": record.id,
        "workflow": record.request.name,
        "status": record.status,
        "started_at": record.started_at,
    }
    if record.finished_at is not None:
        row["finished_at"] = record.finished_at
        row["duration_ms"] = round((record.finished_at - record.started_at) * 1000, 3)
    if record.forked_from is not None:
        row["forked_from"] = record.forked_from
    if digest := record.request.ambient.get("digest"):
        row["digest"] = digest
    return row


def _list_waits(events: Iterable[RunEvent]) -> list[RunEvent]:
    """The steps that wait for a signal now."""
    waiting: dict[str, RunEvent] = {}
    for event in events:
        if event.facts.get("kind") != "wait":
            continue
        if event.kind == "step_started":
            waiting[event.step] = event
        else:
            waiting.pop(event.step, None)
    return list(waiting.values())


def _check_topic(record: RunRecord, topic: str, step: str | None, waits: Iterable[RunEvent]) -> None:
    """Refuse a signal that nothing could ever receive."""
    definition = {k: v for k, v in record.request.definition.items() if k != "nested"}
    own = set(_list_topics(Definition.from_json(definition).steps))
    if step is None and topic in own:
        return  # the step will find it when it comes to wait
    now = ", ".join(sorted(f"{one.facts['topic']} ({one.step})" for one in waits)) or "none"
    later = ", ".join(sorted(own)) or "none"
    where = "no step waits" if step is None else f"step {step} does not wait"
    raise InvalidRequestError(
        f"In run {record.id} {where} for {topic!r}",
        remedy=f"waiting now: {now}; to come: {later}; a step of a branch must wait before it is answered",
    )


def _list_topics(steps: Iterable[Step]) -> Iterable[str]:
    """What steps of the run's own body wait for: those in branches and items are runs of their own."""
    for step in steps:
        if step.wait_for is not None:
            yield step.wait_for.topic
        if step.kind not in _AMID_CHILDREN:
            yield from _list_topics(step.steps or ())
            for branch in (step.branches or {}).values():
                yield from _list_topics(branch)
