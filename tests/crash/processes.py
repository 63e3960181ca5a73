"""Nodes as child processes: forked from one that has imported everything, so that hundreds are cheap."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.crash.node import Plan, Report, main

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crash.node"])

WAIT_S = 90.0


class Node:
    """One running node."""

    def __init__(self, plan: Plan) -> None:
        self._receiver: Connection
        self._receiver, sender = _context.Pipe(duplex=False)
        self.plan = plan
        self.process = _context.Process(target=main, args=(plan, sender))
        self.process.start()
        sender.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def get_report(self, wait_s: float = WAIT_S) -> Report:
        """Its report when it has ended well, within a time."""
        assert self._receiver.poll(wait_s), f"no report; the log:\n{Path(self.plan.log).read_text()[-3000:]}"
        report: Report = self._receiver.recv()
        self.process.join(WAIT_S)
        return report

    def await_death(self) -> None:
        """Wait until it has died as its plan says."""
        self.process.join(WAIT_S)
        assert self.process.exitcode == -signal.SIGKILL, f"exit code {self.process.exitcode}"

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """Whatever it does, it is gone afterwards."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join(WAIT_S)
        self._receiver.close()


def read_log(path: Path) -> list[tuple[str, str, int]]:
    """What happened: (what, key, process), in order."""
    if not path.exists():
        return []
    lines = [line.rsplit(" ", 1) for line in path.read_text().splitlines()]
    return [(*head.split(" ", 1), int(pid)) for head, pid in lines]  # type: ignore[misc]


def await_log(path: Path, found: Callable[[list[tuple[str, str, int]]], bool]) -> None:
    """Wait until the log says something."""
    given_up_at = time.monotonic() + WAIT_S
    while not found(read_log(path)):
        assert time.monotonic() < given_up_at, "the log never said so"
        time.sleep(0.02)


def check_log(entries: list[tuple[str, str, int]], *, kills: int) -> None:
    """No effect began after its outcome was recorded, and none more often than nodes were lost under it."""
    recorded: set[str] = set()
    begun: Counter[str] = Counter()
    for what, key, _ in entries:
        if what == "recorded":
            recorded.add(key)
        elif what == "begin":
            assert key not in recorded, f"{key} was recorded, and began again"
            begun[key] += 1
    assert max(begun.values(), default=0) <= 1 + kills, begun
