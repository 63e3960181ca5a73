"""Calls the hub's own skills, and rebuilds the errors of their replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retinue.client.mesh_client import MeshClient
from retinue.core.errors import RetinueError, UnknownSkillError
from retinue.core.remote_faults import rebuild_error

if TYPE_CHECKING:
    from retinue.core.budget import CallLimits

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HubSkills:
    """The skills of the hub that ``client`` reaches; every error is of the class that it had at the hub."""

    client: MeshClient
    timeout_s: float

    async def read(
        self, skill: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """The reply of a skill whose repetition does nothing more."""
        return await self._ask(skill, arguments, timeout_s, is_repeatable=True)

    async def start_run(self, arguments: Mapping[str, Any], budget: CallLimits | None) -> None:
        """Start a run within a budget; its id makes a repetition safe."""
        await self._ask("start_run", arguments, None, is_repeatable=True, budget=budget)

    async def change(
        self, skill: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> Any:
        """The reply of a skill that changes something."""
        return await self._ask(skill, arguments, timeout_s, is_repeatable=False)

    async def _ask(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None,
        timeout_s: float | None,
        *,
        is_repeatable: bool,
        budget: CallLimits | None = None,
    ) -> Any:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        options: dict[str, Any] = {} if budget is None else {"budget": budget}
        outcome = await self.client.ask(
            skill, arguments, timeout_s=limit_s, setting="timeout_s", is_repeatable=is_repeatable, **options
        )
        if outcome.error is not None:
            raise _explain(rebuild_error(outcome.error), skill, in_memory=self.client.is_in_memory)
        return outcome.value


async def read_agents(read: Callable[[str, Json], Awaitable[Any]], arguments: Json) -> Json:
    """The reply of ``list_agents`` with the rows of all its pages; ``read`` calls a skill of the hub."""
    rows: list[Mapping[str, Any]] = []
    arguments = {**arguments, "detailed": True}
    while True:
        reply: Json = await read("list_agents", arguments)
        rows += reply["agents"]
        if not reply.get("next"):
            return {**reply, "agents": rows}
        arguments["after"] = reply["next"]


def _explain(error: RetinueError, skill: str, *, in_memory: bool) -> RetinueError:
    """Say of a skill that the hub lacks what may be the reason."""
    if not isinstance(error, UnknownSkillError) or error.skill != skill:
        return error
    if in_memory:
        error.message = f"a mesh in memory has no skill {skill} of a hub"
        error.remedy = "connect to a hub: retinue.connect(); schedules and imports are not in memory"
    else:
        error.message = f"the hub has no skill {skill} for this caller"
        error.remedy = (
            "use a token with the scope mesh (retinue token new --scope mesh), "
            "or update Retinue where the hub runs, because an older version lacks the skill"
        )
    error.args = (error.message,)
    return error
