"""Which process of a hub answers a request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from starlette.types import Message, Receive, Scope, Send

from retinue.core.record import LOCAL_SOURCE
from retinue.mcp.server.shared_sessions import FollowedSessions
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import MemoryListings
from retinue.mesh.dispatch import Dispatcher
from retinue.runtime.hub_processes.board import Board, create_board
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.front import Front, Reach
from retinue.runtime.hub_processes.place import HubPlace, owner_of
from retinue.runtime.hub_processes.request_head import read_head
from tests.mesh.scripted import make_listing, make_skill

HERE = "here"
_IDS = {owner_of(str(number).encode(), 3): str(number) for number in range(50)}
"""The id of a trace for each process that counts it."""


class _Forwarded(Forwarder):
    """Notes where requests would go."""

    def __init__(self, place: HubPlace, answered: list[str | int]) -> None:
        super().__init__(place)
        self._answered = answered

    async def forward(
        self,
        index: int,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        may_repeat: Callable[[], bool] = lambda: False,
    ) -> None:
        self._answered.append(index)


class Process:
    """Process 1 of 3 with the agents of a directory."""

    def __init__(self, folder: Path, *, exams_required: bool = False) -> None:
        self.answered: list[str | int] = []
        self.is_current = True
        self.sessions = FollowedSessions()
        self.asks_people = False
        self.directory = Directory(MemoryListings())
        lookup = cast(Any, self.directory)
        self.dispatcher = Dispatcher(agent="retinue", lookup=lookup, invoker_of=lambda listing: lookup)
        self.board_file = create_board(folder)
        self.board = Board(self.board_file, 1)
        place = HubPlace(1, 3, folder, "hub-1", 0, 0, 0)
        reach = Reach(
            self.directory,
            self.dispatcher,
            ["home"],
            lambda: self.is_current,
            lambda: {"find_skills": True, "start_run": False},
            exams_required=exams_required,
            sessions=self.sessions,
            asks_people=lambda: self.asks_people,
        )
        self.reach = reach
        self.front = Front(self._answer, reach, _Forwarded(place, self.answered), place, self.board)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.answered.append(HERE)

    async def ask(self, path: str, skill: str = "create_plan", trace: str | None = None) -> str | int:
        """Which process answers a call of ``skill``."""
        headers = {} if trace is None else {"x-openstarry-trace-id": trace}
        return await self.post(path, {"jsonrpc": "2.0", "id": 1, "method": skill}, headers)

    async def post(self, path: str, request: object, fields: Mapping[str, str]) -> str | int:
        """Which process answers a POST."""
        body = orjson.dumps(request)
        headers = [(b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in fields.items()]

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            self.answered.append(message.get("status", ""))

        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await self.front(scope, receive, send)
        return self.answered.pop()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    process.directory.upsert(make_listing("plan-agent"))
    yield process
    process.board.close()


async def test_calls_of_agents_with_a_url_are_answered_here_and_all_else_by_the_leader(
    process: Process,
) -> None:
    assert await process.ask("/agents/plan-agent/execute") == HERE
    assert await process.ask("/execute") == HERE
    assert await process.ask("/agents/other-agent/execute") == 0
    assert await process.ask("/execute", "unknown") == 0
    for path in ("/mcp", "/agents/plan-agent/mcp", "/v2/", "/a2a", "/messages"):
        assert await process.ask(path) == 0


async def test_a_skill_that_the_hub_or_an_import_has_as_well_is_answered_by_the_leader(
    process: Process,
) -> None:
    process.directory.upsert(make_listing("finder", make_skill("find_skills")))
    assert await process.ask("/execute", "find_skills") == 0
    imported = make_listing("imported")
    process.directory.upsert(type(imported)(imported.record, LOCAL_SOURCE, "imported"))
    assert await process.ask("/execute") == 0
    assert await process.ask("/agents/plan-agent/execute") == HERE


def test_a_request_that_changes_nothing_may_be_sent_to_the_next_leader(process: Process) -> None:
    requests: dict[str, list[tuple[str, object]]] = {
        "/execute": [("find_skills", {}), ("start_run", {}), ("who", {})],
        "/mcp": [
            ("tools/list", {}),
            ("tools/call", {"name": "start_run"}),
            ("tools/call", {"name": "find_skills"}),
            ("tools/call", {"name": "plan-agent__plan"}),
        ],
        "/agents/plan-agent/execute": [("find_skills", {})],
    }
    repeated = [
        (path, number)
        for path, calls in requests.items()
        for number, (method, params) in enumerate(calls)
        if process.reach.may_repeat(
            read_head(path, []), orjson.dumps({"id": 1, "method": method, "params": params})
        )
    ]
    assert repeated == [("/execute", 0), ("/mcp", 0), ("/mcp", 2)]


async def test_the_leader_answers_until_directory_and_policies_are_its_own(process: Process) -> None:
    process.is_current = False
    assert await process.ask("/agents/plan-agent/execute") == 0
    assert await process.ask("/execute") == 0


async def test_the_leader_chooses_the_agent_while_exams_are_required(tmp_path: Path) -> None:
    process = Process(tmp_path, exams_required=True)
    process.directory.upsert(make_listing("plan-agent"))
    assert await process.ask("/execute") == 0
    assert await process.ask("/agents/plan-agent/execute") == HERE
    process.board.close()


async def test_a_chain_of_calls_is_counted_by_one_process(process: Process) -> None:
    boards: list[Callable[[], None]] = []
    for index in (0, 2):
        board = Board(os.dup(process.board_file), index)
        board.note_serving()
        boards.append(board.close)
    paths = ("/execute", "/agents/plan-agent/execute")
    assert [await process.ask(path, trace=_IDS[2]) for path in paths] == [2, 2]
    assert [await process.ask(path, trace=_IDS[0]) for path in paths] == [0, 0]
    assert [await process.ask(path, trace=_IDS[1]) for path in paths] == [HERE, HERE]
    process.board.note_ended(2)
    assert [await process.ask(path, trace=_IDS[2]) for path in paths] == [HERE, HERE]
    for close in boards:
        close()


async def test_a_process_that_stops_asks_no_leader(process: Process) -> None:
    process.dispatcher.admission.limits.is_stopping = True
    assert await process.ask("/mcp") == ""


MODERN = "2026-07-28"
_TOOL = "plan-agent__create_plan"


def _tool_call(name: str = _TOOL, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, **params}}


async def test_mcp_calls_of_agents_are_answered_here_without_a_session(process: Process) -> None:
    modern = {"mcp-protocol-version": MODERN}
    assert await process.post("/mcp", _tool_call(), modern) == HERE
    assert await process.post("/agents/retinue/mcp", _tool_call(), modern) == HERE
    for name in ("find_skills", "other-agent__create_plan", "create_plan"):
        assert await process.post("/mcp", _tool_call(name), modern) == 0
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    assert await process.post("/mcp", listing, modern) == 0
    assert await process.post("/agents/plan-agent/mcp", listing, modern) == HERE
    result = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "result:x"}}
    assert await process.post("/agents/plan-agent/mcp", result, modern) == 0


async def test_a_skill_of_the_hub_that_hands_a_call_on_is_answered_where_the_agent_is_called(
    process: Process,
) -> None:
    imported = make_listing("imported", make_skill("run_import"))
    process.directory.upsert(type(imported)(imported.record, LOCAL_SOURCE, "imported"))
    modern = {"mcp-protocol-version": MODERN}

    async def call(relay: str, **arguments: object) -> str | int:
        over_mcp = await process.post("/mcp", _tool_call(relay, arguments=arguments), modern)
        request = {"jsonrpc": "2.0", "id": 1, "method": relay, "params": arguments}
        assert await process.post("/execute", request, {}) == over_mcp
        assert await process.post("/execute", request, {"idempotency-key": "k"}) == 0
        return over_mcp

    for relay in ("call_skill", "call_read_only_skill"):
        assert await call(relay, skill="create_plan") == HERE
        assert await call(relay, skill="create_plan", agent="") == HERE
        assert await call(relay, skill="create_plan", agent="plan-agent@1.0.0") == HERE
        for elsewhere in (
            {"skill": "create_plan", "agent": "other-agent"},
            {"skill": "create_plan", "agent": ["plan-agent"]},
            {"skill": "find_skills"},
            {"skill": "find_skills", "agent": "retinue"},
            {"skill": "run_import"},
            {},
        ):
            assert await call(relay, **elsewhere) == 0
    assert await call("start_run", skill="create_plan") == 0


async def test_calls_in_a_session_are_answered_here_if_the_leader_has_told_of_it(process: Process) -> None:
    session = {"mcp-session-id": "s-1", "mcp-protocol-version": "2025-11-25"}
    assert await process.post("/mcp", _tool_call(), session) == 0
    process.sessions.open([("s-1", "owner", False)])
    assert await process.post("/mcp", _tool_call(), session) == HERE
    assert await process.post("/agents/plan-agent/mcp", _tool_call(), session) == 0
    assert await process.post("/mcp", _tool_call("find_skills"), session) == 0
    process.sessions.end("s-1")
    assert await process.post("/mcp", _tool_call(), session) == 0


async def test_a_suspended_call_and_a_chain_of_mcp_calls_are_found_by_their_names(process: Process) -> None:
    other = Board(os.dup(process.board_file), 2)
    other.note_serving()
    modern = {"mcp-protocol-version": MODERN}
    for process_2, here in ((_IDS[2], _IDS[1]),):
        assert await process.post("/mcp", _tool_call(requestState=process_2), modern) == 2
        assert await process.post("/mcp", _tool_call(requestState=here), modern) == HERE
        meta = {"X-OpenStarry-Trace-ID": process_2}
        assert await process.post("/mcp", _tool_call(_meta=meta), modern) == 2
    process.board.note_ended(2)
    assert await process.post("/mcp", _tool_call(requestState=_IDS[2]), modern) == HERE
    other.close()


def _send(message_id: str, **message: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": "SendMessage"} | {
        "params": {"message": {"messageId": message_id, "parts": [], **message}}
    }


async def test_a_message_of_a2a_is_answered_where_its_task_or_the_same_message_is(process: Process) -> None:
    other = Board(os.dup(process.board_file), 2)
    for board in (process.board, other):
        board.note_serving()
    path = "/agents/plan-agent"
    assert await process.post(path, _send("m-1"), {}) == HERE
    assert other.claim("plan-agent\n\nm-1") == 1, "the same message at another process comes here"
    assert other.claim("plan-agent\n\nm-2") == 2
    assert await process.post(f"{path}/", _send("m-2"), {}) == 2
    assert await process.post(path, _send("m-3", taskId=_IDS[2]), {}) == 2
    for method in ("GetTask", "tasks/cancel", "SubscribeToTask"):
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": _IDS[2]}}
        assert await process.post(path, asked, {}) == 2
        assert await process.post(path, {**asked, "params": {"id": _IDS[1]}}, {}) == HERE
    assert await process.post("/", _send("m-4"), {}) == 0
    assert await process.post("/agents/other-agent", _send("m-5"), {}) == 0
    envelope = _send("m-6", parts=[{"data": {"performative": "request"}}])
    assert await process.post(path, envelope, {}) == 0
    process.asks_people = True
    assert await process.post(path, _send("m-7"), {}) == 0
    process.board.note_ended(2)
    process.asks_people = False
    assert await process.post(path, _send("m-2"), {}) == HERE
    other.close()
