"""MCP resources and prompts of the hub: each agent as ``agent:<name>``, each workflow as a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import orjson
import structlog

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.pallet_card import render_card
from retinue.cards.rows import render_agent_row
from retinue.core.errors import UnknownAgentError
from retinue.core.record import Listing, Stats
from retinue.mesh.directory.directory import Directory
from retinue.mesh.entry import Entry
from retinue.mesh.permissions import (
    Access,
    AgentView,
    decide_agents,
    decide_listings,
    is_agent_listed,
    is_seen,
    narrow_record,
)
from retinue.workflows.definitions.loading import list_broken
from retinue.workflows.library import Library, StoredWorkflow

Json = dict[str, Any]

AGENT_TEMPLATE = "agent:{name}"
_OPENED_AT_ONCE = 50

_log = structlog.get_logger("retinue.prompts")


def render_agent(listing: Listing, scopes: frozenset[str], stats_of: Callable[[Listing], Stats]) -> Json:
    """One agent as JSON: its card, and its row of the directory with statistics."""
    return {
        "card": render_card(listing.record, scopes=scopes),
        "listing": render_agent_row(listing, scopes=scopes, metrics=stats_of(listing)),
    }


async def open_listed(
    directory: Directory, name: str, view: AgentView | None, scopes: frozenset[str]
) -> Listing:
    """The listing of an agent, with what is in the lists of a caller; raises UnknownAgentError."""
    listing = await directory.open_named(name, view=view)
    await decide_listings(view, [listing])
    if not is_agent_listed(view, listing, scopes):
        raise UnknownAgentError(name)
    record = narrow_record(view, listing, listing.record)
    return listing if record is listing.record else replace(listing, record=record)


async def decide_and_keep(
    directory: Directory, entries: Sequence[Entry], view: AgentView | None, scopes: frozenset[str]
) -> Sequence[Entry]:
    """`keep_listed`, while others run."""
    if view is None or view.lists is None:
        return entries
    kept: list[Entry] = []
    for start in range(0, len(entries), _OPENED_AT_ONCE):
        some = entries[start : start + _OPENED_AT_ONCE]
        await decide_agents(view, directory.open_all(some), scopes)
        kept += keep_listed(directory, some, view, scopes)
        await asyncio.sleep(0)
    return kept


def keep_listed(
    directory: Directory, entries: Sequence[Entry], view: AgentView | None, scopes: frozenset[str]
) -> Sequence[Entry]:
    """The entries of agents that are in the lists of a caller; reads cards only where policies say so."""
    if view is None or view.lists is None:
        return entries
    listed = {listing.id for listing in directory.open_all(entries) if is_agent_listed(view, listing, scopes)}
    return [entry for entry in entries if entry.id in listed]


def add_agent_resources(
    agent: Agent, directory: Directory, stats_of: Callable[[Listing], Stats], access: Access
) -> None:
    """Add the resource ``agent:<name>`` and its completion; ``access`` decides which agents a caller sees."""

    @agent.resource(AGENT_TEMPLATE, name="agent", mime="application/json", expose=True)
    async def read_agent(name: str, ctx: Context) -> Json:
        """An agent of the mesh: its card, its status and its statistics."""
        await directory.ensure_fresh()
        listing = await open_listed(directory, name, access.view_of(ctx.principal), ctx.principal.scopes)
        return render_agent(listing, ctx.principal.scopes, stats_of)

    @agent.completes(AGENT_TEMPLATE, "name")
    async def complete_name(value: str, ctx: Context) -> list[str]:
        await directory.ensure_fresh()
        view = access.view_of(ctx.principal)
        names: list[str] = []
        async for page in directory.iterate_pages():
            fitting = [entry for entry in page if entry.name.startswith(value) and is_seen(view, entry.name)]
            listed = await decide_and_keep(directory, fitting, view, ctx.principal.scopes)
            names += map(directory.name_of, listed)
        return sorted(names)


class WorkflowPrompts:
    """Keeps one prompt of the hub's agent up to date for each stored workflow."""

    def __init__(self, agent: Agent, library: Library) -> None:
        self._agent = agent
        self._library = library
        self._held: dict[str, StoredWorkflow] = {}
        self._named: set[str] = set()

    def list_custom(self) -> list[str]:
        """The names of the stored workflows that are not built in, as of the last refresh."""
        return [name for name, workflow in self._held.items() if workflow.origin == "custom"]

    async def refresh(self) -> None:
        """Add, replace and remove prompts to match the stored workflows.

        A distribution whose workflows cannot be read is logged at the first refresh only.
        """
        for distribution, error in list_broken():
            if distribution not in self._named:
                self._named.add(distribution)
                _log.warning("workflows cannot be read", distribution=distribution, reason=error.message)
        stored = {
            workflow.name: workflow
            for workflow in await self._library.list_all(checks_builtins=False)
            if workflow.definition is not None
        }
        for name in [held for held, was in self._held.items() if stored.get(held) != was]:
            del self._held[name]
            self._agent.forget_prompt(name)
        for name, workflow in stored.items():
            if name not in self._held:
                self._held[name] = workflow
                self._add(workflow)

    def _add(self, stored: StoredWorkflow) -> None:
        definition = stored.definition
        assert definition is not None
        name = stored.name
        description = definition.description or f"Runs the workflow {name}"
        schema = orjson.dumps(definition.input).decode() if definition.input else "any"

        async def run_workflow(input: str = "") -> str:  # noqa: A002 - the workflow's own word for it
            wanted = f"The request: {input}\n" if input else ""
            return (
                f"Run the workflow {name!r} of this mesh. {description}\n"
                f"{wanted}"
                f"Call the tool orchestrate_workflow with workflow = {name!r} and input = a value that fits "
                f"this JSON Schema: {schema}\n"
                "Then report the output, and what failed."
            )

        self._agent.prompt(name, title=name, description=description, expose=True)(run_workflow)
