"""Policies and guards over resources and prompts: a forbidden one is read on no way, and is in no list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.settings import Settings
from retinue.settings_tables import ImportsTable, ImportTable
from tests.doors.test_policies import read_approval, write_policies
from tests.mcp.clients import connect, read_result, sessionless
from tests.mcp.upstream.library_server import LISTED, Library, serve_library
from tests.system import Hub, Reply, Served, System, Wire

KEY = "ghp_" + "a1B2" * 9
DAY = {"day": "monday"}


@dataclass(slots=True)
class Desk:
    """A mesh with an agent and an imported server that offer resources and prompts."""

    hub: Hub
    notes: Served
    wire: Wire
    reads: list[str] = field(default_factory=list)

    async def ask(self, url: str, method: str, /, **params: Any) -> Reply:
        asked, headers = sessionless(method, params)
        return await self.wire.post(f"{url}/mcp", asked, **headers)


def make_notes(reads: list[str]) -> Agent:
    notes = Agent("notes", version="1.0.0")

    @notes.resource("notes://{day}", expose=True)
    async def read_note(day: str) -> str:
        reads.append(day)
        return f"on {day} the key was {KEY}"

    @notes.prompt(expose=True)
    async def summarise(day: str) -> str:
        """Asks for a summary."""
        reads.append(day)
        return f"summarise {day}, with {KEY}"

    @notes.completes("summarise", "day")
    async def complete_day(value: str) -> list[str]:
        reads.append(value)
        return [KEY]

    @notes.skill(expose=True)
    async def read_by_mcp(kind: str, ctx: Context) -> Any:
        """Reads from itself as an MCP server."""
        async with ctx.mcp("notes") as server:
            if kind == "resource":
                return await server.read_text("notes://monday")
            return str(await server.get_prompt("summarise", DAY))

    @notes.skill(expose=True)
    async def write(text: str) -> str:
        """Writes a note."""
        return text

    return notes


async def open_desk(system: System, wire: Wire, policies: str = "", **tables: Any) -> Desk:
    if policies:
        write_policies(system, policies)
    url = await system.stack.enter_async_context(serve_library(Library(), "sessionless"))
    imports = ImportsTable.model_validate({"lib": ImportTable(url=url)})
    system.settings = Settings.model_validate({"imports": imports, **tables})
    reads: list[str] = []
    notes = await system.start_agent(make_notes(reads))
    hub = await system.start_hub(durable=True)
    await hub.wait_until_healthy("lib")
    await wire.call(hub.url, "refresh_agents", {})
    return Desk(hub, notes, wire, reads)


def ways_to_note(desk: Desk, uri: str = "notes://monday") -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Ways to the resource and the prompt of the agent, and to a value of its argument."""
    day = uri.removeprefix("notes://")
    ref = {"type": "ref/prompt", "name": "summarise"}
    reads: dict[str, tuple[str, dict[str, Any]]] = {
        "resource": ("resources/read", {"uri": uri}),
        "prompt": ("prompts/get", {"name": "summarise", "arguments": {"day": day}}),
        "completion": ("completion/complete", {"ref": ref, "argument": {"name": "day", "value": day}}),
    }
    urls = {"the agent": desk.notes.url, "the agent at the hub": f"{desk.hub.url}/agents/notes"}
    return {
        f"{kind} of {place}": (url, method, params)
        for place, url in urls.items()
        for kind, (method, params) in reads.items()
    }


def ways_to_library(desk: Desk) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Ways to what an imported server offers."""
    at_hub, own = desk.hub.url, f"{desk.hub.url}/agents/lib"
    book = {"arguments": {"book": "Emma"}}
    return {
        "resource of the hub": (at_hub, "resources/read", {"uri": f"agent:lib/{LISTED}"}),
        "resource of the hub by its own name": (at_hub, "resources/read", {"uri": LISTED}),
        "prompt of the hub": (at_hub, "prompts/get", {"name": "lib__re_view", **book}),
        "resource of the import": (own, "resources/read", {"uri": LISTED}),
        "prompt of the import": (own, "prompts/get", {"name": "re:view", **book}),
    }


READS = '[Retinue::Action::"read", Retinue::Action::"prompt"]'
DENY = '@id("no-%s") @reason("closed") forbid(principal, action in %s, resource in Retinue::Agent::"%s");'


async def test_what_a_policy_forbids_is_read_on_no_way(system: System, wire: Wire) -> None:
    desk = await open_desk(system, wire, "".join(DENY % (name, READS, name) for name in ("notes", "lib")))
    for way, (url, method, params) in {**ways_to_note(desk), **ways_to_library(desk)}.items():
        reply = await desk.ask(url, method, **params)
        policy = "no-lib" if "lib" in str((url, params)) or way.endswith("own name") else "no-notes"
        assert f"is denied: closed ({policy})" in reply.body.decode(), (way, reply.body)
        assert read_result(reply.body)["error"]["data"]["type"] == "policy_denied", way
    for url in (desk.notes.url, f"{desk.hub.url}/agents/notes"):
        async with connect(f"{url}/mcp", "legacy") as client:
            for asking in (client.read_resource("notes://monday"), client.get_prompt("summarise", DAY)):
                with pytest.raises(MCPError, match=r"closed \(no-notes\)"):
                    await asking
    for kind in ("resource", "prompt"):
        reply = await wire.call(desk.notes.url, "read_by_mcp", {"kind": kind})
        assert "closed (no-notes)" in reply.error["message"], reply.body
    assert desk.reads == []
    subscribed = await desk.ask(f"{desk.hub.url}/agents/notes", "resources/subscribe", uri="notes://monday")
    assert b"is denied: closed (no-notes)" in subscribed.body
    rows = {row["skill"]: row for row in desk.hub.audit.recent(100)}
    assert rows[f"resource {LISTED}"]["error"] == rows["resources/read"]["error"] == "policy_denied"


async def test_lists_have_only_the_resources_and_prompts_that_policies_list(
    system: System, wire: Wire
) -> None:
    rule = 'forbid(principal, action == Retinue::Action::"list", resource in Retinue::Agent::"%s");'
    desk = await open_desk(system, wire, "".join(f'@id("{name}") {rule % name}' for name in ("notes", "lib")))
    own = (desk.notes.url, f"{desk.hub.url}/agents/notes", f"{desk.hub.url}/agents/lib")
    for method in ("tools/list", "resources/list", "resources/templates/list", "prompts/list"):
        for url in (*own, desk.hub.url):
            listed = (await desk.ask(url, method)).body
            assert b"summarise" not in listed, (url, method)
            assert b"lib__" not in listed, (url, method)
            assert b"agent:lib/" not in listed, (url, method)
            if url in own and (result := read_result(listed).get("result")) is not None:
                assert [] in result.values(), (url, method, result)
    # what is not listed can be read all the same
    ways = ways_to_note(desk)
    for way in ("resource of the agent", "resource of the agent at the hub"):
        url, method, params = ways[way]
        assert b"on monday" in (await desk.ask(url, method, **params)).body, way


async def test_policies_permit_reads_by_uri_arguments_and_caller(system: System, wire: Wire) -> None:
    policies = """
        @id("mondays") forbid(principal, action == Retinue::Action::"read",
            resource in Retinue::Agent::"notes")
        unless { resource.name like "notes://monday*" };
        @id("prompts") forbid(principal, action == Retinue::Action::"prompt",
            resource == Retinue::Prompt::"notes/summarise")
        unless { context.args has day && context.args.day == "monday" };
    """
    desk = await open_desk(system, wire, policies)
    for day, is_permitted in (("monday", True), ("sunday", False)):
        for way, (url, method, params) in ways_to_note(desk, f"notes://{day}").items():
            reply = await desk.ask(url, method, **params)
            assert (b"is denied" in reply.body) is not is_permitted, (day, way, reply.body)
    assert set(desk.reads) == {"monday"}
    for way, (url, method, params) in ways_to_library(desk).items():
        assert b"is denied" not in (await desk.ask(url, method, **params)).body, way


async def test_a_person_approves_one_read(system: System, wire: Wire) -> None:
    rule = 'principal, action == Retinue::Action::"read", resource in Retinue::Agent::"notes"'
    desk = await open_desk(system, wire, f'@id("ask") @effect("approve") forbid({rule});')
    url, method, params = ways_to_note(desk)["resource of the agent at the hub"]
    approval = read_approval(await desk.ask(url, method, **params))
    assert desk.reads == []
    owner = {"authorization": f"Bearer {system.state.owner_token()}"}
    await wire.call(desk.hub.url, "answer_approval", {"approval": approval, "verdict": "yes"}, **owner)
    assert b"on monday" in (await desk.ask(url, method, **params)).body
    assert b"needs the approval" in (await desk.ask(url, method, **params)).body
    assert desk.reads == ["monday"]


async def test_guards_look_at_what_is_read(system: System, wire: Wire) -> None:
    desk = await open_desk(system, wire, guards={"secrets": {"use": "sensitive"}})
    for kind in ("resource", "prompt", "completion"):
        url, method, params = ways_to_note(desk)[f"{kind} of the agent"]
        reply = await desk.ask(url, method, **params)
        assert KEY.encode() not in reply.body
        assert b"[key]" in reply.body, (kind, reply.body)


async def test_a_prompt_whose_name_looks_like_a_uri_is_completed_as_a_prompt(
    system: System, wire: Wire
) -> None:
    write_policies(
        system, '@id("no-prompts") forbid(principal, action == Retinue::Action::"prompt", resource);'
    )
    notes, seen = Agent("notes", version="1.0.0"), list[str]()

    @notes.prompt("daily:sum/up", expose=True)
    async def sum_up(day: str) -> str:
        return day

    @notes.completes("daily:sum/up", "day")
    async def complete_day(value: str) -> list[str]:
        seen.append(value)
        return ["monday"]

    served = await system.start_agent(notes)
    replies = {}
    for kind, key in (("prompt", "name"), ("resource", "uri")):
        ref = {"type": f"ref/{kind}", key: "daily:sum/up"}
        asked, headers = sessionless(
            "completion/complete", {"ref": ref, "argument": {"name": "day", "value": "m"}}
        )
        replies[kind] = (await wire.post(f"{served.url}/mcp", asked, **headers)).body
    assert b"is denied: no-prompts" in replies["prompt"]
    # nothing else of this name is completed instead
    assert b"monday" not in replies["resource"]
    assert seen == []


ALL_READS = 'principal, action in [Retinue::Action::"read", Retinue::Action::"prompt"], resource'


async def test_a_limit_counts_the_reads_of_all_ways_together(system: System, wire: Wire) -> None:
    rule = f'@effect("limit") @limit("3 per hour") @reason("read slowly") forbid({ALL_READS});'
    desk = await open_desk(system, wire, f'@id("few") {rule}')
    ways = {
        **{way: asked for way, asked in ways_to_note(desk).items() if "at the hub" in way},
        **ways_to_library(desk),
    }
    for number, (way, (url, method, params)) in enumerate(ways.items()):
        body = (await desk.ask(url, method, **params)).body
        assert (b"is limited to 3 per hour: read slowly (few)" in body) == (number >= 3), (way, body)
    assert len(desk.reads) == 3


async def test_a_masked_value_is_read_on_no_way(system: System, wire: Wire) -> None:
    rule = f'@effect("redact") @results("key") @arguments("email") forbid({ALL_READS});'
    desk = await open_desk(system, wire, f'@id("mask") {rule}')
    for way, (url, method, params) in ways_to_note(desk).items():
        body = (await desk.ask(url, method, **params)).body
        assert KEY.encode() not in body, way
        # the hub's endpoint of a masked agent has tools only
        assert (b"[key]" in body) == ("at the hub" not in way), (way, body)
    async with connect(f"{desk.notes.url}/mcp", "legacy") as client:
        prompt = await client.get_prompt("summarise", {"day": "jane@corp-mail.com"})
        for reply in (await client.read_resource("notes://monday"), prompt):
            assert KEY not in str(reply)
            assert "[key]" in str(reply)
    assert "jane@corp-mail.com" not in str(desk.reads)
    for kind in ("resource", "prompt"):
        assert KEY.encode() not in (await wire.call(desk.notes.url, "read_by_mcp", {"kind": kind})).body


async def test_a_mask_of_one_agent_leaves_the_endpoints_of_others_as_they_are(
    system: System, wire: Wire
) -> None:
    masks = (
        '@id("%s") @effect("redact") @results("key") '
        'forbid(principal, action in Retinue::Action::"use", resource %s);'
    )
    other = masks % ("agent", 'in Retinue::Agent::"bank"') + masks % (
        "skill",
        '== Retinue::Skill::"bank/refund"',
    )
    desk = await open_desk(system, wire, other)
    for way, (url, method, params) in ways_to_note(desk).items():
        assert KEY.encode() in (await desk.ask(url, method, **params)).body, way
