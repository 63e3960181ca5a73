"""``retinue demo``: runs the whole job in processes and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes.running import descendants, is_running, program, wait_until
from tests.requirements import requirement

ROOT = Path(__file__).parents[4]

MODULE = '''"""Small sums."""


def clamp(value: int, low: int, high: int) -> int:
    """Puts a value between two bounds. Raises ValueError when they are the wrong way round."""
    if low > high:
        raise ValueError("low is above high")
    return max(low, min(value, high))


def initials(name: str) -> str:
    """The first letters of the words of a name, in upper case."""
    return "".join(word[0].upper() for word in name.split())
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "small_sums.py"
    file.write_text(MODULE)
    return file


CLAUDE = """#!/usr/bin/env python3
import json, sys
sys.stdin.read()
code = "def test_nothing():\\n    assert True\\n"
words = {"plan": "test it", "review": "It is fine.", "feedback": "none"}
answer = json.dumps({**words, "steps": ["all"], "code": code})
print(json.dumps({"type": "result", "is_error": False, "result": answer, "usage": {}, "total_cost_usd": 0}))
"""


@pytest.fixture
def with_claude(tmp_path: Path) -> dict[str, str]:
    """An environment in which the command-line agent is installed."""
    file = tmp_path / "bin" / "claude"
    file.parent.mkdir()
    file.write_text(CLAUDE)
    file.chmod(0o755)
    return {"PATH": f"{file.parent}:{os.environ['PATH']}"}


@requirement("P-25")
@pytest.mark.timeout(600)
def test_the_demo_writes_tests_that_run_and_leaves_no_process(tmp_path: Path, module: Path) -> None:
    with program("demo", str(module), cwd=tmp_path) as demo:
        demo.wait_for("plan-agent")
        started = descendants(demo.process.pid)
        assert len(started) >= 4
        demo.wait_for("The tests:")
        assert demo.wait() == 0, demo.output
        for skill in ("create_plan", "generate_code", "review_code"):
            assert any(skill in line and " s" in line for line in demo.lines), demo.output
        (command,) = [line.strip() for line in demo.lines if "-m pytest" in line]
        assert "Try next:" in demo.output
        wait_until(lambda: not any(map(is_running, started)), "every process of the demo ends")
    (tests,) = (tmp_path / "retinue-demo").glob("test_*.py")
    assert str(tests.relative_to(tmp_path)) in command
    # as in a clone, whose settings name plugins that `make demo` does not install
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ran = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": "-p no:asyncio -p no:timeout -p no:cacheprovider"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_model_takes_part_only_when_it_is_named(
    tmp_path: Path, module: Path, with_claude: dict[str, str]
) -> None:
    with program("demo", str(module), cwd=tmp_path, environment=with_claude) as demo:
        demo.wait_for("Writing tests")
        assert "claude" not in demo.output
    with program("demo", str(module), "--model", "claude", cwd=tmp_path, environment=with_claude) as demo:
        assert demo.wait() == 0, demo.output
        assert any("generate_code" in line and "claude" in line and " s" in line for line in demo.lines)
    assert (tmp_path / "retinue-demo" / "test_small_sums.py").read_text().startswith("def test_nothing")


def test_a_model_that_cannot_take_part_is_named_with_the_reason(tmp_path: Path, module: Path) -> None:
    nothing = {"GEMINI_API_KEY": "", "GOOGLE_API_KEY": "", "PATH": "/usr/bin:/bin"}
    with program("demo", str(module), "--model", "gemini", cwd=tmp_path, environment=nothing) as demo:
        assert demo.wait() != 0
        assert "no GEMINI_API_KEY, and no gemini command found" in demo.lines[-1]


def test_the_demo_takes_another_port_and_says_so(tmp_path: Path, module: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # taken by another program: just as well
            taken.bind(("127.0.0.1", 9000))
            taken.listen()
        with program("demo", str(module), cwd=tmp_path) as demo:
            demo.wait_for("port 9000 is taken")


def test_ctrl_c_stops_everything_that_the_demo_started(tmp_path: Path, module: Path) -> None:
    with program("demo", str(module), cwd=tmp_path) as demo:
        demo.wait_for("create_plan")
        demo.wait_for("Writing tests")
        started = descendants(demo.process.pid)
        assert demo.end(signal.SIGINT) == 130, demo.output
        assert "Traceback" not in demo.output
        wait_until(lambda: not any(map(is_running, started)), "every process of the demo ends")


def test_no_orphan_stays_when_the_demo_is_killed(tmp_path: Path, module: Path) -> None:
    with program("demo", str(module), cwd=tmp_path) as demo:
        demo.wait_for("Writing tests")
        started = descendants(demo.process.pid)
        assert started
        demo.end(signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, started)), "the children of the killed demo end")


def test_an_unknown_module_is_one_line_that_names_what_was_looked_for(tmp_path: Path) -> None:
    with program("demo", "no_such_module_anywhere", cwd=tmp_path) as demo:
        assert demo.wait() != 0
        assert "no_such_module_anywhere" in demo.lines[-1]
        assert "--python" in demo.lines[-1]
        assert demo.lines == demo.lines[-1:], "nothing was started before the module was looked for"


def test_a_demo_without_room_is_one_line(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "retinue", "demo", "textwrap"],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (ended.returncode, ended.stdout) == (8, "")
    (line,) = ended.stderr.splitlines()
    assert line == f"error: no space left for {tmp_path}; nothing was changed — free some space"
    assert not (tmp_path / "test_textwrap.py").exists()
