"""Manifests, bundles and events, and the two hashes of a bundle's contents.

rid-lib 3.2.5, with which seed 003 is written, hashes ``json.dumps`` with sorted keys; later versions hash the
canonical JSON of RFC 8785. Both are the same for contents of ASCII text, whole numbers and booleans
(specification 4.1).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

import orjson
import rfc8785
from pydantic_core import to_json

from retinue_koi.codec.rids import NODE_TYPE, check_rid, type_of

Dialect = Literal["signed", "unsigned"]
"""``unsigned`` is koi-net 1.0.0b12, which seed 003 describes; ``signed`` is koi-net 1.1.0 and newer."""

MANIFEST_CONTEXT: Final = "orn:koi-net.context:manifest"
MAX_CONTENTS_BYTES: Final = 256 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SAFE_INTEGER = 2**53 - 1
_MAY_BE_FLOAT = re.compile(rb"[:,\[]-?(?:\d+[.eE]|\d{16})")
"""Numbers that the two forms write differently; text may match too, then both hashes are made."""


class WireError(ValueError):
    """A message that is not of the protocol's form; the text names the field."""


class EventType(StrEnum):
    """The change of the object of a RID."""

    NEW = "NEW"
    UPDATE = "UPDATE"
    FORGET = "FORGET"


_EVENT_TYPES: Final = {kind.value: kind for kind in EventType}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Hash and time of a bundle. ``more`` holds the keys beyond these three, in the order received."""

    rid: str
    timestamp: str
    sha256_hash: str
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def instant_us(self) -> int:
        """The timestamp in microseconds since 1970."""
        return parse_instant(self.timestamp)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The contents of a RID, with their manifest."""

    manifest: Manifest
    contents: dict[str, Any]

    @property
    def rid(self) -> str:
        return self.manifest.rid

    @classmethod
    def generate(
        cls, rid: object, contents: dict[str, Any], *, now: datetime | None = None, after_us: int = 0
    ) -> Bundle:
        """A bundle of these contents, timed now, but later than ``after_us``, with the unsigned hash."""
        text = str(rid)
        check_rid(text)
        instant = max(to_instant(now or datetime.now(UTC)), after_us + 1)
        return cls(Manifest(text, render_instant(instant), hash_contents(contents, "unsigned")), contents)


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the object of a RID; without manifest or contents they are fetched from the source."""

    rid: str
    event_type: EventType
    manifest: Manifest | None = None
    contents: dict[str, Any] | None = None

    @property
    def bundle(self) -> Bundle | None:
        """Manifest and contents, if the event holds both."""
        if self.manifest is None or self.contents is None:
            return None
        return Bundle(self.manifest, self.contents)

    @classmethod
    def from_bundle(cls, event_type: EventType, bundle: Bundle) -> Event:
        return cls(bundle.rid, event_type, bundle.manifest, bundle.contents)

    @classmethod
    def from_rid(cls, event_type: EventType, rid: object) -> Event:
        return cls(str(rid), event_type)


# Times


def parse_instant(timestamp: str) -> int:
    """Microseconds since 1970 of an ISO 8601 time; without a zone it is UTC. Raises ValueError."""
    return to_instant(datetime.fromisoformat(timestamp))


def to_instant(moment: datetime) -> int:
    """Microseconds since 1970 of a moment."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def render_instant(instant_us: int) -> str:
    """The form in which a stock node signs a time: ``Z``, with six digits of the second or none."""
    moment = _EPOCH + timedelta(microseconds=instant_us)
    return moment.replace(tzinfo=None).isoformat() + "Z"


def canonical_timestamp(timestamp: str) -> str:
    """The form that pydantic gives to a received time, which a stock node signs. Raises ValueError."""
    moment = datetime.fromisoformat(timestamp)
    text = moment.isoformat()
    return text[:-6] + "Z" if moment.utcoffset() == timedelta(0) else text


# Hashes


def hash_contents(contents: dict[str, Any], dialect: Dialect) -> str:
    """The SHA-256 of a bundle's contents in the form of a dialect. Raises WireError for any other value."""
    try:
        if dialect == "signed":
            return _sha256(_canonical_json(contents))
        return _sha256(json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"contents: {error}") from error


def has_hash(contents: dict[str, Any], sha256_hash: str) -> bool:
    """Whether the contents have this hash, in either form. Raises WireError for too large ones."""
    try:
        # the common form of both, written in one pass; equal to neither only for text and floats
        data = orjson.dumps(contents, option=orjson.OPT_SORT_KEYS)
        if len(data) > MAX_CONTENTS_BYTES:
            raise WireError(f"the contents are larger than {MAX_CONTENTS_BYTES:,} bytes")
        if _sha256(data) == sha256_hash:
            return True
    except orjson.JSONEncodeError:
        pass  # integers of more than 64 bits
    for dialect in ("signed", "unsigned"):
        try:
            if hash_contents(contents, dialect) == sha256_hash:
                return True
        except WireError:
            continue
    return False


def _canonical_json(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        # rid-lib writes large integers as the floats nearest to them
        return rfc8785.dumps(_with_floats(value))


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _SAFE_INTEGER:
        return float(value)
    return value


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Parsing


def parse_event(data: object) -> Event:
    """Parse one event. Raises WireError, which names the field."""
    if not isinstance(data, dict):
        raise WireError("event: it is not an object")
    rid = _parse_rid(data.get("rid"), "rid")
    kind = data.get("event_type")
    event_type = _EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if event_type is None:
        raise WireError("event_type: it is not one of NEW, UPDATE, FORGET")
    manifest, contents = data.get("manifest"), data.get("contents")
    if isinstance(manifest, dict) and manifest.get("rid") != rid:
        raise WireError("manifest.rid: it is not the rid of the event")
    parsed = None if manifest is None else parse_manifest(manifest)
    if contents is not None and not isinstance(contents, dict):
        raise WireError("contents: it is not an object")
    return Event(rid, event_type, parsed, contents)


def parse_manifest(data: object) -> Manifest:
    """Parse a manifest. Raises WireError, which names the field."""
    if not isinstance(data, dict):
        raise WireError("manifest: it is not an object")
    rid = _parse_rid(data.get("rid"), "manifest.rid")
    timestamp, digest = data.get("timestamp"), data.get("sha256_hash")
    if not isinstance(timestamp, str):
        raise WireError("manifest.timestamp: it is not a string")
    try:
        parse_instant(timestamp)
    except (ValueError, OverflowError) as error:
        raise WireError("manifest.timestamp: it is no ISO 8601 time") from error
    if not isinstance(digest, str):
        raise WireError("manifest.sha256_hash: it is not a string")
    more = tuple(item for item in data.items() if item[0] not in _MANIFEST_KEYS) if len(data) > 3 else ()
    return Manifest(rid, timestamp, digest, more)


_MANIFEST_KEYS = frozenset({"rid", "timestamp", "sha256_hash"})


def parse_bundle(data: object) -> Bundle:
    """Parse a bundle ``{"manifest", "contents"}``. Raises WireError."""
    if not isinstance(data, dict) or not isinstance(data.get("contents"), dict):
        raise WireError("bundle: it is not an object with manifest and contents")
    return Bundle(parse_manifest(data.get("manifest")), data["contents"])


def parse_node_rid(value: object, field: str) -> str:
    """Parse the RID of a node. Raises WireError, which names the field."""
    if not isinstance(value, str) or type_of(value) != NODE_TYPE:
        raise WireError(f"{field}: it is not the RID of a node")
    return _parse_rid(value, field)


def _parse_rid(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{field}: it is not a string")
    try:
        check_rid(value)
    except ValueError as error:
        raise WireError(f"{field}: {error}") from error
    return value


# Rendering


def is_same_in_both(encoded: bytes) -> bool:
    """Whether a bundle, as `encode_bundle` writes it, surely has one hash in both dialects."""
    return encoded.isascii() and not _MAY_BE_FLOAT.search(encoded)


def in_dialect(bundle: Bundle, dialect: Dialect) -> Bundle:
    """The bundle with its hash in the form of a dialect."""
    if is_same_in_both(encode_bundle(bundle)):
        return bundle
    digest = hash_contents(bundle.contents, dialect)
    if digest == bundle.manifest.sha256_hash:
        return bundle
    return Bundle(replace(bundle.manifest, sha256_hash=digest), bundle.contents)


def render_manifest(manifest: Manifest, dialect: Dialect) -> dict[str, Any]:
    """A manifest as JSON; the signed dialect adds its context."""
    data = {
        "rid": manifest.rid,
        "timestamp": canonical_timestamp(manifest.timestamp),
        "sha256_hash": manifest.sha256_hash,
    }
    if dialect == "signed":
        data["@context"] = MANIFEST_CONTEXT
        data.update((key, value) for key, value in manifest.more if value is not None)
    return data


def render_bundle(bundle: Bundle, dialect: Dialect) -> dict[str, Any]:
    return {"manifest": render_manifest(bundle.manifest, dialect), "contents": bundle.contents}


def render_event(event: Event, dialect: Dialect) -> dict[str, Any]:
    """An event as JSON, without the keys that it has no value for."""
    data: dict[str, Any] = {"rid": event.rid, "event_type": event.event_type.value}
    if event.manifest is not None:
        data["manifest"] = render_manifest(event.manifest, dialect)
    if event.contents is not None:
        data["contents"] = event.contents
    return data


def encode_bundle(bundle: Bundle) -> bytes:
    """The content of a cache file: the bundle's JSON, with every key of its manifest."""
    manifest = {
        "rid": bundle.manifest.rid,
        "timestamp": bundle.manifest.timestamp,
        "sha256_hash": bundle.manifest.sha256_hash,
        **dict(bundle.manifest.more),
    }
    try:
        return orjson.dumps({"manifest": manifest, "contents": bundle.contents})
    except orjson.JSONEncodeError:
        return to_json({"manifest": manifest, "contents": bundle.contents})
