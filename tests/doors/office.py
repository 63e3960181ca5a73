"""A hub at work: the bench agent behind it, and a client that asks the hub's own skills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.doors.bench import Bench
from tests.system import Hub, Reply, Served, System, Wire


@dataclass(frozen=True, slots=True)
class Office:
    """A hub, the bench agent behind it, and a client of the hub's own skills."""

    bench: Bench
    served: Served
    hub: Hub
    system: System
    wire: Wire

    async def ask(self, skill: str, arguments: Any = None, **headers: str) -> Reply:
        return await self.wire.call(self.hub.url, skill, arguments, **headers)

    async def get(self, skill: str, arguments: Any = None, **headers: str) -> Any:
        return (await self.ask(skill, arguments, **headers)).result

    async def follow(self, run: str, *, after: int = 0, **headers: str) -> Any:
        """The last word about a run."""
        while True:
            reply = await self.get("follow_run", {"run": run, "after": after}, **headers)
            after = reply["next"]
            if reply["done"]:
                return reply
