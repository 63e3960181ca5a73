"""Starts runs of workflows for callers of the hub; the skill ``start_run`` returns at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import orjson
from cachetools import LRUCache
from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal, TraceContext
from retinue.core.errors import (
    DefinitionError,
    InvalidParametersError,
    NotAllowedError,
    Problem,
    RunConflictError,
    UnknownRunError,
)
from retinue.hub.known_skills import KnownSkills
from retinue.hub.orchestration.auto_choice import AutoChoice
from retinue.hub.run_access import RunAccess, reject_limited
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.permissions import covers
from retinue.workflows.definitions.definition import Definition
from retinue.workflows.definitions.loading import INLINE, Loaded, load
from retinue.workflows.definitions.overrides import apply_overrides
from retinue.workflows.definitions.step_checks import iterate_places
from retinue.workflows.library import Library, WorkflowBundle, bundle, is_run_as_mesh
from retinue.workflows.orchestrator import AUTO, Orchestrator, Selection
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.ports import Runs
from retinue.workflows.runs.records import MESH_SCOPES, Origin, Reach, RunRecord, as_json, check_run_id

Json = dict[str, Any]

WORKFLOW_TIMEOUT_S = 24 * 3600.0
"""Time-out of the skill; a run is limited by the time-outs of its steps."""

INLINE_FORM = '{"name": "w", "steps": [{"id": "a", "skill": "S", "with": {"x": "${{ input.x }}"}}]}'
"""The form of a definition, as models read it."""

_OVERRIDES = ("agents", "timeouts")

_REMEMBERED = 100
"""Inline definitions that are not checked again when they come again, as programs repeat theirs."""

_REMEMBERED_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run, the id by which its caller knows it, and how its workflow was chosen if it was.

    ``warnings`` are the faults that were found before the run and may not end it.
    """

    record: RunRecord
    shown_id: str
    choice: Selection | None = None
    loaded: Loaded | None = None
    warnings: tuple[DefinitionError, ...] = ()

    def render(self) -> Json:
        row: Json = {"run": self.shown_id, "workflow": self.record.request.name}
        if self.choice is not None:
            row["choice"] = as_json(self.choice)
        if self.warnings:
            row["warnings"] = [fault.data for fault in self.warnings]
        if self.loaded is not None and self.loaded.document.source != INLINE:
            row["source"] = _render_source(self.loaded)
        return row


@dataclass(frozen=True, slots=True)
class ChainChoice:
    """What a run takes of its chain of calls while teams change their digest.

    ``begin`` gives the trace of a chain that begins with a run, ``enter`` that of a run with the digests that
    it keeps, and ``library_of`` the workflows of them. ``list_choices`` gives the trace with each digest that
    the chain may have, first with those that lists show.
    """

    begin: Callable[[TraceContext], TraceContext]
    enter: Callable[[TraceContext], TraceContext]
    library_of: Callable[[TraceContext], Library]
    list_choices: Callable[[TraceContext], Sequence[TraceContext]]


class RunStarter:
    """Starts runs of workflows for callers of the hub, with the rights of the caller."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        library: Library,
        access: RunAccess,
        known_skills: KnownSkills,
        progress: RunProgress | None = None,
    ) -> None:
        self._orchestrator = orchestrator
        self.progress = progress or RunProgress()
        """The reports of the steps of runs."""
        self.chains: ChainChoice | None = None
        """None while no team changes its digest."""
        self.library = library
        self.access = access
        self._known_skills = known_skills
        self._observers: list[Callable[[], None]] = []
        self._inline: LRUCache[bytes, Loaded] = LRUCache(_REMEMBERED)

    @property
    def runs(self) -> Runs:
        return self._orchestrator.runs

    def on_first_start(self, observer: Callable[[], None]) -> None:
        """Call ``observer`` after the next start, once."""
        self._observers.append(observer)

    async def load(
        self, workflow: str | Json, trace: TraceContext | None = None, principal: Principal | None = None
    ) -> Loaded:
        """A stored workflow by its name, or an inline definition: an object, or a text that is one.

        ``trace`` = the chain of calls that starts it, ``principal`` = who calls; a plain name means the
        workflow of its own team.
        """
        if isinstance(workflow, str) and workflow.lstrip().startswith("{"):
            try:
                workflow = orjson.loads(workflow)
            except orjson.JSONDecodeError as error:
                problem = f"field 'workflow' is neither a name nor a JSON object: {error}"
                raise InvalidParametersError([Problem("workflow", problem)]) from None
        if isinstance(workflow, str):
            team = "" if principal is None else principal.team
            return await self.library_of(trace).get(workflow, team=team)
        return self._load_inline(workflow)

    def library_of(self, trace: TraceContext | None) -> Library:
        """The workflows of a chain of calls; None = those that lists show."""
        return self.library if self.chains is None or trace is None else self.chains.library_of(trace)

    def _load_inline(self, workflow: Json) -> Loaded:
        try:
            key = orjson.dumps(workflow)
        except TypeError:
            return load(workflow)
        loaded = self._inline.get(key)
        if loaded is None:
            loaded = load(workflow)
            if len(key) <= _REMEMBERED_BYTES:
                self._inline[key] = loaded
        return loaded

    async def start(
        self,
        loaded: Loaded,
        definition: Definition,
        run_input: Any,
        principal: Principal,
        trace: TraceContext,
        *,
        run: str | None = None,
        overrides: Json | None = None,
        choice: Selection | None = None,
        watches: bool = False,
    ) -> StartedRun:
        """Start a run of ``definition``, which is that of ``loaded`` or made of it.

        ``watches`` = keep what its steps report, from the first one on. Raises DefinitionError for what would
        surely fail; a run that was started before is not checked again. Raises PolicyDeniedError.
        """
        reject_limited(principal)
        is_inline = loaded.document.source == INLINE
        self.access.check_start(principal, loaded.definition.name, is_inline=is_inline)
        if self.chains is not None:
            trace = self.chains.enter(trace)
        bundled = WorkflowBundle(loaded)
        if loaded.definition.runs_others:
            bundled = await bundle(self.library_of(trace), loaded)
        self.access.check_nested_starts(principal, bundled.nested)
        # a run answers no approvals
        scopes = principal.scopes - {"approves"}
        reach = Reach(principal.agents, principal.through, principal.send, principal.team)
        origin = Origin(scopes, principal.id, trace, loaded.digest, allowance=trace.allowance, reach=reach)
        if loaded.definition.runs_as == "mesh" and is_run_as_mesh(loaded):
            if overrides and "agents" in overrides and not covers(origin.scopes, MESH_SCOPES):
                # its owner chose the agents that a caller without these rights reaches through it
                raise NotAllowedError(
                    f"workflow {loaded.definition.name} runs as the mesh: its agents cannot be overridden",
                    remedy="leave away overrides.agents, or use a token with the scope mesh",
                )
            origin = origin.as_mesh()
        if overrides:
            definition = _override(definition, overrides)
        checked = replace(loaded, definition=definition)
        findings = await self._known_skills.inspect(
            bundled, checked, principal, origin.scopes, run_input=run_input
        )
        faults = [finding.fault for finding in findings if finding.blocks]
        if faults and (run is None or await self.find(run, principal) is None):
            raise faults[0]
        stored_id = None if run is None else self.access.stored_id(check_run_id(run), principal)
        if watches:
            # the first step may begin before the start of the run returns its id
            stored_id = stored_id or uuid.uuid4().hex
            self.progress.watch(stored_id)
        try:
            record = await self._orchestrator.start(
                definition,
                run_input,
                run_id=stored_id,
                origin=origin,
                nested=bundled.nested,
                name=loaded.shown_as,
            )
        except RunConflictError as error:
            raise error.named(run or "") from None
        if not self.access.may_access(replace(principal, scopes=origin.scopes), record):
            # the id belongs to a run that the caller may not access, such as one of an earlier release
            raise RunConflictError(run or record.id)
        while self._observers:
            self._observers.pop()()
        warnings = tuple(finding.fault for finding in findings if not finding.blocks)
        return StartedRun(record, self.access.shown_id(record.id, principal), choice, loaded, warnings)

    async def find(self, run: str, principal: Principal) -> StartedRun | None:
        """The run that this caller started under this id; None if there is none."""
        try:
            record = await self.access.get(run, principal)
        except UnknownRunError:
            return None
        is_own = record.id == self.access.stored_id(run, principal)
        return StartedRun(record, run) if is_own else None


def add_start_skill(agent: Agent, starter: RunStarter, auto: AutoChoice, history: SearchHistory) -> None:
    """Add the skill that starts a run and returns at once."""

    @agent.skill
    async def start_run(
        workflow: Annotated[str | Json, Field(description=f"Workflow name, auto, or inline: {INLINE_FORM}")],
        ctx: Context,
        input: Annotated[Any, Field(description="Its input")] = None,  # noqa: A002 - the seed's
        run: Annotated[str | None, Field(description="Run id, an idempotency key")] = None,
        overrides: Annotated[
            Json | None, Field(description="agents and timeouts (ms) by step id or position")
        ] = None,
        progress: Annotated[bool, Field(description="step text")] = False,
    ) -> Json:
        """Starts a workflow and returns at once."""
        with ctx.entrust() as outgoing:
            outgoing.record_usage(0)
            reject_limited(ctx.principal)
            choice, wish = None, None
            if workflow == AUTO:
                choice, wish = await auto.choose(_prompt_of(input), ctx.principal)
            chosen = choice.workflow if choice else workflow
            loaded = await starter.load(chosen, outgoing.trace, ctx.principal)
            started = await starter.start(
                loaded,
                loaded.definition,
                input,
                ctx.principal,
                outgoing.trace,
                run=run,
                overrides=overrides,
                choice=choice,
                watches=progress or ctx.has_progress_listener,
            )
            if choice is not None:  # words have chosen the workflow, and so the skills
                history.note_run(ctx.principal, _prompt_of(input), started.record.id, wish=wish)
            # the run outlives this call and keeps its call budget
            outgoing.record_usage(None)
        return started.render()


def _render_source(loaded: Loaded) -> Json:
    """The text that a run came from, the line of each step, and the steps with further texts."""
    places = list(iterate_places(loaded.definition.steps, ("steps",)))
    lines = {step.id: loaded.document.place_of(path).line for path, step in places}
    others = [step.id for _, step in places if step.workflow is not None]
    return {"name": loaded.document.source, "lines": lines, "others": others}


def _prompt_of(run_input: Any) -> str:
    """The prompt that chooses the workflow."""
    prompt = run_input.get("prompt") if isinstance(run_input, Mapping) else run_input
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
