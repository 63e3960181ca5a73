"""The registry in a folder: many writers, damage, a full disk, names that want out."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from retinue.core.errors import (
    BusyError,
    InvalidReferenceError,
    ReferenceNotFoundError,
    StateDamagedError,
    StorageFullError,
)
from retinue.oci.codec.artifacts import NewArtifact, card_artifact
from retinue.oci.codec.reference import Reference, digest_of
from retinue.oci.layout.folder_registry import GENERATION_FILE, LayoutRegistry
from tests.requirements import requirement

PLAN = Reference("agents/plan", "v1")
NOW = datetime(2026, 11, 21, tzinfo=UTC)


def _card(text: str = "one", size_bytes: int = 0) -> NewArtifact:
    content = orjson.dumps({"name": "plan-agent", "description": text + " " * size_bytes})
    return card_artifact("plan-agent", content, version="1.0.0", skills=["a"], created=NOW)


def _files(root: Path) -> dict[str, bytes]:
    """All files below a folder but locks and the stamp, whose content says nothing."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in {".lock", GENERATION_FILE}
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def registry(root: Path) -> LayoutRegistry:
    return LayoutRegistry(root)


@requirement("P-17")
async def test_a_pushed_card_lies_in_an_image_layout_of_its_own(registry: LayoutRegistry, root: Path) -> None:
    digest = await registry.push("agents/plan", "v1", _card())
    layout = root / "agents" / "plan"
    assert orjson.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = orjson.loads((layout / "index.json").read_bytes())
    manifest = (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert index == {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest,
                "size": len(manifest),
                "artifactType": "application/vnd.a2a.agent.card",
                "annotations": {"org.opencontainers.image.ref.name": "v1"},
            }
        ],
    }
    blobs = {path.name: digest_of(path.read_bytes()) for path in (layout / "blobs" / "sha256").iterdir()}
    assert len(blobs) == 3
    assert all(found == f"sha256:{name}" for name, found in blobs.items())


@requirement("P-19")
async def test_another_instance_sees_a_change_at_once(registry: LayoutRegistry, root: Path) -> None:
    reader = LayoutRegistry(root)
    for text in ("one", "two", "three"):
        digest = await registry.push("agents/plan", "v1", _card(text))
        assert (await reader.pull(PLAN)).digest == digest


async def test_every_change_moves_the_generation_and_no_read_does(
    registry: LayoutRegistry, root: Path
) -> None:
    reader = LayoutRegistry(root)
    seen = [reader.generation()]
    await registry.push("agents/plan", "v1", _card())
    seen.append(reader.generation())
    await registry.push("agents/plan", "v1", _card("two"))
    seen.append(reader.generation())
    await registry.delete("agents/plan", "v1")
    seen.append(reader.generation())
    await reader.list_repositories()
    assert await reader.find_digest(PLAN) is None
    assert reader.generation() == seen[-1]
    assert len(set(seen)) == 4


async def test_publishing_again_and_again_does_not_fill_the_disk(
    registry: LayoutRegistry, root: Path
) -> None:
    digests = [await registry.push("agents/plan", "v1", _card(str(number))) for number in range(25)]
    blobs = list((root / "agents" / "plan" / "blobs" / "sha256").iterdir())
    assert len(blobs) == 1 + 2 * 11  # the empty config; manifest and card of v1 and ten former ones
    former = await registry.pull(Reference("agents/plan", digest=digests[-2]))
    assert former.digest == digests[-2]
    with pytest.raises(ReferenceNotFoundError):
        await registry.pull(Reference("agents/plan", digest=digests[0]))


async def test_an_emptied_repository_leaves_nothing_behind(registry: LayoutRegistry, root: Path) -> None:
    await registry.push("agents/plan", "v1", _card())
    await registry.push("agents/plan", "v1", _card("two"))
    await registry.delete("agents/plan", "v1")
    assert await registry.list_repositories() == []
    assert not (root / "agents" / "plan").exists()
    assert await registry.push("agents/plan", "v1", _card())


async def test_a_nested_repository_survives_the_one_above_it(registry: LayoutRegistry) -> None:
    await registry.push("agents/team", "v1", _card())
    await registry.push("agents/team/plan", "v1", _card())
    assert await registry.list_repositories() == ["agents/team", "agents/team/plan"]
    await registry.delete("agents/team", "v1")
    assert await registry.list_repositories() == ["agents/team/plan"]
    assert (await registry.pull(Reference("agents/team/plan", "v1"))).content == _card().content


@pytest.mark.parametrize(
    "repository",
    ["../outside", "agents/../../outside", "/etc", "agents/plan/blobs/sha256/ab", "agents/index.json", "A"],
)
async def test_no_name_leads_out_of_the_folder_or_into_another_layout(
    registry: LayoutRegistry, root: Path, repository: str
) -> None:
    for attempt in (
        registry.push(repository, "v1", _card()),
        registry.list_tags(repository),
        registry.find_manifest(repository, "v1"),
        registry.find_blob(repository, "sha256:" + "0" * 64),
        registry.delete(repository, "v1"),
    ):
        with pytest.raises(InvalidReferenceError):
            await attempt
    assert _files(root) == {}


async def test_a_blob_is_asked_by_digest_only(registry: LayoutRegistry) -> None:
    await registry.push("agents/plan", "v1", _card())
    assert await registry.find_blob("agents/plan", "../../index.json") is None
    assert await registry.find_blob("agents/plan", "sha256:" + "0" * 64) is None
    assert await registry.find_blob("agents/plan", digest_of(_card().content)) == _card().content


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def _swap(path: Path) -> None:
    path.write_bytes(b'{"imageLayoutVersion": "9"}')


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_cut, _swap, _folder, Path.unlink])
@pytest.mark.parametrize("name", ["index.json", "oci-layout", "manifest"])
async def test_a_damaged_layout_is_named_and_the_others_stay_usable(
    registry: LayoutRegistry, root: Path, name: str, damage: Callable[[Path], None]
) -> None:
    digest = await registry.push("agents/plan", "v1", _card())
    await registry.push("agents/build", "v1", _card())
    layout = root / "agents" / "plan"
    path = layout / "blobs" / "sha256" / digest[7:] if name == "manifest" else layout / name
    damage(path)
    if name == "index.json" and damage is Path.unlink:
        assert await registry.list_repositories() == ["agents/build"]
        return
    with pytest.raises(StateDamagedError) as caught:
        await LayoutRegistry(root).pull(PLAN)
    assert caught.value.path == str(path)
    assert str(layout) in caught.value.remedy
    assert (await registry.pull(Reference("agents/build", "v1"))).content == _card().content
    if not path.is_dir():
        assert await registry.list_repositories() == ["agents/build", "agents/plan"]
    if name != "manifest":
        with pytest.raises(StateDamagedError):
            await LayoutRegistry(root).push("agents/plan", "v1", _card())


async def test_damaged_content_is_found_by_its_digest(registry: LayoutRegistry, root: Path) -> None:
    await registry.push("agents/plan", "v1", _card())
    digest = digest_of(_card().content)
    path = root / "agents" / "plan" / "blobs" / "sha256" / digest[7:]
    path.write_bytes(b"forged")
    with pytest.raises(StateDamagedError, match="does not match its digest"):
        await registry.find_blob("agents/plan", digest)
    await registry.push("agents/plan", "v1", _card())
    assert await registry.find_blob("agents/plan", digest) == _card().content


class _FullDisk:
    """Makes the n-th call of one function of ``os`` fail as on a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, fail_at: int) -> None:
        self._real = getattr(os, name)
        self._fail_at = fail_at
        self._calls = 0
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any, **others: Any) -> Any:
        self._calls += 1
        if self._calls == self._fail_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(*args, **others)


@pytest.mark.parametrize("step", ["open", "write", "fsync", "mkdir", "replace"])
@pytest.mark.parametrize("fresh", [True, False], ids=["new repository", "known repository"])
async def test_a_full_disk_at_any_step_changes_nothing(
    registry: LayoutRegistry, root: Path, step: str, fresh: bool
) -> None:
    if not fresh:
        await registry.push("agents/plan", "v1", _card("old"))
    before = _files(root)
    refused = 0
    for fail_at in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            _FullDisk(patch, step, fail_at)
            try:
                await registry.push("agents/plan", "v1", _card("new"))
            except StorageFullError:
                refused += 1
            else:
                break
        assert _files(root) == before
        assert (await registry.find_digest(PLAN) is None) is fresh
    else:
        pytest.fail("the push never went through")
    if step in {"open", "write"}:
        assert refused >= 3
    assert (await registry.pull(PLAN)).content == _card("new").content


async def _run(script: str, *arguments: str | Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


_PUSH_LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from retinue.core.errors import StorageFullError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.codec.artifacts import NewArtifact
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    artifact = NewArtifact(b"x" * 5000, "application/json", "t", "a/b")
    asyncio.run(LayoutRegistry(Path(sys.argv[1])).push("agents/plan", "v1", artifact))
except StorageFullError as error:
    print(error)
    sys.exit(7)
"""


async def test_when_the_kernel_refuses_room_nothing_half_written_stays(
    registry: LayoutRegistry, root: Path
) -> None:
    await registry.push("agents/plan", "v1", _card())
    before = _files(root)
    code, output = await _run(_PUSH_LIMITED, root)
    assert code == 7, output
    assert "no space left for" in output
    assert _files(root) == before


_PUSH_MANY = """
import asyncio, sys
from pathlib import Path
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.codec.artifacts import NewArtifact
async def main():
    registry, who = LayoutRegistry(Path(sys.argv[1])), sys.argv[2]
    for number in range(15):
        artifact = NewArtifact(f"{who} {number}".encode(), "application/json", "t", "a/b")
        await registry.push("agents/plan", f"{who}-{number}", artifact)
        await registry.push("agents/passing", "v1", artifact)
        await registry.push("agents/passing", who, artifact)
        await registry.delete("agents/passing", who)
asyncio.run(main())
"""


async def test_several_processes_write_at_once_and_readers_see_whole_repositories(root: Path) -> None:
    writers = [asyncio.create_task(_run(_PUSH_MANY, root, who)) for who in ("a", "b", "c")]
    registry, reads = LayoutRegistry(root), 0
    while not all(writer.done() for writer in writers):
        for tag in await registry.list_tags("agents/plan"):
            content = (await registry.pull(Reference("agents/plan", tag))).content
            assert content.decode() == tag.replace("-", " ")
            reads += 1
        await asyncio.sleep(0)  # lets the loop hear of the writers
    assert [await writer for writer in writers] == [(0, "")] * 3
    assert reads > 0
    wanted = {f"{who}-{number}" for who in ("a", "b", "c") for number in range(15)}
    assert set(await registry.list_tags("agents/plan")) == wanted
    assert await registry.list_tags("agents/passing") == ["v1"]


_COME_AND_GO = """
import asyncio, sys
from pathlib import Path
from retinue.core.errors import ReferenceNotFoundError
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.codec.artifacts import NewArtifact
async def main():
    registry, who = LayoutRegistry(Path(sys.argv[1])), sys.argv[2]
    for number in range(30):
        artifact = NewArtifact(f"{who} {number}".encode(), "application/json", "t", "a/b")
        await registry.push("agents/plan", who, artifact)
        await registry.delete("agents/plan", who)
asyncio.run(main())
"""


async def test_a_repository_may_come_and_go_under_many_writers(root: Path) -> None:
    writers = [asyncio.create_task(_run(_COME_AND_GO, root, who)) for who in ("a", "b", "c")]
    registry = LayoutRegistry(root)
    while not all(writer.done() for writer in writers):
        assert set(await registry.list_tags("agents/plan")) <= {"a", "b", "c"}
        await asyncio.sleep(0)  # lets the loop hear of the writers
    assert [await writer for writer in writers] == [(0, "")] * 3
    assert await registry.list_repositories() == []


_DIE_AT = """
import asyncio, os, sys
from pathlib import Path
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.codec.artifacts import NewArtifact
calls, fsync = 0, os.fsync
def die(descriptor):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        os._exit(9)
    fsync(descriptor)
os.fsync = die
artifact = NewArtifact(b"new" + sys.argv[2].encode(), "application/json", "t", "a/b")
asyncio.run(LayoutRegistry(Path(sys.argv[1])).push("agents/plan", "v1", artifact))
"""


async def test_a_writer_killed_at_any_step_harms_nobody(registry: LayoutRegistry, root: Path) -> None:
    await registry.push("agents/plan", "v1", _card())
    # The steps: layer, manifest, their folder, index, its folder.
    for step in range(1, 6):
        code, output = await _run(_DIE_AT, root, str(step))
        assert code == 9, output
        assert (await registry.pull(PLAN)).content == (b"new5" if step == 5 else _card().content)
        assert await registry.push("agents/plan", "v1", _card())
        assert not [name for name in _files(root) if name.endswith(".tmp")]
    assert (await registry.pull(PLAN)).content == _card().content


async def test_a_lock_that_is_never_released_ends_in_busy(root: Path) -> None:
    await LayoutRegistry(root).push("agents/plan", "v1", _card())
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys, fcntl; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        " print(flush=True); sys.stdin.read()",
        str(root / "agents" / "plan" / ".lock"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    await asyncio.wait_for(holder.stdout.readline(), 60)
    with pytest.raises(BusyError, match="another process holds"):
        await LayoutRegistry(root, lock_timeout_s=0.05).push("agents/plan", "v1", _card())
    await asyncio.wait_for(holder.communicate(b""), 60)
