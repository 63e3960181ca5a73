"""Marks in a signed trace, by which the next process of the mesh knows what an earlier one did for the call.

Policies have permitted the call, a person was asked about it, who began its chain, and that an exam began it.
A process without the key of the mesh cannot write them.
"""

from __future__ import annotations

from hashlib import sha256

from retinue.core.call import EXAM, Call, TraceContext, TraceExtension

ORIGIN = "origin"
"""The field of a trace with the id of the principal that began the chain of calls."""

MAX_ORIGIN = 310
"""Characters of that id in a trace, whose fields are limited; a longer one is unknown to further calls.

That of a JWT has up to 304. A part of an id would be another id, about which no policy is.
"""

_PERMITTED = "policy"
_ASKED = "asked"
_OF_EXAM = "exam"


def mark_permitted(trace: TraceContext, digest: str, agent: str, skill: str, origin: str) -> TraceContext:
    """The trace with the note that policies with this digest have permitted the call."""
    marked = _with_field(trace, _PERMITTED, _digest_of(digest, *_facts_of(trace, agent, skill)))
    return note_origin(marked, origin)


def is_permitted(trace: TraceContext, digest: str, agent: str, skill: str) -> bool:
    """Whether a process of this mesh with equal policies has permitted this very call."""
    return _find(trace, _PERMITTED) == _digest_of(digest, *_facts_of(trace, agent, skill))


def note_asked(trace: TraceContext, agent: str, skill: str) -> TraceContext:
    """The trace with the note that a person was asked about what guards found in the call."""
    return _with_field(trace, _ASKED, _digest_of(*_facts_of(trace, agent, skill)))


def was_asked(trace: TraceContext, agent: str, skill: str) -> bool:
    """Whether a process of this mesh has asked a person about this very call."""
    return _find(trace, _ASKED) == _digest_of(*_facts_of(trace, agent, skill))


def note_origin(trace: TraceContext, origin: str) -> TraceContext:
    """The trace with the principal that began the chain; it does not say that the call is permitted."""
    return _with_field(trace, ORIGIN, origin if len(origin) <= MAX_ORIGIN else "")


def find_origin(call: Call) -> str:
    """The id of the principal that began the chain of a call; "" where the chain does not tell.

    The first call has the origin as its caller, whatever its trace says. A signed trace says it from the
    second call on. In a chain that began without a signed trace, or in a process without policies, it is
    unknown.
    """
    trace = call.trace
    # the run itself is a hop
    if trace.depth == 0 or (call.principal.kind == "run" and trace.depth == 1):
        return call.principal.id
    origin = _find(trace, ORIGIN)
    return origin if isinstance(origin, str) else ""


def mark_exam(trace: TraceContext) -> TraceContext:
    """The trace with the note that an exam began the chain."""
    return _with_field(trace, _OF_EXAM, "1")


def is_of_exam(call: Call) -> bool:
    """Whether a call is of an exam, or further down in a signed chain that an exam began."""
    return call.endpoint == EXAM or _find(call.trace, _OF_EXAM) is not None


def _with_field(trace: TraceContext, field: str, text: str) -> TraceContext:
    extension = trace.extension or TraceExtension()
    return trace.with_extension(TraceExtension(extension.allowance, {**extension.others, field: text}))


def _find(trace: TraceContext, field: str) -> object:
    """The value of a field of a signed trace; None in a claim, and without the field."""
    return trace.extension.others.get(field) if trace.trusted and trace.extension is not None else None


def _facts_of(trace: TraceContext, agent: str, skill: str) -> tuple[str, ...]:
    """What a mark is for: one skill at one depth of one chain, so that further calls do not inherit it."""
    return trace.id, str(trace.depth), agent, skill


def _digest_of(*facts: str) -> str:
    return sha256("\0".join(facts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
