"""Real agents that are killed, or held, in the middle of a call, and start again later; those of a saga."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.ports import reserved_port
from tests.processes.freezing import freeze
from tests.processes.running import WAIT_S, Program, wait_until

GATED_WORKER = '''
import asyncio
from pathlib import Path

from retinue import Agent

agent = Agent("worker-agent", version="1.0.0")
HERE = Path(__file__).parent


@agent.skill
async def work(n: int) -> dict[str, int]:
    """Adds one; the one of number 1 waits for a file named go."""
    with (HERE / "log").open("a") as log:
        log.write(f"begin {n}\\n")
    while n == 1 and not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    with (HERE / "log").open("a") as log:
        log.write(f"end {n}\\n")
    return {"n": n + 1}
'''
"""An agent that logs the begin and the end of each call."""

AGENT = '''
import asyncio
import os
import signal
from pathlib import Path

from retinue import Agent

agent = Agent("{name}-agent", version="1.0.0")
HERE = Path(__file__).parent


def reach(what: str, n: int) -> None:
    """A point of a call: log it, and die there once if a file says so."""
    with (HERE / "log").open("a") as log:
        log.write(f"{{what}} {{n}}\\n")
    try:
        (HERE / f"die {{what}} {{n}}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


async def stay(what: str, n: int) -> None:
    """Stay at a point while a file says so."""
    while (HERE / f"stay {{what}} {{n}}").exists():
        await asyncio.sleep(0.02)
'''

SKILL = '''

@agent.skill
async def {skill}(n: int) -> dict[str, int]:
    """Does its part for the number n."""
    reach("begin {skill}", n)
    {act}
    reach("end {skill}", n)
    return {{"n": n}}
'''

DECLINES = """if n % 2:
        raise ValueError("declined")"""


class KeptAgents:
    """Agents by name, each from the text of its file; it starts again ``away_s`` after its process ended.

    A name that ends with ``.md`` is that of a Markdown file.
    """

    def __init__(self, folder: Path, texts: Mapping[str, str], away_s: float) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.away_s = away_s
        self.kills = 0
        self._stopped = threading.Event()
        self._programs: dict[str, Program] = {}
        for name, text in texts.items():
            (folder / _file_of(name)).write_text(text)
        self._keepers = [threading.Thread(target=self._keep, args=(name,), daemon=True) for name in texts]
        self._ready = threading.Semaphore(0)

    def start(self) -> None:
        """Start all of them, and wait until they are published."""
        for keeper in self._keepers:
            keeper.start()
        for _ in self._keepers:
            assert self._ready.acquire(timeout=WAIT_S), "an agent did not start"

    def kill(self, name: str) -> None:
        """Kill an agent now, if it is running."""
        program = self._programs.get(name)
        if program is not None and program.process.poll() is None:
            program.send(signal.SIGKILL)
            program.process.wait(WAIT_S)

    def url_of(self, name: str) -> str:
        """The address of an agent, as soon as it is published; another one after each start."""

        def is_published() -> bool:
            program = self._programs[name]
            return program.process.poll() is None and "published" in program.output

        wait_until(is_published, f"{name} is published")
        return self._programs[name].url_in("http://")

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the process of an agent."""
        self._programs[name].send(number)

    def freeze(self, name: str, files: Sequence[Path] = ()) -> None:
        """Stop the process of an agent while it holds no lock of these SQLite files, until SIGCONT."""
        freeze(self._programs[name].process.pid, files)

    def read_log(self) -> list[str]:
        """The points that were passed, each with its number."""
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        self._stopped.set()
        for program in list(self._programs.values()):
            program.close()
        for keeper in self._keepers:
            keeper.join(WAIT_S)

    def _keep(self, name: str) -> None:
        while not self._stopped.is_set():
            # Another port each time: its old one may be that of another agent by then.
            with reserved_port() as port:
                program = Program("serve", _file_of(name), "--port", str(port), cwd=self.folder)
                self._programs[name] = program
                is_ready = False
                while program.process.poll() is None and not self._stopped.wait(0.02):
                    if not is_ready and "published" in program.output:
                        is_ready = True
                        self._ready.release()
                program.close()
            self.kills += not self._stopped.is_set()
            self._stopped.wait(self.away_s)


def _file_of(name: str) -> str:
    return name if name.endswith(".md") else f"{name}.py"


class Agents(KeptAgents):
    """The agents of one saga: ``reserve`` and ``book`` with what undoes them, and ``pay``, which declines
    odd numbers. Names end with ``suffix``.
    """

    def __init__(self, folder: Path, suffix: str, away_s: float) -> None:
        offered = {"reserve": ("free",), "book": ("unbook",), "pay": ()}
        texts: dict[str, str] = {}
        for name, undoing in offered.items():
            texts[name] = AGENT.format(name=name + suffix)
            for skill in (name, *undoing):
                texts[name] += SKILL.format(skill=skill + suffix, act=DECLINES if skill == "pay" else "")
        super().__init__(folder, texts, away_s)
        self.suffix = suffix

    def flow(self, *, timeout: str = "2m") -> dict[str, object]:
        """The saga: what is reserved and booked is undone when the payment is declined."""
        retry = {"attempts": 5, "delay": "100ms", "backoff": 1}

        def step(skill: str, undo: str | None) -> dict[str, object]:
            given = {"n": "${{ input.n }}"}
            found: dict[str, object] = {"id": skill, "skill": skill + self.suffix, "with": given}
            found |= {"retry": retry, "timeout": timeout}
            if undo is not None:
                found["compensate"] = {"skill": undo + self.suffix, "with": given}
            return found

        steps = [step("reserve", "free"), step("book", "unbook"), step("pay", None)]
        steps[-1]["retry"] = retry | {"attempts": 3}
        return {"name": "saga", "steps": steps}

    def kill_at(self, point: str, n: int) -> None:
        """Let the agent of a skill die at ``begin SKILL`` or ``end SKILL`` of its call for ``n``, once."""
        what, skill = point.split(" ")
        (self.folder / f"die {what} {skill}{self.suffix} {n}").touch()

    def list_left(self, n: int) -> list[str]:
        """What is done for ``n`` at the end, and not undone."""
        left = []
        for did, undid in (("reserve", "free"), ("book", "unbook")):
            ends = [what for what, number in self._read_ends() if number == n and what in (did, undid)]
            if ends and ends[-1] == did:
                left.append(did)
        return left

    def count_ends(self, n: int) -> Counter[str]:
        """How often each skill came to its end for ``n``."""
        return Counter(what for what, number in self._read_ends() if number == n)

    def _read_ends(self) -> Sequence[tuple[str, int]]:
        ends = (line.split(" ") for line in self.read_log() if line.startswith("end "))
        return [(skill.removesuffix(self.suffix), int(n)) for _, skill, n in ends]


@contextmanager
def running_agents(folder: Path, suffix: str, away_s: float) -> Iterator[Agents]:
    """Agents that run while inside."""
    agents = Agents(folder, suffix, away_s)
    try:
        agents.start()
        yield agents
    finally:
        agents.close()
