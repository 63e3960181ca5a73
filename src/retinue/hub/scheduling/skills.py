"""The hub's skills about schedules: list, add, and change one."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.hub.scheduling.all_schedules import AllSchedules
from retinue.hub.scheduling.book import Change

Json = dict[str, Any]


def add_schedule_skills(agent: Agent, book: AllSchedules) -> None:
    """Add the skills to the hub's agent."""

    @agent.skill(read_only=True)
    async def list_schedules(ctx: Context) -> Json:
        """Lists what starts workflows by itself, times and events: next time, status, what happened last."""
        return {"schedules": await book.list_all(ctx.principal)}

    @agent.skill
    async def add_schedule(
        workflow: Annotated[str, Field(description="Name of a stored workflow")],
        ctx: Context,
        name: Annotated[
            str | None, Field(description="Name of the schedule; default: the workflow's")
        ] = None,
        schedule: Annotated[
            Json | str | None,
            Field(description="cron, every, timezone, input, missed, overlap; default: the workflow's own"),
        ] = None,
        on: Annotated[
            Json | str | None,
            Field(description="Instead of a time: webhook, message, or an object; default: the workflow's"),
        ] = None,
        secret: Annotated[
            str | None, Field(description="Secret of a webhook: whsec_…, or new; default: kept, or new")
        ] = None,
    ) -> Json:
        """Starts a workflow at certain times or on events from now on, with the rights of the caller."""
        return await book.add(ctx.principal, workflow, name, schedule=schedule, on=on, secret=secret)

    @agent.skill
    async def change_schedule(schedule: str, change: Change, ctx: Context) -> Json:
        """Pauses, resumes or removes a schedule or trigger, or starts a run of a schedule now."""
        return await book.change(ctx.principal, schedule, change)
