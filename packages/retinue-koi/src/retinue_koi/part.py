"""KOI networks as a part: the node of a hub, and the node of an agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from retinue.parts.network_links import NetworkLinks
from retinue.parts.part import FirstReading, Opened, Option, Part
from retinue.parts.process import Kind, Process, Tables
from retinue_koi.table import KoiTable

if TYPE_CHECKING:
    from retinue_koi.membership import KoiHub

_JOIN_HELP = (
    "Join the KOI network of the node at this URL, such as http://127.0.0.1:9000/koi-net; "
    "for a koi-net 2.x node, URL#RID."
)


class KoiPart(Part):
    """The node of a KOI network: a hub lists its personalities, an agent is one of them."""

    name = "koi"
    kinds = frozenset({"hub", "agent"})
    runs_after = (FirstReading,)
    rank = 65
    table = KoiTable
    options = (
        Option("--koi", "enabled", frozenset({"hub"}), "Be a coordinator of a KOI network, at /koi-net."),
        Option("--koi-join", "join", frozenset({"hub"}), _JOIN_HELP, "NODE"),
        # a setting of its own: [koi] join would let every agent of a mesh join
        Option("--koi-join", "member_join", frozenset({"agent"}), _JOIN_HELP, "NODE"),
    )
    is_required = True

    def __init__(self, hub: KoiHub | None = None, node_name: str = "retinue-hub") -> None:
        self._hub = hub
        self._node_name = node_name

    def is_wanted(self, tables: Tables, kind: Kind) -> bool:
        table = tables.get(KoiTable)
        if kind == "hub":
            return table.enabled or table.join is not None
        return table.member_join is not None

    def open(self, process: Process) -> AbstractAsyncContextManager[Opened]:
        if process.kind != "hub":
            return _open_member(process)
        # imported here, because most hubs are on no KOI network
        from retinue_koi.membership import KoiHub

        return _open_hub(process, self._hub or KoiHub(), self._node_name)


@asynccontextmanager
async def _open_hub(process: Process, hub: KoiHub, node_name: str) -> AsyncIterator[Opened]:
    from retinue_koi.client import TraitInvoker
    from retinue_koi.membership import make_node
    from retinue_koi.server import list_open_paths

    table = process.tables.get(KoiTable)
    url = process.url or ""
    node = make_node(
        node_name, url, process.state, table, table.join, allow_private=process.http.allow_private
    )
    routes = hub.open(node, url)
    process.get(NetworkLinks).add("koi", hub.list_links)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with hub.running(process, evict_after_s=table.evict_after_s):
            process.echo(hub.describe())
            yield

    yield Opened(
        product=hub,
        sources=(hub.source,),
        invokers={hub.source.name: TraitInvoker(process.http, process.remote, signer=process.signer)},
        routes=routes,
        open_paths=list_open_paths(table.trust),
        running=running,
    )


@asynccontextmanager
async def _open_member(process: Process) -> AsyncIterator[Opened]:
    # imported here, because most agents are on no KOI network
    from retinue_koi.membership import KoiMember, make_node
    from retinue_koi.server import list_open_paths

    table = process.tables.get(KoiTable)
    agent, url = process.agent, process.url or ""
    allow_private = process.http.allow_private
    node = make_node(agent.name, url, process.state, table, table.member_join, allow_private=allow_private)
    member = KoiMember(agent, url, node, keep_on_stop=table.keep_on_stop)

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        async with member.running():
            process.echo(f"KOI node at {url}/koi-net, joining {table.member_join}")
            yield

    yield Opened(routes=member.routes, open_paths=list_open_paths(table.trust), running=running)
