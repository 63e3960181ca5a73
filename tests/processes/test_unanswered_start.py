"""A client whose run was perhaps not accepted is told so, and what to ask."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.commands import run_command
from tests.processes.running import program

FLOW = "name: w\nsteps: [{id: a, wait_for: {topic: go}}]\n"


@pytest.fixture
def silent_hub() -> Iterator[str]:
    """The url of a program that takes a request and ends the connection, as a hub that is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def start_run(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "flow.yaml").write_text(FLOW)
    environment = {"RETINUE_HUB": url}
    return run_command("run", "flow.yaml", "--id", "mine", cwd=folder, environment=environment)


def test_a_hub_that_died_over_the_request_may_have_the_run(silent_hub: str, tmp_path: Path) -> None:
    refused = start_run(silent_hub, tmp_path)
    assert refused.returncode == 7
    assert "the hub did not say whether it accepted run mine; ask for it: retinue runs mine" in refused.stderr


def test_a_client_whose_hub_stops_is_told_so_and_not_of_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    cuts_off_soon = {"RETINUE_TIMEOUTS__DRAIN_S": "0.2"}
    with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=cuts_off_soon) as hub:
        hub.wait_for("http://")
        with program("run", "flow.yaml", "--id", "mine", cwd=tmp_path) as client:
            client.wait_for("waits for go")
            hub.end(signal.SIGTERM)
            assert client.wait() == 7
            assert "is unreachable: it was stopping" in client.output
            assert "run mine is stored; the next hub or worker resumes it" in client.output
            assert "proxy" not in client.output


def test_a_hub_that_is_not_there_has_accepted_nothing(tmp_path: Path) -> None:
    refused = start_run("http://127.0.0.1:1", tmp_path)
    assert refused.returncode == 7
    assert "run mine was not accepted" in refused.stderr
    assert "nothing was stored" in refused.stderr
