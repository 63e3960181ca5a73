"""Which process of a hub accepts the connections of clients."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from retinue.runtime.hub_processes import accepting
from retinue.runtime.hub_processes.accepting import LOOK_S, SHARE_LATE, Acceptor, serving_shared
from retinue.runtime.hub_processes.board import Board, create_board
from retinue.runtime.serving import Stop
from retinue.web.connection_gate import HttpLimits
from tests.system import WAIT_S


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _ask(port: int) -> bytes:
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    writing.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    line = await reading.readline()
    writing.close()
    return line


async def test_a_process_that_starts_leaves_connections_to_one_that_serves_until_it_is_ready(
    tmp_path: Path,
) -> None:
    file = create_board(tmp_path)
    boards = [Board(os.dup(file), 0, 2), Board(file, 1, 2)]
    is_ready: list[bool] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        port = listener.getsockname()[1]

        async def serve(index: int, is_done: asyncio.Event) -> None:
            serving = serving_shared(
                _answer, listener, Stop(), HttpLimits(), boards[index], 2, lambda: bool(is_ready)
            )
            async with serving:
                await is_done.wait()

        done = asyncio.Event()
        boards[0].note_serving()
        second = asyncio.create_task(serve(1, done))
        asked = asyncio.create_task(_ask(port))
        await asyncio.sleep(3 * LOOK_S)
        assert not asked.done()
        assert boards[0].find_pid(1) is None
        boards[0].note_ended(0)  # nobody else serves
        assert b"204" in await asyncio.wait_for(asked, WAIT_S)
        done.set()
        await second
        boards[0].note_serving()
        boards[1].note_ended(1)
        done = asyncio.Event()
        second = asyncio.create_task(serve(1, done))
        asked = asyncio.create_task(_ask(port))
        await asyncio.sleep(3 * LOOK_S)
        assert not asked.done()
        is_ready.append(True)
        assert b"204" in await asyncio.wait_for(asked, WAIT_S)
        done.set()
        await second
    for board in boards:
        board.close()


class _Waiting:
    """Connections that wait at a listener; ``accepted`` are those that the acceptor has taken."""

    def __init__(self, stack: ExitStack, board: Board, come: int, has: int) -> None:
        self.accepted: list[asyncio.Protocol] = []
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(come)
        listener.setblocking(False)
        for _ in range(come):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        self.address: tuple[str, int] = listener.getsockname()
        self.acceptor = Acceptor(listener, self._make_protocol, set(range(has)), board, 2)

    def _make_protocol(self) -> asyncio.Protocol:
        self.accepted.append(asyncio.Protocol())
        return self.accepted[-1]


@pytest.mark.parametrize(("has", "most_turns"), [(64, SHARE_LATE + 1), (0, 40)])
async def test_many_connections_that_wait_for_a_busy_or_frozen_process_are_accepted_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: int, most_turns: int
) -> None:
    turns, come = 0, 64
    board = Board(create_board(tmp_path), 0, 2)

    def count_turn(count: int, processes: int) -> bool:
        nonlocal turns
        turns += 1
        return True  # the other process has fewer, and accepts nothing

    monkeypatch.setattr(board, "is_ahead", count_turn)
    with ExitStack() as stack:
        stack.callback(board.close)
        waiting = _Waiting(stack, board, come, has)
        waiting.acceptor.start()
        async with asyncio.timeout(WAIT_S):
            while len(waiting.accepted) < come:
                await asyncio.sleep(0)
        waiting.acceptor.stop()
    assert turns <= most_turns


async def test_a_flood_of_connections_leaves_turns_to_those_that_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "MAX_AT_ONCE", 8)
    board = Board(create_board(tmp_path), 0, 2)
    with ExitStack() as stack:
        stack.callback(board.close)
        waiting = _Waiting(stack, board, 64, 0)
        waiting.acceptor.start()
        async with asyncio.timeout(WAIT_S):
            while len(waiting.accepted) < 64:
                before = len(waiting.accepted)
                await asyncio.sleep(0)
                assert len(waiting.accepted) <= before + 8
        waiting.acceptor.stop()


async def test_a_process_that_leaves_accepts_what_waits_and_then_nobody_can_connect(tmp_path: Path) -> None:
    board = Board(create_board(tmp_path), 0, 2)
    with ExitStack() as stack:
        stack.callback(board.close)
        waiting = _Waiting(stack, board, 5, 0)
        waiting.acceptor.leave()
        async with asyncio.timeout(WAIT_S):
            while len(waiting.accepted) < 5:
                await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(waiting.address)
        waiting.acceptor.start()
        waiting.acceptor.stop()
