"""The note in a signed trace that a person was asked about what guards found in one call."""

from __future__ import annotations

from hashlib import sha256

from retinue.core.call import TraceContext, TraceExtension

_MARK = "asked"


def note_asked(trace: TraceContext, agent: str, skill: str) -> TraceContext:
    """The trace with the note, for the next process of the mesh."""
    extension = trace.extension or TraceExtension()
    others = {**extension.others, _MARK: _write(trace, agent, skill)}
    return trace.with_extension(TraceExtension(extension.allowance, others))


def was_asked(trace: TraceContext, agent: str, skill: str) -> bool:
    """Whether a process of this mesh has asked a person about this very call."""
    if not trace.trusted or trace.extension is None:
        return False
    return trace.extension.others.get(_MARK) == _write(trace, agent, skill)


def _write(trace: TraceContext, agent: str, skill: str) -> str:
    """The note; it counts for one skill at one depth of one chain."""
    facts = "\0".join((trace.id, str(trace.depth), agent, skill))
    return sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:32]
