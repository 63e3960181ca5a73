"""Runs the programs of agent frameworks; each has an environment of its own, made by a lock file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.peer_environment import PeerNotInstalledError, install_peer

HERE = Path(__file__).parent
PEERS = {
    "pydantic-ai": ("pydantic_ai_peer.py",),
    "openai-agents": ("openai_agents_peer.py",),
    "langgraph": ("langgraph_peer.py",),
    "langchain-mcp-adapters": ("langgraph_peer.py", "adapters"),
}
"""Name of a lock file → the program of `tests.interop.frameworks.peers` with its arguments."""
PROGRAM_WITHIN_S = 240


def framework_python(name: str) -> Path:
    """The interpreter with a framework; skips loudly where PyPI cannot be reached, except in CI."""
    try:
        return install_peer(f"framework-{name}", HERE / "locks" / f"{name}.txt")
    except PeerNotInstalledError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} cannot be installed (is PyPI reachable?): {error}")


def run_program(
    name: str, *arguments: str, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Run a program in the environment of a framework; gives its standard output."""
    done = subprocess.run(
        [str(framework_python(name)), *arguments],
        env={**os.environ, **(environment or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROGRAM_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def run_job(
    name: str,
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    *,
    url: str = "",
    token: str = "",
    command: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    answer: str | None = None,
) -> tuple[list[str], list[dict[str, Any]]]:
    """The tools that the framework listed, and what its model saw of each call."""
    job = {
        "url": url,
        "token": token,
        "command": list(command),
        "environment": dict(environment or {}),
        "calls": [list(call) for call in calls],
        "answer": answer,
    }
    program, *more = PEERS[name]
    path = str(HERE / "peers" / program)
    output = await asyncio.to_thread(run_program, name, path, json.dumps(job), *more)
    result = json.loads(output.splitlines()[-1])
    return result["tools"], result["seen"]
