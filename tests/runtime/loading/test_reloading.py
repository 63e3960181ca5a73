"""What ``serve --reload`` takes for a change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.core.errors import InvalidSettingError
from retinue.runtime.loading.reloading import Stamps, serve_reloading, wait_for_change

WAIT_S = 60.0


@contextmanager
def _waiting(before: Stamps, stop: threading.Event) -> Iterator[list[bool]]:
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(wait_for_change(before, stop, poll_s=0.01)))
    thread.start()
    yield seen
    thread.join(WAIT_S)
    assert not thread.is_alive()


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text("x = 1\n")
    return file


def _stamps(*files: Path) -> Stamps:
    return {file: file.stat().st_mtime_ns for file in files}


def test_a_written_file_is_a_change(agent: Path) -> None:
    with _waiting(_stamps(agent), threading.Event()) as seen:
        agent.write_text("x = 2\n")
    assert seen == [True]


def test_a_new_python_file_beside_it_is_a_change(agent: Path) -> None:
    with _waiting(_stamps(agent), threading.Event()) as seen:
        agent.with_name("tools.py").write_text("y = 1\n")
    assert seen == [True]


def test_a_removed_file_is_a_change(agent: Path) -> None:
    with _waiting(_stamps(agent), threading.Event()) as seen:
        agent.unlink()
    assert seen == [True]


def test_nothing_is_waited_for_after_the_end(agent: Path) -> None:
    stop = threading.Event()
    with _waiting(_stamps(agent), stop) as seen:
        stop.set()
    assert seen == [False]


def test_a_target_that_is_not_there_is_not_waited_for() -> None:
    with pytest.raises(InvalidSettingError):
        serve_reloading("none.py", lambda *_: 0, lambda _: None)


def test_without_a_change_the_status_of_serving_is_the_programs(agent: Path) -> None:
    agent.write_text("from retinue import Agent\n\nagent = Agent('x-agent')\n")
    assert serve_reloading(str(agent), lambda *_: 7, lambda _: None) == 7
