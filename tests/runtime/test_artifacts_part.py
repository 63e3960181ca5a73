"""Artifacts in a process: the part that deletes what nothing holds, runs that hold, and backups."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import StateError
from retinue.mesh.observing.metrics import Figures
from retinue.parts.process import Tables
from retinue.runtime.factories import state_artifacts
from retinue.runtime.lazy_runs import LazyRuns
from retinue.runtime.parts.artifacts import ArtifactsPart
from retinue.settings import Settings
from retinue.settings_tables import ArtifactTable
from retinue.storage.artifacts.state_artifacts import StateArtifacts
from retinue.storage.backup import back_up
from retinue.storage.state import State
from retinue.web.http_client import HttpClient
from tests.system import WAIT_S


class FakeProcess:
    """What the part asks of its process."""

    def __init__(self, kind: str, artifacts: StateArtifacts) -> None:
        self.kind = kind
        self.tables = Tables([ArtifactTable(quota_bytes=1_048_576)])
        self._artifacts = artifacts

    def get(self, kind: type) -> Any:
        assert kind is StateArtifacts
        return self._artifacts


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path)
    state.prepare()
    return state


async def test_a_deleted_run_releases_what_it_held(state: State) -> None:
    settings = Settings()
    async with HttpClient() as http:
        artifacts, runs = state_artifacts(settings, state, http), LazyRuns(settings, state)
        runs.hold_artifacts(artifacts)
        await runs.tell_deleted(["run-0"], [])
        assert not artifacts.exists()
        alone = await artifacts.save(b"alone", caller="agent", run="run-1")
        shared = await artifacts.save(b"shared", caller="agent", run="chain-1")
        await artifacts.save(b"shared", caller="ann")
        await runs.tell_deleted(["run-1", "chain-1"], [alone.digest, shared.digest])
        listed = await artifacts.store.list_all()
        assert [row.digest for row in listed] == [shared.digest]
        assert await runs.find_held_artifacts([shared.digest]) == ()
        artifacts.close()


async def test_a_process_without_the_runs_deletes_nothing_that_they_may_hold(state: State) -> None:
    async with HttpClient() as http:
        artifacts = state_artifacts(Settings(), state, http)
        for has_runs in (True, False):
            artifact = await artifacts.save(str(has_runs).encode(), caller="ann")
            if has_runs:
                state.runs.touch()
            assert await artifacts.store.delete(artifact.digest, caller="ann") is not has_runs
            state.runs.unlink(missing_ok=True)
        artifacts.close()


async def test_the_metrics_tell_what_is_stored_and_what_was_read(state: State) -> None:
    async with HttpClient() as http:
        artifacts = state_artifacts(Settings(), state, http)
        async with ArtifactsPart().open(FakeProcess("hub", artifacts)) as opened:  # type: ignore[arg-type]
            assert opened.figures is not None
            before, after, damaged = Figures(), Figures(), Figures()
            await opened.figures(before)
            assert not artifacts.exists(), "a reading creates nothing"
            artifact = await artifacts.save(bytes(5_000), caller="ann")
            await artifact.read(0, 1_000)
            await opened.figures(after)
            artifacts.close()
            state.artifacts.write_bytes(b"no database" * 1_000)
            await opened.figures(damaged)
    names = ("", "_stored_bytes", "_quota_bytes", "_read_bytes_total")
    for figures, values in ((before, [0, 0, 1_048_576, 0]), (after, [1, 5_000, 1_048_576, 1_000])):
        assert [figures.values[f"retinue_artifacts{name}"][()] for name in names] == values
    assert "retinue_artifacts" not in damaged.values


async def test_a_hub_deletes_what_nothing_holds_and_goes_on_after_a_failure(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(artifacts={"keep_days": 1e-9})
    async with HttpClient() as http:
        artifacts = state_artifacts(settings, state, http)
        artifact = await artifacts.save(b"old", caller="agent")
        collect, failures = artifacts.store.collect, [StateError("the disk is away")]

        async def fail_once() -> Any:
            if failures:
                raise failures.pop()
            return await collect()

        monkeypatch.setattr(artifacts.store, "collect", fail_once)
        part = ArtifactsPart(first_s=0.001, every_s=0.001)
        async with part.open(FakeProcess("hub", artifacts)) as opened:  # type: ignore[arg-type]
            assert opened.running is not None
            async with opened.running(), asyncio.timeout(WAIT_S):
                while await artifacts.store.list_all():
                    await asyncio.sleep(0.005)
        assert failures == []
        assert not any((state.registry).rglob(artifact.digest[7:]))
        artifacts.close()


async def test_the_files_are_in_a_backup(state: State, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("backup")
    async with HttpClient() as http:
        artifacts = state_artifacts(Settings(), state, http)
        artifact = await artifacts.save(b"content", caller="agent", name="a.txt")
        back_up(state, target)
        artifacts.close()
        copied = state_artifacts(Settings(), State(target), http)
        found = await copied.find(artifact.digest)
        assert (found.name, await found.read()) == ("a.txt", b"content")
        copied.close()
