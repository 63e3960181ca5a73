"""Access over every endpoint: what is not allowed answers exactly as what is not there.

An endpoint is one entry of ``ENDPOINTS``: how it is asked for an agent and a skill. Each is asked in two
worlds: in one there is an agent that the caller does not see, in the other there is none. Their answers
must be the same, byte for byte.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.cards.pallet_card import encode_card, render_card
from retinue.core.record import AgentRecord
from retinue.core.record import Endpoint as CardEndpoint
from retinue.oci.registry import publish_card
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.a2a.wire import ask as ask_a2a
from tests.a2a.wire import message, naming, parts_of
from tests.mcp.clients import ACCEPT, read_result, sessionless
from tests.requirements import requirement
from tests.system import NOON, Hub, Reply, Served, System, Wire, open_system

SECRET, SKILL = "secret-agent", "keep_secret"
WORD = "secret://word"
CLIENT = {"name": "test", "version": "1"}


@dataclass(frozen=True, slots=True)
class World:
    """A hub with some agents; ``secret`` is served in one of two worlds only."""

    system: System
    hub: Hub
    agents: dict[str, Served]
    wire: Wire

    def token(self, *scopes: str, agents: tuple[str, ...] = (), name: str | None = None) -> dict[str, str]:
        """The header of a new token, which the endpoints know when they look next."""
        _, text = TokenFile(self.system.state.keys).issue(scopes, agents=agents, name=name)
        return {"authorization": f"Bearer {text}"}


def make_agents(with_secret: bool) -> list[Agent]:
    open_agent = Agent("open-agent", version="1.0.0")

    @open_agent.skill(expose=True)
    async def open_door() -> str:
        """Opens the door."""
        return "open"

    @open_agent.skill
    async def whisper() -> str:
        """Says something among agents."""
        return "psst"

    @open_agent.skill
    async def ask_around(skill: str, ctx: Context, agent: str | None = None) -> Any:
        """Calls somebody else."""
        return await ctx.call(skill, agent=agent)

    if not with_secret:
        return [open_agent]
    secret = Agent(SECRET, version="1.0.0")

    @secret.skill(SKILL, expose=True, roles=["review"])
    async def keep_secret(ctx: Context) -> str:
        """Keeps a secret that nobody knows."""
        return f"told {ctx.principal.id}"

    @secret.resource(WORD, expose=True)
    async def word() -> str:
        """The secret word."""
        return "told"

    return [open_agent, secret]


async def start(stack: AsyncExitStack, home: Path, wire: Wire, with_secret: bool, **settings: Any) -> World:
    system = await stack.enter_async_context(open_system(State(home), **settings))
    agents = {agent.name: await system.start_agent(agent) for agent in make_agents(with_secret)}
    return World(system, await system.start_hub(), agents, wire)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


Endpoint = Callable[[World, dict[str, str]], Awaitable[Reply]]


def hub_skill(skill_id: str, **arguments: Any) -> Endpoint:
    return lambda world, token: world.wire.call(world.hub.url, skill_id, arguments, **token)


def envelope(receiver: str, performative: str, **payload: Any) -> dict[str, Any]:
    """A message with a fixed id."""
    return {
        "message_id": "m",
        "performative": performative,
        "receiver": {"agent_id": receiver},
        "payload": payload,
    }


def messages(path: str, receiver: str, performative: str, **payload: Any) -> Endpoint:
    """One message; the ids and times of replies are taken out by `plain`."""
    message = envelope(receiver, performative, **payload)
    return lambda world, token: world.wire.post(f"{world.hub.url}{path}", message, **token)


MESSAGES: dict[str, dict[str, Any]] = {
    "QUERY_CAPABILITIES": {"query_type": "summary"},
    "QUERY_IF": {"condition": {"action": SKILL}},
    "QUERY_REF": {"reference": SKILL},
    "TASK_REQUEST": {"task_type": SKILL},
    "PROPOSE": {"task_type": SKILL},
    "CANCEL": {"task_id": "t"},
}


def mcp(path: str, method: str, **params: Any) -> Endpoint:
    """One request of the sessionless era."""
    message, headers = sessionless(method, params)
    return lambda world, token: world.wire.post(f"{world.hub.url}{path}", message, **headers, **token)


def mcp_session(path: str, method: str, **params: Any) -> Endpoint:
    """One request in a session of the handshake era, or the refusal of that session."""

    async def ask(world: World, token: dict[str, str]) -> Reply:
        url, headers = f"{world.hub.url}{path}", {"accept": ACCEPT, **token}
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
        opened = await world.wire.post(url, request("initialize", client), **headers)
        if "mcp-session-id" not in opened.headers:
            return opened
        headers["mcp_session_id"] = opened.headers["mcp-session-id"]
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await world.wire.post(url, told, **headers)).status == 202
        return await world.wire.post(url, request(method, params), **headers)

    return ask


def a2a(path: str, method: str, *parts: Any) -> Endpoint:
    """One A2A request; a message with these parts, if there are some."""
    params: Any = {}
    if parts:
        read = [{"text": part} if isinstance(part, str) else part for part in parts]
        role = "user" if "/" in method else "ROLE_USER"
        params = {"message": {"messageId": "m", "role": role, "parts": read}}
    return lambda world, token: ask_a2a(world.wire, f"{world.hub.url}{path}", method, params, **token)


def request(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def workflow(**step: Any) -> Endpoint:
    """A workflow with one step, which the caller defines."""
    definition = {"name": "w", "steps": [{"id": "a", **step}]}
    return hub_skill("orchestrate_workflow", workflow=definition, input={"prompt": "x"}, run="r")


ENDPOINTS: dict[str, Endpoint] = {
    "/execute by skill": lambda w, t: w.wire.call(w.hub.url, SKILL, {}, **t),
    "/execute with a version": lambda w, t: w.wire.call(w.hub.url, SKILL, {}, x_retinue_version=">=9", **t),
    "/execute of the agent": lambda w, t: w.wire.call(f"{w.hub.url}/agents/{SECRET}", SKILL, {}, **t),
    "/execute of its other name": lambda w, t: w.wire.call(
        f"{w.hub.url}/agents/{SECRET}@home", SKILL, {}, **t
    ),
    "/execute, nearly its name": lambda w, t: w.wire.call(f"{w.hub.url}/agents/secret-agenT", SKILL, {}, **t),
    "/execute, nearly its skill": lambda w, t: w.wire.call(w.hub.url, "keep_secrets", {}, **t),
    "card": lambda w, t: w.wire.get(f"{w.hub.url}/agents/{SECRET}/agent-card", **t),
    "card of its other name": lambda w, t: w.wire.get(f"{w.hub.url}/agents/{SECRET}@home/agent-card", **t),
    "show_agent": hub_skill("show_agent", name=SECRET),
    "find_skills by id": hub_skill("find_skills", skill=SKILL),
    "find_skills of the agent": hub_skill("find_skills", agent=SECRET),
    "find_skills by words": hub_skill("find_skills", query="keeps a secret that nobody knows"),
    "find_skills by words, misspelt": hub_skill("find_skills", query="nobdy sercet"),
    "find_skills, why": hub_skill("find_skills", query="secret", why=SECRET),
    "find_skills by words, of the agent": hub_skill("find_skills", query="secret", agent=SECRET),
    "call_skill": hub_skill("call_skill", skill=SKILL),
    "call_skill of the agent": hub_skill("call_skill", skill=SKILL, agent=SECRET),
    "list_agents": hub_skill("list_agents"),
    "list_agents by words": hub_skill("list_agents", query="secret"),
    "list_agents, the first": hub_skill("list_agents", limit=1),
    "refresh_agents": hub_skill("refresh_agents"),
    "workflow by skill": workflow(skill=SKILL),
    "workflow, nearly its skill": workflow(skill="keep_secrets"),
    "workflow by agent": workflow(skill=SKILL, agent=SECRET),
    "workflow by agent, another skill": workflow(skill="open_door", agent=SECRET),
    "workflow by version": workflow(skill=SKILL, version=">=9"),
    "workflow by role": workflow(prompt="x", role="review"),
    "workflow by role and agent": workflow(prompt="x", role="review", agent=SECRET),
    "workflow by role, nearly its name": workflow(prompt="x", role="review", agent="secret-agenT"),
    "workflow of all with the role": workflow(parallel={"role": "review", "prompt": "x"}),
    "workflow with a reviewer": workflow(
        parallel={"mode": "merge", "role": "execute", "prompt": "x", "reviewer": SECRET}
    ),
    "workflow that undoes": workflow(skill="open_door", compensate={"skill": SKILL}, validate="false"),
    "built-in workflow": hub_skill(
        "orchestrate_workflow", workflow="direct", input={"prompt": "x", "role": "review"}, run="r"
    ),
    "REST, resources": lambda w, t: w.wire.get(f"{w.hub.url}/resources/list", **t),
    "REST, tools": lambda w, t: w.wire.get(f"{w.hub.url}/tools/list", **t),
    "REST, read": lambda w, t: w.wire.get(f"{w.hub.url}/resources/read/agent:{SECRET}", **t),
    "REST of the agent, resources": lambda w, t: w.wire.get(
        f"{w.hub.url}/agents/{SECRET}/resources/list", **t
    ),
    "REST of the agent, tools": lambda w, t: w.wire.get(f"{w.hub.url}/agents/{SECRET}/tools/list", **t),
    "REST of the agent, read": lambda w, t: w.wire.get(
        f"{w.hub.url}/agents/{SECRET}/resources/read/agent:{SECRET}", **t
    ),
    "REST of the agent, call": lambda w, t: w.wire.post(
        f"{w.hub.url}/agents/{SECRET}/tools/call/{SKILL}", {}, **t
    ),
    "A2A by skill": a2a("", "SendMessage", naming(SKILL)),
    "A2A 0.3 by skill": a2a("", "message/send", {"kind": "data", **naming(SKILL)}),
    "A2A, text": a2a("", "SendMessage", "hello"),
    "A2A, nearly its skill": a2a("", "SendStreamingMessage", naming("keep_secrets")),
    "A2A of the agent": a2a(f"/agents/{SECRET}", "SendMessage", naming(SKILL)),
    "A2A of the agent, text": a2a(f"/agents/{SECRET}/", "SendMessage", "hello"),
    "A2A of the agent, stream": a2a(f"/agents/{SECRET}", "SendStreamingMessage", naming(SKILL)),
    "A2A of its other name": a2a(f"/agents/{SECRET}@home", "SendMessage", naming(SKILL)),
    "A2A of the agent, tasks": a2a(f"/agents/{SECRET}", "ListTasks"),
    "A2A of the agent, card": a2a(f"/agents/{SECRET}", "GetExtendedAgentCard"),
    "A2A card": lambda w, t: w.wire.get(f"{w.hub.url}/agents/{SECRET}/.well-known/agent-card.json", **t),
    "A2A card of the hub": lambda w, t: w.wire.get(f"{w.hub.url}/.well-known/agent-card.json", **t),
    "MCP, tools": mcp("/mcp", "tools/list"),
    "MCP, tools in a session": mcp_session("/mcp", "tools/list"),
    "MCP, resources": mcp("/mcp", "resources/list"),
    "MCP, call": mcp("/mcp", "tools/call", name=f"{SECRET}__{SKILL}"),
    "MCP, call by its other name": mcp("/mcp", "tools/call", name=f"{SECRET}@home.{SKILL}"),
    "MCP, call in a session": mcp_session("/mcp", "tools/call", name=f"{SECRET}__{SKILL}"),
    "MCP, call_skill": mcp("/mcp", "tools/call", name="call_skill", arguments={"skill": SKILL}),
    "MCP, list_agents": mcp("/mcp", "tools/call", name="list_agents"),
    "MCP, read": mcp("/mcp", "resources/read", uri=f"agent:{SECRET}"),
    "MCP, complete": mcp(
        "/mcp",
        "completion/complete",
        ref={"type": "ref/resource", "uri": "agent:{name}"},
        argument={"name": "name", "value": "sec"},
    ),
    "MCP of the agent, tools": mcp(f"/agents/{SECRET}/mcp", "tools/list"),
    "MCP of the agent, call": mcp(f"/agents/{SECRET}/mcp", "tools/call", name=SKILL),
    "MCP of the agent, session": mcp_session(f"/agents/{SECRET}/mcp", "tools/list"),
    "MCP of the agent, read": mcp(f"/agents/{SECRET}/mcp", "resources/read", uri=WORD),
    "MCP of its other name": mcp(f"/agents/{SECRET}@home/mcp", "tools/call", name=SKILL),
    "messages, task of anybody": messages("/messages", "*", "TASK_REQUEST", task_type=SKILL),
    "messages, task of the hub": messages("/messages", "", "TASK_REQUEST", task_type=SKILL),
    "messages, nearly its skill": messages("/messages", "*", "TASK_REQUEST", task_type="keep_secrets"),
    "messages, nearly its name": messages("/messages", "secret-agenT", "TASK_REQUEST", task_type=SKILL),
    "messages, all capabilities": messages("/messages", "*", "QUERY_CAPABILITIES", query_type="summary"),
    "messages, agents": messages("/messages", "", "QUERY_REF", reference="agents"),
    "messages, send_message": hub_skill(
        "send_message", message=envelope(SECRET, "TASK_REQUEST", task_type=SKILL)
    ),
    **{
        f"messages, {performative} {path}": messages(path, receiver, performative, **payload)
        for path, receiver in (("/messages", SECRET), (f"/agents/{SECRET}/messages", ""))
        for performative, payload in MESSAGES.items()
    },
    "MCP of the agent, stream": lambda w, t: w.wire.get(f"{w.hub.url}/agents/{SECRET}/mcp", **t),
    "MCP of the agent, lost session": lambda w, t: w.wire.get(
        f"{w.hub.url}/agents/{SECRET}/mcp", mcp_session_id="0" * 32, **t
    ),
}
"""Endpoints of the hub, each asked for what the caller does not see."""

CALLERS: dict[str, Callable[[World], dict[str, str]]] = {
    "anonymous, whom it does not hear": lambda world: {},
    "a token that it does not hear": lambda world: world.token("mesh"),
    "the state's token, which it does not hear": lambda world: {"authorization": world.system.token},
    "a token for other agents": lambda world: world.token("mesh", agents=("open-*", "retinue")),
}


def plain(reply: Reply) -> tuple[int, bytes]:
    """The answer without what differs between any two processes: ports, times, digests, call ids."""
    body = re.sub(rb"127\.0\.0\.1:\d+|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)|sha256:[0-9a-f]+", b"", reply.body)
    body = re.sub(rb'"(message_id|task_id)":"[0-9a-f]{32}"', b"", body)
    body = re.sub(rb'"(id|taskId|contextId|messageId)":"[0-9a-f]{8}-[0-9a-f-]{27}"', b"", body)  # of A2A
    body = re.sub(rb'"signatures":\[[^\]]*\]', b"", body)  # of another key in each state
    return reply.status, re.sub(rb'"(mean|p50|p95|ms|latency)[a-z_0-9]*":[\d.]+', b"", body)


@requirement("S-17")
@pytest.mark.parametrize("caller", CALLERS)
async def test_what_a_caller_does_not_see_answers_as_what_is_not_there(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, caller: str
) -> None:
    access = {} if caller == "a token for other agents" else {SECRET: {"receive": ["token:friend"]}}
    with_it = await start(stack, tmp_path / "with", wire, True, access=access)
    without = await start(stack, tmp_path / "without", wire, False)
    tokens = [CALLERS[caller](world) for world in (with_it, without)]
    for name, ask in ENDPOINTS.items():
        hidden, missing = plain(await ask(with_it, tokens[0])), plain(await ask(without, tokens[1]))
        assert hidden == missing, name
        assert name.startswith("list") or b"told" not in hidden[1], name


SECRET_PLACES = ("/v2/agents/secret/tags/list", "/v2/agents/secret/manifests/v1", "/v2/agents/secret/x")


async def read_registry(world: World, digests: tuple[str, str], token: dict[str, str]) -> list[Reply]:
    """The answers about the agent: lists, its tags, its manifest and card by name and by digest."""
    manifest, blob = digests
    wanted = orjson.dumps({"manifests": {"agents/secret": manifest}})
    url = world.hub.url
    answers = [
        await world.wire.get(f"{url}/v2/_catalog", **token),
        await world.wire.get(f"{url}/v2/_catalog?n=1&last=agents/open", **token),
        await world.wire.get(f"{url}/v2/_catalog", accept="application/vnd.retinue.catalog.v1+json", **token),
        await world.wire.post(f"{url}/v2/_manifests", wanted, **token),
        await world.wire.get(f"{url}/v2/agents/secret/manifests/{manifest}", **token),
        await world.wire.get(f"{url}/v2/agents/secret/blobs/{blob}", **token),
        await world.wire.get(f"{url}/v2/agents/secret/blobs/{blob}", range="bytes=0-5", **token),
        await world.wire.get(
            f"{url}/v2/agents/secret/manifests/{manifest}", if_none_match=f'"{manifest}"', **token
        ),
    ]
    return answers + [await world.wire.get(f"{url}{path}", **token) for path in SECRET_PLACES]


@requirement("S-17")
@pytest.mark.parametrize("caller", ["anonymous, whom it does not hear", "a token that it does not hear"])
async def test_the_registry_has_no_card_of_an_agent_for_callers_that_do_not_see_it(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, caller: str
) -> None:
    access = {SECRET: {"receive": ["token:friend"]}}
    with_it = await start(stack, tmp_path / "with", wire, True, access=access)
    without = await start(stack, tmp_path / "without", wire, False)
    own = {"authorization": with_it.system.token}
    found = await wire.get(f"{with_it.hub.url}/v2/agents/secret/manifests/v1", **own)
    digests = found.headers["docker-content-digest"], found.json["layers"][0]["digest"]
    tokens = [CALLERS[caller](world) for world in (with_it, without)]
    hidden = await read_registry(with_it, digests, tokens[0])
    missing = await read_registry(without, digests, tokens[1])
    assert [plain(one) for one in hidden] == [plain(one) for one in missing]
    assert "agents/open" in hidden[0].json["repositories"]
    assert (await wire.get(f"{with_it.hub.url}/v2/agents/open/manifests/v1", **tokens[0])).status == 200
    # whom it hears, the commands of the state and machines that have joined read it
    _, joined = TokenFile(with_it.system.state.keys).issue(["mesh"], kind="join")
    for token in (with_it.token("mesh", name="friend"), own, {"authorization": f"Bearer {joined}"}):
        shown = await read_registry(with_it, digests, token)
        assert [one.status for one in shown] == [200] * 6 + [206, 304, 200, 200, 404]
        assert "agents/secret" in shown[0].json["repositories"]
        assert b"secret" in shown[3].body


@requirement("S-17")
async def test_a_repository_whose_agent_is_not_known_is_shown_to_no_caller_from_whom_one_is_hidden(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    """A card that no source takes is in no list; nobody can say who may see it."""
    world = await start(stack, tmp_path, wire, True, access={SECRET: {"receive": ["token:friend"]}})
    open_world = await start(stack, tmp_path / "open", wire, True)
    for one, status in ((world, 404), (open_world, 200)):
        record = AgentRecord("loud-agent", endpoints=(CardEndpoint("execute", "http://127.0.0.1:9"),))
        refused = encode_card(render_card(record, scopes=frozenset({"mesh"}))).replace(
            b"loud-agent", b"loud\\u202eagent"
        )
        await publish_card(
            one.system.home, "loud-agent", refused, version=None, skills=(), created=NOON, tag="v1"
        )
        reply = await wire.get(f"{one.hub.url}/v2/agents/loud/tags/list", **one.token("mesh"))
        assert reply.status == status, reply.body
        own = {"authorization": one.system.token}
        assert (await wire.get(f"{one.hub.url}/v2/agents/loud/tags/list", **own)).status == 200


@requirement("S-17")
async def test_whom_the_agent_hears_sees_it_at_every_endpoint(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, True, access={SECRET: {"receive": ["token:friend"]}})
    friend = world.token("mesh", name="friend")
    told = await wire.call(world.hub.url, SKILL, {}, **friend)
    assert told.result == "told token:friend"
    straight = await wire.call(world.agents[SECRET].url, SKILL, {}, **friend)
    assert straight.result == "told token:friend"
    for url, name in (
        (f"{world.hub.url}/mcp", f"{SECRET}__{SKILL}"),
        (f"{world.hub.url}/agents/{SECRET}/mcp", SKILL),
        (f"{world.agents[SECRET].url}/mcp", SKILL),
    ):
        assert name in {tool["name"] for tool in (await ask_mcp(wire, url, "tools/list", **friend))["tools"]}
        called = await ask_mcp(wire, url, "tools/call", {"name": name}, **friend)
        assert called["content"][0]["text"] == "told token:friend"
    for url in (f"{world.hub.url}/agents/{SECRET}", world.agents[SECRET].url):
        task = (
            await ask_a2a(wire, url, "SendMessage", {"message": message(naming(SKILL))}, **friend)
        ).result["task"]
        assert parts_of(task) == [{"text": "told token:friend"}]
        path = "/.well-known/agent-card.json"
        assert [skill["id"] for skill in (await wire.get(url + path, **friend)).json["skills"]] == [SKILL]
    for url in (f"{world.hub.url}/agents/{SECRET}/mcp", f"{world.agents[SECRET].url}/mcp"):
        read = await ask_mcp(wire, url, "resources/read", {"uri": WORD}, **friend)
        assert read["contents"][0]["text"] == "told"
    card = await wire.get(f"{world.hub.url}/agents/{SECRET}/agent-card", **friend)
    assert [skill["id"] for skill in card.json["skills"]] == [SKILL]
    listed = (await wire.call(world.hub.url, "list_agents", {}, **friend)).result["agents"]
    assert {row["name"] for row in listed} == {"open-agent", SECRET}


@requirement("S-17")
async def test_at_its_own_endpoint_an_agent_has_no_skills_for_whom_it_does_not_hear(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, True, access={SECRET: {"receive": ["token:friend"]}})
    url = world.agents[SECRET].url
    for token in ({}, world.token("mesh"), world.token("mesh", agents=("open-*",))):
        for path in ("/agent-card", "/.well-known/agent-card.json"):
            card = await wire.get(url + path, **token)
            assert card.json["skills"] == []
            assert WORD.encode() not in card.body
        hidden = await wire.call(url, SKILL, {}, **token)
        missing = await wire.call(url, "keep_nothing", {}, **token)
        assert hidden.body == missing.body.replace(b"keep_nothing", SKILL.encode())
        assert SECRET.encode() not in hidden.body
        endpoint = f"{url}/mcp"
        assert (await ask_mcp(wire, endpoint, "tools/list", **token))["tools"] == []
        assert (await ask_mcp(wire, endpoint, "resources/list", **token))["resources"] == []
        for method, key, hidden_one, missing_one in (
            ("tools/call", "name", SKILL, "keep_nothing"),
            ("resources/read", "uri", WORD, "secret://none"),
        ):
            answers = []
            for named in (hidden_one, missing_one):
                message, headers = sessionless(method, {key: named})
                body = (await wire.post(endpoint, message, **headers, **token)).body
                answers.append(body.replace(named.encode(), b""))
            assert answers[0] == answers[1]
            assert b'rror":' in answers[0], "a JSON-RPC error, or a result with isError"
        for performative in ("TASK_REQUEST", "PROPOSE"):
            told = []
            for skill in (SKILL, "keep_nothing"):
                message = envelope("", performative, task_type=skill)
                reply = (await wire.post(f"{url}/messages", message, **token)).json
                assert reply["payload"]["reason_code"] == "incapable"
                told.append(orjson.dumps(reply["payload"]).replace(skill.encode(), b""))
            assert told[0] == told[1]
        asked = envelope("", "QUERY_CAPABILITIES", query_type="summary")
        refused = (await wire.post(f"{url}/messages", asked, **token)).json
        assert (refused["performative"], refused["payload"]["reason_code"]) == ("TASK_REJECT", "incapable")


async def ask_mcp(wire: Wire, url: str, method: str, params: Any = None, **token: str) -> Any:
    """The result of one request of the sessionless era."""
    message, headers = sessionless(method, params or {})
    reply = await wire.post(url, message, **headers, **token)
    return read_result(reply.body)["result"]


@requirement("S-17")
async def test_a_forged_name_of_a_caller_opens_nothing(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, True, access={SECRET: {"receive": ["open-agent"]}})
    forged = {"x_retinue_for": "open-agent", "x_retinue_rights": "exposed mesh runs_code"}
    for base in (world.hub.url, world.agents[SECRET].url):
        for token in ({}, world.token("mesh")):
            assert (await wire.call(base, SKILL, {}, **forged, **token)).error["code"] == -32601
            names = {
                tool["name"]
                for tool in (await ask_mcp(wire, f"{base}/mcp", "tools/list", **forged, **token))["tools"]
            }
            assert not [name for name in names if SKILL in name]
    asked = await wire.call(world.hub.url, "ask_around", {"skill": SKILL})
    assert asked.result == "told open-agent", "the agent itself, through the hub"


@requirement("S-17")
async def test_an_agent_calls_nobody_beyond_its_list(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, True, access={"open-agent": {"send": ["other-agent"]}})
    for arguments in ({"skill": SKILL}, {"skill": SKILL, "agent": SECRET}):
        reply = await wire.call(world.hub.url, "ask_around", arguments)
        assert "open-agent may not call keep_secret" in reply.error["message"]
    assert (await wire.call(world.hub.url, SKILL)).result == "told anonymous"


@pytest.mark.parametrize("send", [["secret-*"], ["*/keep_*"], ["secret-agent/keep_secret"]])
async def test_an_agent_calls_whom_its_list_has(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, send: list[str]
) -> None:
    world = await start(stack, tmp_path, wire, True, access={"open-agent": {"send": send}})
    assert (await wire.call(world.hub.url, "ask_around", {"skill": SKILL})).result == "told open-agent"


SCOPED = {"exposed": {"open_door", SKILL}, "mesh": {"open_door", "whisper", "ask_around", SKILL}}


@requirement("S-17")
@pytest.mark.parametrize("scope", SCOPED)
async def test_a_token_shows_and_opens_what_its_scope_has(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, scope: str
) -> None:
    world = await start(stack, tmp_path, wire, True)
    token = world.token(scope)
    rows = (await wire.call(world.hub.url, "find_skills", {"limit": 100}, **token)).result["skills"]
    assert {row["skill"] for row in rows} == SCOPED[scope]
    for base in (world.hub.url, f"{world.hub.url}/agents/open-agent", world.agents["open-agent"].url):
        assert (await wire.call(base, "open_door", {}, **token)).result == "open"
        reply = await wire.call(base, "whisper", {}, **token)
        assert ("result" in reply.json) is (scope == "mesh")
        missing = await wire.call(base, "wh1sp3r_x", {}, **token)
        if scope == "exposed":
            assert reply.body == missing.body.replace(b"wh1sp3r_x", b"whisper")


async def test_a_token_that_shows_a_part_opens_no_registry_and_starts_no_workflow(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, True)
    for token in (world.token("mesh", agents=("open-*", "retinue")), world.token("exposed")):
        for path in ("/v2/", "/v2/_catalog", "/v2/agents/open/tags/list", "/v2/agents/none/tags/list"):
            reply = await wire.get(f"{world.hub.url}{path}", **token)
            assert (reply.status, reply.json["errors"][0]["code"]) == (403, "DENIED")
    limited = world.token("mesh", agents=("open-*", "retinue"))
    for skill in ("orchestrate_workflow", "start_run"):
        arguments = {"workflow": {"name": "x", "steps": [{"id": "a", "skill": SKILL}]}, "input": {}}
        reply = await wire.call(world.hub.url, skill, arguments, **limited)
        assert "runs no workflows" in reply.error["message"]


async def test_only_the_mesh_itself_publishes(stack: AsyncExitStack, tmp_path: Path, wire: Wire) -> None:
    world = await start(stack, tmp_path, wire, False)
    path = f"{world.hub.url}/v2/agents/evil/blobs/uploads/"
    for token in ({}, world.token("mesh", "runs_code")):
        assert (await wire.post(path, b"", **token)).status == 401
    _, joined = TokenFile(world.system.state.keys).issue(["mesh"], kind="join")
    for token in ({"authorization": world.system.token}, {"authorization": f"Bearer {joined}"}):
        assert (await wire.post(path, b"", **token)).status == 202


AGENTS = ("/agents/open-agent", "/agents/nobody")

PATHS = (
    ("POST", "/execute"),
    ("POST", "/agents/open-agent/execute"),
    ("POST", "/agents/nobody/execute"),
    ("GET", "/agent-card"),
    ("GET", "/agents/open-agent/agent-card"),
    ("GET", "/agents/nobody/agent-card"),
    ("POST", "/"),
    ("POST", "/agents/open-agent"),
    ("POST", "/agents/nobody/"),
    ("GET", "/.well-known/agent-card.json"),
    ("POST", "/mcp"),
    ("POST", "/agents/open-agent/mcp"),
    ("GET", "/v2/"),
    ("GET", "/v2/_catalog"),
    ("POST", "/hooks/registry"),
    ("POST", "/messages"),
    ("POST", "/agents/open-agent/messages"),
    ("GET", "/nothing"),
)


@requirement("S-17")
async def test_without_anonymous_callers_every_endpoint_but_health_wants_a_token(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    auth = {"anonymous": False, "authorization_servers": ["https://login.example.org"]}
    world = await start(stack, tmp_path, wire, True, auth=auth)
    for base in (world.hub.url, world.agents["open-agent"].url):
        answers = set()
        for method, path in PATHS:
            for token in ({}, {"authorization": "Bearer rtn_00000000_unknown"}):
                endpoint = f"{base}{path}"
                ask = wire.get(endpoint, **token) if method == "GET" else wire.post(endpoint, {}, **token)
                reply = await ask
                assert reply.status == 401, path
                assert "www-authenticate" in reply.headers
                is_a2a = method == "POST" and path.removesuffix("/") in ("", *AGENTS)
                kind = "a2a" if is_a2a else "execute" if path.endswith("/execute") else "other"
                answers.add((kind, bool(token), reply.body))
        assert len(answers) == 6, "the same answer, whatever was asked for"
        assert (await wire.get(f"{base}/health")).status == 200
        assert (await wire.get(f"{base}/.well-known/oauth-protected-resource/mcp")).status == 200
    token = world.token("mesh")
    assert (await wire.call(world.hub.url, SKILL, {}, **token)).result.startswith("told token:")
    asked = await wire.call(world.hub.url, "ask_around", {"skill": SKILL}, **token)
    assert asked.result == "told open-agent", "agents of the mesh know each other"


@requirement("S-17")
async def test_a_token_of_an_issuer_opens_the_endpoints_that_its_scopes_do(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    key = ECKey.generate_key("P-256", {"kid": "ec-1"})
    keys = tmp_path / "keys.json"
    keys.write_bytes(orjson.dumps(KeySet([key]).as_dict(private=False)))
    auth = {"anonymous": False, "jwks_file": keys, "issuer": "https://login", "audience": ["retinue"]}
    world = await start(stack, tmp_path / "home", wire, True, auth=auth)

    def make_token(**changes: Any) -> dict[str, str]:
        claims = {"iss": "https://login", "aud": "retinue", "sub": "alice", "exp": time.time() + 60}
        text = jwt.encode({"alg": "ES256", "kid": "ec-1"}, {**claims, **changes}, key, algorithms=["ES256"])
        return {"authorization": f"Bearer {text}"}

    for base in (world.hub.url, world.agents[SECRET].url):
        told = await wire.call(base, SKILL, {}, **make_token(scope="exposed"))
        assert told.result == "told jwt:alice"
        expired = await wire.call(base, SKILL, {}, **make_token(scope="exposed", exp=time.time() - 60))
        assert expired.status == 401
        assert 'error="invalid_token"' in expired.headers["www-authenticate"]
        poor = await wire.call(base, SKILL, {}, **make_token(scope="openid"))
        assert poor.status == 403
        assert 'error="insufficient_scope"' in poor.headers["www-authenticate"]
        metadata = await wire.get(f"{base}/.well-known/oauth-protected-resource")
        assert metadata.json["authorization_servers"] == ["https://login"]
