"""Sums the figures of the processes of a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
import structlog

from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.observing.metrics import Figures, Histogram
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder, request_inside
from retinue.runtime.hub_processes.leader import FIGURES_PATH

FIGURES_WITHIN_S = 2.0

_IN_FLIGHT = "retinue_calls_in_flight"
_log = structlog.get_logger("retinue.processes")


class OtherFigures:
    """The figures of the other processes, with the last ones of those that have ended.

    Without the latter a sum would fall when a process is started again, and a counter never falls.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._readings: dict[int, Mapping[str, Any]] = {}

    async def read(self, forwarder: Forwarder, index: int) -> None:
        """Read the figures of a process; the last ones stay where it does not answer."""
        pid = self._board.find_pid(index)
        try:
            reading: Mapping[str, Any] = await request_inside(
                forwarder.session(index), "GET", FIGURES_PATH, timeout_s=FIGURES_WITHIN_S
            )
        except (OSError, TimeoutError) as error:
            _log.warning("figures of a process are missing", number=index, problem=str(error))
            return
        if pid is not None:
            self._readings[pid] = reading

    def add_to(self, figures: Figures, serving: Collection[int]) -> None:
        """Add what was read to the figures of this process; only those ``serving`` have calls in flight."""
        pids = {self._board.find_pid(index) for index in serving}
        for pid, reading in self._readings.items():
            add_figures(figures, reading)
            if pid in pids:
                in_flight = figures.values.setdefault(_IN_FLIGHT, {})
                in_flight[()] = in_flight.get((), 0) + reading["in_flight"]


async def count_digest_calls(board: Board, forwarder: Forwarder, indexes: Sequence[int], mark: str) -> int:
    """The calls in flight in these processes that agents of a digest answer."""

    async def read(index: int) -> int:
        try:
            reading: Mapping[str, Any] = await request_inside(
                forwarder.session(index), "GET", FIGURES_PATH, timeout_s=FIGURES_WITHIN_S
            )
        except (OSError, TimeoutError):
            return 1
        return int(reading["digests"].get(mark, 0))

    serving = [index for index in indexes if board.find_pid(index) is not None]
    return sum(await asyncio.gather(*(read(index) for index in serving)))


def list_digest_calls(dispatcher: Dispatcher) -> dict[str, int]:
    """The calls in flight in this process, by the mark of each digest that takes part in a rollout."""
    if (rollouts := dispatcher.rollouts) is None:
        return {}
    marks = [mark for rollout in rollouts.rollouts for mark in (rollout.old, rollout.new)]
    in_flight_of = dispatcher.agent_stats.of
    return {
        mark: sum(in_flight_of(entry).in_flight for entry in rollouts.list_members(mark)) for mark in marks
    }


def render_figures(figures: Figures, in_flight: int, digests: Mapping[str, int] = {}) -> bytes:
    """The counters and histograms of a process as JSON; `add_figures` adds them to those of another."""
    values = {
        name: [[*labels, value] for labels, value in rows.items()]
        for name, rows in figures.values.items()
        if figures.metrics[name].kind == "counter"
    }
    histograms = {
        name: [[*labels, histogram.counts, histogram.total] for labels, histogram in rows.items()]
        for name, rows in figures.histograms.items()
    }
    return orjson.dumps(
        {"values": values, "histograms": histograms, "in_flight": in_flight, "digests": digests}
    )


def add_figures(figures: Figures, reading: Mapping[str, Any]) -> None:
    """Add what `render_figures` has rendered in another process."""
    for name, rows in reading["values"].items():
        values = figures.values.setdefault(name, {})
        for *labels, value in rows:
            values[tuple(labels)] = values.get(tuple(labels), 0) + value
    for name, rows in reading["histograms"].items():
        histograms = figures.histograms.setdefault(name, {})
        for *labels, counts, total in rows:
            other = Histogram()
            other.counts, other.total = counts, total
            histograms.setdefault(tuple(labels), Histogram()).add(other)
