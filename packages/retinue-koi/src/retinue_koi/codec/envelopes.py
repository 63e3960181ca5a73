"""Signed envelopes and the keys of nodes: ECDSA P-256 over SHA-256, raw r‖s in base64.

The bytes that are signed are those of a stock node's ``UnsignedEnvelope.model_dump_json(exclude_none=True)``.
A stock node parses a body and writes it again; so the order of keys and the white space of a body are free,
while unknown keys of an event and times in another form break the signature.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from pydantic_core import from_json, to_json

from retinue_koi.codec.bundles import WireError, canonical_timestamp, parse_node_rid
from retinue_koi.codec.payloads import BROADCAST, BUNDLES, MANIFESTS, POLL, RIDS, Reply, Request, render

_ECDSA = ec.ECDSA(hashes.SHA256())
_HALF_BYTES: Final = 32
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclass(frozen=True, slots=True)
class SignedEnvelope:
    """A signed message. ``message`` is what its signature covers, if the body has the usual form."""

    payload: Any
    source_node: str
    target_node: str
    signature: str
    message: bytes | None

    @property
    def signature_id(self) -> str:
        """The same for every form of one signature: its r. Raises WireError."""
        return _split_signature(self.signature)[0].to_bytes(_HALF_BYTES).hex()


def decode_json(body: bytes) -> Any:
    """Parse JSON, keeping integers of any size. Raises WireError."""
    try:
        return from_json(body, allow_inf_nan=False, cache_strings="all")
    except ValueError as error:
        raise WireError(f"the body is no JSON: {str(error)[:200]}") from error


def parse_envelope(data: dict[str, Any], body: bytes) -> SignedEnvelope:
    """Parse a signed envelope. Raises WireError, which names the field."""
    source, target = (parse_node_rid(data.get(field), field) for field in ("source_node", "target_node"))
    signature = data.get("signature")
    if not isinstance(signature, str):
        raise WireError("signature: it is not a string")
    # A stock node writes the signature last: what stands before it is what was signed.
    tail = b',"signature":"' + signature.encode("utf-8", "replace") + b'"}'
    message = body[: -len(tail)] + b"}" if body.endswith(tail) else None
    return SignedEnvelope(data["payload"], source, target, signature, message)


def is_signed_by(envelope: SignedEnvelope, public_key: str, path: str, *, is_reply: bool = False) -> bool:
    """Whether the envelope is signed with this key, over its bytes or over its canonical form."""
    try:
        key = load_public_key(public_key)
        r, s = _split_signature(envelope.signature)
    except WireError:
        return False
    signature = encode_dss_signature(r, s)
    if envelope.message is not None and _verify(key, signature, envelope.message):
        return True
    try:
        canonical = canonical_message(envelope, path, is_reply=is_reply)
    except (WireError, ValueError, TypeError):
        return False
    return canonical != envelope.message and _verify(key, signature, canonical)


def _verify(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message, _ECDSA)
    except InvalidSignature:
        return False
    return True


def _split_signature(signature: str) -> tuple[int, int]:
    try:
        raw = base64.b64decode(signature)
    except (binascii.Error, ValueError) as error:
        raise WireError("signature: it is not base64") from error
    if len(raw) != 2 * _HALF_BYTES:
        raise WireError("signature: it is not 64 bytes, r and s of P-256")
    r, s = int.from_bytes(raw[:_HALF_BYTES]), int.from_bytes(raw[_HALF_BYTES:])
    if not 0 < r < _ORDER or not 0 < s < _ORDER:
        raise WireError("signature: r or s is out of range")
    return r, s


# Keys


@lru_cache(maxsize=4096)
def load_public_key(text: str) -> ec.EllipticCurvePublicKey:
    """A public key from base64 of DER. Raises WireError for anything but a key of P-256."""
    try:
        key = serialization.load_der_public_key(base64.b64decode(text))
    except (ValueError, binascii.Error, UnsupportedAlgorithm) as error:
        raise WireError("public_key: it is not base64 of a DER key") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise WireError("public_key: it is not a key of the curve P-256")
    return key


class NodeKey:
    """The private key of a node; its text form is PKCS 8 in PEM."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        der = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.public_key = base64.b64encode(der).decode()
        """Base64 of DER, as a node's profile holds it."""

    @classmethod
    def generate(cls) -> NodeKey:
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> NodeKey:
        """Raises WireError for anything but an unencrypted key of P-256."""
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise WireError(f"it is no unencrypted private key in PEM: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise WireError("it is not a key of the curve P-256")
        return cls(key)

    def to_pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, message: bytes) -> str:
        """The signature of a message: raw r‖s in base64."""
        r, s = decode_dss_signature(self._key.sign(message, _ECDSA))
        return base64.b64encode(r.to_bytes(_HALF_BYTES) + s.to_bytes(_HALF_BYTES)).decode()


def encode_envelope(payload: Request | Reply, source: str, target: str, key: NodeKey) -> bytes:
    """The body of a signed message."""
    data = {"payload": render(payload, "signed"), "source_node": source, "target_node": target}
    message = to_json(data, inf_nan_mode="constants")
    return message[:-1] + b',"signature":"' + key.sign(message).encode() + b'"}'


# The canonical form


def canonical_message(envelope: SignedEnvelope, path: str, *, is_reply: bool = False) -> bytes:
    """The bytes that a stock node would sign for this envelope. Raises WireError for a payload of another
    form.
    """
    fields = (_REPLIES if is_reply else _REQUESTS).get(path)
    if fields is None or not isinstance(envelope.payload, dict):
        raise WireError("payload: it is not an object of this endpoint")
    kind, defaults = fields
    payload: dict[str, Any] = {"type": kind}
    for name, default in defaults.items():
        value = envelope.payload.get(name, default)
        if name == "events":
            payload[name] = [_canonical_event(event) for event in value]
        elif name == "manifests":
            payload[name] = [_canonical_manifest(manifest) for manifest in value]
        elif name == "bundles":
            payload[name] = [
                {"manifest": _canonical_manifest(item["manifest"]), "contents": item["contents"]}
                for item in value
            ]
        else:
            payload[name] = value
    return to_json(
        {"payload": payload, "source_node": envelope.source_node, "target_node": envelope.target_node}
    )


_REQUESTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    BROADCAST: ("events_payload", {"events": []}),
    POLL: ("poll_events", {"limit": 0}),
    RIDS: ("fetch_rids", {"rid_types": []}),
    MANIFESTS: ("fetch_manifests", {"rid_types": [], "rids": []}),
    BUNDLES: ("fetch_bundles", {"rids": []}),
}
_REPLIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    POLL: ("events_payload", {"events": []}),
    RIDS: ("rids_payload", {"rids": []}),
    MANIFESTS: ("manifests_payload", {"manifests": [], "not_found": []}),
    BUNDLES: ("bundles_payload", {"bundles": [], "not_found": [], "deferred": []}),
}


def _canonical_event(event: Any) -> dict[str, Any]:
    if not isinstance(event, dict):
        raise WireError("event: it is not an object")
    data = {"rid": event.get("rid"), "event_type": event.get("event_type")}
    if event.get("manifest") is not None:
        data["manifest"] = _canonical_manifest(event["manifest"])
    if event.get("contents") is not None:
        data["contents"] = event["contents"]
    return data


def _canonical_manifest(manifest: Any) -> dict[str, Any]:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("timestamp"), str):
        raise WireError("manifest: it is not an object with a timestamp")
    data = {
        "rid": manifest.get("rid"),
        "timestamp": canonical_timestamp(manifest["timestamp"]),
        "sha256_hash": manifest.get("sha256_hash"),
    }
    data.update((key, value) for key, value in manifest.items() if key not in data and value is not None)
    return data
