"""Measures the recorded calls of each version of an agent, for the receipts that a hub issues.

Calls of exams, calls that an agent makes of itself, and errors of callers do not count. Of one caller only
the newest `MAX_PER_CALLER` calls count, so that nobody dilutes the failures of an agent by many calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from retinue.core.call import ANONYMOUS, EXAM, LOCAL
from retinue.core.record import HUB_NAME, QUERY_CAPABILITIES
from retinue.mesh.observing.call_facts import KEY
from retinue.mesh.observing.call_figures import AGENT_FAILURES

MAX_PER_CALLER = 100

_ISSUED = ("token:", "jwt:")
"""How the ids of callers begin that cannot choose their names."""

_ITSELF = "mesh"


class Version(NamedTuple):
    """An agent by name, and the short digest of its card as audit rows have it."""

    agent: str
    digest: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The counted calls of one version; ``failures`` by type of error, times in seconds since 1970."""

    calls: int
    failures: Mapping[str, int]
    durations_ms: Sequence[float]
    begins_at: float
    ends_at: float


class _Sample(NamedTuple):
    at: float
    duration_ms: float
    error: str | None


def measure_calls(rows: Iterable[Mapping[str, Any]]) -> dict[Version, Measured]:
    """Measure audit rows of ended calls, oldest first; rows of another form are ignored."""
    samples: defaultdict[Version, defaultdict[str, deque[_Sample]]] = defaultdict(
        lambda: defaultdict(lambda: deque(maxlen=MAX_PER_CALLER))
    )
    for row in rows:
        version = _find_version(row)
        sample = None if version is None else _find_sample(row)
        if version is not None and sample is not None:
            samples[version][_find_voice(str(row.get("caller")))].append(sample)
    return {version: _sum(by_caller.values()) for version, by_caller in samples.items()}


def _find_version(row: Mapping[str, Any]) -> Version | None:
    """The version that a row tells of; None for a call that does not count."""
    agent, facts = row.get("agent"), row.get(KEY)
    if not isinstance(agent, str) or agent == HUB_NAME or not isinstance(facts, Mapping):
        return None
    digest, chain = facts.get("listing"), facts.get("chain", [])
    calls_itself = row.get("caller") == agent or (isinstance(chain, list) and agent in chain[:-1])
    if not isinstance(digest, str) or calls_itself:
        return None
    if row.get("door") == EXAM or row.get("skill") == QUERY_CAPABILITIES or facts.get("message"):
        return None
    return Version(agent, digest)


def _find_sample(row: Mapping[str, Any]) -> _Sample | None:
    status, error, duration_ms = row.get("status"), row.get("error"), row.get("duration_ms")
    if status != "done" and not (status == "failed" and error in AGENT_FAILURES):
        return None
    try:
        at = datetime.fromisoformat(str(row.get("timestamp"))).timestamp()
    except ValueError:
        return None
    if not isinstance(duration_ms, int | float):
        return None
    return _Sample(at, float(duration_ms), None if status == "done" else str(error))


def _find_voice(caller: str) -> str:
    """What a caller counts as: all that choose their names themselves are one."""
    return caller if caller.startswith(_ISSUED) or caller in (LOCAL.id, ANONYMOUS.id) else _ITSELF


def _sum(by_caller: Iterable[deque[_Sample]]) -> Measured:
    samples = [sample for held in by_caller for sample in held]
    times = [sample.at for sample in samples]
    return Measured(
        len(samples),
        Counter(sample.error for sample in samples if sample.error is not None),
        [sample.duration_ms for sample in samples],
        min(times),
        max(times),
    )
