"""Lists and cards show a caller what policies let it list; published cards are shown whole or not at all."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from retinue.authoring.agent import Agent
from retinue.mcp.server.hub_offer import HubOffer
from retinue.mcp.server.offer import ToolCatalog
from retinue.policies.lists import ListDecisions
from retinue.runtime.parts.policies import LoadedPolicies
from retinue.web.issued_tokens import TokenFile
from tests.doors.test_policies import Bank, open_bank, write_policies
from tests.mcp.clients import connect, sessionless
from tests.system import Reply, System, Wire

POLICIES = """
@id("no-refunds") forbid(principal in Retinue::Group::"guests", action == Retinue::Action::"list",
    resource == Retinue::Skill::"bank/refund");
@id("no-zoe") forbid(principal in Retinue::Group::"guests", action == Retinue::Action::"list",
    resource in Retinue::Agent::"zoe");
@id("no-clerk") forbid(principal in Retinue::Group::"guests", action == Retinue::Action::"list",
    resource in Retinue::Agent::"clerk");
"""
HIDDEN = (b"refund", b"Pays money back", b"clerk", b"Asks the bank", b"zoe")


async def open_lists(system: System, wire: Wire) -> tuple[Bank, dict[str, str]]:
    (system.state.root / "policies").mkdir()
    (system.state.root / "policies" / "groups.yaml").write_text("guests: ['token:ann']", "utf-8")
    planner = Agent("zoe", version="1.0.0")

    @planner.skill(roles=["plan"])
    async def plan(prompt: str) -> str:
        """Plans."""
        return prompt

    await system.start_agent(planner)
    bank = await open_bank(system, wire, POLICIES)
    await wire.call(bank.hub.url, "refresh_agents", {})
    tokens = TokenFile(system.state.keys)
    return bank, {name: f"Bearer {tokens.issue(('mesh',), name=name)[1]}" for name in ("ann", "bob")}


async def list_everywhere(bank: Bank, token: str) -> dict[str, Reply]:
    hub, wire, headers = bank.hub.url, bank.wire, {"authorization": token}
    gets = {
        "/agent-card of the hub's path": f"{hub}/agents/bank/agent-card",
        "/agent-card of the agent": f"{bank.bank.url}/agent-card",
        "A2A card of the hub's path": f"{hub}/agents/bank/.well-known/agent-card.json",
        "A2A card of the agent": f"{bank.bank.url}/.well-known/agent-card.json",
        "ARD catalog": f"{hub}/.well-known/ai-catalog.json",
        "OpenAPI of the hub": f"{hub}/openapi.json",
        "OpenAPI of the agent": f"{bank.bank.url}/openapi.json",
        "REST of the hub": f"{hub}/tools/list",
        "REST of the agent": f"{bank.bank.url}/tools/list",
        "REST profile": f"{hub}/agents/bank/resources/read/agent:bank",
    }
    replies = {way: await wire.get(url, **headers) for way, url in gets.items()}
    calls: dict[str, dict[str, Any]] = {
        "show_agent": {"name": "bank"},
        "list_agents": {"detailed": True},
        "map_agents": {},
        "get_capabilities": {"requirements": {"role": "planning"}},
        "find_skills": {"limit": 50, "detailed": True},
    }
    for skill, arguments in calls.items():
        replies[skill] = await wire.call(hub, skill, arguments, **headers)
    read, read_headers = sessionless("resources/read", {"uri": "agent:bank"})
    replies["agent:bank"] = await wire.post(f"{hub}/mcp", read, **read_headers, **headers)
    for method in ("tools/list", "resources/list"):
        asked, asked_headers = sessionless(method, {})
        replies[f"{method} of the hub"] = await wire.post(f"{hub}/mcp", asked, **asked_headers, **headers)
    asked, asked_headers = sessionless("tools/list", {})
    url = f"{bank.bank.url}/mcp"
    replies["tools/list of the agent"] = await wire.post(url, asked, **asked_headers, **headers)
    for path in ("/mcp", "/agents/bank/mcp"):
        async with connect(f"{hub}{path}", "legacy", authorization=token) as client:
            listing = await client.list_tools()
        replies[f"tools/list of {path}, 2025-11-25"] = Reply(200, {}, str(listing).encode())
    search = {"query": {"text": "pays money back"}, "federation": "none"}
    replies["ARD search"] = await wire.post(f"{hub}/search", search, **headers)
    return replies


async def test_rendered_lists_and_cards_lack_what_policies_hide_from_their_reader(
    system: System, wire: Wire
) -> None:
    bank, tokens = await open_lists(system, wire)
    for way, reply in (await list_everywhere(bank, tokens["bob"])).items():
        assert reply.status == 200, (way, reply.body)
        assert any(hidden in reply.body for hidden in HIDDEN), (way, reply.body)
    for way, reply in (await list_everywhere(bank, tokens["ann"])).items():
        assert reply.status == 200, (way, reply.body)
        # the words of the search come back from nowhere
        assert not any(hidden in reply.body for hidden in HIDDEN), (way, reply.body)
    refused = await wire.call(bank.hub.url, "show_agent", {"name": "clerk"}, authorization=tokens["ann"])
    assert refused.error["data"]["type"] == "unknown_agent"
    # what is not listed can be called by its name all the same
    headers = {"authorization": tokens["ann"]}
    asked, mcp_headers = sessionless("tools/call", {"name": "bank__refund", "arguments": {"amount": 1}})
    for reply in (
        await bank.post("/agents/bank/tools/call/refund", {"amount": 1}, **headers),
        await bank.post("/mcp", asked, **mcp_headers, **headers),
        await wire.call(bank.bank.url, "refund", {"amount": 1}, **headers),
    ):
        assert b"refunded 1" in reply.body, reply.body


async def test_published_cards_are_shown_whole_or_not_at_all(system: System, wire: Wire) -> None:
    bank, tokens = await open_lists(system, wire)
    manifests = {}
    for name, token in tokens.items():
        catalog = await wire.get(f"{bank.hub.url}/v2/_catalog", authorization=token)
        manifests[name] = catalog.json["repositories"]
        for repository in ("agents/bank", "agents/clerk"):
            url = f"{bank.hub.url}/v2/{repository}/tags/list"
            assert (await wire.get(url, authorization=token)).status == (200 if name == "bob" else 404)
    assert manifests["ann"] == []
    assert {"agents/bank", "agents/clerk"} <= set(manifests["bob"])


async def test_lists_of_tools_are_decided_before_they_are_made(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    making: list[str] = []
    ask = ListDecisions._ask

    def note(self: ListDecisions, *facts: Any) -> bool:
        making.append(
            "made" if any("_make" in frame.name for frame in traceback.extract_stack()) else "before"
        )
        return ask(self, *facts)

    monkeypatch.setattr(ListDecisions, "_ask", note)
    text = '@id("writes") forbid(principal, action == Retinue::Action::"list", resource) '
    bank = await open_bank(system, wire, text + 'when { resource.name == "refund" };')
    await wire.call(bank.hub.url, "refresh_agents", {})
    token = TokenFile(system.state.keys).issue(("mesh",), name="ann")[1]
    asked, headers = sessionless("tools/list", {})
    reply = await wire.post(f"{bank.hub.url}/mcp", asked, **headers, authorization=f"Bearer {token}")
    assert b"bank__balance" in reply.body
    assert b"bank__refund" not in reply.body
    assert set(making) == {"before"}


async def test_the_list_of_tools_is_made_while_others_run_where_policies_change_it(
    system: System, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_table = system.settings.hub.model_copy(update={"listing": "all"})
    system.settings = system.settings.model_copy(update={"hub": hub_table})
    ask = '@id("ask") @effect("approve") forbid(principal, action == Retinue::Action::"call", resource);'
    bank = await open_bank(system, wire, POLICIES + ask)
    await wire.call(bank.hub.url, "refresh_agents", {})
    made_at_once: list[str] = []
    for where in (HubOffer, ToolCatalog):
        name = "_make" if where is HubOffer else "__init__"
        make = getattr(where, name)

        def note(self: Any, *arguments: Any, make: Any = make, **options: Any) -> Any:
            made_at_once.append("".join(traceback.format_stack(limit=4)))
            return make(self, *arguments, **options)

        monkeypatch.setattr(where, name, note)
    for url in (bank.hub.url, bank.bank.url):
        asked, headers = sessionless("tools/list", {})
        reply = await wire.post(f"{url}/mcp", asked, **headers)
        assert b"Pays money back." in reply.body
        assert made_at_once == [], url


async def test_what_is_kept_for_lists_goes_with_its_policies(system: System, wire: Wire) -> None:
    ask = '@id("ask") @effect("approve") forbid(principal, action == Retinue::Action::"call", resource);'
    conditional = '@id("hide") forbid(principal, action, resource) when { resource.version == "0" };'
    bank = await open_bank(system, wire, conditional + ask)
    await wire.call(bank.hub.url, "refresh_agents", {})
    asked, headers = sessionless("tools/list", {})
    await wire.post(f"{bank.hub.url}/mcp", asked, **headers)
    loaded = bank.hub.process.get(LoadedPolicies)
    gate = loaded.gate
    assert gate is not None
    lists, asking = gate._lists, gate._asking
    assert lists is not None
    assert asking is not None
    kept = (lists._decided, asking._asks, gate.engine._entities)
    assert all(kept)
    write_policies(system, "// none", "more.cedar")
    loaded.reload()
    assert loaded.gate is not gate
    assert not any(kept)
