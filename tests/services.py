"""Real services for tests: a docker-registry process on a port of its own, and skopeo."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.get_registry import PROGRAM as REGISTRY_3
from scripts.get_registry import VERSION

START_TIMEOUT_S = 120.0
_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


def get_program(name: str) -> str:
    """The path of a program that a test needs; where it is missing CI fails and a laptop skips, loudly."""
    return _require(shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin"), name)


def get_library(name: str) -> str:
    """The path of a library of the system that is loaded into programs, as `get_program`."""
    return _require(next((str(path) for path in Path("/usr/lib").glob(f"*/{name}")), None), name)


def _require(found: str | None, name: str) -> str:
    if found is not None:
        return found
    message = f"{name} is not installed; run scripts/services"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def get_registry_3() -> str:
    """The path of the registry program of CNCF Distribution 3; the test is skipped where it is not there."""
    if not REGISTRY_3.exists():
        pytest.skip(f"NOT TESTED: there is no registry {VERSION}; scripts/services says why")
    return str(REGISTRY_3)


async def run_skopeo(*arguments: str) -> bytes:
    """Run skopeo to its end, and give its output."""
    process = await asyncio.create_subprocess_exec(
        get_program("skopeo"),
        "--insecure-policy",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return output


@contextmanager
def docker_registry(
    folder: Path,
    *,
    auth: str = "",
    tls: tuple[Path, Path] | None = None,
    port: int = 0,
    notified: tuple[str, str] | None = None,
    deletes: bool = True,
    program: str | None = None,
) -> Iterator[str]:
    """Run ``docker-registry serve`` with its data in ``folder``; gives its base url.

    ``program`` is another one than that of the system, such as `get_registry_3`.

    ``auth`` is the value of its setting of that name, in YAML's flow form; ``tls`` a certificate and its key,
    ``notified`` the url and the token of who is told of everything. Without ``deletes`` it refuses to delete,
    as it does when installed.
    """
    program = program or get_program("docker-registry")
    config = folder / "registry.yml"
    secured = f", tls: {{certificate: '{tls[0]}', key: '{tls[1]}'}}" if tls is not None else ""
    config.write_text(
        "version: 0.1\n"
        "log: {level: info, accesslog: {disabled: true}}\n"
        "storage:\n"
        f"  filesystem: {{rootdirectory: '{folder / 'data'}'}}\n"
        f"  delete: {{enabled: {'true' if deletes else 'false'}}}\n"
        "  maintenance: {uploadpurging: {enabled: false}}\n"
        f"http: {{addr: '127.0.0.1:{port}', secret: local{secured}}}\n"
        + (f"auth: {auth}\n" if auth else "")
        + (_notifications(*notified) if notified is not None else "")
    )
    process = subprocess.Popen(
        [program, "serve", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ.get("PATH", ""), "OTEL_TRACES_EXPORTER": "none"},
    )
    settled = threading.Event()
    tail: deque[str] = deque(maxlen=20)
    address: list[str] = []

    def read_log() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            tail.append(line)
            found = _LISTENING.search(line)
            if found is not None:
                address.append(found.group(1))
                settled.set()
        settled.set()

    reader = threading.Thread(target=read_log, name="docker-registry log", daemon=True)
    reader.start()
    try:
        settled.wait(START_TIMEOUT_S)
        if not address:
            raise RuntimeError("docker-registry did not start:\n" + "".join(tail))
        yield f"{'http' if tls is None else 'https'}://{address[0]}"
    finally:
        process.terminate()
        process.wait(timeout=60)
        reader.join(timeout=60)
        assert process.stderr is not None
        process.stderr.close()


def _notifications(url: str, token: str) -> str:
    return (
        "notifications:\n"
        "  endpoints:\n"
        "    - name: hub\n"
        f"      url: {url}\n"
        f"      headers: {{Authorization: ['Bearer {token}']}}\n"
        "      timeout: 2s\n"
        "      threshold: 3\n"
        "      backoff: 100ms\n"
        "      ignore: {actions: [pull]}\n"
    )


@pytest.fixture(scope="session")
def docker_registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One docker-registry for many tests; each works in repositories of its own."""
    with docker_registry(tmp_path_factory.mktemp("docker-registry")) as url:
        yield url


@pytest.fixture(scope="session")
def registry_3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """As `docker_registry_url`, one of version 3."""
    program = get_registry_3()
    with docker_registry(tmp_path_factory.mktemp("registry-3"), program=program) as url:
        yield url


@pytest.fixture(params=["2.8", "3"])
def each_registry_url(request: pytest.FixtureRequest) -> str:
    """A docker-registry of Debian, and one of version 3."""
    url: str = request.getfixturevalue("docker_registry_url" if request.param == "2.8" else "registry_3_url")
    return url
