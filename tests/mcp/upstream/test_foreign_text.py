"""What an imported MCP server says is bounded, without hidden characters, and only about its own URIs."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from retinue.core.foreign_text import find_hidden
from retinue.core.record import Listing
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mesh.foreign_records import MAX_DESCRIPTION
from retinue.mesh.pins import Pins
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.library_server import Context, Library, serve_library
from tests.mcp.upstream.test_imports import is_ready, running

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),
]
HIDDEN = "Sums.\u200b\U000e0041\u202e\x1b[2J"


class ClaimingLibrary(Library):
    """A library whose texts are long and hold hidden characters, and whose templates match every URI."""

    async def _list_tools(self, context: Context, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"a": {"type": "number", "description": HIDDEN}}}
        offered = {
            "sum": HIDDEN,
            "long": "x" * 300_000,
            "n" * 5_000: "Long name.",
            "su\u200bm": "Hidden name.",
        }
        tools = [
            types.Tool(name=name, description=said, input_schema=schema) for name, said in offered.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def _list_resources(self, context: Context, params: Any) -> types.ListResourcesResult:
        resource = types.Resource(uri="demo://static", name=HIDDEN, mime_type="text/plain")
        return types.ListResourcesResult(resources=[resource])

    async def _list_templates(self, context: Context, params: Any) -> types.ListResourceTemplatesResult:
        templates = ["{+any}", "https://{host}/x", "own://{id}"]
        return types.ListResourceTemplatesResult(
            resource_templates=[types.ResourceTemplate(uri_template=one, name="t") for one in templates]
        )


@pytest.mark.parametrize("any_uri", [False, True])
async def test_a_server_is_listed_bounded_and_clean_and_claims_no_uri_of_others(any_uri: bool) -> None:
    pins = Pins()
    async with serve_library(ClaimingLibrary()) as url, HttpClient() as http:
        spec = ImportSpec("srv", lambda: HttpTransport("srv", http, url, {}), url, any_uri=any_uri)
        async with running(spec, pins=pins) as imports:
            listing: Listing = await imports.until("srv", is_ready)
            (server,) = imports.servers.list_members()
            for record in (listing.record, server.record):
                assert [skill.id for skill in record.skills] == ["sum", "long"]
                assert record.skills[0].description == "Sums.[2J"
                assert find_hidden(str(record.skills[0].input_schema)) is None
                assert len(record.skills[1].description) == MAX_DESCRIPTION
                claimed = ["{+any}", "https://{host}/x"] if any_uri else []
                assert [one.uri for one in record.resources] == ["demo://static", *claimed, "own://{id}"]
                assert record.resources[0].name == "Sums.[2J"
            assert max(len(str(tool)) for tool in pins.accepted_tools("srv")) < 2 * MAX_DESCRIPTION
            (problem,) = imports.directory.problems()
            assert "U+200B" in problem.error.message
