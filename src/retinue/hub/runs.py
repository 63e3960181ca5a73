"""The hub's skills about runs: list, show, follow, cancel, resume, rerun and signal.

Each gets its run through `RunAccess`, which also tells the id that the caller knows.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from retinue.approvals.records import TOPIC
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.errors import (
    INCOMPLETE,
    AmbiguousNameError,
    InvalidParametersError,
    InvalidRequestError,
    RunConflictError,
    UnknownRunError,
)
from retinue.core.usage import sum_usages
from retinue.hub.orchestration.results import sum_usage
from retinue.hub.orchestration.step_lines import shorten_arguments
from retinue.hub.run_access import RunAccess
from retinue.hub.run_plan import list_plan
from retinue.hub.step_reports import LOOK_S, passed_on
from retinue.mesh.schema.checks import compile_schema
from retinue.workflows.definitions.definition import Step
from retinue.workflows.definitions.run_forms import CodeRun, parse_form
from retinue.workflows.definitions.think import read_extension
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.hosting import RunCode, explain_missing
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import (
    Extension,
    RunEvent,
    RunRecord,
    RunStatus,
    StepRecord,
    as_json,
    check_run_id,
)
from retinue.workflows.runs.tree import draw_tree, list_effects

Json = dict[str, Any]

_LONGEST_WAIT_S = 25.0
_LISTED = 50
_READ_FOR_WAITS = 20
"""Running runs of one list whose events are read for open waits; the newest ones."""

_LOG_LINES = 200
"""Lines of its log that one look at a run shows; the newest ones."""

_CHILD_RUN_KINDS = ("parallel", "foreach", "workflow")
"""Kinds of steps whose bodies are runs of their own."""


def add_run_skills(
    agent: Agent,
    runs: Runs,
    access: RunAccess,
    progress: RunProgress | None = None,
) -> None:
    """Add the skills about runs to the hub's agent; ``progress`` holds what the steps of runs report."""
    _add_run_views(agent, runs, access)
    _add_follow(agent, runs, access, progress or RunProgress())
    _add_run_changes(agent, runs, access)
    _add_signals(agent, runs, access)


def _add_run_views(agent: Agent, runs: Runs, access: RunAccess) -> None:
    async def render(records: Sequence[RunRecord], ctx: Context) -> list[Json]:
        rows = [_render_run(record, lambda run: access.shown_id(run, ctx.principal)) for record in records]
        needs = [
            RunCode.find(record.request.definition) if record.status == "running" else None
            for record in records
        ]
        living = await runs.list_hosted() if any(needs) else ()
        for row, code in zip(rows, needs, strict=True):
            if code is not None and (missing := explain_missing(code, living)) is not None:
                row["missing_code"] = missing
        return rows

    @agent.skill(read_only=True)
    async def list_runs(
        ctx: Context,
        status: Annotated[
            Literal["running", "done", "failed", "cancelled", "limited"] | None,
            Field(description="Only these"),
        ] = None,
        workflow: Annotated[str | None, Field(description="Only its runs")] = None,
        limit: Annotated[int, Field(ge=1, le=1000)] = _LISTED,
    ) -> Json:
        """Lists the runs, newest first."""
        may_see = access.filter(ctx.principal)

        def accept(record: RunRecord) -> bool:
            return may_see(record) and (status is None or record.shown_status == status)

        # a run that a limit ended is stored as failed
        stored: RunStatus | None = "failed" if status == "limited" else status
        records = await runs.list_all(status=stored, name=workflow, limit=limit, accept=accept)
        rows = await render(records, ctx)
        running = [pair for pair in zip(records, rows, strict=True) if pair[0].status == "running"]
        for record, row in running[:_READ_FOR_WAITS]:
            # the status of such a run stays "running"
            if waits := _list_waits(await runs.list_events(record.id)):
                row["waits_for"] = sorted({str(wait.facts["topic"]) for wait in waits})
        return {"runs": rows}

    @agent.skill(read_only=True)
    async def show_run(run: str, ctx: Context) -> Json:
        """Shows one run: its steps as a tree, with agents, attempts, inputs, outputs and errors."""
        record = await access.get(run, ctx.principal)
        events = await runs.list_events(record.id)
        ended = None if record.status == "running" else record.status
        (row,) = await render([record], ctx)
        shown = row | {"run": run, "input": record.request.input}
        if record.status == "done":
            shown["output"] = record.value
        if record.fault is not None:
            shown["error"] = as_json(record.fault)
        recorded = await runs.list_steps(record.id)
        steps = draw_tree(events, recorded, ended=ended)
        _take_in(ctx, recorded)
        if usage := sum_usage(recorded):
            shown["usage"] = usage
        if lines := [_render_event(event) for event in events if event.kind == "log"]:
            shown["log"] = lines[-_LOG_LINES:]
        plan = list_plan(record.request.definition)
        return shown | {"steps": steps, "plan": plan, "effects": list_effects(events)}


def _take_in(ctx: Context, steps: Iterable[StepRecord]) -> None:
    """Note what the steps of a run have read, because the caller is shown their outputs."""
    if ctx.is_tracked:
        ctx.take_in(sum_usages(step.outcome.spent for step in steps))


def _add_follow(agent: Agent, runs: Runs, access: RunAccess, progress: RunProgress) -> None:
    @agent.skill(read_only=True)
    async def follow_run(
        run: str,
        ctx: Context,
        after: int = 0,
        wait_s: float = 20.0,
        progress_after: int = -1,
    ) -> Json:
        """Returns a run's events after ``after``; waits ``wait_s`` seconds for one."""
        # the descriptions of the hub's tools share 12 kB: docs/workflows.md explains progress_after
        shows_reports = progress_after >= 0
        try:
            stored = (await access.get(run, ctx.principal)).id
        except UnknownRunError:
            if shows_reports:
                # the caller is about to start it, and would miss what its first step reports
                for stored in access.list_stored_ids(run, ctx.principal):
                    progress.watch(stored)
            raise

        def has_reports() -> bool:
            return progress.last(stored) > progress_after

        wait_s = min(wait_s, _LONGEST_WAIT_S)
        if shows_reports:
            progress.watch(stored)
            events = await _next_events(runs, stored, after, wait_s, has_reports)
        elif ctx.has_progress_listener:
            async with passed_on(progress, stored, ctx):
                events = await _next_events(runs, stored, after, wait_s)
        else:
            events = await _next_events(runs, stored, after, wait_s)
        record = await runs.get(stored)
        if ctx.is_tracked:
            _take_in(ctx, await runs.list_steps(stored))
        if not events and record.status != "running":
            events = list(await runs.list_events(stored, after=after))
        # done only together with the last event, so that the caller misses none
        last = events[-1] if events else None
        is_complete = last is None or (last.kind == "run_finished" and last.run_id == stored)
        done = record.status != "running" and is_complete
        reply: Json = {
            "events": [_render_event(event, shows_arguments=shows_reports) for event in events],
            "next": last.seq if last else after,
            "done": done,
            "status": record.shown_status,
        }
        if shows_reports:
            await progress.catch_up(stored)
            reports = progress.list_after(stored, progress_after)
            reply["progress"] = [report.to_json() for report in reports]
            # reports that came and were not kept are passed over, else the next call would not wait
            newest = progress.last(stored)
            reply["next_progress"] = reports[-1].number if reports else max(progress_after, newest)
        if done and record.status == "done":
            reply["output"] = record.value
        elif done and record.fault is not None:
            reply["error"] = as_json(record.fault)
        if done and record.status == "cancelled":
            reply["effects"] = list_effects(await runs.list_events(stored))
        return reply


def _add_run_changes(agent: Agent, runs: Runs, access: RunAccess) -> None:
    @agent.skill
    async def cancel_run(run: str, ctx: Context) -> Json:
        """Cancels a run and its calls in flight; lists the effects that happened."""
        record = await runs.cancel((await access.get(run, ctx.principal)).id)
        effects = list_effects(await runs.list_events(record.id))
        return {"run": run, "status": record.status, "effects": effects}

    @agent.skill
    async def resume_run(run: str, ctx: Context) -> Json:
        """Resumes a cancelled run, or the undoing of a run that failed half undone."""
        stored = (await access.get(run, ctx.principal)).id
        seen = await runs.list_events(stored)
        record = await runs.resume(stored)
        return {"run": run, "status": record.shown_status, "after": seen[-1].seq if seen else 0}

    # not in the lists of tools, whose descriptions share 12 kB
    @agent.skill(listed=False)
    async def extend_run(
        run: str,
        ctx: Context,
        limits: Annotated[dict[str, Any], Field(description="Such as turns, calls, tokens, dollars, time")],
    ) -> Json:
        """Continues a run that reached a limit of a step think, with higher limits."""
        record = await access.get(run, ctx.principal)
        limited = record.limited
        if limited is None or record.fault is None:
            raise InvalidRequestError(
                f"Run {run} has not ended at a limit: {record.status}", remedy="resume it without limits"
            )
        if limited.limit == "repeats":
            raise InvalidRequestError(
                f"Run {run} ended because the same call was repeated: a higher limit does not help",
                remedy="change the step, and start a new run",
            )
        if not record.is_extendable:
            step = record.fault.data["step"].partition("/")[0]
            raise InvalidRequestError(
                f"Run {run} cannot go on: step {step} has runs of its own, or steps were undone",
                remedy=f"raise the limits and run again: retinue rerun {run} --from {step}",
            )
        values = read_extension(limited, limits)
        seen = await runs.list_events(record.id)
        extension = Extension(record.fault.data["step"], values)
        record = await runs.extend(record.id, extension)
        return {"run": run, "status": record.shown_status, "after": seen[-1].seq if seen else 0}

    @agent.skill
    async def rerun_run(
        run: str,
        ctx: Context,
        from_step: Annotated[str, Field(description="First step")],
        new_run: Annotated[str | None, Field(description="Id of the new run")] = None,
    ) -> Json:
        """Runs again from a step, as a new run with the results before it."""
        old = await access.get(run, ctx.principal)
        # who may not start the workflow may not start it again; the run does not tell where it came from
        # a policy names a workflow without its team
        access.check_start(ctx.principal, old.request.name.partition("@")[0], is_inline=False)
        access.check_nested_starts(ctx.principal, parse_form(old.request.definition).nested)
        if new_run is None:
            stored = uuid.uuid4().hex
        else:
            stored = access.stored_id_of_rerun(check_run_id(new_run), old, ctx.principal)
        try:
            record = await runs.fork(old.id, from_step=from_step, new_run_id=stored)
        except RunConflictError as error:
            raise error.named(new_run or stored) from None
        shown = access.shown_id(record.id, ctx.principal)
        return {"run": shown, "workflow": record.request.name, "from": run}


def _add_signals(agent: Agent, runs: Runs, access: RunAccess) -> None:
    @agent.skill
    async def signal_run(
        run: str,
        topic: str,
        ctx: Context,
        value: Annotated[Any, Field(description="Output of the step")] = None,
        step: Annotated[str | None, Field(description="If several wait")] = None,
    ) -> Json:
        """Answers a step that waits for a signal, such as a person's approval."""
        record = await access.get(run, ctx.principal)
        if record.status != "running":
            raise InvalidRequestError(f"Run {run} has ended: {record.status}", remedy="see retinue runs ID")
        if topic.startswith(TOPIC):
            remedy = f"answer it: retinue approvals approve {topic.removeprefix(TOPIC)}, or deny"
            raise InvalidRequestError(
                f"{topic[:80]} is a question about a call, and no signal", remedy=remedy
            )
        waits = _list_waits(await runs.list_events(record.id))
        waiting = [wait for wait in waits if wait.facts["topic"] == topic and step in (None, wait.step)]
        if len(waiting) > 1:
            raise AmbiguousNameError(topic, [wait.step for wait in waiting])
        if not waiting:
            _check_topic(record, run, topic, step, waits)
            await runs.signal(record.id, topic, value)
            return {"run": run, "topic": topic, "step": None}
        (wait,) = waiting
        schema = wait.facts.get("schema")
        if schema is not None and (problems := compile_schema(schema, f"signal {topic}").problems(value)):
            raise InvalidParametersError(problems)
        if await runs.count_signals(wait.run_id, topic):
            # a second signal would go to the next step that waits for the topic
            raise InvalidRequestError(
                f"Step {wait.step} of run {run} was answered already", remedy="wait until it has ended"
            )
        await runs.signal(wait.run_id, topic, value)
        return {"run": run, "topic": topic, "step": wait.step}


async def _next_events(
    runs: Runs, run: str, after: int, wait_s: float, has_reports: Callable[[], bool] | None = None
) -> list[RunEvent]:
    """The events after ``after``; without any, wait for the next one, or until ``has_reports``."""
    if events := list(await runs.list_events(run, after=after)):
        return events
    if (await runs.get(run)).status != "running":
        # it may have ended, and told its last steps, since its events were read
        return list(await runs.list_events(run, after=after))
    until = time.monotonic() + wait_s
    waiting = asyncio.ensure_future(anext(runs.follow(run, after=after), None))
    try:
        while not waiting.done() and (left_s := until - time.monotonic()) > 0:
            if has_reports is None:
                await asyncio.wait([waiting], timeout=left_s)
            elif has_reports():
                break
            else:
                await asyncio.wait([waiting], timeout=min(left_s, LOOK_S))
        if not waiting.done():
            return []
        await waiting
    finally:
        waiting.cancel()
        await asyncio.wait([waiting])
    return list(await runs.list_events(run, after=after))


def _render_event(event: RunEvent, *, shows_arguments: bool = False) -> Json:
    """The event as JSON, with the step's facts: its kind, agent, skill and duration.

    ``shows_arguments`` = a call that begins has the beginning of its arguments, as text.
    """
    facts = {key: value for key, value in event.facts.items() if key != "input"}
    if shows_arguments and event.kind == "step_started" and facts.get("kind") == "call":
        facts["arguments"] = shorten_arguments(event.facts.get("input"))
    return {"seq": event.seq, "event": event.kind, "step": event.step, "at": event.at, **facts}


def _render_run(record: RunRecord, shown_id: Callable[[str], str]) -> Json:
    row: Json = {
        "run": shown_id(record.id),
        "workflow": record.request.name,
        "status": record.shown_status,
        "started_at": record.started_at,
    }
    if record.finished_at is not None:
        row["finished_at"] = record.finished_at
        row["duration_ms"] = round((record.finished_at - record.started_at) * 1000, 3)
    if record.is_half_undone:
        row["undo"] = INCOMPLETE
    if record.forked_from is not None:
        row["forked_from"] = shown_id(record.forked_from)
    if record.request.origin.trace is not None:
        row["trace"] = record.request.origin.trace.id
    if record.request.origin.digest:
        row["digest"] = record.request.origin.digest
    return row


def _list_waits(events: Iterable[RunEvent]) -> list[RunEvent]:
    """The steps that wait for a signal."""
    waiting: dict[str, RunEvent] = {}
    for event in events:
        if event.facts.get("kind") != "wait":
            continue
        if event.kind == "step_started":
            waiting[event.step] = event
        else:
            waiting.pop(event.step, None)
    return list(waiting.values())


def _check_topic(
    record: RunRecord, run: str, topic: str, step: str | None, waits: Iterable[RunEvent]
) -> None:
    """Reject a signal that no step can receive."""
    form = parse_form(record.request.definition)
    own = set(_list_topics(form.steps))
    if step is None and (topic in own or isinstance(form, CodeRun)):
        return  # the signal is kept until the step waits; which ones code waits for, is not known
    now = ", ".join(sorted(f"{wait.facts['topic']} ({wait.step})" for wait in waits)) or "none"
    later = ", ".join(sorted(own)) or "none"
    where = "no step waits" if step is None else f"step {step} does not wait"
    raise InvalidRequestError(
        f"In run {run} {where} for {topic!r}",
        remedy=f"waiting now: {now}; later: {later}; a step of a branch must wait before it can be answered",
    )


def _list_topics(steps: Iterable[Step]) -> Iterable[str]:
    """The topics that steps of the run itself wait for, without those of its child runs."""
    for step in steps:
        if step.wait_for is not None:
            yield step.wait_for.topic
        if step.kind not in _CHILD_RUN_KINDS:
            yield from _list_topics(step.steps or ())
            for branch in (step.branches or {}).values():
                yield from _list_topics(branch)
