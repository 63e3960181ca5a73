"""Text of a model on its whole way: a scripted provider, the model's process, the hub, and who waits."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.llm.vendors import Pause, Say, VendorServer, vendor
from tests.mcp.clients import connect
from tests.processes.running import WAIT_S, Program, program

FIRST, REST = "One,\n ", " \n\ntwo."
WHOLE = FIRST + REST

SETTINGS = """
[llm.mine]
provider = "anthropic"
model = "claude-test"
base_url = "{url}"
api_key_env = "MY_KEY"
"""


def start_hub(tmp_path: Path, server: VendorServer) -> AbstractContextManager[Program]:
    (tmp_path / "retinue.toml").write_text(SETTINGS.format(url=server.base_url))
    environment = {"MY_KEY": "sk-very-secret-0123456789abcdef", "HOME": str(tmp_path)}
    environment["RETINUE_HUB__MODELS"] = '["mine"]'
    return program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=environment)


async def test_orchestrate_tells_an_mcp_client_the_text_of_the_model_while_it_is_written(
    tmp_path: Path, retinue_home: Path
) -> None:
    async with vendor("anthropic", Pause(FIRST, REST)) as server:
        with start_hub(tmp_path, server) as hub:
            url = await asyncio.to_thread(hub.url_in, "hub at")
            await asyncio.to_thread(hub.wait_for, "mine at")
            pieces: list[str] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                if not re.search("is asked|answered in|still running", message or ""):
                    pieces.append((message or "").removeprefix("answer: "))
                if "".join(pieces) == FIRST:
                    server.go_on.set()  # only now does the provider write the rest

            arguments = {"prompt": "write", "preferences": {"agent": "mine", "workflow": "direct"}}
            async with asyncio.timeout(WAIT_S), connect(f"{url}/mcp") as client:
                result = await client.call_tool("orchestrate", arguments, progress_callback=note)
    assert result.structured_content is not None
    assert result.structured_content["output"] == WHOLE
    assert "".join(pieces) == WHOLE


@pytest.mark.parametrize(
    "command",
    [
        ("call", "agent.ask", '{"prompt": "x"}', "--agent", "mine"),
        ("orchestrate", "x", "--agent", "mine", "--workflow", "direct", "--no-cache"),
    ],
    ids=["call", "orchestrate"],
)
async def test_at_a_terminal_the_text_is_printed_once_and_while_it_is_written(
    tmp_path: Path,
    retinue_home: Path,
    command: tuple[str, ...],
) -> None:
    async with vendor("anthropic", Pause("One, ", "two, three.")) as server:
        with start_hub(tmp_path, server) as hub:
            await asyncio.to_thread(hub.wait_for, "mine at")
            shown = await asyncio.to_thread(_run_at_terminal, command, server, asyncio.get_running_loop())
    assert shown.count("One, two, three.") == 1, shown
    assert shown.count("three") == 1, shown
    last = shown.splitlines()[-1]
    took = re.search(r"([0-9.]+) (ms|s)", last)
    assert took is not None, shown
    assert float(took[1]) > 0, shown


async def test_in_a_pipe_there_is_only_the_answer(tmp_path: Path, retinue_home: Path) -> None:
    async with vendor("anthropic", Say("One, two.")) as server:
        with start_hub(tmp_path, server) as hub:
            await asyncio.to_thread(hub.wait_for, "mine at")
            command = [sys.executable, "-m", "retinue", "call", "agent.ask", '{"prompt": "x"}']
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ('"One, two."\n', "", 0)


def _run_at_terminal(command: tuple[str, ...], server: VendorServer, loop: asyncio.AbstractEventLoop) -> str:
    """What a terminal shows, from the beginning to the end of the command."""
    terminal, other = pty.openpty()
    environment: dict[str, Any] = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "retinue", *command], env=environment, stdin=other, stdout=other, stderr=other
    )
    os.close(other)
    seen = b""
    try:
        while chunk := _read(terminal):
            seen += chunk
            if b"One," in seen:
                loop.call_soon_threadsafe(server.go_on.set)
        assert process.wait(timeout=WAIT_S) == 0, seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    return seen.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    ready, _, _ = select.select([terminal], [], [], WAIT_S)
    assert ready, "the command shows nothing"
    try:
        return os.read(terminal, 4096)
    except OSError:  # the command has ended
        return b""
