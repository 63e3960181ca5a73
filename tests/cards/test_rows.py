"""The row that ``list_agents`` gives of one agent (seed 002, L-20), and of one of its skills."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from retinue.cards.rows import render_agent_row, render_skill_row
from retinue.core.record import AgentRecord, Endpoint, Listing, Skill, Stats

SCOPES = frozenset({"exposed", "mesh"})
RECORD = AgentRecord(
    "claude",
    version="1.0.0",
    description="Plans",
    endpoints=(Endpoint("execute", "http://127.0.0.1:8001"),),
    skills=(
        Skill("plan", tags=("t",), input_schema={"type": "object"}),
        Skill("shown", visibility="exposed"),
        Skill("hidden", visibility="private"),
    ),
    scores={"planning": 0.95, "execution": 0.85, "review": 0.9, "cooking": 0.1},
    context_window=200_000,
)
LISTING = Listing(RECORD, "home", "agents/claude", tag="v1", digest="sha256:abc")


def row(listing: Listing = LISTING, scopes: frozenset[str] = SCOPES) -> dict[str, Any]:
    return render_agent_row(listing, scopes=scopes)


def test_a_row_says_who_what_and_where() -> None:
    assert row() == {
        "name": "claude",
        "status": "unknown",
        "version": "1.0.0",
        "description": "Plans",
        "skills": ["plan", "shown"],
        "url": "http://127.0.0.1:8001",
        "source": "home",
        "reference": "agents/claude:v1",
        "digest": "sha256:abc",
        "capabilities": {"planning": 0.95, "execution": 0.85, "review": 0.9, "contextWindow": 200_000},
    }


@pytest.mark.parametrize(
    ("scopes", "skills"),
    [
        ({"exposed"}, ["shown"]),
        ({"mesh"}, ["plan", "shown"]),
        ({"exposed", "mesh", "private"}, ["plan", "shown", "hidden"]),
        (set(), []),
    ],
)
def test_only_skills_that_the_caller_sees_are_listed(scopes: set[str], skills: list[str]) -> None:
    assert row(scopes=frozenset(scopes))["skills"] == skills


@pytest.mark.parametrize(
    ("reachable", "status"), [(None, "unknown"), (True, "available"), (False, "unavailable")]
)
def test_the_status_is_what_was_measured(reachable: bool | None, status: str) -> None:
    assert row(replace(LISTING, reachable=reachable))["status"] == status


def test_an_agent_that_does_not_answer_says_since_when_and_why() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    dead = replace(LISTING, reachable=False, since=at, last_error="connection refused")
    assert row(dead)["since"] == "2026-01-02T00:00:00+00:00"
    assert row(dead)["last_error"] == "connection refused"
    assert row(dead)["status"] == "unavailable"
    degraded = row(replace(dead, reachable=True))
    assert (degraded["status"], degraded["last_error"]) == ("degraded", "connection refused")
    waiting = row(replace(dead, reachable=None, last_error="it is starting"))
    assert (waiting["status"], waiting["last_error"]) == ("unknown", "it is starting")
    assert "last_error" not in row(replace(LISTING, reachable=None))


def test_metrics_are_those_of_seed_002_and_shown_only_where_there_was_a_call() -> None:
    stats = Stats(calls=150, failures=3, mean_latency_s=2.5)
    shown = render_agent_row(LISTING, scopes=SCOPES, metrics=stats)["metrics"]
    assert shown == {"avgResponseTime": 2500, "successRate": 0.98, "totalRequests": 150}
    assert "metrics" not in render_agent_row(LISTING, scopes=SCOPES, metrics=Stats())
    lost = render_agent_row(LISTING, scopes=SCOPES, metrics=Stats(calls=1, failures=1))
    assert lost["metrics"] == {"successRate": 0.0, "totalRequests": 1}


def test_an_agent_without_scores_has_no_capabilities() -> None:
    plain = replace(LISTING, record=AgentRecord("a"), tag=None)
    assert "capabilities" not in row(plain)
    assert row(plain)["reference"] == "agents/claude"


def test_a_skill_row_says_how_to_call_it() -> None:
    assert render_skill_row(LISTING, RECORD.skills[0]) == {
        "agent": "claude",
        "skill": "plan",
        "description": "",
        "version": "1.0.0",
        "tags": ["t"],
        "status": "unknown",
        "url": "http://127.0.0.1:8001",
        "input_schema": {"type": "object"},
    }
