"""Pure: renders requests to foreign MCP servers, in both protocol eras, and reads their lists as skills.

The reverse of what `mcp.server` renders. Sources:
https://modelcontextprotocol.io/specification/2025-11-25 and
https://modelcontextprotocol.io/specification/2026-07-28.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from retinue.core.call import Part, TraceContext
from retinue.core.record import Hints, Prompt, PromptArgument, Resource, Schema, Skill, Visibility
from retinue.core.uri_template import is_template
from retinue.mcp.codec.content import parse_block
from retinue.mcp.codec.messages import HANDSHAKE_VERSIONS, Message
from retinue.mcp.codec.tool_calls import VERSION, WHOLE_KEY
from retinue.mcp.codec.wire import VERSION_KEY
from retinue.web.codec.trace import render_trace_meta

HANDSHAKE_VERSION = "2025-11-25"
"""The version that ``initialize`` asks for."""

Era = Literal["handshake", "modern"]

_META = "io.modelcontextprotocol/"
SUBSCRIPTION_KEY = f"{_META}subscriptionId"
"""In ``_meta`` of a notification: the id of the ``subscriptions/listen`` request that it answers."""

_ASKABLE: dict[str, Any] = {"elicitation": {}, "sampling": {}}
"""The questions that a server may ask in a session. Roots are not among them, because servers keep them for
the session, which all callers share, so that the folders of one would be used for another.
"""

_ASKABLE_OF_A_CALL = ("elicitation", "sampling", "roots")
"""The questions that a server of 2026-07-28 may ask within one call, if its caller declared them."""

_LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}


@dataclass(frozen=True, slots=True)
class ForeignServerFacts:
    """The facts of a server about itself; ``capabilities`` are the names of its capabilities.

    ``subscribes`` tells whether it reports changes of single resources, ``is_bilingual`` whether a server
    with a session takes requests of 2026-07-28 as well. ``runs_tasks`` and ``cancels_tasks``: whether a tool
    can be run as a task (2025-11-25), and such a task be cancelled.
    """

    era: Era
    version: str | None
    name: str = ""
    server_version: str = ""
    instructions: str = ""
    capabilities: frozenset[str] = frozenset()
    subscribes: bool = False
    is_bilingual: bool = False
    runs_tasks: bool = False
    cancels_tasks: bool = False


@dataclass(frozen=True, slots=True)
class ServerLists:
    """The offer of a server, in its own words, without the tools that cannot be called (``uncallable``)."""

    tools: tuple[Mapping[str, Any], ...] = ()
    resources: tuple[Mapping[str, Any], ...] = ()
    """Resources, then templates."""
    prompts: tuple[Mapping[str, Any], ...] = ()
    uncallable: tuple[str, ...] = ()


@dataclass(slots=True)
class Requests:
    """Builds the requests to one server, and counts their ids."""

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

    def listen(self, uris: Iterable[str]) -> Message:
        """The request of the sessionless era whose response is a stream of changes."""
        lists = {f"{kind}ListChanged": True for kind in ("tools", "resources", "prompts")}
        notifications = {**lists, "resourceSubscriptions": sorted(uris)}
        return self.of("subscriptions/listen", {"notifications": notifications}, era="modern")

    def of(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        capabilities: frozenset[str] = frozenset(),
        era: Era | None = None,
    ) -> Message:
        """A request in ``era``, else the server's; a caller that listens gets its progress and log lines."""
        sent = dict(params)
        meta = dict(sent.get("_meta") or {})
        if (era or self.era) == "modern":
            meta |= self._modern_meta({name: {} for name in _ASKABLE_OF_A_CALL if name in capabilities})
            if "log" in capabilities:
                meta[f"{_META}logLevel"] = "debug"
        if "progress" in capabilities:
            meta["progressToken"] = self._last_id + 1
        if meta:
            sent["_meta"] = meta
        return self._request(method, sent)

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


def parse_initialized(result: Mapping[str, Any]) -> ForeignServerFacts:
    """The answer to ``initialize``; a version unknown here is that of a later server, taken as it is."""
    version = result.get("protocolVersion")
    facts = _facts(result, "handshake")
    known = version if isinstance(version, str) and version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSION
    return replace(facts, version=known)


def parse_discovered(result: Mapping[str, Any]) -> ForeignServerFacts:
    """The answer to ``server/discover``."""
    return _facts(result, "modern")


def offers_single_requests(result: Mapping[str, Any]) -> bool:
    """Whether the answer to ``server/discover`` names the version without sessions."""
    versions = result.get("supportedVersions")
    return isinstance(versions, list) and VERSION in versions


def _facts(result: Mapping[str, Any], era: Era) -> ForeignServerFacts:
    info = _object(result.get("serverInfo"))
    if not info:
        info = _object(_object(result.get("_meta")).get(f"{_META}serverInfo"))
    offered = _object(result.get("capabilities"))
    tasks = _object(offered.get("tasks"))
    task_tools = _object(_object(tasks.get("requests")).get("tools"))
    has_tasks = era == "handshake" and isinstance(task_tools.get("call"), Mapping)
    return ForeignServerFacts(
        era,
        None,
        _text(info.get("name")),
        _text(info.get("version")),
        _text(result.get("instructions")),
        frozenset(offered),
        _object(offered.get("resources")).get("subscribe") is True,
        runs_tasks=has_tasks,
        cancels_tasks=has_tasks and isinstance(tasks.get("cancel"), Mapping),
    )


def read_page(method: str, result: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The objects of one page of a list, and the cursor of the next."""
    listed = result.get(_LISTS[method])
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    cursor = result.get("nextCursor")
    return entries, cursor if isinstance(cursor, str) and cursor else None


def parse_tools(tools: Iterable[Mapping[str, Any]], visibility: Visibility) -> Iterator[Skill]:
    """The tools as skills; one without a name is left out, of two of one name the first counts."""
    seen = set()
    for tool in tools:
        name = _text(tool.get("name"))
        if not name or name in seen:
            continue
        seen.add(name)
        hints = _object(tool.get("annotations"))
        yield Skill(
            id=name,
            description=_text(tool.get("description")),
            title=_text(tool.get("title")) or _text(hints.get("title")) or None,
            input_schema=_schema(tool.get("inputSchema")) or {"type": "object"},
            output_schema=_schema(tool.get("outputSchema")),
            visibility=visibility,
            hints=Hints(
                read_only=hints.get("readOnlyHint") is True,
                destructive=hints.get("destructiveHint") is True,
                idempotent=hints.get("idempotentHint") is True,
                open_world=hints.get("openWorldHint") is True,
            ),
        )


def parse_resources(
    entries: Iterable[Mapping[str, Any]], visibility: Visibility, *, live: bool = False
) -> Iterator[Resource]:
    """The entries of ``resources/list`` and ``resources/templates/list``; of one URI the first counts."""
    seen = set()
    for entry in entries:
        uri = _text(entry.get("uri")) or _text(entry.get("uriTemplate"))
        if uri and uri not in seen:
            seen.add(uri)
            yield Resource(
                uri=uri,
                name=_text(entry.get("name")) or uri,
                mime=_text(entry.get("mimeType")),
                visibility=visibility,
                title=_text(entry.get("title")) or None,
                description=_text(entry.get("description")),
                live=live,
            )


def parse_prompts(entries: Iterable[Mapping[str, Any]], visibility: Visibility) -> Iterator[Prompt]:
    """The entries of ``prompts/list``; of two of one name the first counts."""
    seen = set()
    for entry in entries:
        name, arguments = _text(entry.get("name")), entry.get("arguments")
        if name and name not in seen:
            seen.add(name)
            yield Prompt(
                name=name,
                arguments=tuple(
                    PromptArgument(
                        _text(argument.get("name")),
                        _text(argument.get("description")),
                        argument.get("required") is True,
                    )
                    for argument in (arguments if isinstance(arguments, list) else ())
                    if isinstance(argument, Mapping) and _text(argument.get("name"))
                ),
                visibility=visibility,
                title=_text(entry.get("title")) or None,
                description=_text(entry.get("description")),
            )


def completion_params(
    name: str, argument: str, value: str, context: Mapping[str, Any], *, is_prompt: bool | None = None
) -> dict[str, Any]:
    """The parameters of ``completion/complete``; ``name`` is a prompt, or a template by its URI.

    ``is_prompt`` None = the form of the name tells.
    """
    is_uri = is_template(name) or "://" in name if is_prompt is None else not is_prompt
    ref = {"type": "ref/resource", "uri": name} if is_uri else {"type": "ref/prompt", "name": name}
    params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
    if context:
        params["context"] = {"arguments": dict(context)}
    return params


def parse_contents(uri: str, result: Mapping[str, Any]) -> tuple[Part, ...]:
    """The contents of ``resources/read``; a content that names no URI gets ``uri``."""
    contents = result.get("contents")
    parts = []
    for content in contents if isinstance(contents, list) else ():
        if isinstance(content, Mapping) and (isinstance(content.get("text", content.get("blob")), str)):
            fallback = "application/octet-stream" if "blob" in content else "text/plain"
            value = {"uri": uri, **{key: item for key, item in content.items() if key != "mimeType"}}
            parts.append(Part("resource", value, _text(content.get("mimeType")) or fallback))
    return tuple(parts)


def parse_prompt_messages(result: Mapping[str, Any]) -> Iterator[tuple[Literal["user", "assistant"], Part]]:
    """Role and content of each message of ``prompts/get``."""
    messages = result.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, Mapping):
            yield "assistant" if message.get("role") == "assistant" else "user", parse_block(content)


def parse_completion(result: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None]:
    """The values of ``completion/complete``, and their number where it is known."""
    completion = _object(result.get("completion"))
    values, total = completion.get("values"), completion.get("total")
    kept = tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()
    return kept, total if type(total) is int else None


def call_params(skill: Skill, arguments: Any, trace_meta: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of ``tools/call``."""
    return {"name": skill.id, "arguments": arguments, "_meta": {**trace_meta, WHOLE_KEY: True}}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _schema(value: Any) -> Schema | None:
    return value if isinstance(value, Mapping) else None


def trace_for(trace: TraceContext) -> dict[str, Any]:
    """The trace in the ``_meta`` of a request to a server of somebody else.

    Without ``via``, because a server that sends the trace back as it came may use this hub, one hop further
    on.
    """
    return render_trace_meta(replace(trace, via=()))
