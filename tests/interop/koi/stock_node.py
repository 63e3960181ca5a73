"""A stock koi-net 2.1.2 node as a program, driven by lines of JSON; runs in an environment of its own.

stock_node.py NAME FOLDER PORT [CONTACT_RID CONTACT_URL]

Port 0 makes a PARTIAL node, which has no server and polls its contact every second. Each line of its input
is ``{"do": …}``, each line of its output the answer. It has no code of Retinue.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("PRIV_KEY_PASSWORD", "test")

from koi_net.components.interfaces import HandlerType, KnowledgeHandler
from koi_net.config import (
    EventWorkerConfig,
    FullNodeConfig,
    FullNodeProfile,
    KoiNetConfig,
    NodeContact,
    NodeProvides,
    PartialNodeConfig,
    PartialNodeProfile,
    PollerConfig,
    ServerConfig,
)
from koi_net.core import FullNode, PartialNode
from koi_net.infra import LogSystem
from koi_net.protocol.event import Event, EventType
from pydantic import ValidationError
from rid_lib.core import ORN, RID
from rid_lib.ext import Bundle, Cache
from rid_lib.types import KoiNetEdge, KoiNetNode


class AgentPersonality(ORN):
    namespace = "agent.personality"

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version

    @property
    def reference(self) -> str:
        return f"{self.name}/{self.version}"

    @classmethod
    def from_reference(cls, reference: str) -> AgentPersonality:
        return cls(*reference.split("/"))


@dataclass
class HandshakeHandler(KnowledgeHandler):
    """Answers the introduction of a node with its own, as the coordinator of koi-net's documentation does."""

    cache: Cache
    identity: Any
    event_queue: Any

    handler_type = HandlerType.Network
    rid_types = (KoiNetNode,)

    def handle(self, kobj: Any) -> Any:
        if kobj.source != kobj.rid or kobj.normalized_event_type != EventType.NEW:
            return None
        own = self.cache.read(self.identity.rid)
        self.event_queue.push(Event.from_bundle(EventType.NEW, own), kobj.rid)
        return None


def make(name: str, folder: Path, port: int, contact: list[str]) -> Any:
    types = [AgentPersonality]
    provides = NodeProvides(event=types, state=types)
    profile = FullNodeProfile(provides=provides) if port else PartialNodeProfile(provides=provides)
    settings = KoiNetConfig(
        node_name=name,
        node_profile=profile,
        rid_types_of_interest=types,
        event_worker=EventWorkerConfig(max_wait_time=0.05),
        first_contact=NodeContact(rid=contact[0], url=contact[1]) if contact else NodeContact(),
    )

    class FullConfig(FullNodeConfig):
        server: ServerConfig = ServerConfig(port=port)
        koi_net: KoiNetConfig = settings

    class PartialConfig(PartialNodeConfig):
        poller: PollerConfig = PollerConfig(polling_interval=1)
        koi_net: KoiNetConfig = settings

    class Full(FullNode):
        _log_system = staticmethod(quiet)
        config_schema = FullConfig
        handshake_handler = HandshakeHandler

    class Partial(PartialNode):
        _log_system = staticmethod(quiet)
        config_schema = PartialConfig
        handshake_handler = HandshakeHandler

    return (Full if port else Partial)(root_dir=folder)


def quiet() -> Any:
    return LogSystem(use_file_handler=False, use_console_handler=False)


def main() -> None:
    name, folder, port, *contact = sys.argv[1:]
    node = make(name, Path(folder), int(port), contact)
    node.start()
    say({"rid": str(node.identity.rid), "url": node.identity.profile.base_url})
    for line in sys.stdin:
        asked = json.loads(line)
        rid = AgentPersonality(asked["name"], asked.get("version", "1.0")) if "name" in asked else None
        match asked["do"]:
            case "publish":
                contents = {"rid": str(rid), "node_rid": str(node.identity.rid), **asked["contents"]}
                node.kobj_queue.push(bundle=Bundle.generate(rid, contents), event_type=EventType.NEW)
                say({})
            case "forget":
                node.kobj_queue.push(rid=rid, event_type=EventType.FORGET)
                say({})
            case "send":
                events = [Event.model_validate(event) for event in asked["events"]]
                node.request_handler.broadcast_events(RID.from_string(asked["to"]), events=events)
                say({})
            case "fetch":
                target = RID.from_string(asked["from"])
                found = node.request_handler.fetch_rids(target, rid_types=[AgentPersonality]).rids
                manifests = node.request_handler.fetch_manifests(target, rids=found).manifests
                bundles = node.request_handler.fetch_bundles(target, rids=found).bundles
                events = node.request_handler.poll_events(target, limit=10).events
                say(
                    {
                        "rids": [str(one) for one in found],
                        "manifests": [json.loads(one.model_dump_json()) for one in manifests],
                        "bundles": [json.loads(one.model_dump_json()) for one in bundles],
                        "events": [json.loads(one.model_dump_json()) for one in events],
                    }
                )
            case "state":
                edges = read_contents(node.cache, KoiNetEdge)
                personalities = read_contents(node.cache, AgentPersonality)
                say({"edges": list(edges.values()), "personalities": personalities})
            case "stop":
                break
    say({})
    os._exit(0)


def read_contents(cache: Cache, rid_type: Any) -> dict[str, Any]:
    """The contents of each bundle of a type by its RID, without bundles that are just forgotten."""
    bundles = {str(rid): read_whole(cache, rid) for rid in cache.list_rids([rid_type])}
    return {rid: bundle.contents for rid, bundle in bundles.items() if bundle is not None}


def read_whole(cache: Cache, rid: RID) -> Bundle | None:
    """Read a bundle; the node's own thread empties the file before it writes, so a cut file is read again."""
    for _ in range(1000):
        try:
            return cache.read(rid)
        except ValidationError:
            time.sleep(0.01)
    return cache.read(rid)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def end(kind: type[BaseException], error: BaseException, where: Any) -> None:
    """End the process: the node's threads would keep one alive that answers nothing."""
    traceback.print_exception(kind, error, where)
    os._exit(1)


if __name__ == "__main__":
    sys.excepthook = end
    main()
