"""The sources of a chain of calls: the agents whose results it has taken in, for the policies that read them.

A signed trace tells a call what its chain has read before it, and the signed usage of a reply tells what the
call has read. A chain is tracked where a policy reads sources. Then a reply without a signature of the mesh
comes from a foreign source, and so does the result of an imported agent or of a member of an open network.
"""

from __future__ import annotations

from dataclasses import replace

from retinue.core.call import Answer, Outcome, TraceContext, TraceExtension
from retinue.core.record import LOCAL_SOURCE, Candidate
from retinue.core.trust import Trust
from retinue.core.usage import (
    NO_SOURCES,
    SOURCES,
    UNKNOWN_SOURCE,
    Sources,
    Usage,
    add_sources,
    read_sources,
    read_usage,
)


def read_trace(trace: TraceContext) -> Sources | None:
    """The sources that the signed trace of a call names; None where it names none, or is a claim."""
    if not trace.trusted or trace.extension is None:
        return None
    return read_sources(trace.extension.others.get(SOURCES))


def is_tracked(trace: TraceContext) -> bool:
    """Whether the sources of a chain are recorded, because policies read them."""
    return trace.extension is not None and SOURCES in trace.extension.others


def with_sources(trace: TraceContext, sources: Sources) -> TraceContext:
    """The trace of a chain that has read these as well."""
    extension = trace.extension or TraceExtension()
    known = read_sources(extension.others.get(SOURCES)) or NO_SOURCES
    others = {**extension.others, SOURCES: add_sources(known, sources).to_json()}
    return trace.with_extension(TraceExtension(extension.allowance, others))


def carry(trace: TraceContext, usage: Usage | None) -> TraceContext:
    """The trace of a further call of one whose further calls have used this until now."""
    sources = None if usage is None else read_sources(usage.get(SOURCES))
    return trace if sources is None or not sources or not trace.trusted else with_sources(trace, sources)


def note_source(outcome: Outcome, listing: Candidate | None, *, is_repeated: bool = False) -> Outcome:
    """The outcome of a call in a tracked chain, with the agent that has answered.

    ``is_repeated`` = the answer is that of an earlier call, whose sources are those that were kept with it.
    """
    usage = outcome.usage or {}
    known = read_sources(usage.get(SOURCES))
    if listing is None or not (outcome.attempts or is_repeated):
        return replace(outcome, usage={**usage, SOURCES: (known or NO_SOURCES).to_json()})
    is_here = listing.source == LOCAL_SOURCE and not is_repeated
    is_own = listing.trust < Trust.IMPORTED and (is_here or known is not None)
    answered = Sources((listing.name,), ()) if is_own else Sources((), (listing.name,))
    return replace(outcome, usage={**usage, SOURCES: add_sources(known or NO_SOURCES, answered).to_json()})


def keep_sources(answer: Answer, listing: Candidate, further: Usage | None) -> Answer:
    """The answer of a call in a tracked chain with the sources of its further calls, to be kept."""
    usage = read_usage(answer.usage) or {}
    known = read_sources(usage.get(SOURCES))
    if known is None and listing.source != LOCAL_SOURCE:
        return answer  # nobody of the mesh has signed what it has read
    more = read_sources((further or {}).get(SOURCES))
    sources = add_sources(known or NO_SOURCES, more or NO_SOURCES)
    return replace(answer, usage={**usage, SOURCES: sources.to_json()})


def note_unsigned(usage: Usage | None, agent: str | None) -> Usage:
    """What a call of this process has used; its agent is foreign where nobody of the mesh has signed that."""
    if usage is not None and SOURCES in usage:
        return usage
    return {**(usage or {}), SOURCES: Sources((), (agent or UNKNOWN_SOURCE,)).to_json()}
