"""Ten thousand personalities, a burst of twenty thousand events, restarts: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from koi.network import bundle_of, events, new, personality
from retinue_koi.codec import payloads as p
from retinue_koi.codec.rids import PERSONALITY_TYPE

ROOT = Path(__file__).resolve().parents[2]
AGENTS = 10_000
BATCH = 100
NODE = "orn:koi-net.node:plain+0d7c2f5e-3f8b-4f0a-8a34-0ab1c2d3e4f5"


async def start(folder: Path) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.koi_node", str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        return process, json.loads(await process.stdout.readline())["url"]


async def send(http: aiohttp.ClientSession, url: str, path: str, data: Any) -> tuple[int, Any]:
    headers = {"content-type": "application/json"}
    async with http.post(url + path, data=orjson.dumps(data), headers=headers) as reply:
        return reply.status, orjson.loads(await reply.read())


async def read_turns(http: aiohttp.ClientSession, url: str) -> dict[str, int]:
    """The turn of each personality that a node holds."""
    _, listed = await send(http, url, p.RIDS, {"rid_types": [PERSONALITY_TYPE]})
    found: dict[str, int] = {}
    waiting = listed["rids"]
    while waiting:
        _, reply = await send(http, url, p.BUNDLES, {"rids": waiting[:1000]})
        found.update({b["manifest"]["rid"]: b["contents"]["turn"] for b in reply["bundles"]})
        waiting = [*reply["deferred"], *waiting[1000:]]
    return found


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_ten_thousand_personalities_survive_a_burst_and_being_killed(tmp_path: Path) -> None:
    process, url = await start(tmp_path)
    expected: dict[str, int] = {}
    try:
        async with aiohttp.ClientSession() as http:
            for turn in range(3):
                batches = [range(first, first + BATCH) for first in range(0, AGENTS, BATCH)]
                batches = batches[: len(batches) if turn < 2 else 20]

                async def burst(batch: range, turn: int = turn) -> None:
                    listed = [new(personality(f"agent-{number}", NODE, turn=turn)) for number in batch]
                    status = 503
                    while status == 503:
                        status, _ = await send(http, url, p.BROADCAST, events(*listed))
                    assert status == 200
                    expected.update({event.rid: turn for event in listed})

                for start_at in range(0, len(batches), 8):
                    await asyncio.gather(*(burst(batch) for batch in batches[start_at : start_at + 8]))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            process, url = await start(tmp_path)
            assert await read_turns(http, url) == expected
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            process, url = await start(tmp_path)
            assert await read_turns(http, url) == expected
            stale = bundle_of(personality("agent-1", NODE, turn=9), "2020-01-01T00:00:00+00:00")
            held = events()
            held["events"] = [
                {
                    "rid": stale.rid,
                    "event_type": "UPDATE",
                    "contents": stale.contents,
                    "manifest": _manifest(stale),
                }
            ]
            assert (await send(http, url, p.BROADCAST, held))[0] == 200
            assert (await read_turns(http, url))[stale.rid] == expected[stale.rid]
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()


def _manifest(bundle: Any) -> dict[str, Any]:
    manifest = bundle.manifest
    return {"rid": manifest.rid, "timestamp": manifest.timestamp, "sha256_hash": manifest.sha256_hash}
