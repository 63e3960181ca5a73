"""A signature of a message opens nothing: each reply is the same as to the unsigned message."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context
from retinue.messages.codec.envelope import utc_now
from retinue.messages.codec.signatures import find_flaw, sign
from retinue.storage.state import State
from retinue.web.issued_tokens import TokenFile
from tests.doors.message_worker import ASYNC, REPAIR, make_worker
from tests.requirements import requirement
from tests.system import Hub, Served, System, Wire, open_system

HIDDEN = {"vault-agent": {"receive": ["token:vip"]}}
SENDERS = (None, "local", "mesh", "retinue", "worker", "token:vip", "vip")
SKILLS = ("reveal", "open_vault", "execute", "secretly", "nothing")


@dataclass(slots=True)
class World:
    """A worker, an agent that hears one caller only, and their hub."""

    system: System
    worker: Served
    vault: Served
    hub: Hub
    wire: Wire

    def token(self, name: str, *scopes: str) -> dict[str, str]:
        _, text = TokenFile(self.system.state.keys).issue(list(scopes), name=name)
        return {"authorization": f"Bearer {text}"}


def make_vault() -> Agent:
    agent = Agent("vault-agent", version="1.0.0")

    @agent.skill
    async def open_vault(ctx: Context) -> str:
        """Opens."""
        return f"opened for {ctx.principal.id}"

    return agent


async def start(stack: AsyncExitStack, home: Path, wire: Wire, **settings: Any) -> World:
    system = await stack.enter_async_context(
        open_system(State(home), messages={"signatures": "verify"}, access=HIDDEN, **settings)
    )
    worker = make_worker().agent

    @worker.skill(private=True)
    async def secretly() -> str:
        """Only for itself."""
        return "secret"

    served = await system.start_agent(worker)
    return World(system, served, await system.start_agent(make_vault()), await system.start_hub(), wire)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


Carrier = Callable[[World, dict[str, Any], dict[str, str]], Awaitable[bytes]]


def by_path(place: Callable[[World], str]) -> Carrier:
    async def carry(world: World, message: dict[str, Any], headers: dict[str, str]) -> bytes:
        reply = await world.wire.post(f"{place(world)}/messages", message, **headers)
        return b"%d " % reply.status + reply.body

    return carry


async def by_tool(world: World, message: dict[str, Any], headers: dict[str, str]) -> bytes:
    reply = await world.wire.call(world.hub.url, "send_message", {"message": message}, **headers)
    return b"%d " % reply.status + reply.body


async def by_a2a(world: World, message: dict[str, Any], headers: dict[str, str]) -> bytes:
    sent = {"messageId": "a2a-1", "role": "ROLE_USER", "parts": [{"data": message}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": sent}}
    reply = await world.wire.post(f"{world.hub.url}/", call, a2a_version="1.0", **headers)
    return b"%d " % reply.status + reply.body


CARRIERS: dict[str, Carrier] = {
    "the worker": by_path(lambda world: world.worker.url),
    "the vault": by_path(lambda world: world.vault.url),
    "the hub": by_path(lambda world: world.hub.url),
    "the hub's path of the worker": by_path(lambda world: f"{world.hub.url}/agents/worker"),
    "the hub's path of the vault": by_path(lambda world: f"{world.hub.url}/agents/vault-agent"),
    "send_message": by_tool,
    "A2A": by_a2a,
}

_ITS_OWN = re.compile(rb'[0-9a-f-]{32,36}|"(?:timestamp|[a-z_]+_ms)":("[^"]*"|[\d.]+)')
"""What is another one in every reply, whoever asks."""


def messages() -> list[dict[str, Any]]:
    """What a stranger would like to be answered, in the name of somebody who may ask for it."""
    found: list[dict[str, Any]] = [
        {
            "performative": "TASK_REQUEST",
            "payload": {"task_type": skill, "task_parameters": {"code": "1"} if skill == "execute" else {}},
            "receiver": {"agent_id": agent},
            **({} if sender is None else {"sender": {"agent_id": sender}}),
        }
        for sender in SENDERS
        for agent, skill in (
            ("worker", "reveal"),
            ("worker", "execute"),
            ("worker", "secretly"),
            ("vault-agent", "open_vault"),
            ("*", "open_vault"),
        )
    ]
    found += [
        {"performative": "QUERY_REF", "payload": {"reference": reference}}
        for reference in ("agents", "open_vault", "vault-agent", "secretly")
    ]
    found += [
        {
            "performative": "QUERY_CAPABILITIES",
            "payload": {"query_type": "summary"},
            "receiver": {"agent_id": to},
        }
        for to in ({"agent_id": "*"}, {"agent_id": "vault-agent"}, {"agent_id": "worker"})
    ]
    found.append({"performative": "QUERY_IF", "payload": {"condition": "action", "value": "secretly"}})
    return found


@requirement("W-24")
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_signed_message_is_answered_as_an_unsigned_one(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire, carrier: str
) -> None:
    world = await start(stack, tmp_path, wire)
    carry, key = CARRIERS[carrier], world.system.state.mesh_key()
    callers = {
        "nobody": {},
        "exposed": world.token("guest", "exposed"),
        "mesh": world.token("ci", "mesh"),
    }
    for who, headers in callers.items():
        for number, message in enumerate(messages()):
            plain = {**message, "message_id": f"{who}-{number}", "timestamp": utc_now()}
            signed = sign(plain, key)
            assert find_flaw(signed, key) is None
            unsigned_reply, signed_reply = [
                _ITS_OWN.sub(b"", await carry(world, one, headers)) for one in (plain, signed)
            ]
            assert signed_reply == unsigned_reply, (who, message)
            assert b"opened for" not in signed_reply, (who, message)
            assert b'"secret"' not in signed_reply, (who, message)


@requirement("W-24")
async def test_the_one_who_may_is_answered_and_a_signature_is_looked_at(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    """Without this, the test above could pass because nobody is ever answered, or no signature read."""
    world = await start(stack, tmp_path, wire)
    request = {"performative": "TASK_REQUEST", "payload": {"task_type": "open_vault"}, "message_id": "m"}
    request |= {"receiver": {"agent_id": "vault-agent"}, "timestamp": utc_now()}
    for carrier in ("the vault", "the hub", "the hub's path of the vault", "send_message"):
        vip = world.token("vip", "mesh")
        assert b"opened for token:vip" in await CARRIERS[carrier](world, request, vip), carrier
        forged = sign(request, b"x" * 64)
        assert b"the key of another mesh" in await CARRIERS[carrier](world, forged, vip), carrier


@requirement("W-24")
async def test_a_signed_message_without_a_token_is_refused_where_one_is_required(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire, auth={"anonymous": False})
    for carrier, carry in CARRIERS.items():
        for message in messages():
            signed = sign({**message, "timestamp": utc_now()}, world.system.state.mesh_key())
            answer = await carry(world, signed, {})
            assert answer.startswith(b"401 "), (carrier, answer)


@requirement("W-24")
async def test_a_signed_message_does_not_reach_the_task_of_another(
    stack: AsyncExitStack, tmp_path: Path, wire: Wire
) -> None:
    world = await start(stack, tmp_path, wire)
    key, url = world.system.state.mesh_key(), world.worker.url
    begun = {"performative": "TASK_REQUEST", "payload": REPAIR, "message_id": "theirs"}
    owner = {**world.token("ci", "mesh"), **ASYNC}
    accepted = (await wire.post(f"{url}/messages", begun, **owner)).json
    task_id = accepted["payload"]["task_id_assigned"]
    for performative in ("QUERY_REF", "CANCEL"):
        for sender in ("local", "mesh", "ci", "token:ci", "worker"):
            answers = []
            for reference in (task_id, "0" * 32):
                message = {
                    "performative": performative,
                    "payload": {"reference": reference},
                    "sender": {"agent_id": sender},
                    "message_id": f"{performative}-{sender}",
                    "timestamp": utc_now(),
                }
                reply = await wire.post(f"{url}/messages", sign(message, key))
                payload = orjson.dumps(reply.json["payload"])
                answers.append(payload.replace(reference.encode(), b""))
            assert answers[0] == answers[1]
    running = {"performative": "QUERY_REF", "payload": {"reference": task_id}}
    reply = (await wire.post(f"{url}/messages", running, **owner)).json
    assert reply["performative"] == "TASK_ACCEPT", "it goes on"
