"""The table of MCP sessions: whose each is, how many there may be, and when one is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retinue.core.call import ANONYMOUS, LOCAL
from retinue.core.errors import BusyError
from retinue.core.record import ListingKey
from retinue.mcp.relay.sessions import RelayedSessions
from retinue.mcp.session_records import RelayedRecords

LISTING = ListingKey("home", "agents/a")
OTHER = ListingKey("home", "agents/b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_there_for_its_owner_alone() -> None:
    """Under the agent's name and its own id."""
    sessions = RelayedSessions()
    assert sessions.open("a", "s1", LISTING, LOCAL)
    found = sessions.find("a", "s1", LOCAL)
    assert found is not None
    assert found.listing == LISTING
    assert sessions.find("a", "s1", ANONYMOUS) is None
    assert sessions.find("b", "s1", LOCAL) is None
    sessions.close(found)
    assert sessions.find("a", "s1", LOCAL) is None


def test_a_token_held_to_fewer_agents_is_not_the_heir_of_the_whole() -> None:
    sessions = RelayedSessions()
    limited = replace(LOCAL, agents=("a",))
    assert sessions.open("a", "s1", LISTING, LOCAL)
    assert sessions.find("a", "s1", limited) is None


def test_an_id_cannot_be_given_twice() -> None:
    """An agent that repeats another's id must not get at its session."""
    sessions = RelayedSessions()
    assert sessions.open("a", "s1", LISTING, LOCAL)
    assert sessions.open("a", "s1", LISTING, LOCAL)
    assert not sessions.open("a", "s1", OTHER, LOCAL)
    assert not sessions.open("a", "s1", LISTING, ANONYMOUS)


def test_idle_sessions_are_forgotten_and_those_in_use_are_not() -> None:
    """An open stream keeps its session, however quiet it is."""
    clock = Clock()
    sessions = RelayedSessions(idle_s=10.0, clock=clock)
    for name in ("quiet", "used", "streaming"):
        sessions.open("a", name, LISTING, LOCAL)
    streaming = sessions.find("a", "streaming", LOCAL)
    with sessions.using(streaming):
        clock.now = 8.0
        with sessions.using(sessions.find("a", "used", LOCAL)):
            pass
        clock.now = 12.0
        assert sessions.find("a", "quiet", LOCAL) is None
        assert sessions.find("a", "used", LOCAL) is not None
        clock.now = 30.0
        assert sessions.find("a", "used", LOCAL) is None
        assert sessions.find("a", "streaming", LOCAL) is streaming
    clock.now = 39.0
    assert sessions.find("a", "streaming", LOCAL) is streaming
    clock.now = 41.0
    assert sessions.find("a", "streaming", LOCAL) is None
    assert len(sessions) == 0


def test_a_full_table_takes_no_more_until_room_frees_up() -> None:
    """Nobody's session is thrown out for another's."""
    clock = Clock()
    sessions = RelayedSessions(max_sessions=2, idle_s=10.0, clock=clock)
    for name in ("one", "two"):
        sessions.check_room()
        sessions.open("a", name, LISTING, LOCAL)
    with pytest.raises(BusyError):
        sessions.check_room()
    clock.now = 11.0
    sessions.check_room()


def test_the_next_leader_of_a_hub_has_the_sessions_of_the_one_before(tmp_path: Path) -> None:
    records, clock = RelayedRecords(tmp_path / "relayed"), Clock()
    before = RelayedSessions(records=records, clock=clock)
    for session_id in ("kept", "closed", "idle"):
        assert before.open("a", session_id, LISTING, LOCAL)
    closed = before.find("a", "closed", LOCAL)
    assert closed is not None
    before.close(closed)
    now = RelayedSessions(records=records)
    assert now.find("a", "kept", ANONYMOUS) is None
    assert not now.open("a", "kept", OTHER, ANONYMOUS), "an agent that repeats an id gets at no session"
    kept = now.find("a", "kept", LOCAL)
    assert kept is not None
    assert kept.listing == LISTING
    assert now.find("a", "closed", LOCAL) is None
    assert now.find("b", "kept", LOCAL) is None
    clock.now = 3600.0
    assert before.find("a", "idle", LOCAL) is None
    assert now.find("a", "idle", LOCAL) is None, "an idle session leaves no record"
