"""``up`` when the network ends in the middle of a layer, and when the disk is full: what ran before stays."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from retinue.core.errors import RegistryUnreachableError, StorageFullError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.runtime.commands.teams.commands import TeamCommands, UpOptions
from retinue.runtime.teams.environments import Environments
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team
from tests.oci.server.test_push import open_endpoint
from tests.support.small_disk import small_file_system
from tests.team.conftest import WriteTeam

AGREED = UpOptions(is_agreed=True)
LARGE = "#" * 4_000_000


@asynccontextmanager
async def cut_registry(registry: Path, after_bytes: int) -> AsyncIterator[str]:
    """The registry of a folder over HTTP, whose connections end after so many bytes."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_bytes: int) -> None:
        while limit_bytes > 0 and (content := await reader.read(65_536)):
            limit_bytes -= len(content)
            writer.write(content)
            await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_registry, to_registry = await asyncio.open_connection("127.0.0.1", port)
        ways = [
            asyncio.create_task(pass_on(reader, to_registry, 1 << 30)),
            asyncio.create_task(pass_on(from_registry, writer, after_bytes)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, to_registry):
            end.close()
            with suppress(ConnectionError):
                await end.wait_closed()

    async with open_endpoint(LayoutRegistry(registry)) as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        server = await asyncio.start_server(connect, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A folder that takes 1 MiB; without root, every file takes no more than that."""
    folder.mkdir(mode=0o700)
    with small_file_system(folder, "1m") as is_mounted:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if not is_mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def run(teams: TeamCommands, state: State, folder: Path) -> Team:
    """Install a team as the one that runs."""
    team = (await teams.pack(folder, registry=None, output=None)).team
    pulled = await teams.pull(team.digest)
    files = {f"files/{file.path}": file.content for file in await pulled.pull_files()}
    config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
    store = TeamStore(state)
    with store.changing("words"):
        store.install("words", team.digest, {"config.json": config, **files})
    store.write_row(TeamRow("words", active=team.digest, version=team.version, names=sorted(team.names)))
    return team


async def up(teams: TeamCommands, reference: str) -> None:
    await teams.up(reference, AGREED, lambda _: False, lambda _: None)


async def test_a_network_that_ends_in_a_layer_leaves_what_runs_and_no_file(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    old = await run(teams, state, write_team())
    new = (await teams.pack(write_team("2.0.0", code=LARGE), registry=None, output=None)).team
    store = TeamStore(state)
    row = store.read_rows()["words"]
    async with cut_registry(state.registry, after_bytes=1_000_000) as host:
        with pytest.raises(RegistryUnreachableError) as failure:
            await up(teams, f"oci://{host}/teams/words@{new.digest}")
    assert host in failure.value.message
    assert "run the command again" in (failure.value.remedy or "")
    assert store.list_installed("words") == [old.digest]
    assert not [*store.root.rglob(".incoming-*")]
    kept = store.read_rows()["words"]
    assert (kept.active, kept.names, kept.rollout, kept.is_settled) == (old.digest, row.names, {}, True)


async def test_a_full_disk_leaves_what_runs_and_no_file(
    teams: TeamCommands, write_team: WriteTeam, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TeamStore(state)
    new = (await teams.pack(write_team("2.0.0", code=LARGE), registry=None, output=None)).team
    with small_disk(store.root):
        old = await run(teams, state, write_team())
        with pytest.raises(StorageFullError, match="words") as failure:
            await up(teams, new.digest)
        assert "free" in (failure.value.remedy or "")
        assert store.list_installed("words") == [old.digest]
        assert not [*store.root.rglob(".incoming-*")]
        kept = store.read_rows()["words"]
        assert (kept.active, kept.rollout, kept.is_settled) == (old.digest, {}, True)

    # a program of another project tells of it in its own words
    place = tmp_path / "disk"
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "npm").write_text("#!/bin/sh\nhead -c 4000000 /dev/zero > filler\necho ENOSPC >&2\nexit 1\n")
    (programs / "npm").chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    with small_disk(place):
        environments = Environments(place / "team-environments", {"PATH": path})
        with pytest.raises(StorageFullError):
            environments.make_npm(b"{}", b"{}")
        assert [*(place / "team-environments" / "npm").iterdir()] == []
