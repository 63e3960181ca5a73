"""Renders the rows of ``list_agents`` and ``find_skills``: the reply of seed 002 with further keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.cards.skill_signature import first_sentences, render_signature
from retinue.core.record import (
    AgentRecord,
    Candidate,
    Health,
    Listing,
    Skill,
    Stats,
    is_visible,
    render_deprecation,
)
from retinue.core.trust import Trust

_SCORES = ("planning", "execution", "review")
_STATUS: Mapping[Health, str] = {
    "unknown": "unknown",
    "healthy": "available",
    "degraded": "degraded",
    "unreachable": "unavailable",
}


def render_agent_row(
    listing: Listing, *, scopes: frozenset[str], metrics: Stats | None = None
) -> dict[str, Any]:
    """One agent as its caller may see it, without hidden skills (L-20, specification 3, doubt 12).

    ``metrics`` are included where there was a call; ``avgResponseTime`` is in milliseconds.
    """
    record = listing.record
    row: dict[str, Any] = {
        "name": record.name,
        "status": status_of(listing),
        "version": record.version,
        "description": record.description,
        "skills": [skill.id for skill in record.skills if is_visible(skill.visibility, scopes)],
        "url": record.url,
        "source": listing.source,
        "reference": f"{listing.key}:{listing.tag}" if listing.tag else listing.key,
        "digest": listing.digest,
    }
    if listing.signature != "none":
        row["signature"] = listing.signature
    if capabilities := render_capabilities(record):
        row["capabilities"] = capabilities
    if listing.owner is not None:
        row["owner"] = listing.owner
    if deprecated := render_deprecation(record):
        row["deprecated"] = deprecated
    if listing.since is not None:
        row["since"] = listing.since.isoformat(timespec="seconds")
    if listing.last_error is not None:
        row["last_error"] = listing.last_error
    if metrics is not None and metrics.calls:
        row["metrics"] = render_metrics(metrics)
    return row


_SHOWN_HINTS = ("read_only", "destructive", "idempotent", "open_world")


def render_short_skill_row(agent: Candidate, skill: Skill) -> dict[str, Any]:
    """One skill of one agent for a model: what it does and how it is called, without schemas.

    ``read_only`` and ``destructive`` stand in the rows of skills that are marked so, ``status`` in those of
    agents that cannot be called now.
    """
    row: dict[str, Any] = {
        "agent": agent.name,
        "skill": skill.id,
        "description": first_sentences(skill.description),
        "call": render_signature(skill.id, skill.input_schema),
    }
    if agent.version:
        row["version"] = agent.version
    row |= {name: True for name in ("read_only", "destructive") if getattr(skill.hints, name)}
    if (status := status_of(agent)) in ("unavailable", "disabled"):
        row["status"] = status
    if agent.trust is not Trust.OWN_MESH:
        row["trust"] = agent.trust.name.lower()
    return {**row, "deprecated": True} if agent.deprecated else row


def render_skill_row(agent: Candidate, skill: Skill) -> dict[str, Any]:
    """One skill of one agent in full, with the hints that are set; ``trust`` only for agents of others."""
    row: dict[str, Any] = {
        "agent": agent.name,
        "skill": skill.id,
        "description": skill.description,
        "version": agent.version,
        "tags": list(skill.tags),
        "status": status_of(agent),
        "url": agent.url,
        "input_schema": skill.input_schema,
    }
    row |= {name: True for name in _SHOWN_HINTS if getattr(skill.hints, name)}
    if agent.trust is not Trust.OWN_MESH:
        row["trust"] = agent.trust.name.lower()
    return {**row, "deprecated": True} if agent.deprecated else row


def status_of(agent: Candidate) -> str:
    """The status of an agent in lists: available, degraded, unavailable, unknown or disabled."""
    return render_status(agent.health, is_enabled=agent.enabled)


def render_status(health: Health, *, is_enabled: bool) -> str:
    """As `status_of`."""
    return _STATUS[health] if is_enabled else "disabled"


def render_version(agent: Candidate) -> dict[str, Any]:
    """One version of an agent; ``weight`` is per cent of the calls without a range while it is the newest."""
    row: dict[str, Any] = {
        "version": agent.version,
        "source": agent.source,
        "reference": f"{agent.key}:{agent.id.tag}" if agent.id.tag else agent.key,
        "status": status_of(agent),
        "weight": agent.weight,
    }
    if agent.deprecated:
        row["deprecated"] = True
    if agent.last_error is not None:
        row["last_error"] = agent.last_error
    return row


def render_metrics(stats: Stats) -> dict[str, Any]:
    """The figures of an agent that was called; ``avgResponseTime`` is in milliseconds (L-20)."""
    metrics: dict[str, Any] = {
        "successRate": round(1 - stats.failures / stats.calls, 4),
        "totalRequests": stats.calls,
    }
    if stats.mean_latency_s is not None:
        metrics = {"avgResponseTime": round(stats.mean_latency_s * 1000), **metrics}
    return metrics


def render_capabilities(record: AgentRecord) -> dict[str, Any]:
    """The configured scores and the context window; empty where there are none."""
    capabilities: dict[str, Any] = {}
    if record.scores is not None:
        capabilities.update({name: record.scores[name] for name in _SCORES if name in record.scores})
    if record.context_window is not None:
        capabilities["contextWindow"] = record.context_window
    return capabilities
