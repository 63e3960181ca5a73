"""Reads the data of ``retinue top`` from the hub: agents and running runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retinue.core.errors import RetinueError
from retinue.runtime.commands.client import open_client
from retinue.settings import Settings
from retinue.storage.state import State

_SHOWN_RUNS = 20
_ASK_WITHIN_S = 5.0

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """The replies of the hub; ``problem`` is the reason of a missing reply."""

    agents: Sequence[Row] = ()
    runs: Sequence[Row] = ()
    problem: str | None = None


async def ask_hub(settings: Settings, state: State, url: str) -> Listed:
    """The agents and the running runs; a hub that does not answer is a problem, not an error."""
    try:
        async with open_client(settings, state, hub_url=url) as client:
            agents = await client.get("list_agents", timeout_s=_ASK_WITHIN_S)
            arguments = {"status": "running", "limit": _SHOWN_RUNS}
            runs = await client.get("list_runs", arguments, timeout_s=_ASK_WITHIN_S)
    except RetinueError as error:
        return Listed(problem=error.message)
    return Listed(agents["agents"], runs["runs"])
