"""How soon the command line and the hub are there, against the bare interpreter."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from benchmarks.figures import Figure, median_s
from retinue.runtime.serving import bind, url_of

RUNS = 9
HUB_RUNS = 3


def measure() -> list[Figure]:
    help_s = median_s(lambda: _run(sys.executable, "-m", "retinue", "--help"), RUNS)
    bare_s = median_s(lambda: _run(sys.executable, "-c", "pass"), RUNS)
    return [
        Figure("retinue --help", help_s * 1000, "ms", target=200),
        Figure("the same, against the bare interpreter", help_s / bare_s, "×"),
        Figure("hub ready, bare", statistics.median(_hub_ready_s() for _ in range(HUB_RUNS)), "s", target=2),
    ]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _hub_ready_s() -> float:
    """From the start of the process to the first answer."""
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
        try:
            while not _answers(url):
                if hub.poll() is not None or time.perf_counter() - started > 60:
                    raise RuntimeError("the hub did not start")
                time.sleep(0.005)
            return time.perf_counter() - started
        finally:
            hub.send_signal(signal.SIGTERM)
            hub.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
