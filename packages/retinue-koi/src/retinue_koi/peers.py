"""Sends requests to other nodes, each in its own dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
import structlog
from pydantic_core import to_json

from retinue.core.errors import CallTimedOutError, InvalidSettingError
from retinue.web.transport import HttpRequester, TransportError
from retinue_koi.codec.bundles import Bundle, Dialect, Event, Manifest, WireError, in_dialect
from retinue_koi.codec.envelopes import decode_json, encode_envelope, is_signed_by, parse_envelope
from retinue_koi.codec.payloads import (
    BROADCAST,
    BUNDLES,
    MANIFESTS,
    POLL,
    RIDS,
    BundlesPayload,
    EventsPayload,
    FetchBundles,
    FetchManifests,
    FetchRids,
    ManifestsPayload,
    PollEvents,
    Reply,
    Request,
    RidsPayload,
    find_introduced,
    parse_fault,
    parse_reply,
    render,
)
from retinue_koi.codec.profiles import NodeProfile, NodeType
from retinue_koi.codec.rids import NODE_TYPE, is_rid_of_key, type_name
from retinue_koi.graph import NetworkGraph
from retinue_koi.identity import Identity

REQUEST_TIMEOUT_S: Final = 10.0
BUNDLES_AT_ONCE: Final = 100
_JSON: Final = {"content-type": "application/json"}
_PATHS: Final = {
    EventsPayload: BROADCAST,
    PollEvents: POLL,
    FetchRids: RIDS,
    FetchManifests: MANIFESTS,
    FetchBundles: BUNDLES,
}

log = structlog.get_logger("retinue.koi")


class PeerError(Exception):
    """A request that another node did not answer as it should.

    ``fault`` is the error of its protocol, ``unknown_node`` for instance; ``status`` the HTTP status, 0 if no
    response came; ``remedy`` what a person can do about it.
    """

    def __init__(self, what: str, *, status: int = 0, fault: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.remedy = remedy
        self.status = status
        self.fault = fault


@dataclass(frozen=True)
class NodeAddress:
    """Where a request goes. Without ``rid`` it is sent unsigned."""

    url: str
    rid: str | None
    dialect: Dialect
    public_key: str | None = None


@dataclass
class FirstContact:
    """The node that this one joins; its RID is needed if it accepts signed requests only."""

    url: str
    rid: str | None = None


def parse_contact(text: str, field_name: str) -> FirstContact:
    """A first contact written as its URL, or as ``URL#RID``. Raises InvalidSettingError."""
    url, marked, rid = text.partition("#")
    check_contact(url, field_name)
    if marked and not rid.startswith(f"{NODE_TYPE}:"):
        raise InvalidSettingError(
            field_name,
            f"{rid[:80]!r} is no RID of a node",
            remedy=f"write URL#{NODE_TYPE}:name+hash, or the URL only",
        )
    return FirstContact(url.rstrip("/"), rid or None)


def check_contact(url: str, field_name: str) -> None:
    """Raise InvalidSettingError for a first contact whose URL is not one of http or https with a host."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise InvalidSettingError(
            field_name,
            f"{url[:80]!r} is no URL",
            remedy="give the URL of a KOI node, such as http://127.0.0.1:9000/koi-net",
        )


def normal_contact(contact: FirstContact | str | None, field_name: str) -> FirstContact | None:
    """The first contact with a checked url in normal form. Raises InvalidSettingError."""
    if contact is None:
        return None
    if isinstance(contact, str):
        return parse_contact(contact, field_name)
    check_contact(contact.url, field_name)
    return FirstContact(contact.url.rstrip("/"), contact.rid)


@dataclass
class NodeClient:
    """Sends requests; ``heard`` is called with the RID of a node that answered."""

    identity: Identity
    graph: NetworkGraph
    http: HttpRequester
    first_contact: FirstContact | None = None
    timeout_s: float = REQUEST_TIMEOUT_S
    heard: Callable[[str], None] = field(default=lambda rid: None)

    def find_address(self, node: object) -> NodeAddress | None:
        """The address of a node that is known and FULL, or of the first contact."""
        rid = str(node)
        contact = self.first_contact
        profile = self.graph.find_node(rid)
        if profile is not None and profile.node_type is NodeType.FULL and profile.base_url:
            return self.address_of(rid, profile)
        if contact is not None and contact.rid == rid:
            return NodeAddress(contact.url, rid, "signed")
        return None

    def address_of(self, rid: str, profile: NodeProfile) -> NodeAddress:
        signed = profile.public_key is not None and is_rid_of_key(rid, profile.public_key)
        return NodeAddress(
            profile.base_url or "", rid, "signed" if signed else "unsigned", profile.public_key
        )

    def contact_address(self) -> NodeAddress | None:
        """The first contact's address: signed if its RID is known."""
        contact = self.first_contact
        if contact is None:
            return None
        if contact.rid is None:
            return NodeAddress(contact.url.rstrip("/"), None, "unsigned")
        return self.find_address(contact.rid) or NodeAddress(contact.url.rstrip("/"), contact.rid, "signed")

    # Requests

    async def broadcast_events(
        self,
        node: object = None,
        events: Sequence[Event] = (),
        *,
        url: str | None = None,
        address: NodeAddress | None = None,
    ) -> None:
        """Send events to a node, or unsigned to a url. Raises PeerError."""
        target = address or (
            NodeAddress(url.rstrip("/"), None, "unsigned") if url else self._get_address(node)
        )
        fitting = tuple(
            Event(event.rid, event.event_type, *_parts(in_dialect(bundle, target.dialect)))
            if (bundle := event.bundle) is not None
            else event
            for event in events
        )
        await self.request(target, EventsPayload(fitting))

    async def poll_events(self, node: object, limit: int = 0) -> tuple[Event, ...]:
        """Take the events that wait for this node at another. Raises PeerError."""
        reply = await self.request(self._get_address(node), PollEvents(limit, self.identity.rid))
        if not isinstance(reply, EventsPayload):
            raise PeerError(f"{node} answered a poll with something else")
        for refusal in reply.refused:
            log.warning("koi_event_refused", rid=refusal.rid, reason=refusal.reason, node=str(node))
        return reply.events

    async def fetch_rids(self, node: object, rid_types: Sequence[Any] = ()) -> tuple[str, ...]:
        """The RIDs that a node has of these types. Raises PeerError."""
        reply = await self.request(self._get_address(node), FetchRids(tuple(map(type_name, rid_types))))
        return reply.rids if isinstance(reply, RidsPayload) else ()

    async def fetch_manifests(
        self, node: object, rid_types: Sequence[Any] = (), rids: Sequence[object] = ()
    ) -> tuple[Manifest, ...]:
        """The manifests that a node has, of these types or RIDs. Raises PeerError."""
        asked = FetchManifests(tuple(map(type_name, rid_types)), tuple(map(str, rids)))
        reply = await self.request(self._get_address(node), asked)
        return reply.manifests if isinstance(reply, ManifestsPayload) else ()

    async def fetch_bundles(self, node: object, rids: Sequence[object]) -> tuple[Bundle, ...]:
        """The bundles that a node has of these RIDs. Raises PeerError."""
        return await self.fetch_bundles_at(self._get_address(node), rids)

    async def fetch_bundles_at(self, address: NodeAddress, rids: Sequence[object]) -> tuple[Bundle, ...]:
        """The bundles of these RIDs, `BUNDLES_AT_ONCE` in a request. Raises PeerError."""
        found: list[Bundle] = []
        waiting = [str(rid) for rid in rids]
        while waiting:
            asked, waiting = waiting[:BUNDLES_AT_ONCE], waiting[BUNDLES_AT_ONCE:]
            reply = await self.request(address, FetchBundles(tuple(asked)))
            if not isinstance(reply, BundlesPayload):
                break
            found.extend(reply.bundles)
            deferred = set(reply.deferred) & set(asked)
            if len(deferred) < len(asked):
                waiting = [*deferred, *waiting]
        return tuple(found)

    async def request(self, address: NodeAddress, payload: Request) -> Reply | None:
        """Send one request; None is the reply to a broadcast. Raises PeerError."""
        path = _PATHS[type(payload)]
        body = self._encode(address, payload)
        try:
            response = await self.http.request(
                "POST", address.url + path, timeout_s=self.timeout_s, headers=_JSON, body=body
            )
        except (TransportError, CallTimedOutError) as error:
            raise PeerError(str(error), remedy="start the node there, or correct its URL") from error
        if response.status != 200:
            raise _to_error(address, response.status, response.body)
        if path == BROADCAST:
            _check_acknowledged(address, response.body)
            self._hear(address)
            return None
        try:
            reply = self._decode(address, path, response.body)
        except WireError as error:
            raise PeerError(f"{address.url}{path}: {error}", status=200) from error
        self._hear(address)
        return reply

    def _hear(self, address: NodeAddress) -> None:
        if address.rid is not None:
            self.heard(address.rid)

    def _encode(self, address: NodeAddress, payload: Request) -> bytes:
        if address.dialect == "signed" and address.rid is not None:
            return encode_envelope(payload, self.identity.rid, address.rid, self.identity.key)
        data = render(payload, "unsigned")
        try:
            return orjson.dumps(data)
        except orjson.JSONEncodeError:
            return to_json(data)

    def _decode(self, address: NodeAddress, path: str, body: bytes) -> Reply:
        data = decode_json(body)
        if address.dialect == "unsigned":
            return parse_reply(path, data)
        if not isinstance(data, dict) or "payload" not in data:
            raise WireError("the reply is not signed")
        envelope = parse_envelope(data, body)
        if envelope.source_node != address.rid:
            raise WireError(f"the reply comes from {envelope.source_node}, which was not asked")
        if envelope.target_node != self.identity.rid:
            raise WireError("the reply is for another node")
        reply = parse_reply(path, envelope.payload)
        key = address.public_key or find_introduced(envelope.source_node, reply, "public_key")
        if key is None or not is_rid_of_key(envelope.source_node, key):
            raise WireError(f"the key of {address.rid} is not known yet")
        if not is_signed_by(envelope, key, path, is_reply=True):
            raise WireError("the signature of the reply is not valid")
        return reply

    def _get_address(self, node: object) -> NodeAddress:
        address = self.find_address(node)
        if address is None:
            raise PeerError(f"{node} is not known, or has no base_url")
        return address


def _parts(bundle: Bundle) -> tuple[Manifest, dict[str, Any]]:
    return bundle.manifest, bundle.contents


_NO_NODE: Final = (
    "give the URL of a KOI node, such as http://127.0.0.1:9000/koi-net; a hub is one if it has --koi"
)
_REMEDIES: Final = {
    401: "it asks for a token, which nodes do not have: set koi.trust to known or signed there",
    403: "its koi.trust refuses this: name this node in koi.known there, and join it by URL#RID",
    404: _NO_NODE,
    405: _NO_NODE,
    422: "it accepts signed requests only: give the RID of the first contact too, as URL#RID",
}


def _to_error(address: NodeAddress, status: int, body: bytes) -> PeerError:
    fault = ""
    with suppress(WireError):
        fault = parse_fault(decode_json(body)) or ""
    remedy = _REMEDIES.get(status, "")
    if fault == "unknown_node":
        remedy = "it does not know this node: name it in koi.known there"
    elif status == 422 and address.rid is not None:
        remedy = ""
    what = f"{address.url} answered {status}: {fault or _first_words(body)}"
    return PeerError(what, status=status, fault=fault, remedy=remedy)


def _check_acknowledged(address: NodeAddress, body: bytes) -> None:
    """Raise PeerError for the reply to a broadcast that no KOI node writes."""
    if not body.strip():
        return
    try:
        decode_json(body)
    except WireError as error:
        what = f"{address.url} answered 200 with something else than JSON: {_first_words(body)}"
        raise PeerError(what, status=200, remedy=_NO_NODE) from error


def _first_words(body: bytes) -> str:
    return " ".join(body[:200].decode("utf-8", "replace").split())
