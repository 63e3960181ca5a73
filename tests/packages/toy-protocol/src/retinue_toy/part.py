"""The toy protocol as a part of a hub; every command that reads settings imports this module."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pydantic import BaseModel

from retinue.parts.part import Check, Opened, Part, ReadinessProblem
from retinue.parts.process import Process, Tables
from retinue.storage.state import State


class ToyTable(BaseModel, frozen=True, extra="forbid"):
    """``[toy]``: the URLs of the hubs whose agents this hub lists."""

    servers: tuple[str, ...] = ()


class ToyPart(Part):
    """Serves the agents of a hub at ``/toy``, and lists the agents of other toy servers."""

    name = "toy"
    interface = 1
    kinds = frozenset({"hub"})
    table = ToyTable

    def checks(self, tables: Tables, state: State) -> Sequence[Check]:
        return [Check("toy", "ok", f"{len(tables.get(ToyTable).servers)} servers")]

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Opened]:
        # imported here, because only a hub needs them
        from retinue_toy.client import ToyClient
        from retinue_toy.server import METRICS, ToyServer

        client = ToyClient(process.http, process.signer, process.tables.get(ToyTable).servers)
        server = ToyServer(process.dispatcher, process.shown)

        async def find_problems() -> Sequence[ReadinessProblem]:
            return [
                ReadinessProblem("toy", url, reason, is_fatal=False)
                for url, reason in client.failures.items()
            ]

        yield Opened(
            routes=server.routes,
            sources=(client,),
            invokers={"toy": client},
            metrics=METRICS,
            figures=server.read_figures,
            problems=find_problems,
            drain=lambda: process.echo(f"toy: {server.calls.total()} calls"),
        )
