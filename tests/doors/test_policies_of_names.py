"""Look-alikes of ids lead around no policy: another form of a name is the same skill, or none."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable
from typing import Any

from retinue.authoring.agent import Agent
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming
from tests.doors.test_policies import DENY, NUMBERS, open_bank, write_policies
from tests.mcp.clients import sessionless
from tests.system import Reply, System, Wire

NFC, NFD = (unicodedata.normalize(form, "rückzahlung") for form in ("NFC", "NFD"))


def ask_everywhere(wire: Wire, hub: str, agent: str, skill: str) -> dict[str, Awaitable[Reply]]:
    """A call of a skill of an agent at each endpoint of a hub."""
    arguments = {"amount": 900}
    envelope = {
        "message_id": f"m-{next(NUMBERS)}",
        "performative": "TASK_REQUEST",
        "receiver": {"agent_id": agent},
        "payload": {"task_type": skill, "task_parameters": arguments},
    }
    steps = {"name": "w", "steps": [{"id": "a", "skill": skill, "with": arguments}]}
    tool: dict[str, Any] = {"name": f"{agent}__{skill}", "arguments": arguments}
    asked, headers = sessionless("tools/call", tool)
    headers.pop("mcp_name")  # a header holds no such name
    named = {"skill": skill, "agent": agent, "arguments": arguments}
    part = naming(skill, **arguments)
    return {
        "/execute": wire.call(f"{hub}/agents/{agent}", skill, arguments),
        "call_skill": wire.call(hub, "call_skill", named),
        "a workflow": wire.call(hub, "orchestrate_workflow", {"workflow": steps, "input": {}}),
        "MCP": wire.post(f"{hub}/mcp", asked, **headers),
        "messages": wire.post(f"{hub}/messages", envelope),
        "A2A": ask_a2a(wire, f"{hub}/agents/{agent}", "SendMessage", {"message": message(part)}),
        "REST": wire.post(f"{hub}/agents/{agent}/tools/call/{skill}", arguments),
    }


async def test_a_look_alike_of_a_forbidden_skill_is_no_skill_on_any_way(system: System, wire: Wire) -> None:
    bank = await open_bank(system, wire, DENY)
    for name in ("ｒefund", "rеfund", "refund\u200b", "REFUND", "refund/", "bank/refund", "refund%20"):
        for way, asking in ask_everywhere(wire, bank.hub.url, "bank", name).items():
            reply = await asking
            assert bank.refunds == [], (name, way)
            assert b"refunded" not in reply.body, (name, way, reply.body)


async def test_a_policy_binds_a_skill_whose_id_is_in_another_unicode_form(system: System, wire: Wire) -> None:
    runs: list[int] = []
    bank = Agent("bank", version="1.0.0")

    @bank.skill(NFD, expose=True)
    async def pay(amount: int) -> str:
        """Pays money back."""
        runs.append(amount)
        return "paid"

    write_policies(system, DENY.replace("bank/refund", f"bank/{NFC}"))
    await system.start_agent(bank)
    hub = await system.start_hub()
    await wire.call(hub.url, "refresh_agents", {})
    for form in (NFC, NFD):
        for way, asking in ask_everywhere(wire, hub.url, "bank", form).items():
            reply = await asking
            assert runs == [], (form, way, reply.body)
            if form == NFD and way in ("/execute", "call_skill", "a workflow", "A2A", "messages"):
                assert b"(no-refunds)" in reply.body, (way, reply.body)
