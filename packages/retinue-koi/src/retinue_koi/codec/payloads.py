"""The requests and replies of the five KOI endpoints, in both dialects.

On the signed dialect each payload names its ``type``; `PollEvents` holds the asking node's RID only on the
unsigned one. A reader ignores keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from retinue_koi.codec.bundles import (
    Bundle,
    Dialect,
    Event,
    EventType,
    Manifest,
    WireError,
    parse_bundle,
    parse_event,
    parse_manifest,
    render_bundle,
    render_event,
    render_manifest,
)
from retinue_koi.codec.rids import check_rid

BROADCAST: Final = "/events/broadcast"
POLL: Final = "/events/poll"
RIDS: Final = "/rids/fetch"
MANIFESTS: Final = "/manifests/fetch"
BUNDLES: Final = "/bundles/fetch"
PATHS: Final = (BROADCAST, POLL, RIDS, MANIFESTS, BUNDLES)

MAX_EVENTS: Final = 2000
"""Events in one payload."""

MAX_RIDS: Final = 100_000
"""RIDs, manifests or bundles in one payload."""

ProtocolFault = Literal["unknown_node", "invalid_key", "invalid_signature", "invalid_target"]


class TooManyError(WireError):
    """A payload that holds more than its limit."""


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """An event of a payload that cannot be read; the payload's other events can be valid."""

    rid: str
    reason: str


@dataclass(frozen=True, slots=True)
class EventsPayload:
    """Events: the request of a broadcast, and the reply to a poll. ``refused`` is never sent."""

    events: tuple[Event, ...]
    refused: tuple[UnreadableEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class PollEvents:
    """Take the events that wait for a node; 0 = all. ``rid`` is the node, on the unsigned dialect only."""

    limit: int = 0
    rid: str | None = None


@dataclass(frozen=True, slots=True)
class FetchRids:
    """Which RIDs of these types are there; no type = all."""

    rid_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchManifests:
    """The manifests of these RIDs, or of all of these types."""

    rid_types: tuple[str, ...] = ()
    rids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchBundles:
    """The bundles of these RIDs."""

    rids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RidsPayload:
    rids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ManifestsPayload:
    manifests: tuple[Manifest, ...]
    not_found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundlesPayload:
    """Bundles; ``deferred`` names bundles that did not fit into this reply, so that the reader requests them
    again.
    """

    bundles: tuple[Bundle, ...]
    not_found: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()


Request = EventsPayload | PollEvents | FetchRids | FetchManifests | FetchBundles
Reply = EventsPayload | RidsPayload | ManifestsPayload | BundlesPayload


def parse_request(path: str, data: object) -> Request:
    """Parse the request of an endpoint. Raises WireError, TooManyError."""
    return _REQUESTS[path](_object(data))


def parse_reply(path: str, data: object) -> Reply:
    """Parse the reply of an endpoint other than a broadcast. Raises WireError, TooManyError."""
    return _REPLIES[path](_object(data))


def is_envelope(data: object) -> bool:
    """Whether a request is of the signed dialect."""
    return isinstance(data, dict) and "payload" in data and "signature" in data


def render(payload: Request | Reply, dialect: Dialect) -> dict[str, Any]:
    """A payload as JSON, its keys in the order in which a stock node signs them."""
    typed = dialect == "signed"
    match payload:
        case EventsPayload(events):
            data: dict[str, Any] = {"events": [render_event(event, dialect) for event in events]}
            kind = "events_payload"
        case PollEvents(limit, rid):
            data, kind = ({"limit": limit} if typed else {"rid": rid, "limit": limit}), "poll_events"
        case FetchRids(rid_types):
            data, kind = {"rid_types": list(rid_types)}, "fetch_rids"
        case FetchManifests(rid_types, rids):
            data, kind = {"rid_types": list(rid_types), "rids": list(rids)}, "fetch_manifests"
        case FetchBundles(rids):
            data, kind = {"rids": list(rids)}, "fetch_bundles"
        case RidsPayload(rids):
            data, kind = {"rids": list(rids)}, "rids_payload"
        case ManifestsPayload(manifests, not_found):
            listed = [render_manifest(manifest, dialect) for manifest in manifests]
            data, kind = {"manifests": listed, "not_found": list(not_found)}, "manifests_payload"
        case BundlesPayload(bundles, not_found, deferred):
            data = {
                "bundles": [render_bundle(bundle, dialect) for bundle in bundles],
                "not_found": list(not_found),
                "deferred": list(deferred),
            }
            kind = "bundles_payload"
    return {"type": kind, **data} if typed else data


def render_fault(fault: ProtocolFault) -> dict[str, str]:
    """The body of a reply with status 400."""
    return {"type": "error_response", "error": fault}


def parse_fault(data: object) -> str | None:
    """The error of an error response, or None if it is none."""
    if isinstance(data, dict) and data.get("type") == "error_response" and isinstance(data.get("error"), str):
        return str(data["error"])
    return None


def find_introduced(source: str, payload: Request | Reply, field: str) -> str | None:
    """A field of the profile of a node that introduces itself in this very message."""
    if not isinstance(payload, EventsPayload):
        return None
    for event in payload.events:
        if event.rid == source and event.event_type is EventType.NEW and event.contents is not None:
            value = event.contents.get(field)
            return value if isinstance(value, str) else None
    return None


def _object(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise WireError("payload: it is not an object")
    return data


def _parse_events(data: dict[str, Any]) -> EventsPayload:
    items = _list(data, "events", MAX_EVENTS, required=True)
    events, refused = [], []
    for item in items:
        try:
            events.append(parse_event(item))
        except WireError as error:
            rid = item.get("rid") if isinstance(item, dict) else None
            refused.append(UnreadableEvent(str(rid)[:80], str(error)))
    return EventsPayload(tuple(events), tuple(refused))


def _parse_poll(data: dict[str, Any]) -> PollEvents:
    limit, rid = data.get("limit", 0), data.get("rid")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise WireError("limit: it is not a whole number from 0")
    return PollEvents(limit, None if rid is None else _rid(rid, "rid"))


def _parse_fetch_bundles(data: dict[str, Any]) -> FetchBundles:
    return FetchBundles(_rids(data, "rids", required=True))


def _parse_manifests(data: dict[str, Any]) -> ManifestsPayload:
    items = _list(data, "manifests", MAX_RIDS, required=True)
    return ManifestsPayload(tuple(parse_manifest(item) for item in items), _rids(data, "not_found"))


def _parse_bundles(data: dict[str, Any]) -> BundlesPayload:
    items = _list(data, "bundles", MAX_RIDS, required=True)
    bundles = tuple(parse_bundle(item) for item in items)
    return BundlesPayload(bundles, _rids(data, "not_found"), _rids(data, "deferred"))


def _list(data: dict[str, Any], key: str, limit: int, *, required: bool = False) -> list[Any]:
    items = data.get(key)
    if items is None and not required:
        return []
    if not isinstance(items, list):
        raise WireError(f"{key}: it is not a list")
    if len(items) > limit:
        raise TooManyError(f"{key}: it holds {len(items)} items, more than {limit}; send several requests")
    return items


def _rids(data: dict[str, Any], key: str, *, required: bool = False) -> tuple[str, ...]:
    return tuple(_rid(item, key) for item in _list(data, key, MAX_RIDS, required=required))


def _types(data: dict[str, Any]) -> tuple[str, ...]:
    items = _list(data, "rid_types", MAX_RIDS)
    if not all(isinstance(item, str) for item in items):
        raise WireError("rid_types: it is not a list of strings")
    return tuple(items)


def _rid(item: object, field: str) -> str:
    if not isinstance(item, str):
        raise WireError(f"{field}: it is not a string")
    try:
        check_rid(item)
    except ValueError as error:
        raise WireError(f"{field}: {error}") from error
    return item


_REQUESTS: dict[str, Callable[[dict[str, Any]], Request]] = {
    BROADCAST: _parse_events,
    POLL: _parse_poll,
    RIDS: lambda data: FetchRids(_types(data)),
    MANIFESTS: lambda data: FetchManifests(_types(data), _rids(data, "rids")),
    BUNDLES: _parse_fetch_bundles,
}
_REPLIES: dict[str, Callable[[dict[str, Any]], Reply]] = {
    POLL: _parse_events,
    RIDS: lambda data: RidsPayload(_rids(data, "rids", required=True)),
    MANIFESTS: _parse_manifests,
    BUNDLES: _parse_bundles,
}
