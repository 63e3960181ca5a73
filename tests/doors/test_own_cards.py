"""The card of a process's own agent, in its two forms: always that of the agent as it is now."""

from __future__ import annotations

from typing import Any

from retinue.authoring.agent import Agent
from tests.requirements import requirement
from tests.system import System, Wire


async def read_facts(url: str, wire: Wire) -> list[dict[str, Any]]:
    """What both cards say of an agent beyond its skills."""
    plain = (await wire.get(f"{url}/agent-card")).json
    card = (await wire.get(f"{url}/.well-known/agent-card.json")).json
    (block,) = card["capabilities"]["extensions"]
    return [plain.get("retinue", {}), block["params"]]


@requirement("P-10")
async def test_the_card_of_a_hub_lists_the_prompts_of_workflows_that_came_after_its_start(
    system: System, wire: Wire
) -> None:
    hub = await system.start_hub()
    before = await read_facts(hub.url, wire)
    assert all("prompts" not in facts for facts in before)
    await hub.mesh.hub.prompts.refresh()
    for facts in await read_facts(hub.url, wire):
        assert "plan-build-test" in {prompt["name"] for prompt in facts["prompts"]}


@requirement("P-10")
async def test_the_card_of_an_agent_follows_its_skills(system: System, wire: Wire) -> None:
    agent = Agent("late", version="1.0.0")
    served = await system.start_agent(agent)
    for path in ("/agent-card", "/.well-known/agent-card.json"):
        assert (await wire.get(served.url + path)).json["skills"] == []

    @agent.skill(expose=True)
    async def wave() -> str:
        """Waves."""
        return "o/"

    for path in ("/agent-card", "/.well-known/agent-card.json"):
        assert [skill["id"] for skill in (await wire.get(served.url + path)).json["skills"]] == ["wave"]
