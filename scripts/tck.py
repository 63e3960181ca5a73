"""Runs the A2A TCK, the protocol's Technology Compatibility Kit, against an agent or a hub of Retinue.

python -m scripts.tck TCK_DIR [TARGET] [LEVEL]     TARGET is agent (the default), hub or strict
                                                   LEVEL is must, should or may; all without it

``agent`` is an agent that does what the TCK asks for, with the default settings, and ``strict`` the same with
the settings that the TCK's own checks need. ``hub`` is `retinue hub` with the default settings and no agents.

TCK_DIR is a copy of https://github.com/a2aproject/a2a-tck, branch 1.0-dev, or a clone of which this branch
is taken. Its Python packages are installed into an environment of their own under ``.tools/tck``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".tools" / "tck"
BRANCH = "1.0-dev"
PROGRAM = "run_tck.py"
AGENT = "tests.conformance.a2a_agent"

TARGETS = ("agent", "hub", "strict")
LEVELS = ("must", "should", "may")
CARD_PATH = "/.well-known/agent-card.json"
START_S = 60.0


def unpack(source: Path, folder: Path = FOLDER / "source") -> Path:
    """The folder with the TCK: ``source`` itself, or its branch `BRANCH` in ``folder``.

    Raises ValueError where ``source`` is neither.
    """
    if (source / PROGRAM).is_file() and "--transport" in (source / PROGRAM).read_text():
        return source
    for branch in (BRANCH, f"origin/{BRANCH}"):
        done = subprocess.run(["git", "-C", str(source), "archive", branch], capture_output=True, check=False)
        if done.returncode == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="data")
            return folder
    raise ValueError(f"{source} is no copy of the A2A TCK with branch {BRANCH}")


def install(tck: Path, environment: Path = FOLDER / "env") -> Path:
    """The Python of the TCK's environment."""
    python = environment / "bin" / "python"
    uv = next((str(one) for one in ROOT.glob(".tools/uv-*/bin/uv")), None) or shutil.which("uv")
    if uv is None:
        raise ValueError("uv is missing; run make env")
    if not python.exists():
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(environment)], check=True)
    subprocess.run([uv, "pip", "install", "-q", "-p", str(python), "-e", str(tck)], check=True)
    return python


def command_of(target: str, port: int) -> list[str]:
    """The command that serves a target at a port."""
    if target == "hub":
        return [sys.executable, "-m", "retinue", "hub", "--bare", "--port", str(port)]
    return [sys.executable, "-m", AGENT, str(port), *(["strict"] if target == "strict" else [])]


def wait_for_card(url: str, served: subprocess.Popen[bytes]) -> None:
    """Wait until the target answers; raises ValueError where it does not."""
    until = time.monotonic() + START_S
    while time.monotonic() < until and served.poll() is None:
        try:
            urllib.request.urlopen(url + CARD_PATH, timeout=START_S).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise ValueError("the target did not start")


def run(tck: Path, python: Path, target: str, level: str | None) -> int:
    """Serve the target and run the suite over JSON-RPC; returns the suite's status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "RETINUE_HOME": f"{home}/state", "HOME": home}
        served = subprocess.Popen(
            command_of(target, port), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
        )
        try:
            wait_for_card(url, served)
            command = [str(python), PROGRAM, "--sut-host", url, "--transport", "jsonrpc"]
            chosen = ["--level", level] if level else []
            return subprocess.run([*command, *chosen], cwd=tck, check=False).returncode
        finally:
            served.terminate()
            served.wait(60)


def read_arguments(arguments: Sequence[str]) -> tuple[Path, str, str | None]:
    """Folder, target and level; raises ValueError for others."""
    folder, *choices = arguments or [""]
    known = {*TARGETS, *LEVELS}
    targets = [choice for choice in choices if choice in TARGETS]
    levels = [choice for choice in choices if choice in LEVELS]
    if not folder or not known.issuperset(choices) or len(targets) > 1 or len(levels) > 1:
        raise ValueError('usage: make tck TCK_DIR=folder [ARGS="agent|hub|strict must|should|may"]')
    return Path(folder).resolve(), targets[0] if targets else "agent", levels[0] if levels else None


def main(arguments: list[str]) -> int:
    """The status of the suite; 2 where it could not run."""
    try:
        folder, target, level = read_arguments(arguments)
        tck = unpack(folder)
        return run(tck, install(tck), target, level)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
