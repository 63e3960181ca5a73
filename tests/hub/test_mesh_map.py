"""The skill ``show_mesh``: what is around a hub, as its caller may see it."""

from __future__ import annotations

from pathlib import Path

from retinue.hub.mesh_map import RunNode
from retinue.parts.network_links import NetworkLink
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.dashboard.test_size import make_worker
from tests.system import open_system, open_wire


async def test_sources_are_told_with_their_agents_by_health_and_why_one_cannot_be_read(
    retinue_home: Path, tmp_path: Path
) -> None:
    away = str(tmp_path / "no-registry")
    async with open_system(State(retinue_home), registries=[away]) as system, open_wire() as wire:
        await system.start_agent(make_worker())
        hub = await system.start_hub()
        found = (await wire.call(hub.url, "show_mesh", authorization=system.token)).result
        assert found["hub"] == {"name": "retinue", "url": hub.url}
        sources = {one["name"]: one for one in found["sources"]}
        assert sources["home"]["kind"] == "registry"
        assert sum(sources["home"]["agents"].values()) == 1
        assert sources["imports"]["agents"] == {}
        for one in found["sources"]:
            assert one["connected"] is ("reason" not in one), one
        assert (found["nodes"], found["koi"], found["peers"], found["more"]) == ([], [], [], 0)


async def test_nodes_edges_and_peers_are_those_of_the_process(retinue_home: Path) -> None:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:

        async def read_nodes() -> list[RunNode]:
            return [RunNode("host-1", 2, is_own=True), *(RunNode(f"other-{n}", 0) for n in range(300))]

        hub = await system.start_hub()
        hub.parts.read_nodes = read_nodes
        hub.parts.links.add("koi", lambda: [NetworkLink("koi", "http://koi", "in", "approved")])
        hub.parts.peers = ["http://peer/"]
        found = (await wire.call(hub.url, "show_mesh", authorization=system.token)).result
        assert found["nodes"][0] == {"name": "host-1", "running": 2, "is_own": True}
        assert (len(found["nodes"]), found["more"]) == (200, 101)
        assert found["koi"] == [{"name": "koi", "url": "http://koi", "direction": "in", "status": "approved"}]
        assert found["peers"] == ["http://peer/"]
        assert "networks" not in found
        hub.parts.links.add("toy", lambda: [NetworkLink("toy", "http://toy", "out", "approved")])
        more = (await wire.call(hub.url, "show_mesh", authorization=system.token)).result
        assert (more["koi"], more["more"]) == (found["koi"], 101)
        assert more["networks"] == {
            "toy": [{"name": "toy", "url": "http://toy", "direction": "out", "status": "approved"}]
        }

        _, limited = TokenFile(system.state.keys).issue(("mesh",), agents=("open-*", "retinue"))
        told = (await wire.call(hub.url, "show_mesh", authorization=f"Bearer {limited}")).result
        assert (told["nodes"], told["koi"], told["peers"], told["more"]) == ([], [], [], 0)
        assert "networks" not in told
