"""The figures of all processes of a hub, while they end and others take their places."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from retinue.mesh.observing.call_metrics import MAX_SERIES
from retinue.mesh.observing.metrics import OTHER, Figures, Histogram
from retinue.runtime.hub_processes.board import Board, create_board
from retinue.runtime.hub_processes.forwarding import Forwarder
from retinue.runtime.hub_processes.leader import send_json
from retinue.runtime.hub_processes.other_figures import OtherFigures, render_figures
from retinue.runtime.hub_processes.place import HubPlace
from retinue.runtime.serving import HttpServer, Stop

CALLS, DURATION, IN_FLIGHT = (
    "retinue_calls_total",
    "retinue_call_duration_seconds",
    "retinue_calls_in_flight",
)
NUMBER = 1
"""The number of the process that answers beside the leader."""


class Follower:
    """A process that the leader asks for its figures; a test sets them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.mark = "first"
        self.figures = make_figures(0)
        self.in_flight = 0
        board.note_serving()

    def start_again(self, mark: str) -> None:
        """Be another process, with the process id of the one before."""
        self.mark, self.figures, self.in_flight = mark, make_figures(0), 0
        self._board.note_serving()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, render_figures(self.figures, self.in_flight, process=self.mark))


class Leader:
    """A leader of the hub in a folder."""

    def __init__(self, folder: Path, board: Board, forwarder: Forwarder) -> None:
        self._others = OtherFigures(board, folder)
        self._forwarder = forwarder
        self.calls = 0

    async def read(self, *, serving: bool = True) -> Figures:
        figures = make_figures(self.calls)
        figures.put(IN_FLIGHT, 0)
        figures.put("retinue_ready", 1)
        await self._others.add_to(figures, self._forwarder, [NUMBER] if serving else [])
        return figures


def make_figures(calls: int, agent: str = "echo") -> Figures:
    figures = Figures()
    figures.put(CALLS, calls, agent, "say", "execute", "done")
    histogram = Histogram()
    for _ in range(calls):
        histogram.observe(0.02)
    figures.histograms[DURATION] = {(agent, "say"): histogram}
    return figures


def count(figures: Figures) -> float:
    """The calls, by both metrics."""
    (histogram,) = figures.histograms[DURATION].values()
    calls = sum(figures.values[CALLS].values())
    assert sum(histogram.counts) == calls
    return calls


class Hub:
    """A hub of two processes; any number of leaders, one after the other."""

    def __init__(self, folder: Path, board: Board, follower: Follower, forwarder: Forwarder) -> None:
        self.folder = folder
        self.follower = follower
        self._board = board
        self._forwarder = forwarder

    def lead(self) -> Leader:
        return Leader(self.folder, self._board, self._forwarder)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with AsyncExitStack() as stack:
        board = Board(create_board(tmp_path), NUMBER, 2)
        stack.callback(board.close)
        follower = Follower(board)
        place = HubPlace(0, 2, tmp_path, "hub-1", 0, 0, 0)
        inner = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        inner.bind(place.socket_of(NUMBER))
        inner.listen()
        await stack.enter_async_context(HttpServer(follower).running((inner,), Stop()))
        forwarder = Forwarder(place)
        stack.push_async_callback(forwarder.aclose)
        yield Hub(tmp_path, board, follower, forwarder)


async def test_a_counter_does_not_fall_when_a_process_is_started_again(hub: Hub) -> None:
    leader = hub.lead()
    leader.calls, hub.follower.figures = 3, make_figures(5)
    assert count(await leader.read()) == 8
    hub.follower.start_again("second")
    assert count(await leader.read()) == 8
    hub.follower.figures = make_figures(1)
    assert count(await leader.read()) == count(await leader.read()) == 9
    assert count(await leader.read(serving=False)) == 9, "nor while it does not answer"


async def test_a_counter_does_not_fall_when_another_process_leads(hub: Hub) -> None:
    leader = hub.lead()
    leader.calls, hub.follower.figures = 3, make_figures(5)
    assert count(await leader.read()) == 8
    for calls in (2, 4):
        leader = hub.lead()
        shown = count(await leader.read(serving=False))
        leader.calls = calls
        assert count(await leader.read()) == shown + calls
    assert shown == 10


async def test_only_one_sum_of_ended_processes_is_kept(hub: Hub) -> None:
    leader = hub.lead()
    sizes = []
    for number in range(20):
        hub.follower.start_again(f"process {number:02}")
        hub.follower.figures = make_figures(1)
        await leader.read()
        sizes.append((hub.folder / "figures.json").stat().st_size)
    assert count(await leader.read()) == 20
    assert sizes[-1] - sizes[1] < 20, "a longer number"


async def test_agents_beyond_a_number_are_summed_as_one_when_their_process_ends(hub: Hub) -> None:
    leader = hub.lead()
    for number in range(MAX_SERIES + 2):
        if number % 1_000 == 0:
            await leader.read()
            hub.follower.start_again(f"process {number}")
        hub.follower.figures.put(CALLS, 1, f"agent-{number}", "say", "execute", "done")
    await leader.read()
    hub.follower.start_again("last")
    calls = (await leader.read()).values[CALLS]
    assert len(calls) <= MAX_SERIES + 1
    assert calls[OTHER, OTHER, "execute", "done"] >= 2
    assert sum(calls.values()) == MAX_SERIES + 2


async def test_calls_in_flight_are_those_of_processes_that_serve(hub: Hub) -> None:
    leader = hub.lead()
    hub.follower.in_flight = 2
    assert (await leader.read()).values[IN_FLIGHT] == {(): 2}
    assert (await leader.read(serving=False)).values[IN_FLIGHT] == {(): 0}
    figures = await hub.lead().read(serving=False)
    assert figures.values[IN_FLIGHT] == {(): 0}
    assert figures.values["retinue_ready"] == {(): 1}, "no gauge is summed"


async def test_a_damaged_file_of_figures_costs_the_figures_only(hub: Hub) -> None:
    (hub.folder / "figures.json").write_bytes(b"{")
    leader = hub.lead()
    leader.calls = 3
    assert count(await leader.read(serving=False)) == 3
