"""Reads resources, prompts and completions of imported MCP servers for clients of an endpoint.

At ``/agents/NAME/mcp`` a server's resources and prompts have the names that it gave them. In the lists of the
hub they are ``agent:NAME/URI`` and ``NAME__PROMPT``, because two servers may use one name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from retinue.core.call import Call, Part, Principal
from retinue.core.errors import RemoteFaultError, UnknownPromptError, UnknownResourceError
from retinue.core.record import Listing, ListingKey, Prompt, Resource, is_visible
from retinue.core.uri_template import fits_template, is_template, place_of
from retinue.mcp.codec.foreign import (
    completion_params,
    parse_completion,
    parse_contents,
    parse_prompt_messages,
    trace_for,
)
from retinue.mcp.codec.tools import list_spellings, safe_names, tool_id
from retinue.mcp.upstream.imports.server import IMPORTS, ImportedServer
from retinue.mcp.upstream.imports.servers import ImportedServers
from retinue.mesh.channel import Channel
from retinue.mesh.checked_reads import read_checked
from retinue.mesh.directory.directory import Directory
from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.guard.trace_guard import AdmittedCall
from retinue.mesh.permissions import AgentView, is_seen
from retinue.mesh.reading import (
    Completion,
    PromptMessage,
    PromptText,
    Read,
    ReadRequest,
    ReadSource,
)

AGENT_URI = "agent:"

MAX_LISTED = 1_000
"""Resources, and prompts, of imported servers in the lists of the hub; others can be read, too."""

_NO_METHOD = -32601


async def read_from(
    server: ImportedServer, request: ReadRequest, admitted: AdmittedCall, channel: Channel
) -> Read:
    """One read at the server itself, which decides what exists; raises the server's own error."""
    method, params = _as_request(request)
    with admitted.relay() as outgoing:
        outgoing.record_usage(0)
        meta = trace_for(outgoing.trace)
        try:
            result = await server.with_session(
                meta, lambda session: session.read(method, params, meta, channel)
            )
        except RemoteFaultError as error:
            if request.kind == "completion" and error.code == _NO_METHOD:
                return Completion(())  # it has prompts or templates, but completes nothing
            raise
    if request.kind == "resource":
        return parse_contents(request.name, result)
    if request.kind == "prompt":
        described = result.get("description")
        messages = tuple(PromptMessage(role, part) for role, part in parse_prompt_messages(result))
        return PromptText(messages, described if isinstance(described, str) else "")
    return Completion(*parse_completion(result))


def _as_request(request: ReadRequest) -> tuple[str, dict[str, Any]]:
    if request.kind == "resource":
        return "resources/read", {"uri": request.name}
    if request.kind == "prompt":
        return "prompts/get", {"name": request.name, "arguments": dict(request.arguments)}
    params = completion_params(
        request.name,
        request.argument,
        request.value,
        request.arguments,
        is_prompt=None if request.completes is None else request.is_of_prompt,
    )
    return "completion/complete", params


class ServerReads:
    """Reads from one imported server, for its own endpoint."""

    def __init__(self, servers: ServersInHub, name: str) -> None:
        self._servers = servers
        self._name = name

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        server = self._servers.servers.find(self._name)
        if server is None or not is_visible(server.spec.visibility, request.principal.scopes):
            raise _unknown(request)
        return await self._servers.read(server, request, call, admitted, channel)

    def follow(self, uris: frozenset[str]) -> None:
        self._servers.servers.follow(self, self._name, uris)


Named = tuple[str, ImportedServer]
"""A server with its name in the directory."""

IsListed = Callable[[ImportedServer, Resource | Prompt], bool]
"""Whether an item of a server is in the lists of a caller."""


class ServersInHub:
    """The imported servers that callers of a hub see; policies and guards of the dispatcher check reads."""

    def __init__(self, servers: ImportedServers, directory: Directory, dispatcher: Dispatcher) -> None:
        self.servers = servers
        self._directory = directory
        self._dispatcher = dispatcher

    def list_all(self) -> list[Named]:
        """The enabled servers, with their names in the directory."""
        rows = []
        for server in self.servers.list_members():
            entry = self._directory.find_entry(_listing_of(server))
            if entry is not None and entry.enabled:
                rows.append((self._directory.name_of(entry), server))
        return rows

    def list_seen(self, view: AgentView | None, scopes: frozenset[str]) -> list[Named]:
        """The servers whose resources and prompts a caller with this view and these scopes sees."""
        return [
            (name, server)
            for name, server in self.list_all()
            if is_seen(view, server.spec.name) and is_visible(server.spec.visibility, scopes)
        ]

    def list_seen_by(self, principal: Principal) -> list[Named]:
        """As `list_seen`, for a caller."""
        return self.list_seen(self._dispatcher.access.view_of(principal), principal.scopes)

    def find_listing(self, server: ImportedServer) -> Listing | None:
        """The listing of a server; None after its removal."""
        return self._directory.find_listing(_listing_of(server))

    def _find_of_chain(self, server: ImportedServer, call: Call) -> ImportedServer:
        rollouts = self._dispatcher.rollouts
        mark = None if rollouts is None else rollouts.find_mark(server.id.team, call)
        twins = [] if mark is None else self.servers.list_twins(server.id)
        return next((twin for twin in twins if twin.id.tag.endswith(f"-{mark}")), server)

    async def read(
        self,
        server: ImportedServer,
        request: ReadRequest,
        call: Call,
        admitted: AdmittedCall,
        channel: Channel,
    ) -> Read:
        """One read at a server, where policies and guards let it.

        While its team changes its digest, it is a read at the server of the digest of the chain.
        """
        server = self._find_of_chain(server, call)

        async def read(request: ReadRequest, call: Call, channel: Channel) -> Read:
            return await read_from(server, request, admitted, channel)

        listing = self.find_listing(server)
        if listing is None:
            raise _unknown(request)
        return await read_checked(self._dispatcher, listing, request, call, admitted, channel, read)


def _listing_of(server: ImportedServer) -> ListingKey:
    return ListingKey(IMPORTS, server.id.key, server.id.tag)


class HubReads:
    """Reads at the hub: of its own agent, then of the imported servers that the caller sees."""

    def __init__(self, own: ReadSource, imported: ServersInHub) -> None:
        self._own = own
        self._imported = imported

    async def read(self, request: ReadRequest, call: Call, admitted: AdmittedCall, channel: Channel) -> Read:
        try:
            return await self._own.read(request, call, admitted, channel)
        except (UnknownResourceError, UnknownPromptError):
            owner = self._find(request)
            if owner is None:
                raise
        server, name = owner
        read = await self._imported.read(server, replace(request, name=name), call, admitted, channel)
        if request.kind == "resource" and isinstance(read, tuple):
            return tuple(_renamed(part, name, request.name) for part in read)
        return read

    def follow(self, uris: frozenset[str]) -> None:
        self._own.follow(uris)
        for name, server in self._imported.list_all():
            prefix = resource_prefix(name)
            own = frozenset(uri[len(prefix) :] for uri in uris if uri.startswith(prefix))
            self._imported.servers.follow(self, str(server.id), own)

    def _find(self, request: ReadRequest) -> tuple[ImportedServer, str] | None:
        seen = self._imported.list_seen_by(request.principal)
        if request.is_of_prompt:
            return find_prompt(seen, request.name)
        return find_resource(seen, request.name)


def _renamed(part: Part, before: str, after: str) -> Part:
    """A content with the URI that the client asked for in place of the server's own."""
    if isinstance(part.value, Mapping) and part.value.get("uri") == before:
        return replace(part, value={**part.value, "uri": after})
    return part


def resource_prefix(name: str) -> str:
    """The prefix of the URIs of a server's resources in the lists of the hub."""
    return f"{AGENT_URI}{name}/"


def list_resources(servers: Iterable[Named], is_shown: IsListed) -> list[Resource]:
    """The resources and templates of these servers as the hub lists them; at most `MAX_LISTED`."""
    named = (
        replace(resource, uri=resource_prefix(name) + resource.uri)
        for name, server in servers
        for resource in server.record.resources
        if is_shown(server, resource)
    )
    return list(islice(named, MAX_LISTED))


def list_prompts(servers: Iterable[Named], is_shown: IsListed) -> list[Prompt]:
    """The prompts of these servers as the hub lists them, with names that every client accepts."""
    prompts = [
        (name, prompt, is_shown(server, prompt))
        for name, server in servers
        for prompt in server.record.prompts
    ][:MAX_LISTED]
    # of all prompts, so that a name does not depend on what the caller sees
    aliases = safe_names(tool_id(name, prompt.name) for name, prompt, _ in prompts)
    return [
        replace(prompt, name=aliases[tool_id(name, prompt.name)], title=prompt.title or prompt.name)
        for name, prompt, shown in prompts
        if shown
    ]


def find_resource(servers: Sequence[Named], uri: str) -> tuple[ImportedServer, str] | None:
    """The server of a resource, and the URI that it knows.

    The URI may be the server's own, as it stands in its results, if one server alone lists it, or a template
    that it fits, or another resource of its scheme, and of its authority where many share the scheme.
    """
    for name, server in servers:
        prefix = resource_prefix(name)
        if uri.startswith(prefix) and ":" in uri[len(prefix) :]:
            return server, uri[len(prefix) :]
    records = [(server, server.record.resources) for _, server in servers]
    place = place_of(uri)
    fitting: tuple[Callable[[str], bool], ...] = (
        lambda known: known == uri,
        lambda known: is_template(known) and fits_template(known, uri),
        lambda known: place_of(known) == place,
    )
    for fits in fitting:
        owners = [
            server for server, resources in records if any(fits(resource.uri) for resource in resources)
        ]
        if owners:
            return (owners[0], uri) if len(owners) == 1 else None
    return None


def find_prompt(servers: Sequence[Named], name: str) -> tuple[ImportedServer, str] | None:
    """The server of a prompt, by the name in the hub's list or the server's own name for it."""
    known: dict[str, tuple[ImportedServer, str]] = {}
    owners = dict(servers)
    offered = [(agent, prompt.name) for agent, server in servers for prompt in server.record.prompts]
    for agent, prompt in offered:
        for spelling in list_spellings(agent, prompt):
            known.setdefault(spelling, (owners[agent], prompt))
    aliases = safe_names(tool_id(agent, prompt) for agent, prompt in offered)
    known |= {aliases[tool_id(agent, prompt)]: (owners[agent], prompt) for agent, prompt in offered}
    return known.get(name)


def _unknown(request: ReadRequest) -> UnknownResourceError | UnknownPromptError:
    return (UnknownPromptError if request.is_of_prompt else UnknownResourceError)(request.name)
