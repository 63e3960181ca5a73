"""Servers that send without end: read slowly, marked with the reason, and never at the cost of others."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.mcp.stdio.server_program import ServerProgram
from retinue.mcp.upstream.flood import FLOOD_BYTES, QUIET_S, FloodMeter
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mcp.upstream.transport import Transport
from retinue.mesh.pins import Pins
from tests.mcp.upstream.test_imports import running

PLACES = {
    "stderr": "it floods standard error",
    "junk": "it floods standard output",
    "news": "it floods standard output",
}
WATCHED_S = 1.5
"""How long the share of the processor is measured."""

pytestmark = pytest.mark.timeout(60)


def program(
    *command: str, flood_bytes: int = FLOOD_BYTES, quiet_s: float = QUIET_S
) -> Callable[[], Transport]:
    def connect() -> Transport:
        meter = FloodMeter(flood_bytes=flood_bytes, quiet_s=quiet_s)
        return ServerProgram("loud", [sys.executable, *command], {}, own=os.environ, flood=meter)

    return connect


def flooding(what: str, *stop: str, quiet_s: float = QUIET_S) -> ImportSpec:
    server = program("-m", "tests.mcp.upstream.flooding_server", what, *stop, quiet_s=quiet_s)
    return ImportSpec("loud", server, "a program")


@pytest.mark.parametrize("what", PLACES)
async def test_a_server_that_floods_is_degraded_with_the_reason_and_answers(
    tmp_path: Path, what: str
) -> None:
    stop = tmp_path / "stop"
    # longer than the pause of a flood
    async with running(flooding(what, str(stop), quiet_s=2.0)) as imports:
        listing = await imports.until("loud", lambda seen: seen.health == "degraded")
        assert (listing.last_error or "").startswith(PLACES[what])
        outcome = await imports.call("echo", {"text": "hi"})
        assert outcome.value == "hi"
        stop.touch()
        listing = await imports.until("loud", lambda seen: seen.health == "healthy")
        assert listing.last_error is None


async def test_a_flood_costs_the_reader_a_small_share_of_its_time() -> None:
    """The budget holds for a second, and everything beyond it waits."""
    async with running(flooding("stderr")) as imports:
        await imports.until("loud", lambda one: one.health == "degraded")
        began, spent = time.monotonic(), time.process_time()
        while time.monotonic() - began < WATCHED_S:
            assert (await imports.call("echo", {"text": "hi"})).value == "hi"
            await asyncio.sleep(0.1)
        share = (time.process_time() - spent) / (time.monotonic() - began)
    assert share < 0.3, f"{share:.0%} of a processor"


async def test_servers_that_flood_and_do_not_start_say_both() -> None:
    text = (
        "import threading, sys\n"
        "from tests.mcp.upstream.flooding_server import flood\n"
        "flood({!r}, None, threading.Lock())\n"
    )
    specs = [ImportSpec(what, program("-c", text.format(what)), "a program", start_s=3) for what in PLACES]
    async with running(*specs) as imports:
        for what in PLACES:
            listing = await imports.until(what, lambda seen: seen.health == "unreachable")
            assert (listing.last_error or "").startswith(
                f"it did not start within 3 s (imports.{what}.start_s); it floods"
            )


async def test_what_servers_said_explains_that_they_do_not_start() -> None:
    waits = "import sys\nprint('waiting for the database', file=sys.stderr)\nsys.stdin.read()"
    talks = "import sys\nprint('Server listening!', flush=True)\nsys.stdin.read()"
    hints = {"waits": "it said: waiting for the database", "talks": "is no message: Server list"}
    specs = [
        ImportSpec(name, program("-c", text), "a program", start_s=3)
        for name, text in (("waits", waits), ("talks", talks))
    ]
    async with running(*specs) as imports:
        for name, hint in hints.items():
            listing = await imports.until(name, lambda seen: seen.health == "unreachable")
            assert hint in (listing.last_error or "")


@pytest.mark.parametrize(
    ("command", "folder", "reason"),
    [
        ("no-such-program", None, "it is not on the PATH of the hub; install it, or give its full path"),
        ("/no/such/program", None, "No such file or directory"),
        (sys.executable, Path("/no/folder"), "its folder /no/folder does not exist"),
    ],
)
async def test_a_program_that_cannot_be_started_says_what_is_missing(
    command: str, folder: Path | None, reason: str
) -> None:
    def connect() -> Transport:
        return ServerProgram("loud", [command], {}, own=os.environ, folder=folder)

    async with running(ImportSpec("loud", connect, "a program")) as imports:
        found = await imports.until("loud", lambda one: one.health == "unreachable")
    assert found.last_error == f"{command} does not start: {reason}"


async def test_a_server_that_floods_and_ends_is_explained_by_its_last_line() -> None:
    text = "import sys\nsys.stderr.write('warning\\n' * 20_000 + 'TOKEN is not set\\n')\nsys.exit(3)"
    server = program("-c", text, flood_bytes=100_000)
    async with running(ImportSpec("loud", server, "a program")) as imports:
        listing = await imports.until("loud", lambda seen: seen.health == "unreachable")
    assert listing.last_error == "it ended with code 3: TOKEN is not set"


async def test_what_is_within_the_budget_is_read_at_once_and_not_reported() -> None:
    meter, reasons = FloodMeter(), list[str]()
    meter.subscribe(lambda: reasons.append(meter.reason))
    assert not meter.count("standard error", FLOOD_BYTES // 2)
    assert reasons == []
    assert meter.count("standard error", FLOOD_BYTES)
    assert reasons == ["it floods standard error: over 1 MB a second"]
    meter.close()


async def test_the_reason_of_a_server_that_starts_says_so_and_for_how_long() -> None:
    text = "import sys\nsys.stdin.read()"
    async with running(ImportSpec("slow", program("-c", text), "a program", start_s=7)) as imports:
        server = imports.servers.find("slow")
        assert server is not None
        assert server.reason == "it is starting, which may take 7 s (imports.slow.start_s)"


async def test_a_review_before_the_first_session_keeps_what_waits_to_be_accepted() -> None:
    new = {"name": "new", "inputSchema": {"type": "object"}}
    pins = Pins({"slow": {"accepted": {}, "waiting": {"new": new}}})
    text = "import sys\nsys.stdin.read()"
    async with running(ImportSpec("slow", program("-c", text), "a program"), pins=pins) as imports:
        server = imports.servers.find("slow")
        assert server is not None
        server.review()
        imports.servers.review()
        assert pins.list_waiting("slow") == {"new": new}
