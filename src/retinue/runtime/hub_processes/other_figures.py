"""Sums the figures of the processes of a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import structlog

from retinue.mesh.dispatch import Dispatcher
from retinue.mesh.observing.call_metrics import MAX_SERIES
from retinue.mesh.observing.metrics import OTHER, Figures, Histogram, Labels, Metric
from retinue.runtime.hub_processes.board import Board
from retinue.runtime.hub_processes.forwarding import Forwarder, request_inside
from retinue.runtime.hub_processes.leader import FIGURES_PATH
from retinue.runtime.hub_processes.place import LEADER

FIGURES_WITHIN_S = 2.0

_IN_FLIGHT = "retinue_calls_in_flight"
_FEW = frozenset({"endpoint", "outcome", "direction", "decision"})
"""Labels that have few values."""

_log = structlog.get_logger("retinue.processes")


class OtherFigures:
    """The figures of the other processes, with the sum of the last ones of those that have ended.

    Without the latter a counter would fall when a process is started again, and whoever reads the metrics
    would take all calls of the others for new ones. A file in the ``folder`` of the hub holds what was shown
    last, for the next leader.
    """

    def __init__(self, board: Board, folder: Path) -> None:
        self._board = board
        self._path = folder / "figures.json"
        self._own = make_process_mark()
        self._reading = asyncio.Lock()
        self._pids: dict[int, int] = {}
        self._kept = _load(self._path)

    async def add_to(self, figures: Figures, forwarder: Forwarder, serving: Collection[int]) -> None:
        """Add the figures of the other processes to those of this one, which leads.

        The last ones stay where a process does not answer; only those ``serving`` have calls in flight.
        """
        async with self._reading:
            kept = self._kept
            kept.put(LEADER, orjson.loads(render_figures(figures, 0, process=self._own)), figures.metrics)
            readings = await asyncio.gather(*(self._read(forwarder, index) for index in serving))
            for index, reading in zip(serving, readings, strict=True):
                if reading is not None:
                    kept.put(index, reading, figures.metrics)
            try:
                await asyncio.to_thread(_replace, self._path, kept.render())
            except OSError as error:
                _log.warning("figures are not kept for the next leader", problem=str(error))
            kept.add_to(figures)
            for index in serving:
                reading = kept.running.get(index)
                if reading is not None and self._pids.get(index) == self._board.find_pid(index):
                    in_flight = figures.values.setdefault(_IN_FLIGHT, {})
                    in_flight[()] = in_flight.get((), 0) + reading["in_flight"]

    async def _read(self, forwarder: Forwarder, index: int) -> Mapping[str, Any] | None:
        pid = self._board.find_pid(index)
        try:
            reading: Mapping[str, Any] = await request_inside(
                forwarder.session(index), "GET", FIGURES_PATH, timeout_s=FIGURES_WITHIN_S
            )
        except (OSError, TimeoutError) as error:
            _log.warning("figures of a process are missing", number=index, problem=str(error))
            return None
        if pid is not None:
            self._pids[index] = pid
        return reading


@dataclass(slots=True)
class _Kept:
    """The last reading of the process that has each number, and the sum of those that have ended."""

    ended: Mapping[str, Any] = field(default_factory=lambda: {"values": {}, "histograms": {}})
    running: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def put(self, index: int, reading: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
        """Keep a reading; if it is of another process than the one before, that one has ended."""
        before = self.running.get(index)
        if before is not None and before["process"] != reading["process"]:
            ended = Figures(metrics)
            for of in (self.ended, before):
                add_figures(ended, of, MAX_SERIES)
            self.ended = _render(ended)
        self.running[index] = reading

    def add_to(self, figures: Figures) -> None:
        """Add all to the figures of the leader."""
        for reading in (self.ended, *(of for index, of in self.running.items() if index != LEADER)):
            add_figures(figures, reading)

    def render(self) -> bytes:
        """What `_load` reads."""
        running = {str(index): reading for index, reading in self.running.items()}
        return orjson.dumps({"ended": self.ended, "running": running})


def _load(path: Path) -> _Kept:
    """What the leader before has kept; nothing if there was none."""
    try:
        kept = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return _Kept()
    except (OSError, ValueError) as error:
        _log.warning("figures of earlier processes are lost", problem=str(error))
        return _Kept()
    return _Kept(kept["ended"], {int(index): reading for index, reading in kept["running"].items()})


def _replace(path: Path, content: bytes) -> None:
    """Replace a file that need not survive a power failure, as the folder does not."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def make_process_mark() -> str:
    """A mark that no other process of the hub has; the system may use a process id again."""
    return uuid4().hex


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


def render_figures(
    figures: Figures, in_flight: int, digests: Mapping[str, int] = {}, process: str = ""
) -> bytes:
    """The counters and histograms of a process as JSON; `add_figures` adds them to those of another.

    ``process`` is its `make_process_mark`.
    """
    return orjson.dumps({**_render(figures), "in_flight": in_flight, "digests": digests, "process": process})


def _render(figures: Figures) -> Mapping[str, Any]:
    values = {
        name: [[*labels, value] for labels, value in rows.items()]
        for name, rows in figures.values.items()
        if figures.metrics[name].kind == "counter"
    }
    histograms = {
        name: [[*labels, histogram.counts, histogram.total] for labels, histogram in rows.items()]
        for name, rows in figures.histograms.items()
    }
    return {"values": values, "histograms": histograms}


def add_figures(figures: Figures, reading: Mapping[str, Any], most: int | None = None) -> None:
    """Add what `render_figures` has rendered in another process, of the metrics that ``figures`` has.

    Beyond ``most`` labels of one metric, the names of further ones count as `OTHER`.
    """
    for name, rows in _list_known(reading["values"], figures):
        values = figures.values.setdefault(name, {})
        for *labels, value in rows:
            place = _place_of(figures.metrics[name].labels, tuple(labels), values, most)
            values[place] = values.get(place, 0) + value
    for name, rows in _list_known(reading["histograms"], figures):
        histograms = figures.histograms.setdefault(name, {})
        for *labels, counts, total in rows:
            other = Histogram()
            other.counts, other.total = counts, total
            place = _place_of(figures.metrics[name].labels, tuple(labels), histograms, most)
            histograms.setdefault(place, Histogram()).add(other)


def _list_known(rendered: Mapping[str, Any], figures: Figures) -> Iterator[tuple[str, Any]]:
    return ((name, rows) for name, rows in rendered.items() if name in figures.metrics)


def _place_of(
    names: Sequence[str], labels: Labels, rows: Mapping[Labels, object], most: int | None
) -> Labels:
    if most is None or labels in rows or len(rows) < most:
        return labels
    return tuple(value if name in _FEW else OTHER for name, value in zip(names, labels, strict=True))
