"""What is used of the SDK without being public works as it is used, and is named in one file."""

from __future__ import annotations

import math
import re
from pathlib import Path

import retinue.mcp
from retinue.mcp.server.sdk_internals import Hold, find_open_session
from tests.mcp.server.fast_pair import open_pair

PRIVATE = re.compile(
    r"\b(?:_server_instances|_session_owners|_requests_in_flight|_request_streams|session\._connection)\b"
)


def test_a_session_is_found_while_it_is_open_and_its_clock_stands_while_it_is_held() -> None:
    with open_pair() as pair:
        manager = pair.server._manager

        async def use() -> None:
            session_id = (await pair.open_session()).decode()
            session = find_open_session(manager, session_id)
            assert session is not None
            assert session.idle_scope is not None
            with Hold(session, 100.0):
                with Hold(session, 100.0):
                    assert session.idle_scope.deadline == math.inf
                assert session.idle_scope.deadline == math.inf
            assert session.idle_scope.deadline < math.inf
            live = pair.server._connections.find(session_id)
            assert live is not None
            assert live.connection.session_id == session_id
            await session.terminate()
            assert find_open_session(manager, session_id) is None

        pair.runner.run(use())
        assert find_open_session(manager, "no session") is None


def test_the_private_names_of_the_sdk_stand_in_one_file() -> None:
    room = Path(retinue.mcp.__file__).parent
    using = {file.name for file in room.rglob("*.py") if PRIVATE.search(file.read_text(encoding="utf-8"))}
    assert using == {"sdk_internals.py"}
