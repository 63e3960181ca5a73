"""Files through real processes: memory does not grow with them, and a killed hub keeps no half of one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import urllib3

from retinue.storage.state import State
from tests.processes.running import program

MEGABYTE = 1024 * 1024
GROWTH_MB = 64
"""How much the memory of a process may grow by a file of any size."""

PEAK_MB = 140
"""The peak memory of a command that sends or fetches a file of any size."""

AGENT = '''
from retinue import Agent, Artifact, Context

agent = Agent("file-agent", version="1.0.0")


@agent.skill
async def copy(file: Artifact, ctx: Context) -> Artifact:
    """Copies a file in pieces."""

    async def pieces():
        async with file.open() as opened:
            async for piece in opened:
                yield piece

    return await ctx.save(pieces(), "application/x-copy", name="copy")
'''


def read_peak_mb(pid: int) -> float:
    """The largest resident memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) / 1024


MEASURE = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "retinue", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=sys.stderr)
sys.exit(done.returncode)
"""
"""Runs a command and tells its peak memory; a child of a large program has that of its parent at first."""


def run_retinue(folder: Path, *arguments: str) -> str:
    return measure_retinue(folder, *arguments)[0]


def measure_retinue(folder: Path, *arguments: str) -> tuple[str, float]:
    """The output of a command, and its peak memory in MB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), float(done.stderr.split()[-1])


def write_large(path: Path, size_mb: int) -> str:
    """Write a file whose pieces differ; gives its digest."""
    hasher = sha256()
    with path.open("wb") as file:
        for number in range(size_mb):
            piece = number.to_bytes(8, "big") * (MEGABYTE // 8)
            file.write(piece)
            hasher.update(piece)
    return f"sha256:{hasher.hexdigest()}"


def check_memory(folder: Path, size_mb: int) -> dict[str, float]:
    """Save, copy in a skill and fetch a file of this size; gives by how many MB each process has grown."""
    path = folder / "large.bin"
    digest = write_large(path, size_mb)
    (folder / "agent.py").write_text(AGENT)
    with (
        program("hub", "--bare", "--port", "0", cwd=folder) as hub,
        program("serve", "agent.py", cwd=folder) as agent,
    ):
        hub.wait_for("hub at")
        agent.wait_for("published")
        (folder / "small.bin").write_bytes(b"x")
        run_retinue(folder, "artifacts", "put", "small.bin")
        pids = {"hub": hub.process.pid, "agent": agent.process.pid}
        before = {name: read_peak_mb(pid) for name, pid in pids.items()}
        link, put_mb = measure_retinue(folder, "artifacts", "put", "large.bin")
        assert link == f"artifact:{digest}"
        arguments = ("call", "copy", json.dumps({"file": digest}), "--timeout", "500")
        assert json.loads(run_retinue(folder, *arguments))["artifact"] == digest
        _, get_mb = measure_retinue(folder, "artifacts", "get", digest, "fetched.bin")
        assert (folder / "fetched.bin").stat().st_size == size_mb * MEGABYTE
        for name in ("large.bin", "fetched.bin"):
            (folder / name).unlink()
        grown = {name: read_peak_mb(pid) - before[name] for name, pid in pids.items()}
    return {**grown, "put": put_mb, "get": get_mb}


def assert_bounded(grown: dict[str, float]) -> None:
    assert grown["hub"] < GROWTH_MB
    assert grown["agent"] < GROWTH_MB
    assert grown["put"] < PEAK_MB
    assert grown["get"] < PEAK_MB


@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_the_size_of_a_file(tmp_path: Path) -> None:
    assert_bounded(check_memory(tmp_path, 192))


def test_a_hub_that_is_killed_in_the_middle_of_a_save_has_no_half_of_it(
    tmp_path: Path, retinue_home: Path
) -> None:
    state = State(retinue_home)
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        url = hub.url_in("hub at")
        run_retinue(tmp_path, "artifacts")
        staging = retinue_home / "registry" / ".uploads" / "retinue-artifacts"
        pool = urllib3.PoolManager(retries=False)

        def body() -> Iterator[bytes]:
            yield bytes(4 * MEGABYTE)
            while not any(part.stat().st_size > MEGABYTE for part in staging.glob("*.part")):
                time.sleep(0.01)
            os.kill(hub.process.pid, signal.SIGKILL)
            yield bytes(4 * MEGABYTE)

        headers = {"authorization": f"Bearer {state.local_token()}", "content-type": "text/plain"}
        with pytest.raises(urllib3.exceptions.HTTPError):
            pool.request("POST", f"{url}/artifacts", headers=headers, body=body())
        hub.wait()
    assert len(list(staging.glob("*.part"))) == 1
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("hub at")
        assert json.loads(run_retinue(tmp_path, "artifacts", "--all", "--json"))["count"] == 0
        (tmp_path / "small.txt").write_bytes(b"small")
        run_retinue(tmp_path, "artifacts", "put", "small.txt")
        assert json.loads(run_retinue(tmp_path, "artifacts", "--all", "--json"))["count"] == 1
    # the next save has removed what the killed process left
    assert list(staging.glob("*.part")) == []
