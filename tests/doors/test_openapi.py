"""``/openapi.json`` of running hubs and agents: valid, true, and limited to what its reader may see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

from retinue.authoring.agent import Agent
from retinue.openapi.client import ApiClient
from retinue.openapi.codec.api import parse_api
from retinue.openapi.codec.reader import read_document
from retinue.runtime.commands.client import open_client
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import TokenFile
from tests.requirements import requirement
from tests.system import System, Wire, open_system


def make_agent(name: str = "shop-agent") -> Agent:
    agent = Agent(name, version="2.1.0", description="Sells things.")

    @agent.skill(expose=True)
    async def price(item: str, number: int = 1) -> float:
        """The price of an item."""
        if item == "broken":
            raise ValueError("no such item")
        return 2.5 * number

    @agent.skill("fs:read_file")
    async def read_file(path: str) -> dict[str, str]:
        """Reads a file."""
        return {"path": path}

    @agent.skill(private=True)
    async def inside() -> str:
        """Never shown."""
        return ""

    return agent


async def read(wire: Wire, url: str, **headers: str) -> dict[str, Any]:
    reply = await wire.get(f"{url}/openapi.json", **headers)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    document: dict[str, Any] = reply.json
    OpenAPIV31SpecValidator(document).validate()
    return document


def list_skills(document: dict[str, Any]) -> list[str]:
    return sorted(path for path in document["paths"] if "/tools/call/" in path and "{" not in path)


@requirement("P-21")
async def test_the_hub_describes_its_routes_and_the_skills_of_each_agent(system: System, wire: Wire) -> None:
    await system.start_agent(make_agent())
    hub = await system.start_hub()
    document = await read(wire, hub.url)
    assert document["openapi"].startswith("3.1.")
    assert document["servers"] == [{"url": hub.url}]
    assert document["security"] == [{}, {"bearer": []}]
    assert {"/health", "/execute", "/agents/{agent}/execute", "/search"} <= {*document["paths"]}
    shop = [path for path in list_skills(document) if path.startswith("/agents/shop-agent/")]
    assert shop == [
        "/agents/shop-agent/tools/call/fs:read_file",
        "/agents/shop-agent/tools/call/price",
    ]
    assert "/tools/call/find_skills" in document["paths"]
    operation = document["paths"][shop[1]]["post"]
    assert operation["operationId"] == "shop-agent__price"
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert (schema["required"], schema["properties"]["number"]["default"]) == (["item"], 1)
    # the operation is what the document says
    reply = await wire.post(hub.url + shop[1], {"item": "tea", "number": 2})
    assert (reply.status, reply.json) == (200, {"result": 5.0})
    for body, status in (({"number": 1}, 422), ({"item": "broken"}, 502)):
        failed = await wire.post(hub.url + shop[1], body)
        assert failed.status == status
        assert {"detail", "code", "data"} <= {*failed.json}
        assert failed.json["data"]["type"]


@requirement("P-21")
async def test_each_agent_has_a_document_at_its_own_address_and_at_the_hub(
    system: System, wire: Wire
) -> None:
    served = await system.start_agent(make_agent())
    hub = await system.start_hub()
    own, at_hub = await read(wire, served.url), await read(wire, f"{hub.url}/agents/shop-agent")
    assert own["info"] == at_hub["info"]
    assert own["info"] == {"title": "shop-agent", "version": "2.1.0", "description": "Sells things."}
    assert list_skills(own) == ["/tools/call/fs:read_file", "/tools/call/price"]
    assert list_skills(at_hub) == [f"/agents/shop-agent{path}" for path in list_skills(own)]
    assert at_hub["paths"]["/agents/shop-agent/tools/call/price"]["post"]["operationId"] == "price"
    assert (await wire.get(f"{hub.url}/agents/nobody/openapi.json")).status == 404


@requirement("P-21")
async def test_an_import_of_the_document_gives_skills_that_can_be_called(system: System, wire: Wire) -> None:
    await system.start_agent(make_agent())
    hub = await system.start_hub()
    place = f"{hub.url}/agents/shop-agent/openapi.json"
    content = (await wire.get(place)).body
    api = parse_api(read_document(content, place), "far", url=place)
    assert sorted(skill.id for skill in api.skills) == ["fs_read_file", "price"]
    assert api.notes == ()
    async with HttpClient() as http:
        client = ApiClient(http, api, {})
        for skill, body, result in (
            ("price", {"item": "tea"}, 2.5),
            ("fs_read_file", {"path": "/a"}, {"path": "/a"}),
        ):
            answer = await client.call(skill, {"body": body})
            assert answer.value == {"result": result}


@requirement("P-21")
async def test_the_hub_imports_the_document_of_another_hub_whole(system: System, wire: Wire) -> None:
    await system.start_agent(make_agent())
    hub = await system.start_hub()
    content = (await wire.get(f"{hub.url}/openapi.json")).body
    api = parse_api(read_document(content, "the hub"), "hub", url=f"{hub.url}/openapi.json")
    assert {"shop-agent__price", "find_skills", "agent_execute"} <= {skill.id for skill in api.skills}
    assert api.notes == ()


async def test_a_reader_finds_only_what_it_may_see(system: System, wire: Wire) -> None:
    await system.start_agent(make_agent("shop-agent"))
    await system.start_agent(make_agent("bank-agent"))
    hub = await system.start_hub()
    file = TokenFile(system.state.keys)
    _, exposed = file.issue(("exposed",))
    _, restricted = file.issue(("exposed", "mesh"), agents=("shop-*",))
    whole = await read(wire, hub.url)
    assert [path for path in whole["paths"] if path.endswith("/price")] == [
        "/agents/bank-agent/tools/call/price",
        "/agents/shop-agent/tools/call/price",
    ]
    document = await read(wire, hub.url, authorization=f"Bearer {exposed}")
    assert "/agents/shop-agent/tools/call/price" in document["paths"]
    assert not [path for path in document["paths"] if path.endswith("fs:read_file")]
    document = await read(wire, hub.url, authorization=f"Bearer {restricted}")
    assert "bank-agent" not in str(document)
    headers = {"authorization": f"Bearer {restricted}"}
    assert (await wire.get(f"{hub.url}/agents/bank-agent/openapi.json", **headers)).status == 404


async def test_the_document_follows_the_mesh(system: System, wire: Wire) -> None:
    hub = await system.start_hub()
    before = await read(wire, hub.url)
    await system.start_agent(make_agent())
    async with open_client(system.settings, system.state) as mesh:
        await mesh.get("refresh_agents")
    after = await read(wire, hub.url)
    assert {*after["paths"]} - {*before["paths"]} == {
        "/agents/shop-agent/tools/call/fs:read_file",
        "/agents/shop-agent/tools/call/price",
    }


async def test_where_a_token_is_required_the_document_says_so_and_needs_one(
    retinue_home: Path, wire: Wire
) -> None:
    async with open_system(State(retinue_home), auth={"anonymous": False}) as system:
        hub = await system.start_hub()
        assert (await wire.get(f"{hub.url}/openapi.json")).status == 401
        document = await read(wire, hub.url, authorization=system.token)
        assert document["security"] == [{"bearer": []}]
