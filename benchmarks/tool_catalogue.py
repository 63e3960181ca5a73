"""The second data set of the search benchmark: real tools, and requests for them in plain words.

The tools are those of the MCP servers in ``tool_queries/package-lock.json`` and the operations of the
documents in ``RETINUE_OPENAPI`` (default: ``../shared/data/openapi`` next to the project). This
repository holds the requests and the names of the tools only (``tool_queries/queries.tsv``); the
descriptions are read when the benchmark runs. The requests were written before any weight was tuned on them.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import PaginatedRequestParams
from ruamel.yaml import YAML

from retinue.core.record import AgentRecord, Listing, Skill
from scripts.npm_packages import NODE, InstallFailedError, install

ROOT = Path(__file__).resolve().parent.parent
QUERIES = Path(__file__).resolve().parent / "tool_queries"
PACKAGES = ROOT / ".tools" / "tool_queries"
LIST_WITHIN_S = 60

SERVERS: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]] = {
    "chart": ("@antv/mcp-server-chart", (), {}),
    "bitwarden": ("@bitwarden/mcp-server", (), {"BW_SESSION": "none"}),
    "brave": (
        "@brave/brave-search-mcp-server",
        (),
        {"BRAVE_API_KEY": "none", "BRAVE_MCP_TRANSPORT": "stdio"},
    ),
    "email": (
        "@codefuturist/email-mcp",
        ("stdio",),
        {
            "MCP_EMAIL_ADDRESS": "nobody@example.org",
            "MCP_EMAIL_PASSWORD": "none",
            "MCP_EMAIL_IMAP_HOST": "127.0.0.1",
            "MCP_EMAIL_SMTP_HOST": "127.0.0.1",
        },
    ),
    "git": ("@cyanheads/git-mcp-server", (), {}),
    "weather": ("@dangahagan/weather-mcp", (), {"ENABLED_TOOLS": "all"}),
    "trello": ("@delorenj/mcp-server-trello", (), {"TRELLO_API_KEY": "none", "TRELLO_TOKEN": "none"}),
    "todoist": ("@doist/todoist-mcp", (), {"TODOIST_API_KEY": "none"}),
    "postgres": ("@henkey/postgres-mcp-server", (), {}),
    "everything": ("@modelcontextprotocol/server-everything", (), {}),
    "files": ("@modelcontextprotocol/server-filesystem", (".",), {}),
    "github": ("@modelcontextprotocol/server-github", (), {}),
    "maps": ("@modelcontextprotocol/server-google-maps", (), {"GOOGLE_MAPS_API_KEY": "none"}),
    "memory": ("@modelcontextprotocol/server-memory", (), {}),
    "thinking": ("@modelcontextprotocol/server-sequential-thinking", (), {}),
    "slack": ("@modelcontextprotocol/server-slack", (), {"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "none"}),
    "playwright": ("@playwright/mcp", ("--caps", "vision,pdf"), {}),
    "airtable": ("airtable-mcp-server", (), {"AIRTABLE_API_KEY": "none.none"}),
    "devtools": ("chrome-devtools-mcp", ("--no-usage-statistics",), {}),
    "shopify": ("shopify-mcp", ("--accessToken", "none", "--domain", "shop.example.org"), {}),
}
"""Name of an agent → npm package, its arguments, and variables without which it lists no tools."""

_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True)
class Request:
    """A request and the tools that serve it, each as ``agent/tool``."""

    text: str
    tools: frozenset[str]


@dataclass(frozen=True)
class ToolSet:
    """One listing per agent; ``tuning`` may be used to choose weights, ``held_out`` only to report."""

    listings: tuple[Listing, ...]
    tuning: tuple[Request, ...]
    held_out: tuple[Request, ...]


class NoToolsError(Exception):
    """The descriptions cannot be read; the text says why."""


def load_tool_set() -> ToolSet:
    """Read the tools and the requests.

    Requests for the same tool are in the same half. Raises NoToolsError when the npm packages or the
    OpenAPI documents cannot be read, or when a request names a tool that does not exist.
    """
    agents: dict[str, list[Skill]] = {name: _read_tools(tools) for name, tools in _list_mcp_tools().items()}
    listings = [_listing(name, name, skills) for name, skills in agents.items()]
    for document, groups in _list_operations().items():
        agents[document] = [skill for skills in groups.values() for skill in skills]
        listings += [_listing(f"{document} {group}", document, skills) for group, skills in groups.items()]
    known = {f"{agent}/{skill.id}" for agent, skills in agents.items() for skill in skills}
    halves: tuple[list[Request], list[Request]] = ([], [])
    for request in load_requests():
        if unknown := request.tools - known:
            raise NoToolsError(f"requests name tools that do not exist: {', '.join(sorted(unknown))}")
        halves[zlib.crc32(min(request.tools).encode()) % 2].append(request)
    return ToolSet(tuple(listings), tuple(halves[0]), tuple(halves[1]))


def load_operations_only() -> ToolSet:
    """The operations of the OpenAPI documents, and the requests for them. Raises NoToolsError."""
    listings: list[Listing] = []
    known: set[str] = set()
    for document, groups in _list_operations().items():
        listings += [_listing(f"{document} {group}", document, skills) for group, skills in groups.items()]
        known |= {f"{document}/{skill.id}" for skills in groups.values() for skill in skills}
    wanted = tuple(request for request in load_requests() if request.tools <= known)
    return ToolSet(tuple(listings), (), wanted)


def load_requests() -> list[Request]:
    """All requests, in the order of the file."""
    lines = (QUERIES / "queries.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines if not line.startswith("#"))
    return [Request(text, frozenset(tools.split(","))) for tools, text in pairs]


def _listing(key: str, document: str, skills: list[Skill]) -> Listing:
    return Listing(AgentRecord(key, skills=tuple(skills)), document, key)


def _list_mcp_tools() -> dict[str, list[dict[str, Any]]]:
    """The tools of each server; they are asked once for each version of the lock file."""
    try:
        install(QUERIES, PACKAGES)
    except InstallFailedError as error:
        raise NoToolsError(f"npm could not install the MCP servers: {error}") from error
    stamp = (PACKAGES / ".installed").read_text()
    cache = PACKAGES / f"tools-{stamp[:16]}.json"
    if not cache.is_file():
        cache.write_bytes(orjson.dumps(asyncio.run(_ask_servers())))
    tools: dict[str, list[dict[str, Any]]] = orjson.loads(cache.read_bytes())
    return tools


async def _ask_servers() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, (package, arguments, variables) in SERVERS.items():
        folder = PACKAGES / "node_modules" / package
        programs = orjson.loads((folder / "package.json").read_bytes())["bin"]
        program = programs if isinstance(programs, str) else next(iter(programs.values()))
        with tempfile.TemporaryDirectory() as home:
            server = StdioServerParameters(
                command=str(NODE / "node"),
                args=[str(folder / program), *arguments],
                # Nothing of the developer's environment: it may hold real credentials.
                env={"PATH": f"{NODE}:{os.defpath}", "HOME": home, **variables},
                cwd=home,
            )
            try:
                async with asyncio.timeout(LIST_WITHIN_S):
                    found[name] = await _list_tools(server)
            except Exception as error:
                raise NoToolsError(f"the MCP server {package} lists no tools: {error!r}") from error
    return found


async def _list_tools(server: StdioServerParameters) -> list[dict[str, Any]]:
    log = Path(server.cwd or ".") / "log"
    with log.open("w") as errors:
        async with (
            stdio_client(server, errlog=errors) as (read, write),
            ClientSession(read, write) as session,
        ):
            return await _read_pages(session)


async def _read_pages(session: ClientSession) -> list[dict[str, Any]]:
    await session.initialize()
    tools: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        tools += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _read_tools(tools: list[dict[str, Any]]) -> list[Skill]:
    return [
        Skill(tool["name"], tool.get("description", ""), tool.get("title"), tool.get("inputSchema"))
        for tool in tools
    ]


def _list_operations() -> dict[str, dict[str, list[Skill]]]:
    """The operations of each document, by their first tag or, without one, the first part of the path."""
    folder = Path(os.environ.get("RETINUE_OPENAPI", ROOT.parent / "shared" / "data" / "openapi"))
    found: dict[str, dict[str, list[Skill]]] = {}
    for path in sorted(folder.glob("*.gz")):
        text = gzip.decompress(path.read_bytes())
        document = orjson.loads(text) if ".json" in path.name else YAML(typ="safe").load(text)
        groups = found.setdefault(path.name.partition(".")[0], {})
        for route, item in document["paths"].items():
            for method in _METHODS:
                if method in item:
                    operation = item[method]
                    group = (operation.get("tags") or [route.split("/")[1]])[0]
                    groups.setdefault(group, []).append(_read_operation(document, item, operation))
    if not found:
        raise NoToolsError(f"no OpenAPI documents in {folder}; RETINUE_OPENAPI names their folder")
    return found


def _read_operation(document: Any, item: Any, operation: Any) -> Skill:
    properties: dict[str, Any] = {}
    for parameter in (*item.get("parameters", ()), *operation.get("parameters", ())):
        known = _resolve(document, parameter)
        schema = _resolve(document, known.get("schema", {}))
        properties[known["name"]] = {**schema, "description": known.get("description", "")}
    body = _resolve(document, operation.get("requestBody", {}))
    for content in list(body.get("content", {}).values())[:1]:
        properties.update(_list_properties(document, _resolve(document, content.get("schema", {}))))
    texts = (operation.get("summary"), operation.get("description"))
    description = "\n".join(dict.fromkeys(text for text in texts if text))
    schema = {"type": "object", "properties": properties}
    return Skill(operation["operationId"], description, input_schema=schema)


def _list_properties(document: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    for part in schema.get("allOf", ()):
        yield from _list_properties(document, _resolve(document, part))
    for name, found in schema.get("properties", {}).items():
        yield name, _resolve(document, found)


def _resolve(document: Any, value: Any) -> Any:
    while "$ref" in value:
        reference = value["$ref"]
        value = document
        for part in reference.removeprefix("#/").split("/"):
            value = value[part.replace("~1", "/").replace("~0", "~")]
    return value
