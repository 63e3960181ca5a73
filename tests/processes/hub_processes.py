"""The processes of a hub that has several: who leads, and which there are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.processes.running import is_running, wait_until


def list_children(process: int) -> set[int]:
    """The children of a process that run."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return set(filter(is_running, map(int, children)))


def find_fork_server(parent: int) -> int:
    """The fork server of a hub; the processes that serve are its children."""
    (fork_server,) = list_children(parent)
    return fork_server


def find_leader(home: Path, processes: set[int]) -> int:
    """The process that holds the lock of the leader, as soon as one does."""
    lock = (home / "hub-leader.lock").stat().st_ino
    leaders = set[int]()

    def is_led() -> bool:
        lines = Path("/proc/locks").read_text().splitlines()
        # a line of one that waits has an arrow in front of the kind
        holding = (line.split() for line in lines if f":{lock} " in line and "->" not in line)
        leaders.update({int(words[4]) for words in holding} & processes)
        return bool(leaders)

    wait_until(is_led, "a process leads")
    return leaders.pop()


def kill(process: int) -> None:
    """Kill a process; returns when it has ended, because until then it may accept a connection."""
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: not is_running(process), "the killed process has ended")


def wait_for_another(starter: int, others: set[int]) -> set[int]:
    """Wait until a process is started again; returns all that run."""
    wait_until(lambda: bool(list_children(starter) - others), "the process is started again")
    return list_children(starter) | others
