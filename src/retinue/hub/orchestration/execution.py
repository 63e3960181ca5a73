"""Carries out requests for orchestration: choice, cache, run, progress, result.

Each request is a run of a workflow. Equal requests at once share one run; it is cancelled when the last of
their callers is gone. A request with a run id survives its caller, who picks the run up by repeating it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from retinue.authoring.context import Context
from retinue.core.call import Answer, Principal, TraceContext
from retinue.core.errors import (
    AgentUnreachableError,
    CallTimedOutError,
    LookupFailedError,
    NoModelError,
    RetinueError,
    RoleNotOfferedError,
    RunConflictError,
    StepFailedError,
    UnknownAgentError,
)
from retinue.hub.orchestration.answer_cache import AnswerCache
from retinue.hub.orchestration.auto_choice import AutoChoice
from retinue.hub.orchestration.conversations import NamedConversations
from retinue.hub.orchestration.requests import (
    OrchestrationRequest,
    apply_options,
    list_open_models,
    list_open_roles,
    prefer_agent,
    prefer_model,
    set_role,
    shape_input,
)
from retinue.hub.orchestration.results import OrchestrationResult, read_run, render_answer
from retinue.hub.orchestration.roster import Roster, describe_choice, describe_missing
from retinue.hub.orchestration.step_lines import follow_steps
from retinue.hub.orchestration.tool_schemas import AGENTS
from retinue.hub.run_access import RunAccess, reject_limited
from retinue.hub.step_reports import passed_on
from retinue.hub.workflows import RunStarter, StartedRun
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import CAPABILITIES, parse_role
from retinue.mesh.history.search_history import SearchHistory
from retinue.mesh.permissions import Access
from retinue.workflows.caller import Caller, cache_key
from retinue.workflows.definitions.definition import AUTO, Definition, iterate_steps, list_calls
from retinue.workflows.definitions.loading import Loaded
from retinue.workflows.orchestrator import Selection, select_for_role
from retinue.workflows.runs.records import RunRecord

Json = dict[str, Any]

_SETTING = "options.timeout"


@dataclass(slots=True)
class _Plan:
    """The plan for a request: ``definition`` was made of ``loaded``; ``key`` names its cached answer.

    ``wish`` is the id of the request as a wish, which ends with an answer.
    """

    request: OrchestrationRequest
    loaded: Loaded
    definition: Definition
    run_input: Any
    choice: Selection | None
    warnings: list[str]
    wish: str | None = None
    key: str = ""
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.loaded.shown_as or self.definition.name

    def complete(self, result: OrchestrationResult) -> OrchestrationResult:
        """A result, new or cached, with the reasons why this request got its workflow."""
        return replace(
            result,
            choice=self.choice,
            reasons=(*self.reasons, *result.reasons),
            warnings=tuple(self.warnings),
        )


@dataclass(slots=True)
class _Flight:
    """A run that several callers may wait for, and how many do."""

    started: asyncio.Future[StartedRun]
    waiting: int = 0

    def has_others(self) -> bool:
        """Whether another caller waits for the run as well."""
        return self.waiting > 1


class Orchestration:
    """Carries out the requests of one hub."""

    def __init__(
        self,
        starter: RunStarter,
        caller: Caller,
        directory: Directory,
        roster: Roster,
        run_access: RunAccess,
        access: Access,
        *,
        auto: AutoChoice,
        cache: AnswerCache,
        conversations: NamedConversations,
        history: SearchHistory,
    ) -> None:
        self._starter = starter
        self._caller = caller
        self._directory = directory
        self._roster = roster
        self._run_access = run_access
        self._access = access
        self._auto = auto
        self._cache = cache
        self._conversations = conversations
        self._history = history
        self._flights: dict[str, _Flight] = {}
        self._followers: Counter[str] = Counter()
        self._stopping: dict[str, asyncio.Task[RunRecord]] = {}

    async def execute(self, request: OrchestrationRequest, ctx: Context) -> Answer:
        """Carry out a request; the value is the result of the tool (L-28, L-29).

        Raises what a start or a step of the run fails with, NoModelError where no agent can take it, and
        CallTimedOutError when the time of the request is over.
        """
        began = time.perf_counter()
        reject_limited(ctx.principal)
        limit_s = request.timeout_s
        try:
            async with asyncio.timeout(limit_s), self._conversation(request, ctx) as session:
                result, plan = await self._answer(request, session, ctx)
                if session is not None:
                    answer = result.result.get("output")
                    self._conversations.add(session, request.prompt, answer, run=request.run)
        except TimeoutError:
            raise _overdue(request) from None
        except StepFailedError as error:
            if error.cause.get("data", {}).get("setting") == "settings.max_duration" and limit_s is not None:
                raise _overdue(request) from None
            raise
        return render_answer(result, plan.name, (time.perf_counter() - began) * 1000)

    async def _answer(
        self, request: OrchestrationRequest, session: str | None, ctx: Context
    ) -> tuple[OrchestrationResult, _Plan]:
        history = "" if session is None else self._conversations.render(session, before=request.run)
        plan = await self._prepare(request, history, ctx)
        result = await self._find_answer(plan, session, ctx)
        if plan.wish is not None:
            self._history.end_wish(plan.wish)
        return plan.complete(result), plan

    async def _find_answer(self, plan: _Plan, session: str | None, ctx: Context) -> OrchestrationResult:
        """The answer of the cache, else that of a run."""
        request = plan.request
        # policies decide about each call, and the sources of an answer belong to the chain that made it
        may_cache = not (ctx.is_tracked or self._access.has_policies)
        reads_cache = request.reads_cache and may_cache
        if reads_cache and request.run is None and (kept := self._cache.find(plan.key)) is not None:
            return replace(OrchestrationResult.from_json(kept), is_cached=True)
        try:
            if request.run is not None:
                result = await self._run_with_id(plan, request.run, ctx)
            elif reads_cache and session is None and plan.key and ctx.trace.allowance is None:
                result = await self._run_shared(plan, ctx)
            else:
                result = await self._run_alone(plan, ctx)
        except StepFailedError as error:
            advice = await self._advise(plan, ctx.principal)
            error.remedy = "; ".join(filter(None, (error.remedy, *advice)))
            raise
        if request.keeps and plan.key and may_cache:
            self._cache.put(plan.key, result.to_json())
        return result

    @asynccontextmanager
    async def _conversation(self, request: OrchestrationRequest, ctx: Context) -> AsyncIterator[str | None]:
        """The stored name of the conversation of a request, whose turn it is; None without one."""
        if request.session is None:
            yield None
            return
        name = self._run_access.stored_session(request.session, ctx.principal)
        async with self._conversations.turn(name):
            yield name

    # What will run

    async def _prepare(self, request: OrchestrationRequest, history: str, ctx: Context) -> _Plan:
        choice = wish = None
        workflow = request.workflow
        if workflow == AUTO:
            role = None if request.role == AUTO else parse_role(request.role)
            if role is None:
                choice, wish = await self._auto.choose(
                    request.prompt, ctx.principal, agent=request.agent, parallel=request.parallel
                )
            else:
                choice = select_for_role(request.prompt, role)
            workflow = choice.workflow
        loaded = await self._starter.load(workflow, ctx.trace, ctx.principal)
        definition = loaded.definition
        warnings: list[str] = []
        if request.role != AUTO:
            changed = set_role(definition, parse_role(request.role))
            if changed is None:
                warnings.append(f"{definition.name} has roles of its own: role {request.role} has no effect")
            definition = changed or definition
        if request.agent != AUTO:
            definition, warning = await self._prefer(definition, request, ctx.principal)
            warnings += warning
        reasons = [] if choice is None else [f"workflow: {choice.workflow}, because {choice.because}"]
        plan = _Plan(
            request,
            loaded,
            definition,
            shape_input(definition, request, history),
            choice,
            warnings,
            wish=wish,
            reasons=reasons,
        )
        await self._check_roles(plan, ctx.principal)
        if request.keeps and not history and not _has_effects(definition):
            plan.key = self._key_of(plan, ctx.principal)
        plan.definition = apply_options(definition, request)
        return plan

    async def _prefer(
        self, definition: Definition, request: OrchestrationRequest, principal: Principal
    ) -> tuple[Definition, list[str]]:
        """The definition with the preferred agent in the steps that it can take, and warnings."""
        agent = request.agent
        has: set[str] = set()
        lacks: dict[str, str] = {}
        for role in list_open_roles(definition, request.role):
            try:
                (choice,) = await self._caller.list_role(role, [agent], principal.scopes, principal.id)
            except UnknownAgentError as error:
                if agent not in AGENTS:
                    raise  # no agent has this name: more likely misspelt than away
                lacks[role] = error.message
            except (LookupFailedError, AgentUnreachableError) as error:
                lacks[role] = error.message
            else:
                if choice.available:
                    has.add(role)
                else:
                    members = await self._roster.list_with_role(role, principal)
                    reason = next((member.reason for member in members if member.name == agent), None)
                    lacks[role] = f"{agent} is not available" + (f": {reason}" if reason else "")
        if list_open_models(definition):
            problem = await self._auto.find_model_problem(agent, principal)
            if problem is None:
                definition = prefer_model(definition, agent)
            else:
                lacks["model"] = problem
        warnings = [
            f"preferred agent {agent}: {reason}; another one was chosen"
            for reason in dict.fromkeys(lacks.values())
        ]
        if any(step.asks_agents for step in iterate_steps(definition.steps)) and has:
            warnings.append(
                f"{definition.name} asks every available agent: preferring {agent} has no effect there"
            )
        return prefer_agent(definition, agent, frozenset(has), request.role), warnings

    async def _check_roles(self, plan: _Plan, principal: Principal) -> None:
        """Fail before the run starts if a role has no agent; the error lists all remedies."""
        if plan.request.overrides or plan.definition.runs_as != "caller":
            return  # other agents, or other rights, than the definition and the caller tell
        if plan.request.run is None:
            for model in list_open_models(plan.definition):
                await self._auto.check_model(model, principal)
        for role in list_open_roles(plan.definition, plan.request.role):
            try:
                await self._caller.list_role(role, (), principal.scopes, principal.id)
            except RoleNotOfferedError as error:
                members = await self._roster.list_with_role(role, principal)
                others = []
                for other in CAPABILITIES:
                    candidates = await self._roster.list_with_role(other, principal)
                    others += [
                        f"{member.name} ({other})" for member in candidates if member.status != "unavailable"
                    ]
                raise NoModelError(role, describe_missing({role: members}), others) from error

    async def _advise(self, plan: _Plan, principal: Principal) -> list[str]:
        """Advice after a failed run: the warnings, and the missing models where there is none.

        Without a model another agent with the role takes a task, which may be made for other tasks.
        """
        missing: dict[str, str | None] = {}
        for role in list_open_roles(plan.definition, plan.request.role):
            for member in await self._roster.list_with_role(role, principal):
                if member.listing.record.labels.get("kind") != "model":
                    continue
                if member.status != "unavailable":
                    return plan.warnings
                missing[member.name] = member.reason
        if not missing:
            return plan.warnings
        reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        others = [] if plan.request.agent in missing else plan.warnings
        return [*others, f"no language model is started: {reasons}"]

    def _key_of(self, plan: _Plan, principal: Principal) -> str:
        """The key of all that shapes the answer: request, rights, and versions of the agents."""
        view = self._access.view_of(principal)
        entries = [
            entry for role in CAPABILITIES for entry in self._directory.list_with_role(role, principal.scopes)
        ]
        for skill in list_calls(plan.definition):
            entries += self._directory.find_by_skill(skill, principal.scopes)
        by_id = {
            entry.id: [*entry.id, entry.version or "", entry.digest or "", entry.url or ""]
            for entry in entries
        }
        versions = sorted(by_id.values())
        rights = [principal.kind, principal.id, *sorted(principal.scopes)]
        hidden = [] if view is None else sorted(view.closed)
        return cache_key(
            plan.request.tool, plan.definition.to_json(), plan.run_input, rights, hidden, versions
        )

    # Running

    async def _run_alone(self, plan: _Plan, ctx: Context) -> OrchestrationResult:
        with ctx.entrust() as outgoing:
            outgoing.record_usage(0)
            started = await self._start(plan, ctx, outgoing.trace)
            outgoing.record_usage(None)
            record = await self._finish(started, plan, ctx, keep_alone=lambda: False)
            outgoing.record_usage(record.calls, record.usage)
        return await self._read_result(started, record, plan, ctx.principal)

    async def _run_with_id(self, plan: _Plan, run: str, ctx: Context) -> OrchestrationResult:
        """Start the run of this id, or follow it; it continues without its caller, unless it is tied."""
        earlier = await self._find_earlier(plan, run, ctx.principal)
        with ctx.entrust() as outgoing:
            outgoing.record_usage(0)
            started = earlier or await self._start(plan, ctx, outgoing.trace, run=run)
            outgoing.record_usage(None)
            stored, is_tied = started.record.id, plan.request.is_tied
            self._followers[stored] += 1
            try:
                record = await self._finish(
                    started, plan, ctx, keep_alone=lambda: not is_tied or self._followers[stored] > 1
                )
            finally:
                self._followers[stored] -= 1
                self._followers += Counter()  # forgets the runs that nobody follows
            outgoing.record_usage(record.calls, record.usage)
        return await self._read_result(started, record, plan, ctx.principal)

    async def _find_earlier(self, plan: _Plan, run: str, principal: Principal) -> StartedRun | None:
        """The run of this id, None if there is none; a tied one goes on if it was stopped."""
        earlier = await self._starter.find(run, principal)
        if earlier is None:
            return None
        if not _is_same(earlier.record, plan):
            raise RunConflictError(run)
        record = earlier.record
        if plan.request.is_tied:
            if (stopping := self._stopping.get(record.id)) is not None:
                await asyncio.wait([stopping])
            record = await self._starter.runs.resume(record.id)
        return replace(earlier, record=record, choice=plan.choice)

    async def _run_shared(self, plan: _Plan, ctx: Context) -> OrchestrationResult:
        """Run for all callers that ask the same at once, within the same time."""
        request = plan.request
        key = cache_key(plan.key, request.timeout_s, request.retries, request.parallel)
        while (flight := self._flights.get(key)) is not None:
            flight.waiting += 1
            try:
                try:
                    started = await asyncio.shield(flight.started)
                except asyncio.CancelledError:
                    if not flight.started.cancelled():
                        raise
                    continue  # the caller that began it is gone, and nothing had started
                record = await self._finish(started, plan, ctx, keep_alone=flight.has_others)
                return await self._read_result(started, record, plan, ctx.principal)
            finally:
                self._leave(key, flight)
        flight = _Flight(asyncio.get_running_loop().create_future(), waiting=1)
        flight.started.add_done_callback(_retrieve)
        self._flights[key] = flight
        try:
            with ctx.entrust() as outgoing:
                outgoing.record_usage(0)
                try:
                    started = await self._start(plan, ctx, outgoing.trace)
                except RetinueError as error:
                    flight.started.set_exception(error)
                    raise
                except BaseException:
                    flight.started.cancel()
                    raise
                flight.started.set_result(started)
                outgoing.record_usage(None)
                record = await self._finish(started, plan, ctx, keep_alone=flight.has_others)
                outgoing.record_usage(record.calls, record.usage)
            return await self._read_result(started, record, plan, ctx.principal)
        finally:
            self._leave(key, flight)

    def _leave(self, key: str, flight: _Flight) -> None:
        flight.waiting -= 1
        started = flight.started
        did_not_start = started.cancelled() or (started.done() and started.exception() is not None)
        if self._flights.get(key) is flight and (flight.waiting == 0 or did_not_start):
            del self._flights[key]

    async def _start(
        self, plan: _Plan, ctx: Context, trace: TraceContext, run: str | None = None
    ) -> StartedRun:
        started = await self._starter.start(
            plan.loaded,
            plan.definition,
            plan.run_input,
            ctx.principal,
            trace,
            run=run,
            overrides=plan.request.overrides,
            choice=plan.choice,
            watches=ctx.has_progress_listener,
        )
        # the words of a prompt choose the skills with the workflow, else in steps of roles only
        is_named = plan.choice is None
        if not is_named or _has_roles(plan.definition):
            run_id, prompt = started.record.id, plan.request.prompt
            self._history.note_run(ctx.principal, prompt, run_id, only_roles=is_named, wish=plan.wish)
        return started

    async def _finish(
        self, started: StartedRun, plan: _Plan, ctx: Context, *, keep_alone: Callable[[], bool]
    ) -> RunRecord:
        """Wait for the end of a run, with a line of progress for each step, and what the steps report.

        When the caller is gone, the run is cancelled unless ``keep_alone`` says that others need it.
        """
        runs, run_id = self._starter.runs, started.record.id
        try:
            if ctx.has_progress_listener:
                async with passed_on(self._starter.progress, run_id, ctx) as report:
                    await follow_steps(runs.follow(run_id), plan.definition, report)
            return await runs.finish(run_id)
        except asyncio.CancelledError:
            if not keep_alone():
                # in a task: the cancelled one may be cancelled again before it has stopped the run
                stopping = self._stopping[run_id] = asyncio.create_task(runs.cancel(run_id))
                stopping.add_done_callback(lambda _: self._stopping.pop(run_id, None))
                await asyncio.shield(stopping)
            raise

    async def _read_result(
        self, started: StartedRun, record: RunRecord, plan: _Plan, principal: Principal
    ) -> OrchestrationResult:
        """The result of the run; raises its error."""
        output = record.get()
        runs = self._starter.runs
        events, steps = await asyncio.gather(runs.list_events(record.id), runs.list_steps(record.id))
        facts = read_run(events, steps)
        reasons: list[str] = []
        for role, agents in facts.agents_by_role.items():
            ranked = await self._roster.recommend(role, principal)
            reasons += filter(None, (describe_choice(role, agent, ranked) for agent in agents))
        return OrchestrationResult(
            tool=plan.request.tool,
            run=started.shown_id,
            output=output,
            agents=facts.agents,
            usage=facts.usage,
            reasons=tuple(reasons),
        )


def _has_effects(definition: Definition) -> bool:
    """Whether a workflow may do more than ask: it calls skills, or waits for people."""
    steps = iterate_steps(definition.steps)
    return any(step.kind in ("skill", "think", "wait_for", "workflow") for step in steps)


def _has_roles(definition: Definition) -> bool:
    """Whether a step of a workflow chooses its agent by a role."""
    return any(step.kind == "role" or step.asks_agents for step in iterate_steps(definition.steps))


def _is_same(record: RunRecord, plan: _Plan) -> bool:
    """Whether a run answers the request; its agents may have been chosen otherwise at the time."""
    return record.request.name == plan.name and record.request.input == plan.run_input


def _retrieve(started: asyncio.Future[StartedRun]) -> None:
    """Retrieve a failure, because asyncio reports a failure that nothing retrieves."""
    if not started.cancelled():
        started.exception()


def _overdue(request: OrchestrationRequest) -> CallTimedOutError:
    return CallTimedOutError(request.tool, request.timeout_s or 0.0, layer="the call", setting=_SETTING)
