"""Layers are checked and unpacked while they come: bounded memory, and nothing after the first wrong byte."""

from __future__ import annotations

import asyncio
import io
import re
import tarfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from retinue.core.errors import TeamRefusedError
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.places import unpack
from retinue.runtime.teams.store import TeamStore
from retinue.storage.state import State
from retinue.team.files import FileRow, TeamFile
from retinue.team.layers import LayerReader, layer_size_bytes, read_layer, render_layer
from retinue.team.package import Team
from tests.team.conftest import WriteTeam

MEBIBYTE = 1024 * 1024
PIECE = bytes(64 * 1024)
FILES = [TeamFile("a/empty.txt", "agents", b""), TeamFile("a/x.py", "agents", b"x" * 700)]
ROWS = [file.row for file in FILES]

Send = Callable[[asyncio.StreamWriter, bytes], AsyncIterator[bytes]]


class Names:
    """A sink that keeps the names of the files that began and ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    def begin(self, row: FileRow) -> None:
        self.begun.append(row.path)

    def add(self, piece: bytes) -> None:
        pass

    def end(self) -> None:
        self.ended.append(self.begun[-1])


def write_archive(*members: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)) if member.isreg() else None)
    return target.getvalue()


def member(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, size, target, 0o644
    return info


@pytest.mark.parametrize("size_bytes", [1, 7, 511, 512, 10_000])
def test_pieces_of_any_size_give_the_same_files(size_bytes: int) -> None:
    archive = render_layer(FILES)
    assert layer_size_bytes(ROWS) == len(archive)
    names = Names()
    reader = LayerReader(ROWS, names, where="words")
    for position in range(0, len(archive), size_bytes):
        reader.feed(archive[position : position + size_bytes])
    reader.finish()
    assert names.ended == [row.path for row in ROWS]
    assert read_layer(archive, ROWS, where="words") == FILES
    for end in (0, 512, len(archive) - 1):
        shorter = LayerReader(ROWS, Names(), where="words")
        shorter.feed(archive[:end])
        with pytest.raises(TeamRefusedError, match="ends before"):
            shorter.finish()


@pytest.mark.parametrize(
    "first",
    [
        member("/a/empty.txt"),
        member("../a/empty.txt"),
        member("A/empty.txt"),
        member("a/empty.txt", size=1 << 20),
        member("a/empty.txt", kind=tarfile.SYMTYPE, target="/etc/passwd"),
        member("a/empty.txt", kind=tarfile.LNKTYPE, target="a/x.py"),
        member("a/empty.txt", kind=tarfile.CHRTYPE),
        member("a/empty.txt", kind=tarfile.FIFOTYPE),
        member("a/", kind=tarfile.DIRTYPE),
    ],
    ids=lambda info: f"{info.name} of type {info.type.decode()}, {info.size} bytes",
)
def test_an_entry_that_is_not_the_listed_file_ends_the_layer_before_a_file_begins(
    first: tarfile.TarInfo,
) -> None:
    names = Names()
    reader = LayerReader(ROWS, names, where="words")
    with pytest.raises(TeamRefusedError, match="is not the archive of its list"):
        reader.feed(write_archive(first, member("a/x.py", size=700))[:512])
    assert names.begun == []


@asynccontextmanager
async def layer_server(state: State, team: Team, digest: str, send: Send) -> AsyncIterator[str]:
    """A registry over HTTP with the content of that of the state; ``send`` gives the pieces of one layer."""
    folder = state.registry / "teams" / team.name / "blobs" / "sha256"

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            path = head.split()[1]
            wanted = re.search(r"/(?:manifests|blobs)/(sha256:[0-9a-f]{64})$", path)
            file = folder / wanted[1].removeprefix("sha256:") if wanted else None
            if file is None or not file.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            else:
                content = file.read_bytes()
                kind = "application/vnd.oci.image.manifest.v1+json" if "/manifests/" in path else "x/y"
                length = f"content-length: {len(content)}\r\n"
                is_sent = wanted is not None and wanted[1] == digest and "/blobs/" in path
                writer.write(
                    f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{'' if is_sent else length}"
                    "connection: close\r\n".encode()
                )
                if is_sent:
                    writer.write(b"transfer-encoding: chunked\r\n\r\n")
                    async for piece in send(writer, content):
                        writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                        await writer.drain()
                    writer.write(b"0\r\n\r\n")
                else:
                    writer.write(b"\r\n" + content)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_layer_without_end_is_broken_off_and_leaves_nothing(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    team = (await teams.pack(write_team(), registry=None, output=None)).team
    digest = next(iter((await teams.pull(team.digest)).manifest.layers)).digest
    sent_bytes = 0

    async def send(_: asyncio.StreamWriter, content: bytes) -> AsyncIterator[bytes]:
        nonlocal sent_bytes
        yield content
        while True:
            sent_bytes += len(PIECE)
            yield PIECE

    store = TeamStore(state)
    async with layer_server(state, team, digest, send) as host:
        pulled = await teams.pull(f"oci://{host}/teams/words@{team.digest}")
        with store.changing("words"), pytest.raises(TeamRefusedError, match="more than the files"):
            await unpack(store, pulled)
    # what the sockets and the reader of the response hold, and no more
    assert sent_bytes < 16 * MEBIBYTE
    assert store.list_installed("words") == []
    assert [*store.root.rglob(".incoming-*")] == []


async def test_a_layer_that_was_broken_off_comes_again_from_its_first_byte(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    folder = write_team()
    (folder / "agents" / "word" / "more.txt").write_bytes(b"m" * MEBIBYTE)
    write_team()
    team = (await teams.pack(folder, registry=None, output=None)).team
    digest = (await teams.pull(team.digest)).manifest.layers[1].digest
    attempts = 0

    async def send(writer: asyncio.StreamWriter, content: bytes) -> AsyncIterator[bytes]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            yield content[: MEBIBYTE // 2]
            writer.close()
            raise ConnectionResetError
        yield content

    store = TeamStore(state)
    async with layer_server(state, team, digest, send) as host:
        pulled = await teams.pull(f"oci://{host}/teams/words@{team.digest}")
        with store.changing("words"):
            await unpack(store, pulled)
    assert attempts == 2
    files = store.folder_of("words", team.digest) / "files"
    assert {path.relative_to(files).as_posix() for path in files.rglob("*") if path.is_file()} == {
        row.path for row in team.files
    }
    assert (files / "agents" / "word" / "more.txt").read_bytes() == b"m" * MEBIBYTE


@pytest.mark.parametrize("place", ["registry", "file"])
async def test_memory_does_not_grow_with_a_layer(
    place: str, teams: TeamCommands, write_team: WriteTeam, state: State, tmp_path: Path
) -> None:
    peaks: list[int] = []
    store = TeamStore(state)
    for version, count in (("1.0.0", 1), ("2.0.0", 5)):
        folder = write_team(version)
        for number in range(count):
            (folder / "agents" / "word" / f"{number}.bin").write_bytes(bytes([number]) * 2 * MEBIBYTE)
        write_team(version)
        output = tmp_path / f"{version}.tar" if place == "file" else None
        team = (await teams.pack(folder, registry=None, output=output)).team
        pulled = await teams.pull(team.digest if output is None else f"{output}@{team.digest}")
        with store.changing("words"):
            tracemalloc.start()
            await unpack(store, pulled)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert store.has("words", team.digest)
    assert max(peaks) < 4 * MEBIBYTE, peaks
