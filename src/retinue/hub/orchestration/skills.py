"""The eight orchestration tools as exposed skills of the hub's agent (L-01 … L-26), and ``clear_cache``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.rows import render_agent_row
from retinue.core.call import Answer, Principal
from retinue.core.errors import InvalidParametersError, InvalidSettingError, Problem
from retinue.core.record import Listing, ListingKey
from retinue.hub.orchestration.answer_cache import AnswerCache
from retinue.hub.orchestration.execution import Orchestration
from retinue.hub.orchestration.requests import TIED, OrchestrationRequest, ask_all, is_open, role_of
from retinue.hub.orchestration.roster import Roster
from retinue.hub.orchestration.tool_schemas import CHECKED, DESCRIPTIONS
from retinue.hub.resources import decide_and_keep
from retinue.hub.search import list_missing
from retinue.hub.workflows import WORKFLOW_TIMEOUT_S
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.routing import parse_role
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import Access, decide_listings, is_seen, narrow_record
from retinue.mesh.schema.messages import describe_shape
from retinue.mesh.search.agents import AgentSearch
from retinue.workflows.definitions.definition import (
    AUTO,
    DEFAULT_ROLE,
    Definition,
    iterate_steps,
    list_agents,
    list_calls,
)
from retinue.workflows.library import Library, StoredWorkflow

Json = dict[str, Any]

SpendingOf = Callable[[str], Mapping[str, Any] | None]
"""Today's spending of a model agent, and its limits; None for an agent that is no model of this machine."""

PAGE = 1_000
"""Default and maximum number of agents in one reply."""

_LISTINGS_PER_BATCH = 200
"""Listings read before other tasks may run: about 20 ms."""

_SESSION = "session"
_DECIDED = ("vote", "merge")
"""Modes that end with a choice or a synthesis, which is a step of its own."""


def add_orchestration_skills(
    agent: Agent, orchestration: Orchestration, cache: AnswerCache, clear_steps: Callable[[], int]
) -> None:
    """Add the tools that run something, and ``clear_cache``."""
    _add_orchestrate_tools(agent, orchestration)
    _add_execute_tools(agent, orchestration)

    @agent.skill(idempotent=True)
    async def clear_cache() -> Json:
        """Forgets the cached answers and the cached results of steps."""
        return {"answers": cache.clear(), "steps": clear_steps()}


def _tool(agent: Agent, name: str) -> Callable[[Any], Any]:
    """The decorator of a tool with its fixed description and schema."""
    return agent.skill(
        name,
        description=DESCRIPTIONS[name],
        input_schema=CHECKED[name],
        expose=True,
        timeout_s=WORKFLOW_TIMEOUT_S,
    )


def _add_orchestrate_tools(agent: Agent, orchestration: Orchestration) -> None:
    @_tool(agent, "orchestrate")
    async def orchestrate(
        prompt: str,
        ctx: Context,
        preferences: Json | None = None,
        options: Json | None = None,
        run: str | None = None,
        session: str | None = None,
    ) -> Any:
        return await orchestration.execute(
            _read_orchestrate(prompt, preferences, options, run=run, session=session), ctx
        )

    @_tool(agent, "orchestrate_workflow")
    async def orchestrate_workflow(
        workflow: Any,
        input: Any,  # noqa: A002 - the seed's name
        ctx: Context,
        context: Json | None = None,
        overrides: Json | None = None,
        run: str | None = None,
    ) -> Any:
        context = dict(context or {})
        session, is_tied = context.pop(_SESSION, None), context.pop(TIED, False) is True
        if session is not None and not isinstance(session, str):
            problem = f"field 'context.session' must be string; it is {describe_shape(session)}"
            raise InvalidParametersError([Problem("context.session", problem)])
        request = OrchestrationRequest(
            "orchestrate_workflow",
            workflow,
            input,
            context=context,
            overrides=overrides,
            run=run,
            is_tied=is_tied,
            session=session,
        )
        return await orchestration.execute(request, ctx)

    @_tool(agent, "orchestrate_parallel")
    async def orchestrate_parallel(
        prompt: str,
        ctx: Context,
        agents: list[str] | None = None,
        mode: str = "all",
        role: str = DEFAULT_ROLE,
        run: str | None = None,
        session: str | None = None,
    ) -> Any:
        _check_prompt(prompt)
        role = parse_role(DEFAULT_ROLE if role == AUTO else role)
        definition = ask_all(mode, list(dict.fromkeys(agents or ())), role)
        request = OrchestrationRequest(
            "orchestrate_parallel", definition, {"prompt": prompt}, run=run, session=session
        )
        return await orchestration.execute(request, ctx)


def _add_execute_tools(agent: Agent, orchestration: Orchestration) -> None:
    @_tool(agent, "execute_code")
    async def execute_code(prompt: str, ctx: Context) -> Any:
        preferences = {"agent": "gemini", "role": "execute", "workflow": "direct"}
        return await orchestration.execute(_read_orchestrate(prompt, preferences, None), ctx)

    @_tool(agent, "execute_task")
    async def execute_task(task: Json, ctx: Context) -> Any:
        task_id = task.get("id")
        request = _read_orchestrate(
            task["prompt"], {"workflow": "plan-execute"}, None, echoed={"taskId": task_id}
        )
        answer = await orchestration.execute(request, ctx)
        value = {**answer.value, "taskId": task_id}
        return Answer(value, meta=answer.meta)


def _read_orchestrate(
    prompt: str,
    preferences: Json | None,
    options: Json | None,
    *,
    run: str | None = None,
    session: str | None = None,
    echoed: Json | None = None,
) -> OrchestrationRequest:
    """The request of ``orchestrate``; the run gets ``echoed`` in addition to the checked arguments."""
    _check_prompt(prompt, "task.prompt" if echoed else "prompt")
    preferences, options = preferences or {}, options or {}
    timeout_ms, retries = options.get("timeout"), options.get("retries")
    return OrchestrationRequest(
        "orchestrate",
        preferences.get("workflow") or AUTO,
        prompt,
        agent=preferences.get("agent") or AUTO,
        role=preferences.get("role") or AUTO,
        reads_cache=preferences.get("cache", True),
        keeps=True,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        retries=None if retries is None else int(retries),
        parallel=options.get("parallel"),
        run=run,
        session=session,
        echoed=echoed or {},
    )


def _check_prompt(prompt: str, field: str = "prompt") -> None:
    """Raise InvalidParametersError for a prompt without words, which would cost a call of a model."""
    if not prompt.strip():
        problem = f"field '{field}' has no words; it is {describe_shape(prompt)}"
        raise InvalidParametersError([Problem(field, problem)])


def add_capability_skills(
    agent: Agent,
    directory: Directory,
    search: AgentSearch,
    roster: Roster,
    access: Access,
    spending_of: SpendingOf = lambda agent: None,
) -> None:
    """Add ``list_agents`` and ``get_capabilities``; ``spending_of`` gives the spending of a model agent."""

    _add_list_agents(agent, directory, search, roster, access, spending_of)
    _add_get_capabilities(agent, directory, search, roster, access)


def _add_list_agents(
    agent: Agent,
    directory: Directory,
    search: AgentSearch,
    roster: Roster,
    access: Access,
    spending_of: SpendingOf,
) -> None:
    @agent.skill(
        "list_agents",
        description=DESCRIPTIONS["list_agents"],
        input_schema=CHECKED["list_agents"],
        expose=True,
        read_only=True,
    )
    async def list_all_agents(
        ctx: Context,
        role: str | None = None,
        includeMetrics: bool = False,  # noqa: N803 - the seed's name
        query: str = "",
        detailed: bool = False,
        limit: int = PAGE,
        after: str | None = None,
    ) -> Json:
        await directory.ensure_fresh()
        scopes, view = ctx.principal.scopes, access.view_of(ctx.principal)
        wanted = None if role is None else parse_role(role)

        def accept(entry: Entry) -> bool:
            return (
                is_seen(view, entry.name)
                and (wanted is None or entry.has_role(wanted, scopes))
                and directory.represents_agent(entry)
            )

        async def keep(page: Sequence[Entry]) -> Sequence[Entry]:
            return await decide_and_keep(directory, list(filter(accept, page)), view, scopes)

        next_place = None
        if query.strip():
            # otherwise hidden agents would use up the limit
            within = None if view is None else [entry.id for entry in await _list_page(directory, keep)]
            hits = search.find_agents(query, scopes, limit=limit, within=within, accept=accept)
            entries = [hit.entry for hit in hits]
        elif wanted is not None:
            ranked = {
                member.listing.id: place
                for place, member in enumerate(await roster.list_with_role(wanted, ctx.principal))
            }
            entries = await _list_page(directory, keep)
            entries.sort(key=lambda entry: ranked.get(entry.id, len(ranked)))
            entries = _after(entries, _parse_place(after))
            if len(entries) > limit:
                entries = entries[:limit]
                next_place = _render_place(entries[-1].id)
        else:
            entries = await _list_page(directory, keep, _parse_place(after), limit + 1)
            if len(entries) > limit:
                entries = entries[:limit]
                next_place = _render_place(entries[-1].id)

        def render(listing: Listing) -> Json:
            row = roster.render_row(listing, with_metrics=includeMetrics)
            if not detailed:
                return row
            shown = replace(listing, record=narrow_record(view, listing, listing.record))
            more = render_agent_row(shown, scopes=scopes)
            if (exam := roster.find_exam(listing, with_problems="mesh" in scopes)) is not None:
                more["exam"] = exam
            # what a model costs is the affair of the mesh, not of its clients
            if "mesh" in scopes and (spending := spending_of(listing.name)) is not None:
                more["spending"] = dict(spending)
            if (full_name := directory.name_of(listing)) != listing.name:
                more["full_name"] = full_name
            return {**more, **row, "health": more["status"]}

        if detailed and view is not None:
            for start in range(0, len(entries), _LISTINGS_PER_BATCH):
                await decide_listings(view, directory.open_all(entries[start : start + _LISTINGS_PER_BATCH]))
        reply: Json = {"agents": await _render_rows(directory, entries, render)}
        if next_place is not None:
            reply["next"] = next_place
        missing = list_missing(directory, view)
        return {**reply, "missing": missing} if missing or detailed else reply


def _add_get_capabilities(
    agent: Agent, directory: Directory, search: AgentSearch, roster: Roster, access: Access
) -> None:
    @agent.skill(
        "get_capabilities",
        description=DESCRIPTIONS["get_capabilities"],
        input_schema=CHECKED["get_capabilities"],
        expose=True,
        read_only=True,
    )
    async def get_capabilities(ctx: Context, task: str = "", requirements: Json | None = None) -> Json:
        wanted = requirements or {}
        ranked = await roster.recommend(
            wanted.get("role") or DEFAULT_ROLE,
            ctx.principal,
            language=wanted.get("language"),
            context_size=wanted.get("contextSize") or 0,
        )
        if task.strip():
            # the task decides among agents that are equal otherwise: those whose skills fit its words first
            ids = [fit.member.listing.id for fit in ranked]
            hits = search.find_agents(task, ctx.principal.scopes, limit=len(ids) or 1, within=ids)
            places = {hit.entry.id: place for place, hit in enumerate(hits)}
            ranked = sorted(
                ranked,
                key=lambda fit: (
                    fit.member.status == "unavailable",
                    -(fit.member.score or 0.0),
                    len(fit.warnings),
                    places.get(fit.member.listing.id, len(places)),
                ),
            )
        return {"recommendations": [roster.render_recommendation(fit) for fit in ranked]}


def add_workflow_list(agent: Agent, library: Library, roster: Roster) -> None:
    """Add ``list_workflows``."""

    @agent.skill(
        "list_workflows",
        description=DESCRIPTIONS["list_workflows"],
        input_schema=CHECKED["list_workflows"],
        expose=True,
        read_only=True,
    )
    async def list_workflows(
        ctx: Context,
        filter: str = "all",  # noqa: A002 - the seed's name for it (L-17)
        detailed: bool = False,
    ) -> Json:
        chosen = [workflow for workflow in await library.list_all() if filter in ("all", workflow.origin)]
        agents = await _find_agents_of_roles(chosen, roster, ctx.principal)
        return {"workflows": [_render_workflow(workflow, agents, detailed) for workflow in chosen]}


async def _find_agents_of_roles(
    chosen: Sequence[StoredWorkflow], roster: Roster, principal: Principal
) -> dict[str, list[str]]:
    """The agents that take calls of each role that the workflows ask for, best first."""
    roles = {
        role
        for workflow in chosen
        if workflow.definition is not None
        for role, _ in _list_roles(workflow.definition)
    }
    names: dict[str, list[str]] = {}
    for role in roles:
        members = await roster.list_with_role(role, principal)
        names[role] = [member.name for member in members if member.status != "unavailable"]
    return names


def _list_roles(definition: Definition) -> list[tuple[str, bool]]:
    """The roles whose agents are chosen, in the order of use, and whether every agent is asked."""
    roles: list[tuple[str, bool]] = []
    for step in iterate_steps(definition.steps):
        if step.kind == "role" and is_open(step.agent):
            roles.append((role_of(step.role, AUTO), False))
        elif step.asks_agents and step.parallel is not None and not isinstance(step.parallel.agents, list):
            roles.append((role_of(step.parallel.role, AUTO), True))
    return roles


def _render_workflow(stored: StoredWorkflow, by_role: dict[str, list[str]], detailed: bool) -> Json:
    """The row of a workflow (L-18); rows of custom ones say so, and name the skills that they call."""
    row: Json = {"name": stored.name}
    if stored.definition is None:
        row |= {"origin": stored.origin, "error": stored.problem.message if stored.problem else "unreadable"}
        return row
    definition = stored.definition
    chosen: list[str] = []
    for role, is_all in _list_roles(definition):
        names = by_role.get(role, [])
        # agents that are asked at the same time have no order of use
        chosen += sorted(names) if is_all else names[:1]
    row["description"] = _describe(definition, chosen)
    row["steps"] = sum(
        2 if step.asks_agents and step.parallel is not None and step.parallel.mode in _DECIDED else 1
        for step in definition.steps
    )
    named = list_agents(definition)
    if agents := list(dict.fromkeys([*named, *chosen])):
        row["agents"] = agents
    if any(step.parallel is not None for step in iterate_steps(definition.steps)):
        row["parallel"] = True
    if skills := list_calls(definition):
        row["skills"] = list(skills)
    if stored.origin != "built-in":
        row["origin"] = stored.origin
    if definition.runs_as != "caller":
        row["runs_as"] = definition.runs_as
    if detailed:
        row["definition"] = definition.to_json()
    return row


def _describe(definition: Definition, chosen: Sequence[str]) -> str:
    """The description; that of ``plan-execute`` names the agents that it would ask now (L-18)."""
    if definition.name == "plan-execute" and len(chosen) == 2:
        planner, executor = (name[:1].upper() + name[1:] for name in chosen)
        return f"Plan with {planner}, execute with {executor}"
    return definition.description


async def _list_page(
    directory: Directory,
    keep: Callable[[Sequence[Entry]], Awaitable[Sequence[Entry]]],
    after: ListingKey | None = None,
    limit: int | None = None,
) -> list[Entry]:
    """The entries after the place ``after`` that ``keep`` leaves of each page, at most ``limit``."""
    entries_read: list[Entry] = []
    async for page in directory.iterate_pages(after):
        entries_read += await keep(page)
        if limit is not None and len(entries_read) >= limit:
            break
    return entries_read[:limit]


async def _render_rows(
    directory: Directory, entries: Sequence[Entry], render: Callable[[Listing], Json]
) -> list[Json]:
    rows: list[Json] = []
    for start in range(0, len(entries), _LISTINGS_PER_BATCH):
        rows += map(render, directory.open_all(entries[start : start + _LISTINGS_PER_BATCH]))
        await asyncio.sleep(0)
    return rows


def _after(entries: list[Entry], place: ListingKey | None) -> list[Entry]:
    """The entries behind the one at a place; all where it is gone."""
    position = next((number for number, entry in enumerate(entries, 1) if entry.id == place), 0)
    return entries[position:]


def _render_place(listing_id: ListingKey) -> str:
    return f"{listing_id.key}:{listing_id.tag} {listing_id.source}"


def _parse_place(text: str | None) -> ListingKey | None:
    if text is None:
        return None
    place, space, source = text.partition(" ")
    key, colon, tag = place.rpartition(":")
    if not (space and colon):
        raise InvalidSettingError(
            "after", "not a place in the list", remedy="pass next of the previous reply"
        )
    return ListingKey(source, key, tag)
