"""The cache on disk: what `write` returned for survives; what is cut off is set aside, with a log line."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from koi.network import bundle_of, personality
from retinue.core.errors import StateError, StorageFullError
from retinue_koi.codec.bundles import Bundle
from retinue_koi.codec.rids import PERSONALITY_TYPE
from retinue_koi.storage.cache import KoiCache
from tests.requirements import requirement

NODE = "orn:koi-net.node:n+1"


def opened(folder: Path, **options: Any) -> KoiCache:
    cache = KoiCache(folder, **options)
    cache.open()
    return cache


def bundle(number: int, **more: Any) -> Bundle:
    return bundle_of(personality(f"agent-{number}", NODE, **more))


def names(folder: Path, ending: str) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.endswith(ending)}


def fill(cache: KoiCache, acknowledged: list[str]) -> None:
    for number in range(1000):
        cache.write(bundle(number))
        acknowledged.append(bundle(number).rid)


def path_of(folder: Path, rid: str) -> Path:
    return folder / (base64.urlsafe_b64encode(rid.encode()).decode().rstrip("=") + ".json")


@requirement("K-36")
async def test_a_closed_cache_is_one_file_for_each_rid_named_by_it(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    kept = [bundle(number, mood="é") for number in range(3)]
    for one in kept:
        cache.write(one, NODE)
    cache.delete(kept[2].rid)
    await cache.close()
    assert json.loads(path_of(tmp_path, kept[0].rid).read_bytes())["contents"] == kept[0].contents
    assert names(tmp_path, ".json") == {path_of(tmp_path, b.rid).name for b in kept[:2]}
    again = opened(tmp_path)
    assert [again.read(one.rid) for one in kept] == [kept[0], kept[1], None]
    entry = again.find_entry(kept[0].rid)
    assert entry is not None
    assert entry.owner == NODE
    await again.close()


@requirement("K-36")
async def test_everything_written_survives_kill_9(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import asyncio, os, signal
        from pathlib import Path
        from koi.test_cache import bundle, opened
        async def main():
            cache = opened(Path({str(tmp_path)!r}), journal_bytes=20_000)
            for number in range(400):
                cache.write(bundle(number % 150, turn=number))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            cache.delete(bundle(7).rid)
            cache.enqueue("orn:koi-net.node:x+1", bundle(1).rid, "NEW")
            cache.enqueue("orn:koi-net.node:x+1", bundle(2).rid, "NEW")
            cache.dequeue("orn:koi-net.node:x+1", [bundle(1).rid])
            cache.note("key", [1])
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    cache = opened(tmp_path)
    assert len(cache) == 149
    turns = {rid: held.contents["turn"] for rid in cache.list_rids() if (held := cache.read(rid)) is not None}
    expected = {bundle(number % 150).rid: number for number in range(400)}
    del expected[bundle(7).rid]
    assert turns == expected
    assert cache.queues == {"orn:koi-net.node:x+1": {bundle(2).rid: "NEW"}}
    assert cache.notes == {"key": [1]}
    await cache.close()


@pytest.mark.parametrize("damage", ["half", "empty", "other hash", "other name", "no JSON", "folder"])
async def test_a_damaged_file_is_set_aside_and_the_others_stay(tmp_path: Path, damage: str) -> None:
    cache = opened(tmp_path)
    for number in range(3):
        cache.write(bundle(number))
    await cache.close()
    path = path_of(tmp_path, bundle(1).rid)
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "half": data[: len(data) // 2],
                "empty": b"",
                "other hash": data.replace(b"agent-1", b"agent-x"),
                "other name": path_of(tmp_path, bundle(2).rid).read_bytes(),
                "no JSON": b"\xff\x00",
            }[damage]
        )
    with capture_logs() as logged:
        again = opened(tmp_path)
    assert [line["event"] for line in logged] == ["koi_cache_file_set_aside"]
    assert logged[0]["reason"]
    assert again.list_rids([PERSONALITY_TYPE]) == [bundle(0).rid, bundle(2).rid]
    assert len(names(tmp_path, ".damaged")) == 1
    await again.close()


async def test_a_journal_that_is_cut_in_a_line_loses_that_line_only(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for number in range(3):
        cache.write(bundle(number))
    data = (tmp_path / "journal").read_bytes().rstrip(b"\x00")
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "journal").write_bytes(data[:-40] + bytes(500))
    with capture_logs() as logged:
        again = opened(folder)
    assert [line["event"] for line in logged] == ["koi_journal_line_set_aside"]
    assert len(again) == 2
    await again.close()
    await cache.close()


async def test_the_files_follow_the_journal_while_the_node_runs(tmp_path: Path) -> None:
    cache = opened(tmp_path, journal_bytes=5_000)
    for number in range(60):
        cache.write(bundle(number % 20, turn=number))
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        while cache.is_writing_files:
            await asyncio.sleep(0.005)
    assert (tmp_path / "journal").stat().st_size <= 30_000
    assert len(names(tmp_path, ".json")) >= 15
    for number in range(20):
        held = cache.read(bundle(number).rid)
        assert held is not None
        assert held.contents["turn"] == number + 40
    await cache.close()


async def test_a_full_disk_refuses_the_change_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    cache = opened(tmp_path, journal_bytes=20_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    acknowledged: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        with pytest.raises(StorageFullError):
            fill(cache, acknowledged)
        with pytest.raises(StorageFullError):
            cache.write(bundle(0, mood="changed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert 20 < len(acknowledged) < 200
    assert cache.list_rids() == acknowledged
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "journal").write_bytes((tmp_path / "journal").read_bytes())
    again = opened(copy, journal_bytes=20_000)
    assert again.list_rids() == acknowledged
    held = again.read(acknowledged[0])
    assert held is not None
    assert "mood" not in held.contents
    await again.close()
    # there is room again
    cache.write(bundle(1000))
    assert bundle(1000).rid in cache
    await cache.close()


async def test_a_cache_that_holds_its_limit_takes_changes_only(tmp_path: Path) -> None:
    cache = opened(tmp_path, max_objects=1)
    cache.write(bundle(0))
    with pytest.raises(StateError, match="its limit"):
        cache.write(bundle(1))
    cache.write(bundle(0, turn=1))
    await cache.close()


async def test_a_folder_is_used_by_one_node_at_a_time(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    with pytest.raises(StateError, match="in use by another node"):
        opened(tmp_path)
    await cache.close()
    await opened(tmp_path).close()
