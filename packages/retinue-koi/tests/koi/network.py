"""Nodes on real sockets, and messages of other nodes as a test writes them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from starlette.applications import Starlette

from retinue_koi.codec import payloads as p
from retinue_koi.codec.bundles import Bundle, Event, EventType, render_event
from retinue_koi.codec.envelopes import NodeKey, decode_json, encode_envelope
from retinue_koi.codec.personality import PersonalityTrait
from retinue_koi.codec.profiles import EdgeStatus, NodeProfile, NodeType
from retinue_koi.codec.rids import PERSONALITY_TYPE, node_rid
from retinue_koi.node import KoiNode
from retinue_koi.node_state import NodeState, NodeTypes
from retinue_koi.peers import FirstContact
from retinue_koi.policy import Acceptance
from retinue_koi.server import routes
from tests.serving import serve_app

WITHIN_S = 60.0
ALL = {"event": [PERSONALITY_TYPE], "state": [PERSONALITY_TYPE], "interest": [PERSONALITY_TYPE]}
UUID_NODE = "orn:koi-net.node:plain+7a3c8f50-6a3e-4a3d-8d3a-2f8a6f0d1c11"
DEAD = "http://127.0.0.1:9/koi-net"


def make_node(name: str, **options: Any) -> KoiNode:
    """A node by the options of its types, its state, its acceptance and of `KoiNode` itself."""

    def take(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    types = NodeTypes(**take("event", "state", "interest"))
    state = NodeState.of(name, types, **take("base_url", "folder", "now", "journal_bytes"))
    # a loaded machine is not a busy node
    options.setdefault("acknowledge_s", WITHIN_S)
    return KoiNode(state, Acceptance(**take("trust", "known", "relays", "allow_private_urls")), **options)


@asynccontextmanager
async def run_node(folder: Path, name: str = "coordinator", **options: Any) -> AsyncIterator[KoiNode]:
    """A FULL node on a port of its own; ``port`` chooses it."""
    app = Starlette()
    async with serve_app(app, port=options.pop("port", 0)) as url:
        node = make_node(name, base_url=f"{url}/koi-net", folder=folder / name, **{**ALL, **options})
        app.router.routes.extend(routes(node))
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


@asynccontextmanager
async def run_joined(folder: Path) -> AsyncIterator[tuple[KoiNode, KoiNode]]:
    """A coordinator, and a node ``owner`` that has joined it."""
    async with (
        run_node(folder) as node,
        run_node(folder, "owner", first_contact=FirstContact(url_of(node), node.rid)) as owner,
    ):
        await until(lambda: is_joined(node, owner))
        yield node, owner


def url_of(node: KoiNode) -> str:
    assert node.state.identity.profile.base_url is not None
    return node.state.identity.profile.base_url


async def until(check: Callable[[], object], within_s: float = WITHIN_S) -> None:
    """Wait until a check holds."""
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0.005)


async def post(url: str, data: Any) -> tuple[int, Any]:
    """Status and JSON of the reply; bytes are sent as they are."""
    body = io.BytesIO(data if isinstance(data, bytes) else orjson.dumps(data))
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as reply:
        text = await reply.read()
        return reply.status, decode_json(text) if text else None


def personality(name: str, node: str, version: str = "1.0", **more: Any) -> dict[str, Any]:
    rid = f"{PERSONALITY_TYPE}:{name}/{version}"
    return {"rid": rid, "node_rid": node, "base_url": None, "mcp_url": None, "traits": [], **more}


def parse_traits(traits: Mapping[str, Any]) -> list[PersonalityTrait]:
    """The traits of a dictionary of plain values and described entries, in its order."""
    return [PersonalityTrait.from_entry(name, entry) for name, entry in traits.items()]


def bundle_of(contents: dict[str, Any], at: str | None = None) -> Bundle:
    moment = datetime.fromisoformat(at) if at else datetime.now(UTC)
    return Bundle.generate(contents["rid"], contents, now=moment)


def events(*listed: Event) -> dict[str, Any]:
    """The body of an unsigned broadcast."""
    return {"events": [render_event(event, "unsigned") for event in listed]}


def new(contents: dict[str, Any], at: str | None = None) -> Event:
    return Event.from_bundle(EventType.NEW, bundle_of(contents, at))


async def publish(node: KoiNode, name: str, event_type: EventType = EventType.NEW, **more: Any) -> str:
    contents = personality(name, node.rid, **more)
    bundle = node.state.generate_bundle(contents["rid"], contents)
    await node.processor.handle(bundle=bundle, event_type=event_type)
    return bundle.rid


def is_joined(one: KoiNode, other: KoiNode) -> bool:
    """Whether both subscribe to each other."""
    return all(
        other.rid in one.graph.get_neighbors(direction, EdgeStatus.APPROVED)
        and one.rid in other.graph.get_neighbors(direction, EdgeStatus.APPROVED)
        for direction in ("in", "out")
    )


class Signer:
    """A node of the signed dialect that a test plays."""

    def __init__(self, name: str, base_url: str | None = None) -> None:
        self.key = NodeKey.generate()
        self.rid = node_rid(name, self.key.public_key)
        node_type = NodeType.FULL if base_url else NodeType.PARTIAL
        profile = NodeProfile(node_type, base_url, (PERSONALITY_TYPE,), (), self.key.public_key)
        self.bundle = Bundle.generate(self.rid, profile.render())
        self.introduction = Event.from_bundle(EventType.NEW, self.bundle)

    def body(self, payload: p.Request, target: str) -> bytes:
        return encode_envelope(payload, self.rid, target, self.key)

    async def send(self, node: KoiNode, *listed: Event) -> tuple[int, Any]:
        body = self.body(p.EventsPayload(listed), node.rid)
        return await post(url_of(node) + p.BROADCAST, body)

    async def ask(self, node: KoiNode, path: str, payload: p.Request) -> tuple[int, Any]:
        return await post(url_of(node) + path, self.body(payload, node.rid))


class Refusals:
    """What a node refused while a block ran."""

    def __init__(self, logged: list[Any]) -> None:
        self._logged = logged

    def __contains__(self, words: str) -> bool:
        return any(words in str(line.get("reason", "")) for line in self._logged)


async def introduced(node: KoiNode, name: str = "signer", base_url: str | None = None) -> Signer:
    signer = Signer(name, base_url)
    assert await signer.send(node, signer.introduction) == (200, None)
    return signer
