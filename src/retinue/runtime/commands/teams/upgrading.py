"""Asks the hub for a rolling upgrade of a team, and follows it to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retinue.client.mesh_client import MeshClient
from retinue.core.errors import BusyError, RolloutFailedError, StateError, TeamRefusedError
from retinue.runtime.teams.comparison import render_figures
from retinue.runtime.teams.rollout import StoredRollout, read_rollout
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.definition import RolloutTable
from retinue.team.package import Team

_POLL_S = 0.1
_TOLD_AFTER_S = 2.0
NODES_GONE_WITHIN_S = 45.0
"""How long a node that has ended without a word may still have its lease."""

_POLL_NODES_S = 1.0
HUB_BACK_WITHIN_S = 60.0
"""How long a command waits for a hub that has ended; the rollout goes on whenever the hub starts."""


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """The options of ``up`` for a rollout; None = what ``[rollout]`` of the team says."""

    steps: Sequence[int] | None = None
    hold_s: float | None = None
    drain_s: float | None = None


def find_open_rollout(row: TeamRow) -> StoredRollout | None:
    """The rollout of a team that has neither failed nor ended; None where there is none."""
    rollout = read_rollout(row)
    return rollout if rollout is not None and rollout.is_open else None


def refuse_other_rollout(row: TeamRow, digest: str | None) -> None:
    """Raise BusyError while another digest than this one is rolled out."""
    rollout = find_open_rollout(row)
    if rollout is not None and rollout.new != digest:
        raise BusyError(
            f"{row.name} changes to {rollout.version} ({rollout.new[:19]}…, {rollout.describe()}); "
            f"wait, or stop that: retinue down {row.name}",
            5.0,
        )


async def wait_for_drain(
    store: TeamStore, state: State, team: Team, options: RolloutOptions, echo: Callable[[str], None]
) -> None:
    """Wait until a digest that ends its calls and runs has ended, unless ``team`` is one of the two.

    With ``drain_s`` 0 it ends at once; without a hub it does not run.
    """
    is_told = False
    while options.drain_s != 0 and state.read_hub() is not None:
        rollout = read_rollout(store.read_rows().get(team.name, TeamRow(team.name)))
        if rollout is None or rollout.is_open or team.digest in (rollout.old, rollout.new):
            return
        if not is_told and time.time() - rollout.entered_at > _TOLD_AFTER_S:
            is_told = True
            ending = rollout.old if rollout.stage == "drain" else rollout.new
            runs = f" (runs: {', '.join(rollout.held_by)})" if rollout.held_by else ""
            echo(f"waiting for the end of {ending[:19]}…{runs}; --drain 0 ends it now")
        await asyncio.sleep(_POLL_S)


async def refuse_other_nodes(
    client: MeshClient, team: Team, steps: Sequence[int], echo: Callable[[str], None]
) -> None:
    """Raise TeamRefusedError while other nodes execute runs, because they do not follow shares of calls.

    Such are workers, and hubs of the same database. All calls at once (``steps`` of 100 only) need no shares.
    """
    deadline = time.monotonic() + NODES_GONE_WITHIN_S
    is_told = False
    while [*steps] != [100]:
        rows = (await client.get("show_mesh"))["nodes"]
        others = sorted(row["name"] for row in rows if not row["is_own"])
        if not others:
            return
        if time.monotonic() > deadline:
            problem = f"the nodes {', '.join(others)[:200]} execute runs, too, and follow no shares of calls"
            remedy = "stop them, or move all calls at once: --steps 100"
            raise TeamRefusedError("nodes", team.name, problem, remedy=remedy)
        if not is_told:
            is_told = True
            echo(f"waiting for the end of the nodes that execute runs, too: {', '.join(others)[:200]}")
        await asyncio.sleep(_POLL_NODES_S)


def ask_for_rollout(
    store: TeamStore, row: TeamRow, team: Team, table: RolloutTable, options: RolloutOptions, reference: str
) -> None:
    """Write the rollout of an installed digest beside the one that runs; the hub takes it up.

    A digest that still ends its chains and runs goes on with them.
    """
    # the hub leaves a rollout as it is while a command starts a digest
    ending = read_rollout(store.read_rows().get(row.name, row))
    is_return = ending is not None and ending.stage == "drain" and ending.old == team.digest
    first_stage = StoredRollout(
        old=row.active or "",
        new=team.digest,
        version=team.version,
        steps=tuple(options.steps or table.steps),
        hold_s=table.hold_s if options.hold_s is None else options.hold_s,
        drain_s=table.drain_s if options.drain_s is None else options.drain_s,
        entered_at=time.time(),
        signer=row.signers.get(team.digest, ""),
        reference=reference,
        is_return=is_return,
    )
    store.write_row(replace(row, failed={}, rollout=first_stage.as_json()))


async def follow_rollout(
    store: TeamStore, state: State, name: str, digest: str, echo: Callable[[str], None]
) -> TeamRow:
    """Print each stage until the digest serves all new chains, and its schedules are those of the team.

    Raises RolloutFailedError with the reason where it failed, StateError where the hub is away for long.
    """
    shown = ""
    away_since: float | None = None
    while True:
        row = store.read_rows().get(name, TeamRow(name))
        rollout = read_rollout(row)
        if row.active == digest and (rollout is None or (rollout.stage == "drain" and rollout.is_scheduled)):
            return row
        if rollout is None or rollout.new != digest or rollout.stage == "back":
            if row.failed.get("digest") == digest:
                raise RolloutFailedError(name, row.failed["reason"])
            raise RolloutFailedError(name, "another command has ended its rollout")
        if rollout.stage != "asked" and (line := _render_stage(rollout)) != shown:
            shown = line
            echo(line)
        if state.read_hub() is not None:
            away_since = None
        elif away_since is None:
            away_since = time.monotonic()
            echo("the hub has ended; the rollout goes on when it is there again")
        elif time.monotonic() - away_since > HUB_BACK_WITHIN_S:
            raise StateError(
                f"the hub has ended while {name} changes to {rollout.version} ({rollout.describe()})",
                remedy="start it, the rollout goes on: retinue hub -d",
            )
        await asyncio.sleep(_POLL_S)


def _render_stage(rollout: StoredRollout) -> str:
    """The line of a stage: the version, its share of the new chains, and the figures of the stage before."""
    line = f"{rollout.version}: {rollout.describe()}"
    new = rollout.figures.get("new")
    if rollout.stage == "serve" and rollout.step and new and new["calls"]:
        line += f"  (until now {render_figures(new)})"
    return line
