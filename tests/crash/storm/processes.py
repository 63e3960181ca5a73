"""Processes that are started again whenever they end, killed and frozen by the dice of a seed."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.processes.running import Program

READY_S = 120.0


class Kept:
    """A program that is started again after ``away_s`` whenever its process ends, until it is closed."""

    def __init__(
        self, name: str, *arguments: str, ready: str, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.is_ready = threading.Event()
        self._arguments = arguments
        self._ready = ready
        self._folder = folder
        self._environment = environment
        self._stopped = threading.Event()
        self._frozen: threading.Event | None = None
        self._program: Program | None = None
        self._away_s = 0.5
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until it says that it is ready."""
        assert self.is_ready.wait(READY_S), f"{self.name} is not ready:\n{self.output}"

    @property
    def output(self) -> str:
        return "" if self._program is None else self._program.output

    def kill(self, away_s: float) -> bool:
        """Kill it now; False if it is not running."""
        program = self._program
        if program is None or program.process.poll() is not None:
            return False
        self._away_s = away_s
        program.send(signal.SIGKILL)
        return True

    def freeze(self, seconds: float) -> bool:
        """Let it stand still for so long; False if it is not running."""
        program = self._program
        if program is None or program.process.poll() is not None:
            return False
        program.send(signal.SIGSTOP)
        thaw = threading.Timer(seconds, self._thaw, (program.process.pid, program))
        thaw.daemon = True
        thaw.start()
        return True

    def thaw(self) -> None:
        """Let it go on."""
        if self._program is not None:
            self._thaw(self._program.process.pid, self._program)

    def close(self) -> None:
        self._stopped.set()
        if self._program is not None:
            self.thaw()
            self._program.close()
        self._thread.join(READY_S)

    def _thaw(self, pid: int, program: Program) -> None:
        if program.process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _keep(self) -> None:
        while not self._stopped.is_set():
            program = Program(*self._arguments, cwd=self._folder, environment=self._environment)
            self._program = program
            while program.process.poll() is None and not self._stopped.wait(0.05):
                if self._ready in program.output:
                    self.is_ready.set()
            self.is_ready.clear()
            program.close()
            self._stopped.wait(self._away_s)


class Disturber(threading.Thread):
    """Kills or freezes one process after the other until it is closed; ``done`` counts what it did."""

    def __init__(self, processes: Sequence[Kept], seed: int, *, freeze_s: float, pace_s: float) -> None:
        super().__init__(daemon=True)
        self.done: Counter[str] = Counter()
        self._processes = processes
        self._dice = random.Random(seed)
        self._freeze_s = freeze_s
        self._pace_s = pace_s
        self._stopped = threading.Event()

    def run(self) -> None:
        dice = self._dice
        while not self._stopped.wait(dice.uniform(0.3, 2) * self._pace_s):
            chosen = dice.choice(self._processes)
            if dice.random() < 0.5:
                self.done["kills"] += chosen.kill(dice.uniform(0.1, 2))
            else:
                self.done["freezes"] += chosen.freeze(dice.uniform(1, self._freeze_s))

    def close(self) -> None:
        self._stopped.set()
        self.join(30)
        for process in self._processes:
            process.thaw()
