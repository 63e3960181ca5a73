"""Durable runs of a mesh, which are opened by the first call."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StateError, UnknownRunError
from retinue.runtime.lazy_runs import LazyRuns
from retinue.settings import Settings
from retinue.storage.state import State
from retinue.workflows.durable.runs import DurableRuns
from retinue.workflows.runs.ports import RunContext, Runs
from retinue.workflows.runs.records import RunRequest


async def body(context: RunContext, request: RunRequest) -> Any:
    return None


@pytest.mark.parametrize(
    ("database", "place"),
    [
        (None, "{home}/runs.db"),
        ("postgresql://ada:secret@host:5432/runs", "postgresql://host:5432/runs"),
        ("postgresql://host/runs", "postgresql://host/runs"),
    ],
)
def test_the_place_of_the_runs_is_shown_without_the_password(
    database: str | None, place: str, tmp_path: Path
) -> None:
    runs = LazyRuns(Settings(database=database), State(tmp_path))
    assert runs.store.place == place.format(home=tmp_path)


def test_nothing_is_created_before_the_first_call(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        lazy = LazyRuns(Settings(), State(tmp_path))
        async with lazy.open(body):
            await lazy.leave()

    asyncio.run(open_and_close())
    assert list(tmp_path.iterdir()) == []


async def test_the_first_call_opens_the_runs_of_the_state_folder(tmp_path: Path) -> None:
    async with LazyRuns(Settings(), State(tmp_path)).open(body) as runs:
        assert await runs.list_all(limit=3) == ()
        assert (tmp_path / "runs.db").exists()
        with pytest.raises(UnknownRunError):
            await runs.get("absent")
        with pytest.raises(UnknownRunError):
            _ = [event async for event in runs.follow("absent", after=1)]


async def test_calls_at_the_same_time_open_the_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[DurableRuns] = []
    create = DurableRuns.__init__

    def note(self: DurableRuns, *arguments: Any, **options: Any) -> None:
        opened.append(self)
        create(self, *arguments, **options)

    monkeypatch.setattr(DurableRuns, "__init__", note)
    async with LazyRuns(Settings(), State(tmp_path)).open(body) as runs:
        await asyncio.gather(*(runs.list_all() for _ in range(5)))
    assert len(opened) == 1


async def test_every_method_of_the_port_is_there_and_no_other(tmp_path: Path) -> None:
    async with LazyRuns(Settings(), State(tmp_path)).open(body) as runs:
        assert all(callable(getattr(runs, name)) for name in vars(Runs) if not name.startswith("_"))
        assert not hasattr(runs, "prune")


async def test_a_database_that_does_not_answer_is_reported_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    said: list[str] = []

    async def launch(self: DurableRuns) -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise StateError("the database does not answer", remedy="start it")

    monkeypatch.setattr(DurableRuns, "launch", launch)
    state = State(tmp_path)
    state.runs.touch()
    lazy = LazyRuns(Settings(), state, retry_s=0.0)
    async with lazy.open(body):
        await lazy.launch(said.append)
    assert attempts == 3
    assert said == ["workflows are paused: the database does not answer; start it"]


async def test_a_state_without_runs_is_launched_once_a_run_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = asyncio.Event()

    async def launch(self: DurableRuns) -> None:
        launched.set()

    monkeypatch.setattr(DurableRuns, "launch", launch)
    lazy = LazyRuns(Settings(), State(tmp_path))
    async with lazy.open(body) as runs:
        launching = asyncio.create_task(lazy.launch(lambda line: None))
        await asyncio.sleep(0)
        assert not launched.is_set()
        with pytest.raises(UnknownRunError):
            await runs.get("missing")
        async with asyncio.timeout(60):
            await launching
    assert launched.is_set()


def test_a_command_that_asks_for_no_run_does_not_import_dbos(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from retinue.runtime.commands.client import open_client
from retinue.storage.state import State
from retinue.settings import Settings

async def ask():
    state = State(Path(sys.argv[1]))
    state.prepare()
    async with open_client(Settings(), state) as client:
        await client.get("list_agents")

asyncio.run(ask())
print("dbos" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_signal_to_a_run_that_is_started_while_the_runs_open_waits_for_it(
    tmp_path: Path, is_early: bool
) -> None:
    async def approve(context: RunContext, request: RunRequest) -> Any:
        return (await context.receive("s", "approve", 30)).value

    async with LazyRuns(Settings(), State(tmp_path)).open(approve) as runs:

        async def signal() -> None:
            await runs.signal("ada", "approve", 1)
            assert [record.id for record in await runs.list_all()] == ["ada"]

        async def start() -> None:
            await runs.start(RunRequest("welcome", {}, None), run_id="ada")

        await asyncio.gather(*((signal(), start()) if is_early else (start(), signal())))


async def test_a_start_that_fails_holds_no_other_call(tmp_path: Path) -> None:
    async with LazyRuns(Settings(), State(tmp_path)).open(body) as runs:
        refused, records = await asyncio.gather(
            runs.start(RunRequest("w", {"x": object()}, None)), runs.list_all(), return_exceptions=True
        )
        assert isinstance(refused, Exception)
        assert records == ()


async def test_the_runs_of_an_idle_process_open_before_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched, idle = asyncio.Event(), asyncio.Event()

    async def launch(self: DurableRuns) -> None:
        launched.set()

    async def wait_until_idle() -> None:
        await idle.wait()

    monkeypatch.setattr(DurableRuns, "launch", launch)
    lazy = LazyRuns(Settings(), State(tmp_path))
    async with lazy.open(body):
        launching = asyncio.create_task(lazy.launch(lambda line: None, wait_until_idle=wait_until_idle))
        await asyncio.sleep(0)
        assert not launched.is_set()
        idle.set()
        async with asyncio.timeout(60):
            await launching
        assert launched.is_set()
