"""The tool ``list_workflows``, which shows stored workflows and the agents that would run their steps now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.call import Principal
from retinue.hub.orchestration.requests import is_open, role_of
from retinue.hub.orchestration.roster import Roster
from retinue.hub.orchestration.tool_schemas import CHECKED, DESCRIPTIONS
from retinue.workflows.definitions.definition import AUTO, Definition, iterate_steps, list_agents, list_calls
from retinue.workflows.library import Library, StoredWorkflow

Json = dict[str, Any]

_DECIDED = ("vote", "merge")
"""Modes that end with a choice or a synthesis, which is a step of its own."""


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
