"""The mesh of a hub, a worker or a command without a hub, in the form that its parts see."""

from __future__ import annotations

from retinue.parts.kinds import Kind
from retinue.parts.process import Process
from retinue.parts.shown_agents import MeshAgents
from retinue.runtime.configuration_reload import tables_of
from retinue.runtime.mesh import Mesh
from retinue.runtime.start import Start
from retinue.settings import environment


def mesh_process(kind: Kind, mesh: Mesh, start: Start) -> Process:
    """The process of a mesh, with what its parts share."""
    process = Process(
        kind=kind,
        agent=mesh.agent,
        dispatcher=mesh.dispatcher,
        shown=MeshAgents(mesh.agent, mesh.access, start.url, mesh.directory),
        state=start.state,
        tables=tables_of(start.settings),
        http=mesh.http,
        signer=mesh.peers.signer,
        token_for=mesh.peers.token_for,
        remote=mesh.peers.remote,
        invokers=mesh.lookup,
        echo=start.echo,
        environ=environment(),
        url=start.url,
        own_url=start.own_url,
        ask_to_stop=start.stop.ask,
        when_open=mesh.synchronize,
    )
    for kind_of_product, product in mesh.products():
        process.products[kind_of_product] = product
    return process
