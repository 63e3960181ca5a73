"""The imported MCP servers of a process: a source of the directory, and the invoker of their tools.

A server that fails never affects the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from retinue.core.call import Answer, Call
from retinue.core.errors import AgentUnreachableError
from retinue.core.record import Listing, Skill
from retinue.mcp.codec.foreign import trace_for
from retinue.mcp.upstream.imports.server import IMPORTS, ImportedServer, ImportSpec, OnResource
from retinue.mesh.channel import Channel
from retinue.mesh.directory.sources import LiveSource, MemberId
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.pins import Pins


class ImportedServers(LiveSource[ImportedServer]):
    """The imported servers of a process: a source of the directory, and the invoker of their tools."""

    name = IMPORTS

    def __init__(self, client_version: str, pins: Pins) -> None:
        super().__init__()
        self.pins = pins
        self._client_version = client_version
        self._followed: dict[str, dict[object, frozenset[str]]] = {}
        """The resources that each endpoint follows, by the id of their server."""
        self._on_resource: tuple[OnResource, ...] = ()

    async def configure(self, specs: Mapping[str, ImportSpec]) -> None:
        """Start new servers, stop removed ones, and restart servers with other settings."""

        def start(name: str) -> ImportedServer:
            server = ImportedServer(
                specs[name], self._client_version, self.pins, self._change, self._resource_changed
            )
            server.follow(self._list_followed(name))
            server.start()
            return server

        await self._replace({name: spec.fingerprint for name, spec in specs.items()}, start)

    def accept(self, document: Mapping[str, Any]) -> None:
        """Use the accepted tools that another process has kept."""
        self.pins.load(document)
        self.review()

    def retry(self) -> None:
        """Let every server without a session connect now."""
        for server in self._members.values():
            server.retry()

    def review(self) -> None:
        """Compare the tools of every server with the accepted ones."""
        for server in self._members.values():
            server.review()

    def find(self, name: str) -> ImportedServer | None:
        """The server with the id of this text."""
        return self._members.get(name)

    def list_twins(self, member: MemberId) -> list[ImportedServer]:
        """The servers of an import in all digests of its team that run."""
        return [server for server in self._members.values() if server.id.key == member.key]

    def follow(self, follower: object, name: str, uris: frozenset[str]) -> None:
        """Notify ``follower`` of changes of these resources of a server, in place of earlier ones."""
        followers = self._followed.setdefault(name, {})
        if followers.get(follower, frozenset()) == uris:
            return
        followers[follower] = uris
        if not uris:
            del followers[follower]
        server = self.find(name)
        if server is not None:
            server.follow(self._list_followed(name))

    def subscribe_resources(self, observer: OnResource) -> Callable[[], None]:
        """Call ``observer`` after each change of a followed resource; returns what ends it."""
        self._on_resource = (*self._on_resource, observer)

        def unsubscribe() -> None:
            self._on_resource = tuple(known for known in self._on_resource if known is not observer)

        return unsubscribe

    def _list_followed(self, name: str) -> frozenset[str]:
        return frozenset[str]().union(*self._followed.get(name, {}).values())

    def _resource_changed(self, name: str, uri: str) -> None:
        for observer in self._on_resource:
            observer(name, uri)

    async def invoke(
        self, listing: Listing, skill: Skill, call: Call, admitted: AdmittedCall, channel: Channel
    ) -> Answer:
        """One call of a tool; the dispatcher enforces the time limit."""
        name = listing.record.name
        server = self.find_member(listing.id)
        if server is None:
            raise AgentUnreachableError(name, "its server", "it is not imported any more")
        self.pins.check(server.id.pinned, skill.id)
        with admitted.relay(is_forwarded=True) as outgoing:
            # it reports no further calls; those that come back with the trace are one hop each
            outgoing.record_usage(0)
            meta, within_s = trace_for(outgoing.trace), None
            if call.deadline is not None:
                within_s = call.deadline - asyncio.get_running_loop().time()
            answer: Answer = await server.with_session(
                meta,
                lambda session: session.call(skill, call.arguments, meta, channel, within_s=within_s),
            )
            return outgoing.take_answer(answer)
