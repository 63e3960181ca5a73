"""The start times of the command line and a bare hub, and the memory of the hub before its first call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, median_s
from retinue.runtime.serving import bind, url_of

RUNS = 9
HUB_RUNS = 5


def measure() -> list[Figure]:
    help_s = median_s(lambda: _run(sys.executable, "-m", "retinue", "--help"), RUNS)
    bare_s = median_s(lambda: _run(sys.executable, "-c", "pass"), RUNS)
    hubs = [_start_hub() for _ in range(HUB_RUNS)]
    return [
        Figure("retinue --help", help_s * 1000, "ms", target=200),
        Figure("the same, against the bare interpreter", help_s / bare_s, "×"),
        Figure("hub ready, bare", median(start_s for start_s, _ in hubs), "s", target=2),
        Figure("memory of the hub, bare, not called", median(memory_mb for _, memory_mb in hubs), "MB"),
    ]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _start_hub() -> tuple[float, float]:
    """Seconds from the start of the process to its first answer; its resident MB when it is ready."""
    with bind("127.0.0.1", 0) as listener:
        url = url_of(listener)
    with tempfile.TemporaryDirectory() as home:
        started = time.perf_counter()
        port = url.rpartition(":")[2]
        hub = subprocess.Popen(
            [sys.executable, "-m", "retinue", "hub", "--bare", "--port", port],
            env={**os.environ, "RETINUE_HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def wait_for(path: str) -> None:
            while not _answers(url + path):
                if hub.poll() is not None or time.perf_counter() - started > 60:
                    raise RuntimeError("the hub did not start")
                time.sleep(0.005)

        try:
            wait_for("/health")
            start_s = time.perf_counter() - started
            wait_for("/ready")
            return start_s, _memory_mb(hub.pid)
        finally:
            hub.send_signal(signal.SIGTERM)
            hub.wait()


def _memory_mb(pid: int) -> float:
    # VmRSS, in kB
    rows = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return next(int(row[1]) / 1024 for row in rows if row[0] == "VmRSS:")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
