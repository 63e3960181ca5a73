"""The clock of a machine is set while its hub uses a login at an imported server, and before a new login."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.crash.test_clock_steps import Clock
from tests.processes.conftest import port
from tests.processes.recorder import recorder
from tests.processes.running import program, run_apart
from tests.processes.test_logins_elsewhere import LoggedIn, log_in_at_docs

__all__ = ["port"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def make_browser(folder: Path) -> str:
    """A command that opens the page of a login and lets the person in."""
    browser = folder / "browser.py"
    browser.write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1])\n")
    return f"{sys.executable} {browser} %s"


@pytest.fixture
async def docs(
    tmp_path: Path, port: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LoggedIn]:
    monkeypatch.setenv("BROWSER", make_browser(tmp_path))

    def run_by_clock(*arguments: str, cwd: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
        return run_apart(*arguments, cwd=cwd, environment={**environment, **clock.environment})

    hub_command = ("hub", "--bare", "--port", str(port))
    with recorder() as unused, program(*hub_command, cwd=tmp_path, environment=clock.environment) as hub:
        async with log_in_at_docs(tmp_path, hub, unused, run_by_clock) as logged_in:
            yield logged_in
        assert "secret-" not in hub.output


@pytest.mark.parametrize("step", ["-1h", "-2m", "+1h"])
async def test_a_login_goes_on_when_the_clock_is_set_and_set_right(
    docs: LoggedIn, clock: Clock, step: str
) -> None:
    """Tokens of an hour: the hub renews one that seems to expire, and no call waits for the old time."""
    clock.set(step)
    assert await docs.shout("stepped") == "STEPPED"
    docs.server.access.clear()
    assert await docs.shout("renewed") == "RENEWED"
    await docs.run("imports", "login", "docs")
    assert await docs.shout("anew") == "ANEW"
    clock.set("+0")
    assert await docs.shout("right") == "RIGHT"
    docs.server.access.clear()
    assert await docs.shout("again") == "AGAIN"
    assert docs.server.requests["authorization_code"] == 2, "nobody was asked to log in again"
    assert docs.server.requests["refresh_token"] <= 4
