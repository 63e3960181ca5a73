"""Keeps the statistics of an agent as long as the directory lists it."""

from __future__ import annotations

from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listing_cache import ListingChange
from retinue.mesh.health.agent_stats import AgentStatsTable


def keep_stats(directory: Directory, agent_stats: AgentStatsTable) -> AgentStatsTable:
    """Have the statistics of each listed agent kept; returns ``agent_stats``."""

    def note(change: ListingChange) -> None:
        for entry in change.list_left():
            agent_stats.note_unlisted(entry.name, entry.url)

    agent_stats.is_listed = directory.is_listed
    directory.subscribe(note)
    return agent_stats
