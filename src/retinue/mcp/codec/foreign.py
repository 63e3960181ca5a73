"""Pure: requests to an MCP server of somebody else, in both protocol eras, and its lists as skills.

The reverse of what `mcp.server` renders. Sources:
https://modelcontextprotocol.io/specification/2025-11-25 and
https://modelcontextprotocol.io/specification/2026-07-28.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from retinue.core.record import Hints, Prompt, PromptArgument, Resource, Schema, Skill
from retinue.mcp.codec.messages import HANDSHAKE_VERSIONS, Message
from retinue.mcp.codec.tool_calls import VERSION, WHOLE_KEY
from retinue.mcp.codec.wire import VERSION_KEY

HANDSHAKE_VERSION = "2025-11-25"
"""The version that ``initialize`` asks for."""

Era = Literal["handshake", "modern"]

_META = "io.modelcontextprotocol/"
_ASKABLE: dict[str, Any] = {"elicitation": {}, "sampling": {}}
"""What a server may ask for: the channel of a call carries both. Roots are this machine's own."""

_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself; ``capabilities`` are the names of what it offers."""

    era: Era
    version: str | None
    name: str = ""
    server_version: str = ""
    instructions: str = ""
    capabilities: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ServerLists:
    """What a server offers, as it said it (``tools``), and as records."""

    tools: tuple[Mapping[str, Any], ...] = ()
    resources: tuple[Resource, ...] = ()
    prompts: tuple[Prompt, ...] = ()


@dataclass(slots=True)
class Requests:
    """Builds the requests to one server, with ids of its own."""

    client: str
    client_version: str
    era: Era = "handshake"
    _last_id: int = 0

    def initialize(self) -> Message:
        """The first request of the eras with sessions."""
        return self._request(
            "initialize",
            {
                "protocolVersion": HANDSHAKE_VERSION,
                "capabilities": _ASKABLE,
                "clientInfo": {"name": self.client, "version": self.client_version},
            },
        )

    def discover(self) -> Message:
        """The first request of the era without sessions."""
        return self._request("server/discover", {"_meta": self._modern_meta({})})

    def of(
        self, method: str, params: Mapping[str, Any], *, capabilities: frozenset[str] = frozenset()
    ) -> Message:
        """A request in the server's era; a caller that listens gets its progress and log lines."""
        given = dict(params)
        meta = dict(given.get("_meta") or {})
        if self.era == "modern":
            meta |= self._modern_meta({one: {} for one in _ASKABLE if one in capabilities})
            if "log" in capabilities:
                meta[f"{_META}logLevel"] = "debug"
        if "progress" in capabilities:
            meta["progressToken"] = self._last_id + 1
        if meta:
            given["_meta"] = meta
        return self._request(method, given)

    def _modern_meta(self, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        return {
            VERSION_KEY: VERSION,
            f"{_META}clientCapabilities": capabilities,
            f"{_META}clientInfo": {"name": self.client, "version": self.client_version},
        }

    def _request(self, method: str, params: Mapping[str, Any]) -> Message:
        self._last_id += 1
        document = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": dict(params)}
        return Message("request", method, self._last_id, document)


def response(request_id: Any, result: Mapping[str, Any]) -> Message:
    """The response to a request of the server."""
    return Message("response", "", request_id, {"jsonrpc": "2.0", "id": request_id, "result": dict(result)})


def refusal(request_id: Any, code: int, text: str) -> Message:
    """The error response to a request of the server."""
    error = {"code": code, "message": text}
    return Message("response", "", request_id, {"jsonrpc": "2.0", "id": request_id, "error": error})


def parse_initialized(result: Mapping[str, Any]) -> ServerFacts:
    """The answer to ``initialize``; a version unknown here is that of a later server, taken as it is."""
    version = result.get("protocolVersion")
    found = _facts(result, "handshake")
    known = version if isinstance(version, str) and version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSION
    return ServerFacts(
        "handshake", known, found.name, found.server_version, found.instructions, found.capabilities
    )


def parse_discovered(result: Mapping[str, Any]) -> ServerFacts:
    """The answer to ``server/discover``."""
    return _facts(result, "modern")


def _facts(result: Mapping[str, Any], era: Era) -> ServerFacts:
    info = _object(result.get("serverInfo"))
    if not info:
        info = _object(_object(result.get("_meta")).get(f"{_META}serverInfo"))
    return ServerFacts(
        era,
        None,
        _text(info.get("name")),
        _text(info.get("version")),
        _text(result.get("instructions")),
        frozenset(_object(result.get("capabilities"))),
    )


def read_page(method: str, result: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The objects of one page of a list, and the cursor of the next."""
    found = result.get(_LISTS[method])
    entries = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    cursor = result.get("nextCursor")
    return entries, cursor if isinstance(cursor, str) and cursor else None


def parse_tools(
    tools: Iterable[Mapping[str, Any]], visibility: Literal["mesh", "exposed"]
) -> Iterator[Skill]:
    """The tools as skills; one without a name is left out, of two of one name the first counts."""
    seen = set()
    for tool in tools:
        name = _text(tool.get("name"))
        if not name or name in seen:
            continue
        seen.add(name)
        said = _object(tool.get("annotations"))
        yield Skill(
            id=name,
            description=_text(tool.get("description")),
            title=_text(tool.get("title")) or _text(said.get("title")) or None,
            input_schema=_schema(tool.get("inputSchema")) or {"type": "object"},
            output_schema=_schema(tool.get("outputSchema")),
            visibility=visibility,
            hints=Hints(
                read_only=said.get("readOnlyHint") is True,
                destructive=said.get("destructiveHint") is True,
                idempotent=said.get("idempotentHint") is True,
                open_world=said.get("openWorldHint") is True,
            ),
        )


def parse_resources(entries: Iterable[Mapping[str, Any]]) -> Iterator[Resource]:
    """The entries of ``resources/list`` and ``resources/templates/list``."""
    for entry in entries:
        uri = _text(entry.get("uri")) or _text(entry.get("uriTemplate"))
        if uri:
            yield Resource(
                uri=uri,
                name=_text(entry.get("name")) or uri,
                mime=_text(entry.get("mimeType")) or "text/plain",
                visibility="exposed",
                title=_text(entry.get("title")) or None,
                description=_text(entry.get("description")),
            )


def parse_prompts(entries: Iterable[Mapping[str, Any]]) -> Iterator[Prompt]:
    """The entries of ``prompts/list``."""
    for entry in entries:
        name, arguments = _text(entry.get("name")), entry.get("arguments")
        if name:
            yield Prompt(
                name=name,
                arguments=tuple(
                    PromptArgument(
                        _text(one.get("name")), _text(one.get("description")), one.get("required") is True
                    )
                    for one in (arguments if isinstance(arguments, list) else ())
                    if isinstance(one, Mapping) and _text(one.get("name"))
                ),
                visibility="exposed",
                title=_text(entry.get("title")) or None,
                description=_text(entry.get("description")),
            )


def call_params(skill: Skill, arguments: Any, trace_meta: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of ``tools/call``."""
    return {"name": skill.id, "arguments": arguments, "_meta": {**trace_meta, WHOLE_KEY: True}}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _schema(value: Any) -> Schema | None:
    return value if isinstance(value, Mapping) else None
