"""The entrance check: waits for the programs of a team, makes its calls, runs its workflow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from retinue.cards.pallet_card import parse_card
from retinue.client.hub_skills import read_agents
from retinue.client.mesh_client import MeshClient
from retinue.core.errors import ReferenceNotFoundError, RetinueError, TeamRefusedError
from retinue.mesh.directory.rollouts import mark_of
from retinue.oci.codec.reference import parse_reference
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.commands.client import RunFollower
from retinue.runtime.commands.teams.names import PAGE, find_mark
from retinue.runtime.teams.offers import check_card, offers_locked_tools
from retinue.runtime.teams.programs import child_name, list_targets
from retinue.runtime.teams.store import TeamStore
from retinue.team.package import Team

READY_WITHIN_S = 75.0
"""Longer than a program may take to start, so that the failure shows its last line."""
_POLL_S = 0.1


async def wait_until_ready(
    store: TeamStore, team: Team, client: MeshClient, secrets: Mapping[str, str] | None = None
) -> int:
    """Wait until each program answers and the hub lists it as it was packed; returns how many there are.

    ``secrets`` has the id of the values with which a child must run, by name of the child.
    Raises TeamRefusedError with the first program that failed, that is not as it was locked, or that is not
    there in time.
    """
    deadline = time.monotonic() + READY_WITHIN_S
    children = [child_name(team, target) for target in list_targets(team)]
    programs = len(children) + len(team.definition.imports)
    secrets = secrets or {}
    names = {team.lock.agents[agent.target].name for agent in team.definition.agents}
    while True:
        news = store.read_children()
        failed = [
            (child, row["error"]) for child in children if (row := news.get(child)) and row.get("error")
        ]
        waiting = [child for child in children if not _runs(news.get(child, {}), secrets.get(child))]
        if failed:
            raise TeamRefusedError("check_failed", team.name, failed[0][1])
        if not waiting:
            missing = await _find_missing(store, client, names, team)
            if not missing:
                return programs
            waiting = missing
        if time.monotonic() > deadline:
            problem = f"{waiting[0]} did not answer within {READY_WITHIN_S:.0f} s"
            raise TeamRefusedError("check_failed", team.name, problem)
        await asyncio.sleep(_POLL_S)


def _runs(news: Mapping[str, Any], secrets: str | None) -> bool:
    """Whether a program answers, with these values of its secrets."""
    return bool(news.get("url")) and (secrets is None or news.get("secrets") == secrets)


async def _find_missing(store: TeamStore, client: MeshClient, names: set[str], team: Team) -> list[str]:
    """The agents that the hub does not list as available, and the imports that do not offer their tools.

    What is of another digest or team does not count. Raises TeamRefusedError for what is not as locked.
    """
    reply = await read_agents(client.get, {"limit": PAGE})
    live = [row for row in reply["agents"] if row.get("status") != "unavailable"]
    own = [row for row in live if find_mark(row) == mark_of(team.digest)]
    rows = {row["name"].partition("@")[0]: row for row in own}
    waiting = [name for name in team.definition.imports if not _is_connected(team, name, rows.get(name, {}))]
    missing = [*sorted(names - rows.keys()), *waiting]
    return missing or await _compare_cards(LayoutRegistry(store.registry), names, rows, team)


async def _compare_cards(
    registry: LayoutRegistry, names: set[str], rows: Mapping[str, Mapping[str, Any]], team: Team
) -> list[str]:
    """The agents whose card is not in the registry now; raises TeamRefusedError for a card that differs.

    The rows of the hub would not do, because policies may hide skills from the person.
    """
    gone = []
    for name in sorted(names):
        reference = str(rows[name]["reference"])
        try:
            artifact = await registry.pull(parse_reference(reference))
        except ReferenceNotFoundError:
            gone.append(name)
            continue
        check_card(team, name, parse_card(artifact.content, reference=reference).skills)
    return gone


def _is_connected(team: Team, name: str, row: Mapping[str, Any]) -> bool:
    """Whether the row of an import has its locked tools; without locked ones, any tool or a good health."""
    offered = {*row.get("skills", ())}
    is_whole = offers_locked_tools(team, name, offered)
    return is_whole and (bool(offered) or row.get("health") == "available")


async def pass_check(team: Team, client: MeshClient, echo: Callable[[str], None]) -> int:
    """Make the calls of ``[check]`` and run its workflow; returns how many there were.

    Raises TeamRefusedError with the first that fails, or that gives another result.
    """
    check = team.definition.check
    passed = 0
    try:
        async with asyncio.timeout(check.timeout_s):
            for number, call in enumerate(check.calls, 1):
                options: dict[str, Any] = {} if call.agent is None else {"agent": team.full_name(call.agent)}
                place = f"check.calls[{number - 1}] {call.skill}"
                result = await _checked(team, place, client.get(call.skill, dict(call.arguments), **options))
                if "result" in call.model_fields_set and result != call.result:
                    raise TeamRefusedError("check_failed", team.name, f"{place} gives another result")
                passed += 1
            if check.workflow is not None:
                follower = RunFollower(client, echo)
                run = follower.run(f"{check.workflow}@{team.name}", check.input)
                await _checked(team, f"check.workflow {check.workflow}", run)
                passed += 1
    except TimeoutError:
        problem = f"its check did not end within {check.timeout_s:g} s"
        raise TeamRefusedError("check_failed", team.name, problem) from None
    return passed


async def _checked(team: Team, place: str, call: Any) -> Any:
    try:
        return await call
    except RetinueError as error:
        raise TeamRefusedError("check_failed", team.name, f"{place}: {error.message}") from error
