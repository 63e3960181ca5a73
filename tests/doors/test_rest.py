"""The REST routes of seed 003 at any agent and at the hub: one record, whatever the endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retinue import Agent
from retinue.storage.state import State
from tests.requirements import requirement
from tests.system import Reply, System, Wire, open_system, open_wire


def greeter() -> Agent:
    agent = Agent("greeter", version="1.2.0", description="Greets", topics=["words"])

    @agent.skill
    def greet(name: str) -> str:
        """Greets somebody."""
        return f"Hello, {name}!"

    @agent.skill(private=True)
    def reset() -> str:
        """Resets."""
        return "reset"

    return agent


def read(reply: Reply) -> Any:
    assert reply.status == 200, reply
    return json.loads(reply.body)


@requirement("K-22")
async def test_the_skills_of_any_agent_are_callable_traits(retinue_home: Path) -> None:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        served = await system.start_agent(greeter())
        for prefix in ("", "/koi-net", "/mcp"):
            [tool] = read(await wire.get(f"{served.url}{prefix}/tools/list"))["tools"]
            assert (tool["name"], tool["url"]) == ("greet", "/tools/call/greet")
        assert tool["inputSchema"]["required"] == ["name"]
        for body in ({"name": "Ada"}, "Ada"):
            assert read(await wire.post(f"{served.url}/tools/call/greet", body)) == {"result": "Hello, Ada!"}
        content = read(await wire.get(f"{served.url}/resources/read/agent:greeter"))["content"]
        assert content["rid"] == "orn:agent.personality:greeter/1.2.0"
        assert content["mcp_url"] == served.url


@requirement("K-37")
async def test_a_private_skill_answers_as_a_missing_one(retinue_home: Path) -> None:
    async with open_system(State(retinue_home)) as system, open_wire() as wire:
        served = await system.start_agent(greeter())
        hidden = await wire.post(f"{served.url}/tools/call/reset", {})
        missing = await wire.post(f"{served.url}/tools/call/nothing", {})
        assert (hidden.status, json.loads(hidden.body)) == (404, {"detail": "Trait reset not found"})
        assert (missing.status, json.loads(missing.body)) == (404, {"detail": "Trait nothing not found"})
        assert b"reset" not in (await wire.get(f"{served.url}/resources/read/agent:greeter")).body


@requirement("K-37")
async def test_the_routes_want_a_token_where_the_mesh_does(retinue_home: Path) -> None:
    async with open_system(State(retinue_home), auth={"anonymous": False}) as system, open_wire() as wire:
        served = await system.start_agent(greeter())
        for path in ("/tools/list", "/resources/list", "/koi-net/tools/list"):
            assert (await wire.get(f"{served.url}{path}")).status == 401
        refused = await wire.post(f"{served.url}/tools/call/greet", {"name": "Ada"})
        assert (refused.status, set(json.loads(refused.body))) >= (401, {"detail"})
        let = await wire.post(f"{served.url}/tools/call/greet", {"name": "Ada"}, authorization=system.token)
        assert read(let) == {"result": "Hello, Ada!"}


@requirement("K-21")
async def test_the_hub_lists_every_agent_and_calls_it_below_its_name(system: System, wire: Wire) -> None:
    served = await system.start_agent(greeter())
    hub = await system.start_hub()
    [agent] = read(await wire.get(f"{hub.url}/resources/list"))["resources"]
    assert (agent["id"], agent["url"]) == ("agent:greeter", served.url)
    [tool] = read(await wire.get(f"{hub.url}/tools/list"))["tools"]
    assert tool["name"] == "greeter.greet"
    assert read(await wire.post(tool["url"], "Ada")) == {"result": "Hello, Ada!"}
    through = f"{hub.url}/agents/greeter"
    assert [one["name"] for one in read(await wire.get(f"{through}/tools/list"))["tools"]] == ["greet"]
    assert read(await wire.post(f"{through}/tools/call/greet", "Ada")) == {"result": "Hello, Ada!"}
    nobody = await wire.get(f"{hub.url}/agents/nobody/tools/list")
    assert read(nobody) == {"tools": []}
    missing = await wire.post(f"{hub.url}/agents/nobody/tools/call/greet", {})
    assert (missing.status, json.loads(missing.body)) == (404, {"detail": "Agent not found"})
    own = await wire.post(f"{hub.url}/tools/call/find_skills", {"query": "greet"})
    assert "greet" in json.dumps(read(own))


async def test_a_wrong_method_is_405_and_another_path_is_not_ours(system: System, wire: Wire) -> None:
    served = await system.start_agent(greeter())
    assert (await wire.get(f"{served.url}/tools/call/greet")).status == 405
    assert (await wire.get(f"{served.url}/tools/listing")).status == 404
