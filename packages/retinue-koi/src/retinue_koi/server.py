"""The five endpoints of a node, below ``/koi-net`` and at the root, in both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import orjson
import structlog
from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from retinue.core.errors import StateError
from retinue_koi.codec.bundles import EventType, WireError
from retinue_koi.codec.envelopes import (
    SignedEnvelope,
    decode_json,
    encode_envelope,
    is_signed_by,
    parse_envelope,
)
from retinue_koi.codec.payloads import (
    PATHS,
    EventsPayload,
    FetchManifests,
    FetchRids,
    ProtocolFault,
    Reply,
    TooManyError,
    find_introduced,
    is_envelope,
    parse_request,
    render,
    render_fault,
)
from retinue_koi.codec.payloads import Request as KoiRequest
from retinue_koi.codec.rids import is_rid_of_key
from retinue_koi.node import KoiNode
from retinue_koi.pipeline import PipelineFullError
from retinue_koi.rules import Trust

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
PREFIX: Final = "/koi-net"

log = structlog.get_logger("retinue.koi")


class FaultError(Exception):
    """A signed request that is refused in the protocol's own form, with status 400."""

    def __init__(self, fault: ProtocolFault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


def routes(node: KoiNode, prefixes: Iterable[str] = (PREFIX, "")) -> list[Route]:
    """The routes of a node's five endpoints, below each prefix."""
    server = KoiServer(node)
    return [
        Route(prefix + path, server.endpoint(path), methods=["POST"]) for prefix in prefixes for path in PATHS
    ]


def list_open_paths(trust: Trust | None) -> frozenset[str]:
    """The paths of a node that need no token, because the node checks whose messages it takes."""
    if trust not in ("known", "signed"):
        return frozenset()
    return frozenset(prefix + path for prefix in (PREFIX, "") for path in PATHS)


class KoiServer:
    """Turns requests into the node's replies, and refusals into statuses."""

    def __init__(self, node: KoiNode) -> None:
        self._node = node
        self._taking: set[tuple[str, str]] = set()

    def endpoint(self, path: str) -> Any:
        async def answer(request: Request) -> Response:
            return await self.answer(path, request)

        return answer

    async def answer(self, path: str, request: Request) -> Response:
        if not self._node.is_running:
            return _refuse(path, 503, "the node is not running; send the request again later")
        try:
            body = await _read(request)
            return _json(await self._answer(path, body))
        except ClientDisconnect:
            return Response(status_code=499)
        except FaultError as error:
            log.warning("koi_request_refused", path=path, fault=error.fault, reason=str(error))
            return _json(orjson.dumps(render_fault(error.fault)), 400)
        except TooManyError as error:
            return _refuse(path, 413, str(error))
        except WireError as error:
            return _refuse(path, 422, str(error))
        except PermissionError as error:
            return _refuse(path, 403, str(error))
        except PipelineFullError as error:
            return _refuse(path, 503, str(error))
        except StateError as error:
            return _refuse(path, 507, str(error))
        except TimeoutError:
            return _refuse(path, 503, "the node is busy; send the request again later")

    async def _answer(self, path: str, body: bytes) -> bytes:
        """The body of the reply with status 200."""
        data = decode_json(body)
        if not is_envelope(data):
            if self._node.policy.rules.terms.trust == "signed":
                raise PermissionError("this node accepts signed requests only")
            request = parse_request(path, data)
            reply = await self._node.answer(request, None, "unsigned")
            if reply is None:
                return b"null"
            rendered = render(reply, "unsigned")
            try:
                return orjson.dumps(rendered)
            except orjson.JSONEncodeError:
                return to_json(rendered)
        envelope = parse_envelope(data, body)
        request = parse_request(path, envelope.payload)
        asks = isinstance(request, FetchRids | FetchManifests)
        try:
            await self._verify(envelope, request, path)
        except FaultError as error:
            if asks and error.fault == "unknown_node":
                self._node.joining.note_catching_up(envelope.source_node, refused=True)
            raise
        if asks:
            self._node.joining.note_catching_up(envelope.source_node, refused=False)
        if isinstance(request, EventsPayload) and any(
            event.event_type is EventType.FORGET for event in request.events
        ):
            await self._take_once(request, envelope)
            return b"null"
        reply = await self._node.answer(request, envelope.source_node, "signed")
        if reply is None:
            return b"null"
        return self._sign(reply, envelope.source_node)

    async def _take_once(self, request: EventsPayload, envelope: SignedEnvelope) -> None:
        """Accept a removal message once; after a failure the same message may be sent again."""
        sender, signature_id = envelope.source_node, envelope.signature_id
        if (sender, signature_id) in self._taking:
            raise PipelineFullError("the same message is being processed; send it again later")
        replayed = self._node.state.memory.has_signature(sender, signature_id)
        self._taking.add((sender, signature_id))
        try:
            await self._node.answer(request, sender, "signed", replayed=replayed)
            if not replayed:
                self._node.state.memory.note_signature(sender, signature_id)
        finally:
            self._taking.discard((sender, signature_id))

    def _sign(self, reply: Reply, target: str) -> bytes:
        return encode_envelope(reply, self._node.rid, target, self._node.state.identity.key)

    async def _verify(self, envelope: SignedEnvelope, request: KoiRequest, path: str) -> None:
        """Check sender, key, signature and target, in the order of a stock node.

        Raises FaultError, and StateError if it cannot be kept that the sender signs.
        """
        source = envelope.source_node
        profile = self._node.state.graph.find_node(source)
        key = None if profile is None else profile.public_key
        if key is None:
            key = find_introduced(source, request, "public_key")
        rules = self._node.policy.rules
        url = find_introduced(source, request, "base_url")
        is_known = self._node.policy.rules.terms.trust != "known" or rules.is_known(source)
        if key is None or not (is_known or rules.claims_contact(url)):
            raise FaultError("unknown_node", f"{source} is not known to this node")
        if not is_rid_of_key(source, key):
            raise FaultError("invalid_key", f"{source} is not made from the key of its profile")
        if not is_signed_by(envelope, key, path):
            raise FaultError("invalid_signature", f"the signature is not one of {source}")
        if envelope.target_node != self._node.rid:
            raise FaultError("invalid_target", f"the message of {source} is for {envelope.target_node}")
        if not is_known and not await self._node.policy.questions.signs_as(str(url), source, key):
            raise FaultError("unknown_node", f"{source} is not what answers at {url}")
        self._node.state.memory.note_proof(source)
        self._node.state.memory.hear(source)


async def _read(request: Request) -> bytes:
    """The body of a request. Raises TooManyError beyond `MAX_BODY_BYTES`."""
    body = bytearray()
    async with asyncio.timeout(30.0):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise TooManyError(f"the body is larger than {MAX_BODY_BYTES:,} bytes; send several requests")
    return bytes(body)


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")


def _refuse(path: str, status: int, detail: str) -> Response:
    log.warning("koi_request_refused", path=path, status=status, reason=detail)
    response = _json(orjson.dumps({"detail": detail}), status)
    if status == 503:
        response.headers["retry-after"] = "1"
    return response
