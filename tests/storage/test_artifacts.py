"""Artifacts of a state: saved whole or not at all, within quotas, and deleted when nothing holds them."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import (
    DigestMismatchError,
    InvalidRequestError,
    NotAllowedError,
    QuotaExceededError,
    StateDamagedError,
    StorageFullError,
    TooLargeError,
    UnknownArtifactError,
)
from retinue.mesh.artifacts import Artifact
from retinue.oci.codec.saved_files import SAVED_FILES
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.layout.saved_files import LayoutFiles
from retinue.storage.artifacts.index import LEAST_BYTES, ArtifactIndex
from retinue.storage.artifacts.store import ArtifactLimits, StoredArtifacts
from retinue.storage.files import storage_errors

DAY_S = 86_400.0


class Mesh:
    """The artifacts of a state whose runs hold ``held``, at the time ``now``."""

    def __init__(self, root: Path, **limits: Any) -> None:
        self.root = root
        self.now = 1_000_000.0
        self.held: set[str] = set()
        self.files = LayoutFiles(root / "registry")
        self.store = StoredArtifacts(
            ArtifactIndex(root / "artifacts.db", clock=lambda: self.now),
            self.files,
            ArtifactLimits(**limits),
            find_held=self.find_held,
            clock=lambda: self.now,
        )

    async def find_held(self, digests: Collection[str]) -> Collection[str]:
        return self.held.intersection(digests)

    async def save(self, content: bytes, caller: str = "ann", **options: Any) -> Artifact:
        return await self.store.save(content, caller=caller, **options)

    async def is_stored(self, artifact: Artifact) -> bool:
        try:
            await self.store.find(artifact.digest)
        except UnknownArtifactError:
            return False
        return True

    def list_files(self) -> list[Path]:
        """The files in the registry, without locks."""
        found = (self.root / "registry").rglob("*")
        return sorted(path for path in found if path.is_file() and path.name != ".lock")


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path)


async def test_content_is_saved_by_its_digest_and_read_by_range(mesh: Mesh) -> None:
    artifact = await mesh.save(b"0123456789", media_type="text/plain", name="digits.txt")
    assert artifact.to_json() == {
        "artifact": f"sha256:{sha256(b'0123456789').hexdigest()}",
        "size": 10,
        "media_type": "text/plain",
        "name": "digits.txt",
    }
    assert await artifact.read() == b"0123456789"
    assert await artifact.read(3, 6) == b"345"
    assert await artifact.read(8, 100) == b"89"
    assert await artifact.read(10) == await artifact.read(99, 120) == b""


async def test_the_type_of_a_file_is_that_of_its_name(mesh: Mesh, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"png")
    artifact = await mesh.store.save(path, caller="ann")
    assert (artifact.media_type, artifact.name) == ("image/png", "plot.png")
    assert (await mesh.save(b"x")).media_type == "application/octet-stream"


async def test_an_empty_file_is_an_artifact(mesh: Mesh) -> None:
    artifact = await mesh.save(b"")
    assert artifact.size == 0
    assert await artifact.read() == b""


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\a.txt", "a.txt"),
        ("a\x00b\n.txt", "ab.txt"),
        ("\u202egnp.exe", "gnp.exe"),
        ("..", None),
        (" . ", None),
        ("x" * 300 + ".txt", "x" * 96 + ".txt"),
    ],
)
async def test_a_name_is_a_plain_file_name(mesh: Mesh, tmp_path: Path, name: str, plain: str | None) -> None:
    artifact = await mesh.save(b"x", name=name)
    assert artifact.name == plain
    folder = tmp_path / "out"
    folder.mkdir()
    saved = await artifact.save(folder)
    assert saved.parent == folder
    assert saved.read_bytes() == b"x"


async def test_a_file_in_a_folder_is_never_replaced_and_a_link_in_it_never_followed(
    mesh: Mesh, tmp_path: Path
) -> None:
    artifact = await mesh.save(b"new", name="a.txt")
    folder, target = tmp_path / "out", tmp_path / "target"
    folder.mkdir()
    target.write_bytes(b"old")
    (folder / "a.txt").symlink_to(target)
    assert await artifact.save(folder) == folder / "a-2.txt"
    assert target.read_bytes() == b"old"


async def test_only_files_are_saved_by_their_path(mesh: Mesh, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe"):
        with pytest.raises(InvalidRequestError, match=path.name):
            await mesh.store.save(path, caller="ann")
    assert mesh.list_files() == []


@pytest.mark.parametrize("media_type", ["html", "text/html\r\nx: y", "a/b/c", "", "text/plain; x=y"])
async def test_a_media_type_that_is_none_is_refused(mesh: Mesh, media_type: str) -> None:
    if not media_type:
        assert (await mesh.save(b"x", media_type="")).media_type == "application/octet-stream"
        return
    with pytest.raises(InvalidRequestError, match="media type"):
        await mesh.save(b"x", media_type=media_type)


async def test_content_of_another_digest_than_announced_is_not_stored(mesh: Mesh) -> None:
    announced = f"sha256:{sha256(b'other').hexdigest()}"
    with pytest.raises(InvalidRequestError, match="the content has the digest"):
        await mesh.store.save(b"content", caller="ann", digest=announced)
    assert mesh.list_files() == []
    assert await mesh.store.list_all() == []


async def test_an_unknown_digest_is_an_error_with_a_remedy(mesh: Mesh) -> None:
    digest = f"sha256:{'0' * 64}"
    with pytest.raises(UnknownArtifactError) as caught:
        await mesh.store.find(digest)
    assert "keep_days" in caught.value.remedy
    with pytest.raises(UnknownArtifactError):
        await Artifact.of(f"artifact:{digest}", mesh.store).read()
    with pytest.raises(InvalidRequestError, match="no digest"):
        await mesh.store.find("sha256:../../etc/passwd")


async def test_a_link_without_a_store_says_what_to_write() -> None:
    with pytest.raises(UnknownArtifactError) as caught:
        await Artifact.of(f"sha256:{'0' * 64}").read()
    assert "mesh.artifact(link)" in caught.value.remedy


async def test_changed_content_is_not_returned(mesh: Mesh, tmp_path: Path) -> None:
    artifact = await mesh.save(b"content")
    (path,) = (path for path in mesh.list_files() if path.name == artifact.digest[7:])
    path.write_bytes(b"changed")
    with pytest.raises(DigestMismatchError):
        await artifact.read()
    with pytest.raises(DigestMismatchError):
        await artifact.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert [name for name in list_names(tmp_path) if ".tmp" in name] == []


async def test_a_link_in_place_of_the_content_is_not_followed(mesh: Mesh, tmp_path: Path) -> None:
    artifact = await mesh.save(b"content")
    (path,) = (path for path in mesh.list_files() if path.name == artifact.digest[7:])
    path.unlink()
    (tmp_path / "secret").write_bytes(b"content")
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(StateDamagedError, match="is damaged"):
        await artifact.read()


async def test_artifacts_are_private_files(mesh: Mesh) -> None:
    mesh.root.chmod(0o700)
    await mesh.save(b"content")
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in mesh.list_files())
    assert (mesh.root / "artifacts.db").stat().st_mode & 0o077 == 0


async def test_a_manifest_keeps_each_file_for_any_oci_tool(mesh: Mesh) -> None:
    artifact = await mesh.save(b"content", media_type="text/plain", name="a.txt")
    hex_digits = artifact.digest[7:]
    layout = mesh.root / "registry" / SAVED_FILES / hex_digits[:2]
    assert (layout / "oci-layout").exists()
    found = await mesh.files.find(artifact.digest)
    assert found is not None
    assert (found.size_bytes, found.media_type, found.name) == (7, "text/plain", "a.txt")


async def test_too_large_content_is_refused_while_it_comes_and_leaves_nothing(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, max_bytes=10)
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield bytes(4)

    with pytest.raises(TooLargeError, match="10 bytes"):
        await mesh.store.save(pieces(), caller="ann")
    assert read == 3
    assert mesh.list_files() == []


async def test_quotas_count_each_caller_and_all_together(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, caller_bytes=2 * LEAST_BYTES, quota_bytes=3 * LEAST_BYTES)
    await mesh.save(b"1")
    await mesh.save(b"2")
    files = mesh.list_files()
    with pytest.raises(QuotaExceededError, match="the artifacts of ann take 8,192 bytes") as caught:
        await mesh.save(b"3")
    assert "artifacts.caller_bytes" in caught.value.remedy
    assert mesh.list_files() == files
    await mesh.save(b"3", caller="bob")
    with pytest.raises(QuotaExceededError, match="all artifacts"):
        await mesh.save(b"4", caller="bob")
    # content that is stored already takes no further room, but counts for whoever saves it
    await mesh.save(b"1", caller="bob")
    with pytest.raises(QuotaExceededError, match="the artifacts of bob"):
        await mesh.save(b"2", caller="bob")
    await mesh.save(b"1")


async def test_saves_at_once_never_exceed_the_quota_together(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, quota_bytes=5 * LEAST_BYTES)
    other = Mesh(tmp_path, quota_bytes=5 * LEAST_BYTES)  # another process of the same state
    saves = [(mesh, other)[number % 2].save(str(number).encode()) for number in range(20)]
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert sum(isinstance(outcome, Artifact) for outcome in outcomes) == 5
    assert all(isinstance(outcome, Artifact | QuotaExceededError) for outcome in outcomes)
    assert await mesh.store.measure() == (5, 5 * LEAST_BYTES)


async def test_equal_content_saved_at_once_is_stored_once(mesh: Mesh, tmp_path: Path) -> None:
    other = Mesh(tmp_path)
    saves = [(mesh, other)[number % 2].save(b"same", f"caller-{number}") for number in range(10)]
    artifacts = await asyncio.gather(*saves)
    assert len({artifact.digest for artifact in artifacts}) == 1
    assert len([path for path in mesh.list_files() if path.read_bytes() == b"same"]) == 1
    (stored,) = await mesh.store.list_all()
    assert len(stored.callers) == 10


async def test_a_save_that_is_cut_off_leaves_nothing(mesh: Mesh) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await mesh.store.save(pieces(), caller="ann")
    assert mesh.list_files() == []
    assert await mesh.store.measure() == (0, 0)


async def test_a_full_disk_refuses_a_save_and_leaves_nothing(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await mesh.save(b"kept")
    files = mesh.list_files()

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StorageFullError):
            await mesh.save(b"other")
    assert mesh.list_files() == files
    assert await kept.read() == b"kept"
    assert await mesh.store.measure() == (1, LEAST_BYTES)


async def test_a_full_disk_leaves_no_part_of_a_fetched_file(
    mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = await mesh.save(b"content", name="a.txt")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "kept.txt").write_bytes(b"kept")

    def fail(_source: object, _target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", fail)
        patched.setattr(Path, "replace", fail)
        for target in (folder, folder / "kept.txt"):
            with pytest.raises(StorageFullError):
                await artifact.save(target)
    assert list_names(folder) == ["kept.txt"]
    assert (folder / "kept.txt").read_bytes() == b"kept"


async def test_what_a_killed_process_left_is_removed_and_never_counted(mesh: Mesh) -> None:
    kept = await mesh.save(b"kept")
    files = mesh.list_files()
    half = mesh.root / "registry" / ".uploads" / SAVED_FILES / f"{'0' * 32}.part"
    half.write_bytes(b"half of it")
    # killed after the content was placed, and before the transaction of the index was over
    staged = await mesh.files.stage(iterate(b"placed"), 100)
    staged.place("text/plain", None)
    await staged.discard(is_stored=True)
    assert await mesh.store.measure() == (1, LEAST_BYTES)
    await mesh.store.collect()
    await mesh.save(b"kept")
    assert [path for path in mesh.list_files() if "artifacts.db" not in path.name] == files
    assert await kept.read() == b"kept"


async def iterate(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_nothing_holds_an_artifact_after_its_days(mesh: Mesh) -> None:
    old, renewed = await mesh.save(b"old"), await mesh.save(b"renewed")
    mesh.now += 20 * DAY_S
    await mesh.save(b"renewed", "bob")
    mesh.now += 11 * DAY_S
    collected = await mesh.store.collect()
    assert (collected.count, collected.size_bytes) == (1, 3)
    assert not await mesh.is_stored(old)
    assert await mesh.is_stored(renewed)
    assert [path for path in mesh.list_files() if path.name == old.digest[7:]] == []


async def test_a_run_holds_an_artifact_longer_than_its_save(mesh: Mesh) -> None:
    artifact = await mesh.save(b"of a run", run="run-1")
    mesh.held.add(artifact.digest)
    mesh.now += 100 * DAY_S
    await mesh.store.collect()
    assert await mesh.is_stored(artifact)
    mesh.held.clear()
    await mesh.store.release(["run-1"], [artifact.digest])
    assert not await mesh.is_stored(artifact)


async def test_the_end_of_a_run_deletes_only_what_nobody_else_holds(mesh: Mesh) -> None:
    alone, shared = await mesh.save(b"alone", run="run-1"), await mesh.save(b"shared", run="run-1")
    await mesh.save(b"shared", "bob")
    await mesh.store.release(["run-1"])
    assert not await mesh.is_stored(alone)
    assert await mesh.is_stored(shared)


async def test_a_caller_deletes_its_own_saves_only(mesh: Mesh) -> None:
    artifact = await mesh.save(b"shared")
    await mesh.save(b"shared", "bob")
    with pytest.raises(NotAllowedError):
        await mesh.store.delete(artifact.digest, caller="eve")
    assert not await mesh.store.delete(artifact.digest, caller="ann")
    assert await mesh.is_stored(artifact)
    assert await mesh.store.delete(artifact.digest, caller="bob")
    assert not await mesh.is_stored(artifact)


async def test_content_that_is_deleted_while_it_is_saved_again_is_there_afterwards(mesh: Mesh) -> None:
    for _ in range(20):
        artifact = await mesh.save(b"contested")
        _, again = await asyncio.gather(
            mesh.store.delete(artifact.digest, caller="ann"), mesh.save(b"contested", "bob")
        )
        assert await again.read() == b"contested"
        await mesh.store.delete(artifact.digest)


def count_open_files() -> int:
    return len(list_names(Path("/proc/self/fd")))


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_reader_that_stops_early_closes_the_file(mesh: Mesh) -> None:
    artifact = await mesh.save(bytes(3 * 1024 * 1024))
    before = count_open_files()
    async with artifact.open() as pieces, aclosing(pieces):
        async for _ in pieces:
            break
    assert count_open_files() == before


async def test_an_index_of_another_version_is_refused(mesh: Mesh, tmp_path: Path) -> None:
    await mesh.save(b"x")
    index = ArtifactIndex(tmp_path / "damaged.db")
    with storage_errors(tmp_path):
        (tmp_path / "damaged.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StateDamagedError, match="is damaged"):
        index.measure()


async def test_content_of_unknown_size_is_read_no_further_than_the_quota(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, quota_bytes=2 * 1024 * 1024)
    await mesh.save(b"x")
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1000):
            read += 1
            yield bytes(1024 * 1024)

    with pytest.raises(QuotaExceededError, match="all artifacts take 4,096 bytes"):
        await mesh.store.save(pieces(), caller="ann")
    assert read == 2
    with pytest.raises(QuotaExceededError):
        await mesh.store.save(pieces(), caller="ann", size_bytes=3 * 1024 * 1024)
    assert read == 2


async def test_artifacts_are_in_no_catalog_and_change_no_stamp_of_the_registry(mesh: Mesh) -> None:
    registry = LayoutRegistry(mesh.root / "registry")
    await mesh.save(b"content")
    assert await registry.list_repositories() == []
    assert registry.generation() == ""
