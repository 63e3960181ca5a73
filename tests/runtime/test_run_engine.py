"""A hub whose run engine does not start: readiness, metrics, and a database that can hold no runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.runtime.checks.state import check_postgres
from retinue.runtime.commands.hub_control import find_problem
from retinue.runtime.hub_process import HubOptions, run_hub
from retinue.runtime.launch import Address
from retinue.runtime.lazy_runs import LazyRuns
from retinue.settings import Settings
from retinue.settings_tables import HubTable
from retinue.storage.state import HubAddress, State
from retinue.workflows.durable.database import RunDatabase
from retinue.workflows.durable.runs import DurableRuns
from retinue.workflows.runs.ports import RunContext
from retinue.workflows.runs.records import RunRequest
from tests.crash.postgres import Postgres
from tests.runtime.composition.live_process import LiveProcess, Main, ProcessStarter
from tests.system import Wire

WAIT_S = 60.0


async def run_nothing(context: RunContext, request: RunRequest) -> object:
    return None


def hub_of(home: Path) -> Main:
    options = HubOptions(Address("127.0.0.1", 0), bare=True)
    return lambda echo: run_hub(options, Settings(hub=HubTable(models=())), State(home), echo)


async def read_metrics(wire: Wire, hub: LiveProcess, home: Path) -> list[str]:
    token = f"Bearer {State(home).local_token()}"
    return (await wire.get(f"{hub.url}/metrics", authorization=token)).body.decode().splitlines()


async def test_a_hub_whose_run_engine_does_not_start_is_not_ready_and_says_why(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    State(retinue_home).prepare()
    async with LazyRuns(Settings(), State(retinue_home)).open(run_nothing) as runs:
        await runs.list_all()

    async def fail(runs: DurableRuns) -> None:
        raise TypeError("cannot use a string pattern")

    monkeypatch.setattr(DurableRuns, "launch", fail)
    async with ProcessStarter(monkeypatch).running(hub_of(retinue_home)) as hub:
        async with asyncio.timeout(WAIT_S):
            while not any("workflows are paused" in line for line in hub.lines):
                await asyncio.sleep(0.01)
        token = f"Bearer {State(retinue_home).local_token()}"
        reply = await wire.get(f"{hub.url}/ready", authorization=token)
        assert (reply.status, reply.json["status"]) == (503, "not ready")
        (problem,) = [problem for problem in reply.json["problems"] if problem["what"] == "runs"]
        assert problem["reason"].startswith(
            "the run engine does not start: TypeError: cannot use a string pattern — see the log"
        )
        lines = await read_metrics(wire, hub, retinue_home)
        address = HubAddress(hub.url, os.getpid(), "2026-11-27T08:00:00Z")
        told = await find_problem(Settings(), State(retinue_home), address)
        assert told is not None
        assert told.startswith("the hub is not ready; ")
        assert "the run engine does not start" in told
    assert "retinue_ready 0.0" in lines
    assert "retinue_nodes 0.0" in lines


async def test_the_metrics_that_alerts_ask_for_are_there_without_a_run(
    retinue_home: Path, monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    async with ProcessStarter(monkeypatch).running(hub_of(retinue_home)) as hub:
        lines = await read_metrics(wire, hub, retinue_home)
        assert (await wire.get(f"{hub.url}/ready")).status == 200
    assert {
        'retinue_runs{status="failed"} 0.0',
        "retinue_nodes 0.0",
        "retinue_lease_remaining_seconds 0.0",
        "retinue_lease_losses_total 0.0",
    } <= set(lines)


@pytest.fixture(scope="module")
def ascii_database() -> Iterator[str]:
    """The url of a database as ``initdb`` makes it under ``LC_ALL=C``."""
    server = Postgres()
    yield server.create_database("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    server.close()


async def test_a_database_without_an_encoding_is_refused(ascii_database: str, tmp_path: Path) -> None:
    database = RunDatabase(ascii_database)
    with pytest.raises(InvalidSettingError, match="encoding SQL_ASCII") as caught:
        await database.prepare()
    assert caught.value.remedy.startswith("create it with UTF8")
    database.close()
    runs = LazyRuns(Settings(database=ascii_database, hub=HubTable(models=())), State(tmp_path))
    async with runs.open(run_nothing):
        with pytest.raises(InvalidSettingError, match="encoding SQL_ASCII"):
            await runs.launch(lambda line: None)
    check = await check_postgres(ascii_database)
    assert (check.name, check.status) == ("runs", "fail")
    assert "the database has the encoding SQL_ASCII" in check.found


async def test_a_hub_does_not_run_on_a_database_without_an_encoding(
    ascii_database: str, retinue_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    options = HubOptions(Address("127.0.0.1", 0), bare=True)
    settings = Settings(database=ascii_database)
    async with asyncio.timeout(WAIT_S):
        code = await run_hub(options, settings, State(retinue_home), lines.append)
    assert code == 1
    assert any(line.startswith("stopping: ") and "SQL_ASCII" in line for line in lines)
