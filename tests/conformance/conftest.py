"""What the conformance suites are pointed at: endpoints of one agent, each by its url.

An endpoint that is added here (``ENDPOINTS``) is held to the same suites.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from scripts.conformance import FOLDER, LOCK_FOLDER
from scripts.npm_packages import InstallFailedError, install
from tests.processes.running import program

AGENT = Path(__file__).parent / "fixture_agent.py"
ENDS_SOON = {"RETINUE_TIMEOUTS__DRAIN_S": "0.5"}
"""The suites leave requests open, for which a process that is asked to stop would wait."""


@contextmanager
def served_agent(folder: Path) -> Iterator[str]:
    """The agent's own endpoint, served by ``retinue serve`` as a process."""
    environment = {"RETINUE_HOME": str(folder / "home"), **ENDS_SOON}
    with program("serve", str(AGENT), "--no-publish", cwd=folder, environment=environment) as served:
        yield f"{served.url_in('conformance-agent 1.0.0 at')}/mcp"


@contextmanager
def relayed_agent(folder: Path) -> Iterator[str]:
    """The same agent through a hub: ``/agents/{name}/mcp``."""
    environment = {"RETINUE_HOME": str(folder / "home"), **ENDS_SOON}
    with program("hub", "--bare", "--port", "0", cwd=folder, environment=environment) as hub:
        url = hub.url_in("hub at")
        with program("serve", str(AGENT), cwd=folder, environment=environment) as served:
            served.wait_for("published")
            yield f"{url}/agents/conformance-agent/mcp"


@contextmanager
def imported(folder: Path, url: str) -> Iterator[str]:
    """The server at ``url`` through a hub that has imported it."""
    # the suites add tools and look for them: nobody is there to accept them
    configured = f'[imports]\npin = false\n\n[imports.fixtures]\nurl = "{url}"\n'
    (folder / "retinue.toml").write_text(configured, "utf-8")
    environment = {"RETINUE_HOME": str(folder / "other"), **ENDS_SOON}
    with program("hub", "--bare", "--port", "0", cwd=folder, environment=environment) as hub:
        at = hub.url_in("hub at")
        hub.wait_for("1 agent")
        yield f"{at}/agents/fixtures/mcp"


@contextmanager
def imported_agent(folder: Path) -> Iterator[str]:
    """The same agent, imported by its URL into the hub of another mesh, as an MCP server of somebody else."""
    with served_agent(folder) as url, imported(folder, url) as found:
        yield found


@contextmanager
def plain_server(folder: Path) -> Iterator[str]:
    """A server of the MCP SDK, without anything of Retinue."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.conformance.plain_server"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield f"{process.stdout.readline().rpartition(' ')[2].strip()}/mcp"
        finally:
            process.terminate()


@contextmanager
def imported_plain_server(folder: Path) -> Iterator[str]:
    """The server of the MCP SDK through a hub."""
    with plain_server(folder) as url, imported(folder, url) as found:
        yield found


ENDPOINTS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "agent": served_agent,
    "hub": relayed_agent,
}

IMPORTS: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "agent": imported_agent,
    "plain server": imported_plain_server,
}


@pytest.fixture(scope="session")
def suites() -> None:
    """The suites, installed from npm by the lock file when they are not there yet.

    Without a network they are skipped, loudly; in CI that is a failure.
    """
    try:
        install(LOCK_FOLDER, FOLDER)
    except InstallFailedError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"npm could not install the suites: {error}")


@pytest.fixture(scope="module", params=list(ENDPOINTS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ENDPOINTS[request.param](tmp_path_factory.mktemp("conformance")) as found:
        yield found
