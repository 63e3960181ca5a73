"""Which sessions of the leader the other processes of a hub know, and what ends calls in them."""

from __future__ import annotations

import asyncio

from retinue.core.call import Principal
from retinue.mcp.server.change_notifier import RunningCall
from retinue.mcp.server.shared_sessions import FollowedSessions
from retinue.mesh.permissions import principal_key

OWNER = Principal("token:a", "token", frozenset({"exposed"}))
OTHER = Principal("token:b", "token", frozenset({"exposed"}))


async def test_a_call_in_a_session_of_the_leader_ends_with_the_session_or_by_its_client() -> None:
    sessions = FollowedSessions()
    sessions.open([["s-1", principal_key(OWNER), False], ["s-2", principal_key(OWNER), True]])
    assert sessions.find("s-1", 7, OTHER) is None
    assert sessions.find("s-3", 7, OWNER) is None
    ended: list[str] = []

    async def call(session_id: str, request_id: str | int) -> None:
        session = sessions.find(session_id, request_id, OWNER)
        assert session is not None
        with session.hold:
            running = session.calls[int(request_id)] = RunningCall()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append(running.ended_by)
            finally:
                session.calls.pop(int(request_id))

    calls = [asyncio.create_task(call(*place)) for place in (("s-1", 7), ("s-1", "8"), ("s-2", 7))]
    await asyncio.sleep(0)
    assert sessions.has_request("s-1", "7", OWNER)
    assert sessions.find("s-1", "7", OWNER) is None, "the id is in use"
    assert not sessions.has_request("s-1", 7, OTHER)
    sessions.cancel("s-1", "7")
    sessions.end("s-1")
    await asyncio.wait(calls[:2], timeout=1)
    assert ended == ["client", "session"]
    assert sessions.take_used() == ["s-1", "s-2"]
    assert sessions.take_used() == ["s-2"], "its call runs"
    sessions.replace([["s-3", principal_key(OWNER), False]])
    assert "s-2" not in sessions
    assert not calls[2].done(), "a new leader ends no call"
    calls[2].cancel()
    await asyncio.wait(calls)
    assert sessions.take_used() == []


async def test_a_request_that_the_leader_answers_keeps_no_session_in_use_for_ever() -> None:
    sessions = FollowedSessions()
    sessions.open([["s-1", principal_key(OWNER), True]])
    assert sessions.find("s-1", 7, OWNER) is not None  # its tool asks the client, so the leader answers
    sessions.take_used()
    assert sessions.take_used() == []
