"""The hub as an agent: the mesh's directory, and its workflows, as skills of the agent ``retinue``.

The command line and every door call these; nothing here knows a wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from retinue.agents import hub_listing, hub_search, hub_workflows
from retinue.agents.hub_search import list_missing
from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.core.record import Listing, Stats
from retinue.mesh.access import Access, is_seen
from retinue.mesh.directory import Directory
from retinue.mesh.search.ranking import SkillSearch
from retinue.protocols.agent_row import render_agent_row
from retinue.protocols.pallet_card import render_card
from retinue.workflows.orchestrator import Orchestrator
from retinue.workflows.shelf import Library

HUB_NAME = "retinue"

Json = dict[str, Any]

_EVERYBODY = Access()


def hub_agent(
    directory: Directory,
    search: SkillSearch,
    orchestrator: Orchestrator,
    library: Library,
    *,
    version: str,
    stats_of: Callable[[Listing], Stats] = lambda listing: listing.stats,
    access: Access = _EVERYBODY,
) -> Agent:
    """The agent ``retinue`` over a directory and an orchestrator.

    ``stats_of`` tells what was measured, ``access`` which agents a caller sees.
    """
    agent = Agent(
        HUB_NAME,
        version=version,
        title="Retinue",
        description="Finds agents by what they can do, calls them, and runs workflows of them.",
    )

    @agent.skill(expose=True)
    async def call_skill(
        skill: Annotated[str, Field(description="The skill's id")],
        ctx: Context,
        arguments: Annotated[Json | None, Field(description="What its input schema asks for")] = None,
        agent: Annotated[str | None, Field(description="Only this agent")] = None,
        version: Annotated[str | None, Field(description="Only versions such as >=1.2,<2")] = None,
    ) -> Any:
        """Calls a skill of the mesh, found by its id, under the caller's own rights."""
        outcome = await ctx.relay(skill, arguments or {}, agent=agent, version=version)
        return outcome.get()

    @agent.skill(read_only=True)
    async def show_agent(name: str, ctx: Context) -> Json:
        """Shows one agent: its card, and what is known of it here."""
        await directory.ensure_fresh()
        listing = await directory.open_named(name, view=access.view_of(ctx.principal))
        scopes = ctx.principal.scopes
        return {
            "card": render_card(listing.record, scopes=scopes),
            "listing": render_agent_row(listing, scopes=scopes, metrics=stats_of(listing)),
        }

    @agent.skill(idempotent=True)
    async def refresh_agents(ctx: Context) -> Json:
        """Reads the registries again, now."""
        await directory.refresh()
        view = access.view_of(ctx.principal)
        seen = [one for one in directory.list_entries() if is_seen(view, one.name)]
        return {"agents": len(seen), "missing": list_missing(directory, view)}

    hub_listing.add_skills(agent, directory, search, access)
    hub_search.add_skills(agent, directory, search, access)
    hub_workflows.add_skills(agent, orchestrator, library)
    return agent
