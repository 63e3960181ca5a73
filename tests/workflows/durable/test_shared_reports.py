"""What steps report reaches the processes that watch a run of another node, and is stored for nobody else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from retinue.core.call import TextPiece
from retinue.workflows.durable import shared_reports
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.events import EventTable, NewEvent
from retinue.workflows.durable.run_rows import stored_args
from retinue.workflows.durable.shared_reports import SharedReports
from retinue.workflows.run_progress import RunProgress
from retinue.workflows.runs.records import RunRequest
from tests.workflows.implementations import make_database

REQUEST = RunRequest("flow", {}, {})


class Side:
    """One process on the database, which executes the runs ``here``."""

    def __init__(self, url: str, node: str, *here: str) -> None:
        self.here = set(here)
        self.database = RunDatabase(url)
        self.progress = RunProgress()
        self.shared = SharedReports(self.database, self.progress, self.here.__contains__)
        self.shared.node = node
        self.events = EventTable(self.database)
        self.events.before_flush = self.shared.flush

    async def look(self) -> None:
        """As the executions of a node do twice a second."""
        self.shared.note_watched(await self.database.read(self.shared.list_watched, sorted(self.here)))

    async def write(self, run: str, text: str, at: int = 0) -> None:
        await self.progress.open_channel(run, "plan").stream_text(TextPiece(text, at, "writer"))

    def texts(self, run: str) -> list[str]:
        return [one.piece.text for one in self.progress.list_after(run, 0) if one.piece is not None]

    async def count_stored(self) -> int:
        query = sa.text(f"SELECT count(*) FROM {self.database.reports}")
        return await self.database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def aclose(self) -> None:
        await self.shared.aclose()
        self.database.close()


@asynccontextmanager
async def two_sides(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    """Who executes the runs r and s, and who watches."""
    shutil.copy(await make_database(), folder / "runs.db")
    url = f"sqlite:///{folder}/runs.db"
    writer, reader = Side(url, "node-1", "r", "s"), Side(url, "")
    for run in ("r", "s"):
        await writer.database.ask(writer.database.client.enqueue, run, stored_args(REQUEST, None), "node-1")
    try:
        yield writer, reader
    finally:
        await writer.aclose()
        await reader.aclose()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reports, "LOOK_S", 0.01)
    monkeypatch.setattr(shared_reports, "UNKNOWN_LOOK_S", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def watch(reader: Side, writer: Side, run: str) -> None:
    """Watch a run from the other side, until the writer knows."""
    async with asyncio.timeout(60):
        while not writer.progress.is_watched(run):
            reader.progress.watch(run)
            await asyncio.sleep(0.005)
            await writer.look()


async def test_half_of_a_surrogate_pair_loses_no_report(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (writer, _):
        writer.shared.note_watched(["r"])
        await writer.write("r", "a\ud800b")
        await writer.progress.open_channel("r", "plan").progress(0.5, "c\udfff")
        await writer.shared.flush()
        assert writer.texts("r") == ["a?b"]
        assert await writer.count_stored() == 2


async def test_the_text_of_a_step_reaches_who_watches_its_run_elsewhere(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (writer, reader):
        await watch(reader, writer, "r")
        await writer.write("r", "One, ")
        await until(lambda: reader.texts("r") == ["One, "])
        await writer.write("r", "two", 5)
        await writer.progress.open_channel("r", "plan").progress(0.5, "half")
        await until(lambda: reader.progress.list_after("r", 0)[-1].message == "half")
        text, line = reader.progress.list_after("r", 0)
        assert text.piece == TextPiece("One, two", 0, "writer", "plan")
        assert (line.step, line.fraction) == ("plan", 0.5)
        # nobody watches the other run
        writer.progress.watch("s")
        await writer.write("s", "unseen")
        await writer.shared.flush()
        assert await writer.count_stored() == 3


async def test_what_was_reported_before_an_event_is_there_when_the_event_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the reader reads nothing by itself, and the writer stores the first text only
    monkeypatch.setattr(shared_reports, "LOOK_S", 3600.0)
    async with two_sides(tmp_path) as (writer, reader):
        reader.progress.watch("r")
        await reader.shared.announce("r")
        await writer.look()
        await writer.write("r", "first")
        async with asyncio.timeout(60):
            while await writer.count_stored() == 0:
                await asyncio.sleep(0.005)
        await writer.write("r", " and last", 5)
        writer.events.add(NewEvent("r", "r", "step_finished", "plan", {}))
        async with asyncio.timeout(60):
            while not await reader.events.list_after("r", "r", 0):
                await asyncio.sleep(0.005)
        assert reader.texts("r") == []
        await reader.progress.catch_up("r")
        assert reader.texts("r") == ["first and last"]


async def test_a_run_that_is_taken_over_is_told_once(tmp_path: Path) -> None:
    """The node that takes a run over has watched it; it passes on what it writes itself, and no more."""
    async with two_sides(tmp_path) as (writer, next_node):
        next_node.shared.node = "node-2"
        reader = Side(next_node.database.url.render_as_string(), "")
        try:
            reader.progress.watch("r")
            await watch(next_node, writer, "r")
            await writer.write("r", "from the first")
            await until(lambda: next_node.texts("r") == reader.texts("r") == ["from the first"])
            next_node.here.add("r")
            await next_node.shared.take_up("r")
            await next_node.write("r", "from the second")
            await until(lambda: reader.texts("r")[1:] == ["from the second"])
            assert next_node.texts("r") == ["from the first", "from the second"]
        finally:
            await reader.aclose()


async def test_reports_are_deleted_when_who_watched_has_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_sides(tmp_path) as (writer, reader):
        await watch(reader, writer, "r")
        await writer.write("r", "read")
        await until(lambda: reader.texts("r") == ["read"])
        monkeypatch.setattr("retinue.workflows.durable.tables.reports.KEPT_S", -1.0)
        await writer.shared.forget_old()
        assert await writer.count_stored() == 0


async def test_who_watches_a_run_before_it_is_stored_misses_nothing(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as (writer, reader):
        reader.progress.watch("later")
        await reader.shared.announce("later")
        await writer.database.ask(
            writer.database.client.enqueue, "later", stored_args(REQUEST, None), "node-1"
        )
        writer.here.add("later")
        await writer.shared.take_up("later")
        await writer.write("later", "from the first step on")
        await until(lambda: reader.texts("later") == ["from the first step on"])
