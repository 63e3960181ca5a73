"""``retinue chat`` at a real terminal: Ctrl-C in a turn, an approval, and the end of the conversation."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from tests.processes.commands import retinue
from tests.processes.running import WAIT_S, program, wait_until

MODEL = """
from retinue.testing import ScriptedModel

model = ScriptedModel.from_file("script.yaml")
"""
CITY = '''
import asyncio
from pathlib import Path

from retinue import Agent

agent = Agent("city", version="1.0.0")


@agent.skill
async def wait_for_bus() -> str:
    """Waits for a bus."""
    try:
        await asyncio.sleep(3600)
    finally:
        Path("left").touch()
    return "it came"


@agent.skill
async def cross(street: str) -> str:
    """Crosses a street."""
    return f"crossed {street}"
'''
SCRIPT = """
name: thinker
log: requests.jsonl
scripts:
  - when: bus
    turns:
      - {text: I wait., calls: [{name: city__wait_for_bus, arguments: {}}]}
  - when: cross
    repeats: true
    turns:
      - {calls: [{name: city__cross, arguments: {street: High Street}}]}
      - You are across.
"""
GUIDE = """---
name: guide
description: Guides through the city.
tools: [city/*]
retinue: {approve: [city/cross]}
---
You guide.
"""


class Terminal:
    """A command at a terminal, and what it has drawn."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self._leader, follower = pty.openpty()
        self.drawn = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "retinue", *arguments],
            cwd=cwd,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            start_new_session=True,
            # it controls the process, so that its Ctrl-C is a signal
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(follower)

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def wait_for(self, text: str) -> str:
        """What is drawn up to this text, which is not looked at again."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.drawn:
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.drawn}"
            if select.select([self._leader], [], [], 0.1)[0]:
                try:
                    self.drawn += os.read(self._leader, 65536).decode("utf-8", "replace")
                except OSError:
                    assert text in self.drawn, f"it ended without {text!r}:\n{self.drawn}"
        before, _, self.drawn = self.drawn.partition(text)
        return before + text

    def wait_for_each(self, *texts: str) -> None:
        """Wait for texts that are drawn in any order."""
        begun = self.drawn
        for text in texts:
            self.drawn = begun
            begun = self.wait_for(text) + self.drawn
        self.drawn = ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._leader)


@contextmanager
def at_terminal(*arguments: str, cwd: Path) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, cwd=cwd)
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_conversation_at_a_terminal_and_through_a_pipe(tmp_path: Path) -> None:
    for name, text in (("model.py", MODEL), ("city.py", CITY), ("script.yaml", SCRIPT), ("guide.md", GUIDE)):
        (tmp_path / name).write_text(text)
    targets = ("model.py", "city.py", "guide.md")
    (tmp_path / "retinue.toml").write_text("".join(f'[[agents]]\ntarget = "{one}"\n' for one in targets))
    with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
        hub.wait_for("exposed to MCP")
        names = {"thinker", "city", "guide"}
        wait_until(lambda: names <= _list_available(tmp_path), "the agents answer")
        with at_terminal("chat", "guide", cwd=tmp_path) as chat:
            chat.wait_for("Chatting with guide")
            chat.wait_for("you> ")
            chat.type("Wait for the bus\n")
            chat.wait_for_each("I wait.", "→ city/wait_for_bus")
            chat.type("\x03")
            chat.wait_for("cancelled")
            chat.wait_for("tokens in")
            wait_until((tmp_path / "left").exists, "the call is cut off")
            chat.wait_for("you> ")
            chat.type("\x03")
            chat.wait_for("Ctrl-D ends the conversation")
            chat.wait_for("you> ")
            chat.type("Please cross\n")
            chat.wait_for("May city/cross be called?")
            chat.wait_for("y, or n REASON:")
            chat.type("y\n")
            # the live text may be drawn before the line of the call that has just ended
            drawn = chat.wait_for("tokens in")
            assert "← city/cross" in drawn
            assert drawn.count("You are across.") == 1
            chat.wait_for("you> ")
            chat.type("\x04")
            chat.wait_for("Go on: retinue chat guide --session chat-")
            assert chat.process.wait(WAIT_S) == 0
        piped = pipe("one: cross\n\ntwo\n", "chat", "--session", "piped", "--json", cwd=tmp_path)
        turns = [orjson.loads(line) for line in piped.stdout.splitlines()]
        assert [(turn["prompt"], turn["status"], turn["session"]) for turn in turns] == [
            ("one: cross", "done", "piped"),
            ("two", "done", "piped"),
        ]
        assert "thinker, which uses the skills of the mesh" in piped.stderr
        again = pipe("three\n", "chat", "thinker", "--session", "piped", cwd=tmp_path)
        assert again.stdout == "You are across.\n"
        requests = [orjson.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
        assert 5 in [row["messages"] for row in requests], "the two turns before it, and the prompt"
        rows = orjson.loads(retinue("runs", "--json", cwd=tmp_path))["runs"]
        assert [row["status"] for row in rows] == ["done"] * 4 + ["cancelled"]


def pipe(lines: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command without a terminal, with these lines as its input; it must succeed."""
    command = [sys.executable, "-m", "retinue", *arguments]
    return subprocess.run(
        command, cwd=cwd, input=lines, text=True, capture_output=True, check=True, timeout=120
    )


def _list_available(folder: Path) -> set[str]:
    rows = orjson.loads(retinue("agents", "--json", cwd=folder))["agents"]
    return {row["name"] for row in rows if row["status"] == "available"}
