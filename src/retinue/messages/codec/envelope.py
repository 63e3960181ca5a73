"""Codec of the envelope (seed 000, draft 0.1.0): lenient on input, complete on output (specification 7.1).

Only ``performative`` and ``payload`` are required; everything else has a default. Strict mode requires every
field. Unknown fields are ignored. A message that cannot be read raises NotUnderstoodError with its readable
part, so that the reply still names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from retinue.core.call import new_id
from retinue.core.json_values import decode_json, is_nested_deeper, name_shape
from retinue.core.text import suggest
from retinue.mesh.asking.query import fold
from retinue.messages.codec.performatives import FROM_FIPA, PERFORMATIVES, knows_ontology

VERSION = "0.1.0"
JSON = "application/json"
ANONYMOUS_AGENT = "anonymous"
ANYBODY = "*"
"""The receiver of a message without an addressee."""

UNKNOWN_PERFORMATIVE = "unknown_performative"
PARSING_ERROR = "parsing_error"
UNKNOWN_ONTOLOGY = "unknown_ontology"
INVALID_PAYLOAD = "invalid_payload_structure"

MAX_TEXT = 1000
"""Characters of an id, a name or another short field."""

_REQUIRED = (
    "mcp_version",
    "message_id",
    "performative",
    "sender",
    "receiver",
    "language",
    "ontology",
    "timestamp",
    "payload",
)
_TEXTS = (
    "mcp_version",
    "message_id",
    "in_reply_to",
    "reply_with",
    "language",
    "ontology",
    "timestamp",
    "conversation_id",
    "callback_url",
    "reply_by",
)
_LANGUAGE = re.compile(r"[A-Za-z]{2,8}(?:[-_][A-Za-z0-9]{1,8})*")


class NotUnderstoodError(Exception):
    """A message that is answered with NOT_UNDERSTOOD; ``text`` names field, shape and remedy.

    ``envelope`` is the readable part.
    """

    def __init__(self, reason_code: str, text: str, envelope: Envelope | None = None) -> None:
        super().__init__(text)
        self.reason_code = reason_code
        self.text = text
        self.envelope = envelope


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message. ``sender`` and ``receiver`` are the agents' names; ``receiver`` "" = any reader.

    ``callback_url`` is where later replies go, ``reply_by`` when the sender stops waiting. ``trace`` holds
    the keys of the trace, ``signature`` the parts of a JWS. ``warnings`` are notes of the sender.
    """

    performative: str
    payload: Mapping[str, Any]
    message_id: str
    sender: str = ANONYMOUS_AGENT
    receiver: str = ""
    in_reply_to: str | None = None
    reply_with: str | None = None
    language: str = JSON
    ontology: str = ""
    timestamp: str = ""
    mcp_version: str = VERSION
    conversation_id: str | None = None
    callback_url: str | None = None
    reply_by: str | None = None
    trace: Mapping[str, Any] = field(default_factory=dict)
    signature: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def read_json(body: bytes) -> Any:
    """The JSON value of a body; raises NotUnderstoodError ``parsing_error``, and OutOfMemoryError."""
    try:
        value = decode_json(body)
    except orjson.JSONDecodeError as error:
        raise NotUnderstoodError(
            PARSING_ERROR,
            f"the body is not JSON: {error}; send one JSON object with performative and payload",
        ) from None
    if is_nested_deeper(body, value):
        raise NotUnderstoodError(
            PARSING_ERROR, "the body has more than 128 levels of lists and objects; flatten it"
        )
    return value


def parse_envelope(value: Any, *, strict: bool = False) -> Envelope:
    """The envelope of a decoded message; raises NotUnderstoodError.

    In lenient mode the names of FIPA-ACL and any case of a performative are understood.
    """
    if not isinstance(value, dict):
        raise NotUnderstoodError(
            PARSING_ERROR,
            f"the message is {name_shape(value)}; send one JSON object with performative and payload",
        )
    found = _Fields(value)
    texts = {name: found.text(name) for name in _TEXTS}
    sender, receiver = found.agent("sender"), found.agent("receiver")
    trace, signature = found.mapping("trace"), found.mapping("signature")
    performative = found.performative(strict)
    payload = value.get("payload")
    if not isinstance(payload, dict):
        found.note("payload", payload, "an object; {} where there is nothing to say")
    known = PERFORMATIVES.get(performative)
    envelope = Envelope(
        performative=performative,
        payload=payload if isinstance(payload, dict) else {},
        message_id=texts["message_id"] or new_id(),
        sender=sender or ANONYMOUS_AGENT,
        receiver=receiver or "",
        in_reply_to=texts["in_reply_to"],
        reply_with=texts["reply_with"],
        language=texts["language"] or JSON,
        ontology=texts["ontology"] or ("" if known is None else known.ontology),
        timestamp=texts["timestamp"] or utc_now(),
        mcp_version=texts["mcp_version"] or VERSION,
        conversation_id=texts["conversation_id"],
        callback_url=texts["callback_url"],
        reply_by=texts["reply_by"],
        trace=trace or {},
        signature=signature,
    )
    if found.unknown_performative:
        raise NotUnderstoodError(UNKNOWN_PERFORMATIVE, found.unknown_performative, envelope)
    assert known is not None
    if known.is_reply and envelope.in_reply_to is None:
        found.problems.append(
            f"in_reply_to is missing, and {performative} is a reply: give the message_id of what it answers"
        )
    if strict:
        found.demand_all()
    if envelope.language != JSON and not _LANGUAGE.fullmatch(envelope.language):
        found.problems.append(
            f"language is {envelope.language[:40]!r}: give application/json or a language code such as en"
        )
    if envelope.reply_by is not None and parse_time(envelope.reply_by) is None:
        found.problems.append(
            f"reply_by is {envelope.reply_by[:40]!r}: give a time in ISO 8601, such as 2030-01-31T12:00:00Z"
        )
    if found.problems:
        raise NotUnderstoodError(INVALID_PAYLOAD, "; ".join(found.problems), envelope)
    if strict and not knows_ontology(envelope.ontology):
        raise NotUnderstoodError(UNKNOWN_ONTOLOGY, _unknown_ontology(envelope.ontology), envelope)
    return envelope


def ontology_warnings(envelope: Envelope) -> tuple[str, ...]:
    """The warnings of a reply about an unknown ontology."""
    # a message of which nothing could be read names none
    is_known = not envelope.ontology or knows_ontology(envelope.ontology)
    return () if is_known else (_unknown_ontology(envelope.ontology),)


def _unknown_ontology(term: str) -> str:
    return f"ontology {term[:100]!r} is unknown: give elizaos:ontology:<domain>/<concept>, or leave it out"


class _Fields:
    """Reads the fields of one message and collects their problems."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value
        self.problems: list[str] = []
        self.unknown_performative = ""

    def note(self, name: str, found: Any, remedy: str) -> None:
        shape = name_shape(found) if name in self._value else "missing"
        self.problems.append(f"{name} is {shape}: give {remedy}")

    def text(self, name: str) -> str | None:
        found = self._value.get(name)
        if found is None or found == "":
            return None
        if not isinstance(found, str):
            self.note(name, found, "a string, or leave it out")
            return None
        if len(found) > MAX_TEXT:
            self.problems.append(f"{name} has {len(found):,} characters: give at most {MAX_TEXT:,}")
            return None
        return found

    def agent(self, name: str) -> str | None:
        """The agent of ``sender`` or ``receiver``; a bare name is accepted."""
        found = self._value.get(name)
        if isinstance(found, dict):
            found = found.get("agent_id")
        if found is None or found == "":
            return None
        if not isinstance(found, str) or len(found) > MAX_TEXT:
            self.note(name, self._value.get(name), 'an object such as {"agent_id": "eddy"}, or leave it out')
            return None
        return found

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        found = self._value.get(name)
        if found is not None and not isinstance(found, dict):
            self.note(name, found, "an object, or leave it out")
            return None
        return found

    def performative(self, strict: bool) -> str:
        found = self._value.get("performative")
        names = ", ".join(PERFORMATIVES)
        if not isinstance(found, str):
            shape = name_shape(found) if "performative" in self._value else "missing"
            self.unknown_performative = f"performative is {shape}: give one of {names}"
            return ""
        if found in PERFORMATIVES:
            return found
        if not strict:
            spoken = found.strip().casefold().replace("_", "-").replace(" ", "-")
            upper = spoken.upper().replace("-", "_")
            if upper in PERFORMATIVES:
                return upper
            if spoken in FROM_FIPA:
                return FROM_FIPA[spoken]
        near = suggest(found[:100].upper(), list(PERFORMATIVES))
        hint = f"did you mean {' or '.join(near)}? Give" if near else "give"
        self.unknown_performative = f"performative {found[:100]!r} is unknown: {hint} one of {names}"
        return ""

    def demand_all(self) -> None:
        """Note every field that strict mode misses."""
        for name in _REQUIRED:
            if self._value.get(name) in (None, ""):
                self.problems.append(f"{name} is missing, and strict mode requires every field: give it")
        for name in ("sender", "receiver"):
            found = self._value.get(name)
            if isinstance(found, str):
                self.problems.append(f'{name} is a string: give {{"agent_id": …}}')
        timestamp = self._value.get("timestamp")
        if isinstance(timestamp, str) and timestamp and parse_time(timestamp) is None:
            self.problems.append("timestamp is not a time: give ISO 8601 in UTC")


def render_envelope(envelope: Envelope) -> dict[str, Any]:
    """The envelope as JSON, with every field of the draft; optional ones only where they are set."""
    rendered: dict[str, Any] = {
        "mcp_version": envelope.mcp_version,
        "message_id": envelope.message_id,
        "performative": envelope.performative,
        "sender": {"agent_id": envelope.sender},
        "receiver": {"agent_id": envelope.receiver},
    }
    for name in ("in_reply_to", "reply_with", "conversation_id", "callback_url", "reply_by"):
        found = getattr(envelope, name)
        if found is not None:
            rendered[name] = found
    rendered |= {
        "language": envelope.language,
        "ontology": envelope.ontology,
        "timestamp": envelope.timestamp,
        "payload": dict(envelope.payload),
    }
    if envelope.trace:
        rendered["trace"] = dict(envelope.trace)
    if envelope.warnings:
        rendered["warnings"] = list(envelope.warnings)
    if envelope.signature is not None:
        rendered["signature"] = dict(envelope.signature)
    return rendered


def describe_envelope(envelope: Envelope) -> dict[str, Any]:
    """The content of a message, with plain names of agents and without trace and signature."""
    return {
        "performative": envelope.performative,
        "sender": envelope.sender,
        "receiver": envelope.receiver,
        "message_id": envelope.message_id,
        "conversation_id": envelope.conversation_id,
        "ontology": envelope.ontology,
        "timestamp": envelope.timestamp,
        "payload": dict(envelope.payload),
    }


def new_envelope(
    performative: str,
    payload: Mapping[str, Any],
    *,
    sender: str,
    receiver: str,
    reply_by: str | None = None,
    trace: Mapping[str, Any] | None = None,
) -> Envelope:
    """A message that begins a conversation."""
    return Envelope(
        performative=performative,
        payload=payload,
        message_id=new_id(),
        sender=sender,
        receiver=receiver,
        ontology=PERFORMATIVES[performative].ontology,
        timestamp=utc_now(),
        reply_by=reply_by,
        trace=trace or {},
    )


_BY_REPLY_WITH = frozenset({"INFORM_RESULT", "FAILURE"})
"""Replies that answer to ``reply_with`` where it is given; all others name the ``message_id``."""


def reply_to(
    request: Envelope,
    performative: str,
    payload: Mapping[str, Any],
    *,
    sender: str,
    warnings: Sequence[str] = (),
) -> Envelope:
    """The reply to ``request``: sender and receiver swapped, in the language that was asked for.

    ``in_reply_to`` is the ``message_id``, in INFORM_RESULT and FAILURE the ``reply_with`` if there was one.
    """
    by_token = performative in _BY_REPLY_WITH and request.reply_with is not None
    return Envelope(
        performative=performative,
        payload=payload,
        message_id=new_id(),
        sender=sender,
        receiver=request.sender,
        in_reply_to=request.reply_with if by_token else request.message_id,
        # texts are English: a client that asked for another language is told so
        language=JSON if request.language == JSON else "en",
        ontology=PERFORMATIVES[performative].ontology,
        timestamp=utc_now(),
        conversation_id=request.conversation_id,
        warnings=tuple(warnings),
    )


def utc_now() -> str:
    """The time now in ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime | None:
    """A time of ISO 8601; without an offset it is UTC. None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def same_agent(one: str, other: str) -> bool:
    """Whether two names mean the same agent."""
    return one == other or fold(one) == fold(other)
