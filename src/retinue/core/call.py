"""Calls and their outcomes: the values that pass through the dispatch path."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.core.allowance import Allowance
from retinue.core.errors import RetinueError
from retinue.core.quick_dataclass import quick_dataclass
from retinue.core.record import ListingKey

PrincipalKind = Literal["local", "anonymous", "token", "mesh", "agent", "run"]
Status = Literal["done", "failed", "needs_input", "refused"]
PartKind = Literal["text", "data", "image", "audio", "file", "resource"]

MAX_WRITER_CHARACTERS = 4_000
"""Characters of the agent and of the step of a piece that came over a wire."""

MAX_KEY_LENGTH = 200
"""Characters of an idempotency key."""


EXAM = "exam"
"""The endpoint of the calls of entrance exams, which count in no figure of an agent."""


def new_id() -> str:
    """A random id of 128 bits, in hex: of a call, or of a trace."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller and its scopes: ``exposed``, ``mesh``, ``private``, ``runs_code``.

    ``kind`` "mesh" has a secret of the mesh itself and may call for other principals. ``agents`` are globs
    of the agents that the caller sees; () = all (``mesh.permissions``). ``through`` is the agent that starts
    a run for the caller, and ``send`` its list of skills that it may call, None without one: the run has the
    rights of the caller, as far as this agent has them. ``groups`` are those that its JWT names. ``team`` is
    that of the agent that calls, or calls through, as its process says; "" if it says none.
    """

    id: str
    kind: PrincipalKind
    scopes: frozenset[str] = frozenset({"exposed"})
    agents: tuple[str, ...] = ()
    through: str = ""
    send: tuple[str, ...] | None = None
    groups: tuple[str, ...] = ()
    team: str = ""


ANONYMOUS = Principal("anonymous", "anonymous", frozenset({"exposed", "mesh"}))
"""A caller on loopback without a token, at an endpoint that shows mesh skills."""

LOCAL = Principal("local", "local", frozenset({"exposed", "mesh", "private", "runs_code"}))
"""This process itself."""


@quick_dataclass(frozen=True, slots=True)
class Hop:
    """One call of a chain: a skill of an agent."""

    agent: str
    skill: str


@quick_dataclass(frozen=True, slots=True)
class TraceExtension:
    """The fields of a trace that the first form of its signature does not cover.

    ``allowance`` is what the call and its further calls may still spend. ``others`` are fields of a newer
    release, which are passed on as they came. ``mac`` signs all of them together with ``mac`` of the trace.
    """

    allowance: Allowance | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    mac: str | None = None


@quick_dataclass(frozen=True, slots=True)
class TraceContext:
    """The position of a call in its chain (S-13 … S-15).

    ``depth`` = hops from agent to agent including this one. ``via`` = the hubs that forwarded the call
    since depth last grew. ``calls_left`` = further calls that this one may cause. ``trusted`` = the values
    come from this process or were signed by this mesh. ``sent_at_ms`` (since 1970) is signed.
    """

    id: str
    depth: int = 0
    path: tuple[Hop, ...] = ()
    via: tuple[str, ...] = ()
    calls_left: int | None = None
    seconds_left: float | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    baggage: Mapping[str, str] = field(default_factory=dict)
    kid: str | None = None
    mac: str | None = None
    trusted: bool = False
    depth_given: bool = True
    """False when a message had an id without a depth; the guard then determines it."""
    sent_at_ms: int | None = None
    extension: TraceExtension | None = None

    @property
    def allowance(self) -> Allowance | None:
        """The tokens and the money that the call may still spend; None = no limit."""
        return None if self.extension is None else self.extension.allowance

    def with_allowance(self, allowance: Allowance | None) -> TraceContext:
        """The same trace with another allowance."""
        extension = self.extension
        if extension is None or not extension.others:
            extension = None if allowance is None else TraceExtension(allowance)
        else:
            extension = TraceExtension(allowance, extension.others)
        return self.with_extension(extension)

    def with_extension(self, extension: TraceExtension | None) -> TraceContext:
        """The same trace with another extension."""
        # every field by name: dataclasses.replace takes three times as long
        return TraceContext(
            id=self.id,
            depth=self.depth,
            path=self.path,
            via=self.via,
            calls_left=self.calls_left,
            seconds_left=self.seconds_left,
            traceparent=self.traceparent,
            tracestate=self.tracestate,
            baggage=self.baggage,
            kid=self.kid,
            mac=self.mac,
            trusted=self.trusted,
            depth_given=self.depth_given,
            sent_at_ms=self.sent_at_ms,
            extension=extension,
        )


@quick_dataclass(frozen=True, slots=True)
class Call:
    """One request to run one skill; its Channel is passed along with it.

    ``endpoint`` names the endpoint that received it. ``deadline`` is a time of the event loop's clock
    (``loop.time()``); None = the default of the endpoint. ``listing`` is the listing that a caller in this
    process has chosen; if it cannot take the call any more, the agent is looked up by its name.
    """

    id: str
    skill: str
    arguments: Any
    principal: Principal
    endpoint: str
    trace: TraceContext
    agent: str | None = None
    version_range: str | None = None
    deadline: float | None = None
    idempotency_key: str | None = None
    run_step: str | None = None
    listing: ListingKey | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A content part of a result; bytes are base64 text in ``value``."""

    kind: PartKind
    value: Any
    mime: str = "text/plain"
    name: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str) -> Part:
        """A text."""
        return cls("text", text)

    @classmethod
    def image(cls, content: bytes, mime: str = "image/png") -> Part:
        """An image."""
        return cls("image", b64encode(content).decode(), mime)

    @classmethod
    def audio(cls, content: bytes, mime: str = "audio/wav") -> Part:
        """A sound."""
        return cls("audio", b64encode(content).decode(), mime)

    @classmethod
    def resource(cls, uri: str, content: str | bytes, mime: str = "text/plain") -> Part:
        """A resource with its content: text, or bytes."""
        if isinstance(content, bytes):
            return cls("resource", {"uri": uri, "blob": b64encode(content).decode()}, mime)
        return cls("resource", {"uri": uri, "text": content}, mime)

    @classmethod
    def link(cls, uri: str, name: str, mime: str = "text/plain") -> Part:
        """A link to a resource, without its content."""
        return cls("resource", {"uri": uri}, mime, name)


@quick_dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one agent."""

    agent: str
    duration_ms: float
    error: str | None = None


@quick_dataclass(frozen=True, slots=True)
class Answer:
    """The result of one attempt, as an invoker returns it."""

    value: Any = None
    parts: tuple[Part, ...] = ()
    usage: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@quick_dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call; ``error`` is set unless ``status`` is ``done``.

    ``agent`` and ``version`` name the agent that answered. ``value`` is the JSON value, ``parts`` are texts,
    images and other content. ``attempts`` lists the agents that were tried, with the error of each.
    ``usage`` is what a model reports. ``calls_used`` = further calls that it caused; None = unknown, and it
    may still be running.
    """

    call_id: str
    skill: str
    status: Status
    agent: str | None = None
    version: str | None = None
    value: Any = None
    parts: tuple[Part, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    duration_ms: float = 0.0
    usage: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    error: RetinueError | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    calls_used: int | None = None

    def get(self) -> Any:
        """The value of a successful call; raises ``error`` otherwise."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of a text that a skill writes while it runs.

    ``at`` is the number of characters of the text before the piece, so that a reader knows what it missed.
    A piece at 0 begins a text, also one that is written again. ``agent`` writes the text. ``step`` is the
    step of a run to which it belongs, as in the events of the run; "" outside of runs.
    """

    text: str
    at: int = 0
    agent: str = ""
    step: str = ""

    @property
    def end(self) -> int:
        """Where the next piece of the text begins."""
        return self.at + len(self.text)

    def continues(self, other: TextPiece) -> bool:
        """Whether this piece follows the other one in the same text, without a gap."""
        return (self.at, self.agent, self.step) == (other.end, other.agent, other.step)

    @property
    def for_people(self) -> str:
        """The piece as a line of progress, after its step."""
        return f"{self.step}: {self.text}" if self.step else self.text

    def to_json(self) -> dict[str, Any]:
        """The form on every wire; ``agent`` and ``step`` only where they are known."""
        named = {"agent": self.agent, "step": self.step}
        return {"text": self.text, "at": self.at, **{key: name for key, name in named.items() if name}}

    @classmethod
    def from_json(cls, value: Any) -> TextPiece | None:
        """The piece in this form; None for any other value."""
        if not isinstance(value, Mapping):
            return None
        text, at = value.get("text"), value.get("at", 0)
        agent, step = value.get("agent", ""), value.get("step", "")
        if not (isinstance(text, str) and isinstance(agent, str) and isinstance(step, str)):
            return None
        if max(len(agent), len(step)) > MAX_WRITER_CHARACTERS:
            return None
        return cls(text, at, agent, step) if type(at) is int and at >= 0 else None
