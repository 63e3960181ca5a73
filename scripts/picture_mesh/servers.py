"""MCP servers of the official SDK with names and texts of usual lengths, and without network.

``python -m scripts.picture_mesh.servers NAME`` serves one on its standard streams. Tools answer at once; one
whose argument says so fails with a reason.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

REPOSITORY = ("owner", "repo")

SERVERS: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "github": {
        "search_repositories": (
            "Find repositories by name, description, readme, topics or other metadata",
            ("query",),
        ),
        "search_code": (
            "Fast and precise search across all repositories with GitHub's native search engine",
            ("query",),
        ),
        "search_issues": (
            "Search issues with the syntax of issue searches, already scoped to is:issue",
            ("query",),
        ),
        "search_pull_requests": ("Search pull requests, already scoped to is:pr", ("query",)),
        "search_users": ("Find users by name, location or other properties of their profile", ("query",)),
        "get_me": (
            "Details of the authenticated user. Use this when a request is about the user's own profile",
            (),
        ),
        "get_file_contents": ("The contents of a file or directory of a repository", (*REPOSITORY, "path")),
        "create_or_update_file": (
            "Create or update a single file in a repository",
            (*REPOSITORY, "path", "content", "message", "branch"),
        ),
        "push_files": (
            "Push multiple files to a repository in a single commit",
            (*REPOSITORY, "branch", "files", "message"),
        ),
        "delete_file": ("Delete a file from a repository", (*REPOSITORY, "path", "branch")),
        "create_repository": (
            "Create a new repository in the account of the user or of an organization",
            ("name",),
        ),
        "fork_repository": ("Fork a repository to the account of the user or of an organization", REPOSITORY),
        "create_branch": ("Create a new branch in a repository", (*REPOSITORY, "branch")),
        "list_branches": ("List the branches of a repository", REPOSITORY),
        "list_commits": (
            "The commits of a branch. Returns at least 30 results a page by default",
            REPOSITORY,
        ),
        "get_commit": ("Details of a commit", (*REPOSITORY, "sha")),
        "list_tags": ("List the tags of a repository", REPOSITORY),
        "list_releases": ("List the releases of a repository", REPOSITORY),
        "list_issues": (
            "List the issues of a repository. For the next page, use the endCursor of the previous one",
            REPOSITORY,
        ),
        "issue_read": ("An issue with its comments, sub-issues or labels", (*REPOSITORY, "issue_number")),
        "issue_write": ("Create an issue, or update one", (*REPOSITORY, "title", "body")),
        "add_issue_comment": ("Add a comment to an issue", (*REPOSITORY, "issue_number", "body")),
        "sub_issue_write": (
            "Add, remove or move a sub-issue of a parent issue",
            (*REPOSITORY, "issue_number", "sub_issue_id"),
        ),
        "assign_copilot_to_issue": (
            "Assign Copilot to an issue, which can then open a pull request with changes",
            (*REPOSITORY, "issue_number"),
        ),
        "list_pull_requests": ("List the pull requests of a repository", REPOSITORY),
        "pull_request_read": (
            "A pull request with its diff, status, files, reviews or comments",
            (*REPOSITORY, "pull_number"),
        ),
        "create_pull_request": ("Create a new pull request", (*REPOSITORY, "title", "head", "base")),
        "update_pull_request_branch": (
            "Update the branch of a pull request with the latest changes of its base",
            (*REPOSITORY, "pull_number"),
        ),
        "merge_pull_request": ("Merge a pull request", (*REPOSITORY, "pull_number")),
        "pull_request_review_write": (
            "Create, submit or delete a review of a pull request",
            (*REPOSITORY, "pull_number", "body"),
        ),
        "add_comment_to_pending_review": (
            "Add a comment to the latest pending review of the user",
            (*REPOSITORY, "pull_number", "body"),
        ),
        "request_copilot_review": (
            "Request an automated review of a pull request before asking a person",
            (*REPOSITORY, "pull_number"),
        ),
        "list_code_scanning_alerts": ("List the code scanning alerts of a repository", REPOSITORY),
        "list_secret_scanning_alerts": ("List the secret scanning alerts of a repository", REPOSITORY),
    },
    "postgres": {
        "list_schemas": ("List all schemas of the database", ()),
        "list_objects": ("List the tables, views, sequences or extensions of a schema", ("schema_name",)),
        "get_object_details": ("Columns, constraints and indexes of a table", ("schema_name", "object_name")),
        "explain_query": ("The execution plan of a query, also with hypothetical indexes", ("sql",)),
        "analyze_workload_indexes": ("Analyze frequently executed queries and recommend optimal indexes", ()),
        "analyze_query_indexes": (
            "Analyze a list of up to ten queries and recommend optimal indexes",
            ("queries",),
        ),
        "analyze_db_health": (
            "Check index health, connections, vacuum, sequences, replication, buffers and constraints",
            (),
        ),
        "get_top_queries": (
            "The slowest or most resource-intensive queries, by data of pg_stat_statements",
            ("sort_by",),
        ),
        "execute_sql": ("Execute a read-only query", ("sql",)),
    },
    "slack": {
        "channels_list": ("List channels with their topics and numbers of members", ("channel_types",)),
        "conversations_history": ("Messages of a channel or a direct message, newest first", ("channel_id",)),
        "conversations_replies": ("The thread of a message", ("channel_id", "thread_ts")),
        "conversations_add_message": ("Post a message to a channel or a thread", ("channel_id", "payload")),
        "conversations_search_messages": (
            "Search messages by text, author, channel and date",
            ("search_query",),
        ),
        "reactions_add": ("Add a reaction to a message", ("channel_id", "timestamp", "emoji")),
        "usergroups_list": ("List the user groups of the workspace", ()),
        "users_search": ("Find users by name or address", ("query",)),
    },
    "charts": {
        "generate_bar_chart": (
            "Draw a bar chart for a comparison of values over categories",
            ("title", "values"),
        ),
        "generate_line_chart": ("Draw a line chart for trends over time", ("title", "values")),
        "generate_pie_chart": ("Draw a pie chart for the parts of a whole", ("title", "values")),
        "generate_histogram_chart": (
            "Draw a histogram for the frequency of values within ranges",
            ("title", "values"),
        ),
        "generate_district_map": (
            "Draw a map of administrative divisions, coloured by a value",
            ("title", "values"),
        ),
        "generate_fishbone_diagram": (
            "Draw a fishbone diagram for the causes of a problem",
            ("title", "values"),
        ),
        "generate_organization_chart": ("Draw the hierarchy of an organization", ("title", "values")),
    },
}
"""Name of a server → its tools with their descriptions and parameters."""

READS = ("search", "get", "list", "read", "explain", "analyze", "channels", "users", "usergroups")
LISTS, NUMBERS = ("files", "queries", "values"), ("issue_number", "pull_number", "sub_issue_id")

FAILURES = {
    "missing": "failed to get issue: GET https://api.example.com/repos/acme/shop-frontend/issues/9121: 404",
    "forbidden": "403 Resource not accessible by personal access token: the token has no permission "
    "'Pull requests: write' for acme/shop-frontend (request 8F3A:2B1C7D:9E4F21C0A7D:6B8E13F0D52)",
    "syntax": 'syntax error at or near "SELCT" (SQLSTATE 42601): SELCT * FROM orders_2026_q4_by_region',
}
"""Argument that asks for a failure → its reason."""

COLOURS = ((31, 85, 173), (23, 105, 58), (138, 83, 0), (179, 38, 30))


def draw_chart(values: list[float], width: int = 480, height: int = 240) -> bytes:
    """A bar chart as PNG."""
    bars = max(1, len(values))
    highest = max([*values, 1e-9])
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        for x in range(width):
            number, within = divmod(x * bars, width)
            is_bar = number < len(values) and within * 5 < width * 4
            is_bar = is_bar and height - y <= values[number] / highest * (height - 20)
            rows += bytes(COLOURS[number % len(COLOURS)] if is_bar else (243, 245, 248))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def build(name: str) -> Server[Any]:
    """The server with this name."""
    tools = SERVERS[name]

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool, *facts) for tool, facts in tools.items()])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        reason = next((FAILURES[text] for text in map(str, arguments.values()) if text in FAILURES), None)
        if reason is not None:
            return types.CallToolResult(content=[_text(reason)], is_error=True)
        if name == "charts":
            png = base64.b64encode(draw_chart(arguments["values"])).decode()
            image = types.ImageContent(type="image", data=png, mime_type="image/png")
            return types.CallToolResult(content=[_text(str(arguments["title"])), image])
        return types.CallToolResult(content=[_text(f"{params.name}: 12 entries")])

    return Server(name, version="1.4.0", on_list_tools=list_tools, on_call_tool=call_tool)


def _describe(tool: str, description: str, parameters: tuple[str, ...]) -> types.Tool:
    schema = {
        "type": "object",
        "properties": {parameter: _schema_of(parameter) for parameter in parameters},
        "required": list(parameters),
    }
    is_read_only = any(part in READS for part in tool.split("_"))
    annotations = types.ToolAnnotations(read_only_hint=is_read_only)
    return types.Tool(name=tool, description=description, input_schema=schema, annotations=annotations)


def _schema_of(parameter: str) -> dict[str, Any]:
    if parameter in LISTS:
        return {"type": "array", "items": {"type": "number" if parameter == "values" else "string"}}
    return {"type": "integer" if parameter in NUMBERS else "string"}


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


async def serve(name: str) -> None:
    """Serve it on the standard streams until they are closed."""
    server = build(name)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
