"""What every test starts from: its own state folder, and nothing of the machine's Retinue settings."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import structlog

from retinue.storage.contexts import find_configuration_folder

if TYPE_CHECKING:
    from tests.system import System, Wire

LEAKING_PREFIXES = ("RETINUE_", "KOI_MCP_", "OTEL_")
MODEL_KEYS = ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

# The machine is shared and slow at times: a deadline would measure it, not the code. A failure that
# Hypothesis found in CI must be found again by the next run, hence the fixed seed there.
hypothesis.settings.register_profile("retinue", deadline=None, database=None)
hypothesis.settings.register_profile("ci", deadline=None, database=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "retinue")

# The default renderer draws tracebacks with rich, which takes up to a second for each that is logged.
LOGS: dict[str, Any] = {
    "processors": [
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["level", "event"]),
    ]
}


def pytest_configure(config: pytest.Config) -> None:
    """Leave the long tests to ``make soak`` and ``make crash`` unless a mark was asked for."""
    config.option.markexpr = config.option.markexpr or "not soak and not crash"
    # A shell starts background jobs with SIGINT ignored, and the programs of tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _never_cache_loggers(config)
    _never_wait_for_the_disk(config)
    structlog.configure(**LOGS)


def _never_cache_loggers(config: pytest.Config) -> None:
    """Loggers are global, and a cached one keeps the configuration of the command that ran in some test.

    A later test would configure or capture logs in vain.
    """
    configure, patch = structlog.configure, pytest.MonkeyPatch()

    def configure_without_cache(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    patch.setattr(structlog, "configure", configure_without_cache)
    config.add_cleanup(patch.undo)


def _never_wait_for_the_disk(config: pytest.Config) -> None:
    """Writes of this process stay with the kernel, because no test turns the machine off.

    Programs that tests start, which are killed, write through.
    """
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda descriptor: None)
    config.add_cleanup(patch.undo)


@pytest.fixture(autouse=True)
def retinue_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of this test alone, for this process and the ones it starts; not created yet."""
    monkeypatch.setattr("retinue.core.text._hidden", [])  # secrets of the teams of other tests
    for name in list(os.environ):
        if name.startswith(LEAKING_PREFIXES):
            monkeypatch.delenv(name)
    for name in (*MODEL_KEYS, *PROXIES):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "retinue-home"
    monkeypatch.setenv("RETINUE_HOME", str(home))
    # Nobody is logged in anywhere unless a test says so.
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker-config"))
    # Nor does anybody use another hub.
    if (find_configuration_folder(os.environ) / "contexts.json").exists():
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # Programs that wrap at the terminal's width print the same everywhere.
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return home


@pytest.fixture(autouse=True)
def fresh_logs() -> Iterator[None]:
    """Undo what a command that ran in this test, or in a fixture of its module, made of the logs."""
    yield
    structlog.reset_defaults()
    structlog.configure(**LOGS)


@pytest.fixture
async def system(retinue_home: Path) -> AsyncIterator[System]:
    """A hub and agents of this test alone."""
    # imported here, because most tests need no server
    from retinue.storage.state import State
    from tests.system import open_system

    async with open_system(State(retinue_home)) as system:
        yield system


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    """A client that shows what goes over the wire."""
    from tests.system import open_wire

    async with open_wire() as wire:
        yield wire
