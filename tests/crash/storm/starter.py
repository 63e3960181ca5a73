"""Starts the runs of a storm at any hub that answers, and approves those that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import urllib3

from tests.crash.storm.shop import FLOWS, TOPIC, flow_of
from tests.processes.running import execute


@dataclass(frozen=True, slots=True)
class Ordered:
    """One run to start."""

    name: str
    kind: str
    n: int


def list_runs(count: int) -> list[Ordered]:
    """So many runs of all kinds in turn, half of each with an odd number."""
    kinds = list(FLOWS)
    return [
        Ordered(f"run-{number}", kinds[number % len(kinds)], number // len(kinds)) for number in range(count)
    ]


class Starter(threading.Thread):
    """Starts the runs at a pace, asking for each until a hub has said that it has it.

    ``urls`` gives the hubs, in the order in which they are asked. ``accepted`` are the runs that a hub has,
    ``refused`` the answers that said no.
    """

    def __init__(
        self, runs: Sequence[Ordered], urls: Sequence[str], token: Callable[[str], str], pace_s: float
    ) -> None:
        super().__init__(daemon=True)
        self.accepted: set[str] = set()
        self.refused: list[str] = []
        self._runs = runs
        self._urls = urls
        self._token = token
        self._pace_s = pace_s
        self._stopped = threading.Event()

    def run(self) -> None:
        for number, ordered in enumerate(self._runs):
            asked = {"workflow": flow_of(ordered.kind), "input": {"n": ordered.n}, "run": ordered.name}
            self._insist(number, "start_run", asked, lambda reply: reply.get("result", {}).get("run"))
            self.accepted.add(ordered.name)
            if ordered.kind == "approval":
                given = {"run": ordered.name, "topic": TOPIC, "value": True}
                self._insist(number, "signal_run", given, lambda reply: "result" in reply)
            self._stopped.wait(self._pace_s)

    def close(self) -> None:
        self._stopped.set()
        self.join(30)

    def _insist(self, number: int, skill: str, given: dict[str, Any], is_done: Callable[[Any], Any]) -> None:
        while not self._stopped.is_set():
            number += 1
            url = self._urls[number % len(self._urls)]
            try:
                reply = execute(url, skill, given, self._token(url))
                if is_done(reply):
                    return
                self.refused.append(f"{given['run']}: {reply.get('error', {}).get('message')}")
            except (OSError, ValueError, urllib3.exceptions.HTTPError):
                pass
            self._stopped.wait(0.2)
