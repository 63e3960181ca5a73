"""Two hubs and a registry: one measures an agent and attaches a receipt, the other one ranks by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue import Agent
from retinue.cards.receipts import RECEIPT_TYPE
from retinue.oci.attached_receipts import ISSUER
from retinue.oci.client.http_registry import HttpRegistry
from retinue.oci.codec.reference import Reference
from retinue.oci.registry import open_registry
from retinue.runtime.commands.client import open_client
from retinue.storage.card_keys import CardKeys
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from retinue.web.issued_tokens import TokenFile
from tests.registry.places import Place
from tests.system import Hub, open_system, open_wire


def make_agent(name: str, *, fails: bool) -> Agent:
    agent = Agent(name, description="Plans journeys")

    @agent.skill(f"plan_journey_{name.partition('-')[0]}", read_only=True)
    async def plan_journey(text: str) -> str:
        """Plans a journey by train."""
        if fails:
            raise RuntimeError("no trains")
        return text

    return agent


async def read_page(hub: Hub, agent: str, token: str) -> str:
    async with open_wire() as wire:
        reply = await wire.get(f"{hub.url}/ui/agents/{agent}", authorization=token, accept="text/html")
        assert reply.status == 200
        return reply.body.decode()


@pytest.mark.parametrize("place", ["door", "plain"], indirect=True)
async def test_a_hub_attaches_what_it_measured_and_another_one_that_trusts_it_ranks_by_it(
    place: Place, tmp_path: Path
) -> None:
    async with (
        open_system(State(tmp_path / "issuer"), registries=(place.location,)) as issuer,
        open_system(State(tmp_path / "reader"), registries=(place.location,)) as reader,
        HttpClient() as http,
    ):
        shared = open_registry(place.location, http)
        assert isinstance(shared, HttpRegistry)
        for agent in (make_agent("broken-agent", fails=True), make_agent("steady-agent", fails=False)):
            await reader.start_agent(agent, publish_to=shared)
        await issuer.start_hub()
        other = await reader.start_hub(dashboard=True)
        own = CardKeys(issuer.state.keys).signing_key()
        query = {"query": "plan a journey by train with broken", "detailed": True, "why": "broken-agent"}
        async with (
            open_client(issuer.settings, issuer.state) as measuring,
            open_client(reader.settings, reader.state) as ranking,
        ):
            await ranking.get("refresh_agents")
            await measuring.get("refresh_agents")
            before = await ranking.get("find_skills", query)
            for number in range(30):
                outcome = await measuring.ask("plan_journey_broken", {"text": str(number)})
                assert outcome.status == "failed"
            published = (await measuring.get("publish_receipts"))["published"]
            assert [(row["agent"], row["calls"], row.get("error")) for row in published] == [
                ("broken-agent", 30, None)
            ]
            assert (await measuring.get("publish_receipts"))["published"][0].get("error") is None
            digest = await shared.find_digest(Reference("agents/broken", tag="v1"))
            assert digest is not None
            rows = await shared.list_referrers("agents/broken", digest, RECEIPT_TYPE)
            assert {row.annotations[ISSUER] for row in rows} == {own.kid}
            assert len(rows) == 1, "the newer receipt replaced the older one"

            asked = {"agent": "broken-agent"}
            assert (await ranking.get("show_receipts", asked))["receipts"] == [], "no key is trusted"
            assert not reader.state.receipts.exists()
            CardKeys(reader.state.keys).trust("berlin", own.public)
            (row,) = (await ranking.get("show_receipts", asked))["receipts"]
            assert (row["issuer"], row["calls"], row["failures"]) == ("berlin", 30, {"execution_error": 30})
            assert 0.7 < row["weight"] <= 0.75
            token = TokenFile(reader.state.keys).issue(("mesh",), name="ada")[1]
            page = await read_page(other, "broken-agent", reader.token)
            assert "30 execution_error" in page
            assert "berlin" in page
            assert "berlin" not in await read_page(other, "broken-agent", f"Bearer {token}")
            after = await ranking.get("find_skills", query)
            reasons = " ".join(after["why"]["reasons"])
            assert "for failures that other hubs measured" in reasons
            (learned,) = [row for row in after["learned"] if "receipts" in row]
            assert learned["receipts"] < 0.0
            assert other.process.kind == "hub"
            assert before["skills"][0]["agent"] == "broken-agent"
            # revoked
            CardKeys(reader.state.keys).forget("berlin")
            (row,) = (await ranking.get("show_receipts"))["receipts"]
            assert (row["weight"], "not trusted" in row["reason"]) == (0.0, True)
            assert "not trusted" in await read_page(other, "broken-agent", reader.token)
