"""Tells other members what this one has found of agents, and takes what they have found."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson

from retinue.core.record import Health
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.entry import Entry
from retinue.mesh.health.agent_stats import AgentStatsTable, report_health
from retinue.mesh.health.probe_sharing import ProbeSharing, is_loopback
from retinue.runtime.many_hubs.exchange import Topic

SEND_S = 5.0
"""Seconds between two messages about agents that are as before."""

OWN_EVIDENCE_S = 5.0
"""An agent that has answered here in this time is not unreachable because another member says so."""

MAX_CHANGES = 500
"""Changes of one message."""


class Findings(Topic):
    """Agents that were found as before, by probes and by calls: only that and when they were looked at."""

    name = "findings"

    def __init__(self, sharing: ProbeSharing, agent_stats: AgentStatsTable) -> None:
        self._sharing = sharing
        self._agent_stats = agent_stats
        self._sent_at = time.monotonic()

    async def take(self) -> Sequence[bytes]:
        now = time.monotonic()
        if not self._sharing.is_shared or now - self._sent_at < SEND_S:
            return ()
        for name, url in self._agent_stats.list_answered(self._sent_at):
            self._sharing.note_answer(name, url)
        self._sent_at = now
        findings = self._sharing.take_findings()
        return (findings,) if findings else ()

    async def hear(self, body: bytes) -> None:
        self._sharing.hear(body)


class HealthChanges(Topic):
    """Agents whose health has changed, told at once."""

    name = "health"

    def __init__(
        self, directory: Directory, agent_stats: AgentStatsTable, sharing: ProbeSharing, place: str
    ) -> None:
        self._directory = directory
        self._agent_stats = agent_stats
        self._sharing = sharing
        self._place = place
        self._changed: dict[tuple[str, str], tuple[Health, str]] = {}
        self._is_hearing = False
        directory.subscribe(self._note)

    async def take(self) -> Sequence[bytes]:
        changes = [
            {"name": name, "url": url, "health": health, "reason": reason, "place": self._place}
            for (name, url), (health, reason) in self._changed.items()
        ]
        self._changed.clear()
        return [orjson.dumps(changes[at : at + MAX_CHANGES]) for at in range(0, len(changes), MAX_CHANGES)]

    async def hear(self, body: bytes) -> None:
        self._is_hearing = True
        try:
            for change in orjson.loads(body):
                url = change["url"]
                if not is_loopback(url) or change["place"] == self._place:
                    self._apply(change["name"], url, change["health"], str(change["reason"]))
        finally:
            self._is_hearing = False

    def _apply(self, name: str, url: str, health: Health, reason: str) -> None:
        candidate = next(
            (candidate for candidate in self._directory.list_named(name) if candidate.url == url), None
        )
        if candidate is None:
            return
        self._sharing.hear_of(candidate, health)
        stats = self._agent_stats.of(candidate)
        if health == "healthy":
            stats.probe_answered()
        elif self._agent_stats.has_seen(candidate, OWN_EVIDENCE_S):
            return
        else:
            stats.probe_failed(reason, certain=health == "unreachable")
        report_health(stats, candidate, self._directory.record_health)

    def _note(self, change: ListingChange) -> None:
        entry: Entry = change.entry
        if self._is_hearing or not change.measured or entry.url is None or entry.health == "unknown":
            return
        self._changed[entry.name, entry.url] = (entry.health, entry.last_error or "")
        self.wake()
