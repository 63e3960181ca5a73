"""Runs the A2A TCK, the protocol's Technology Compatibility Kit, against an agent of Retinue.

python -m scripts.tck TCK_DIR [LEVEL]     LEVEL is must, should or may; all without it

TCK_DIR is a copy of https://github.com/a2aproject/a2a-tck, branch 1.0-dev, or a clone of which this branch
is taken. Its Python packages are installed into an environment of their own under ``.tools/tck``.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".tools" / "tck"
BRANCH = "1.0-dev"
PROGRAM = "run_tck.py"
AGENT = "tests.conformance.a2a_agent"

LEVELS = ("must", "should", "may")


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


def run(tck: Path, python: Path, level: str | None) -> int:
    """Serve the agent and run the suite over JSON-RPC; returns the suite's status."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = subprocess.Popen(
        [sys.executable, "-m", AGENT, str(port)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        if not served.stdout.readline().startswith("serving"):
            raise ValueError("the agent did not start")
        command = [str(python), PROGRAM, "--sut-host", f"http://127.0.0.1:{port}", "--transport", "jsonrpc"]
        chosen = ["--level", level] if level else []
        return subprocess.run([*command, *chosen], cwd=tck, check=False).returncode
    finally:
        served.terminate()
        served.wait(10)


def main(arguments: list[str]) -> int:
    """The status of the suite; 2 where it could not run."""
    if len(arguments) not in (1, 2) or (len(arguments) == 2 and arguments[1] not in LEVELS):
        print("usage: make tck TCK_DIR=folder [ARGS=must|should|may]", file=sys.stderr)
        return 2
    try:
        tck = unpack(Path(arguments[0]).resolve())
        return run(tck, install(tck), arguments[1] if len(arguments) == 2 else None)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
