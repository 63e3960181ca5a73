"""The call and its outcome: what travels through the one dispatch path."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from retinue.core.errors import RetinueError

PrincipalKind = Literal["local", "anonymous", "token", "mesh", "agent", "run"]
Status = Literal["done", "failed", "needs_input", "refused"]
PartKind = Literal["text", "data", "image", "audio", "file", "resource"]


MAX_KEY_LENGTH = 200
"""Characters of an idempotency key."""


def new_id() -> str:
    """A random id of 128 bits, in hex: of a call, or of a trace."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what that caller may see: scopes ``exposed``, ``mesh``, ``private``, ``runs_code``.

    ``kind`` mesh = whoever holds a secret of the mesh itself, and may speak for others. ``agents`` are
    globs of the agents that the caller sees at all; none = every one (``mesh.access``).
    """

    id: str
    kind: PrincipalKind
    scopes: frozenset[str] = frozenset({"exposed"})
    agents: tuple[str, ...] = ()


ANONYMOUS = Principal("anonymous", "anonymous", frozenset({"exposed", "mesh"}))
"""Somebody on loopback without a token, at a door that shows mesh skills (DESIGN 2)."""

LOCAL = Principal("local", "local", frozenset({"exposed", "mesh", "private", "runs_code"}))
"""This process itself."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One call of a chain: which skill of which agent."""

    agent: str
    skill: str


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a call stands in its chain (DESIGN 2, trace; S-13 … S-15).

    ``depth`` = hops from agent to agent including this one; ``via`` = the hubs that forwarded
    since depth last rose; ``calls_left`` = further calls that this one may cause; ``trusted`` = the
    values come from this process or were signed by this mesh. ``sent_at_ms`` (since 1970) is signed.
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
    """False when a message carried an id without a depth: the guard then works it out."""
    sent_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One request to run one skill; the Channel travels beside it.

    ``deadline`` is a time of the event loop's clock (``loop.time()``), None = the door's default.
    """

    id: str
    skill: str
    arguments: Any
    principal: Principal
    door: str
    trace: TraceContext
    agent: str | None = None
    version_range: str | None = None
    deadline: float | None = None
    idempotency_key: str | None = None
    run_step: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of content beside the value; bytes are base64 text in ``value``."""

    kind: PartKind
    value: Any
    mime: str = "text/plain"
    name: str | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def text(cls, text: str) -> Part:
        """A piece of text."""
        return cls("text", text)

    @classmethod
    def image(cls, content: bytes, mime: str = "image/png") -> Part:
        """A picture."""
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
        """A resource by its address: whoever wants it reads it."""
        return cls("resource", {"uri": uri}, mime, name)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one agent."""

    agent: str
    duration_ms: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What an invoker brought back from one attempt."""

    value: Any = None
    parts: tuple[Part, ...] = ()
    usage: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call; ``error`` is set unless ``status`` is done.

    ``calls_used`` = further calls that it caused; None when nobody told, and it may still be running.
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
    cached: bool = False
    warnings: tuple[str, ...] = ()
    error: RetinueError | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    calls_used: int | None = None

    def get(self) -> Any:
        """The value of a done call; raises ``error`` otherwise."""
        if self.error is not None:
            raise self.error
        return self.value
