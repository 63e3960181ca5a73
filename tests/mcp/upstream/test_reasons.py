"""What is said of an imported server that does not run: the cause, as real programs and servers show it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from retinue.core.errors import AgentUnreachableError
from retinue.core.record import Listing
from retinue.mcp.codec.foreign import Requests
from retinue.mcp.stdio.server_program import LAST_WORDS_S, ServerProgram
from retinue.mcp.upstream.http_transport import HttpTransport
from retinue.mcp.upstream.imports.server import ImportSpec
from retinue.mcp.upstream.transport import Transport
from retinue.web.http_client import HttpClient
from tests.mcp.upstream.test_imports import is_ready, running
from tests.serving import serve_app

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).resolve().parents[3]
NPM_ERROR = """npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/no-such-server - Not found
npm error 404
npm error 404  'no-such-server@*' is not in this registry.
npm error A complete log of this run can be found in: /home/ada/.npm/_logs/debug-0.log
"""
NOTICES = """Error: None of the specified directories are accessible
npm notice
npm notice New major version of npm available! 10.8.2 -> 11.2.0
npm notice To update run: npm install -g npm@11.2.0
npm notice
"""
NODE_ERROR = "new Error('no key given')"
GROUP = (
    "import asyncio\n"
    "async def fail(): raise RuntimeError('no key given')\n"
    "async def main():\n"
    "    async with asyncio.TaskGroup() as group: group.create_task(fail())\n"
    "asyncio.run(main())\n"
)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def prints(text: str) -> list[str]:
    return python("import sys; sys.stderr.write(sys.argv[1]); sys.exit(1)", text)


def started(*command: str) -> Callable[[], Transport]:
    return lambda: ServerProgram("one", command, {}, own=os.environ, folder=ROOT)


def is_lost(listing: Listing) -> bool:
    return listing.health == "unreachable"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (prints(NOTICES), "code 1: Error: None of the specified directories are accessible"),
        (
            prints(NPM_ERROR),
            "code 1: npm error 404 Not Found - GET https://registry.npmjs.org/no-such-server",
        ),
        (python(GROUP), "code 1: RuntimeError: no key given"),
        (prints("npm notice\n"), "code 1: npm notice"),
        (python("import sys; sys.exit(4)"), "it ended with code 4"),
        (python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "it was ended by SIGKILL"),
    ],
)
async def test_the_line_that_explains_the_end_of_a_program_is_shown(command: list[str], said: str) -> None:
    async with running(ImportSpec("one", started(*command), "one")) as imports:
        listing = await imports.until("one", is_lost)
    assert listing.last_error is not None
    assert said in listing.last_error


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    "thrown", ["new Error('no key given')", "Object.assign(new Error('no key given'), {code: 'E'})"]
)
async def test_the_error_of_a_node_program_is_shown_and_not_the_version_of_node(thrown: str) -> None:
    async with running(ImportSpec("one", started("node", "-e", f"throw {thrown}"), "one")) as imports:
        listing = await imports.until("one", is_lost)
    assert listing.last_error == "it ended with code 1: Error: no key given"


async def test_a_program_that_ends_in_its_session_is_listed_with_its_code_and_last_line() -> None:
    command = (sys.executable, "-m", "tests.mcp.upstream.foreign_server", "plain")
    async with running(ImportSpec("one", started(*command), "one")) as imports:
        await imports.until("one", is_ready)
        outcome = await imports.call("die")
        assert outcome.error is not None
        assert "start it" not in str(outcome.error.remedy)
        assert "retinue imports" in str(outcome.error.remedy)
        listing = await imports.until("one", is_lost)
        assert listing.last_error is not None
        assert listing.last_error.startswith("it ended with code ")
        assert "the connection ended" not in listing.last_error


@pytest.mark.parametrize(
    ("last", "reason"), [("", "it ended with code 3"), ("no key", "it ended with code 3: no key")]
)
async def test_a_line_that_was_printed_long_before_the_end_does_not_explain_it(
    last: str, reason: str
) -> None:
    now_s = 0.0
    code = (
        "import sys\n"
        "print('old: listening', file=sys.stderr, flush=True)\n"
        "sys.stdin.readline()\n"
        "print(sys.argv[1], file=sys.stderr, flush=True)\n"
        "sys.exit(3)\n"
    )
    server = ServerProgram("one", python(code, last), {}, own=os.environ, clock=lambda: now_s)
    await server.open()
    try:
        async with asyncio.timeout(30):
            while "listening" not in server.hint:
                await asyncio.sleep(0.01)
        now_s += LAST_WORDS_S + 1
        with pytest.raises(AgentUnreachableError) as caught:
            async for _ in server.exchange(Requests("test", "1").initialize()):
                pass
    finally:
        await server.aclose()
    assert caught.value.cause == reason


async def test_a_message_that_is_too_long_is_the_reason_whatever_was_printed_besides() -> None:
    code = (
        "import sys, threading\n"
        "print('x' * 50, file=sys.stderr, flush=True)\n"
        "sys.stdin.readline()\n"
        "sys.stdout.write('{' + 'x' * 33_600_000); sys.stdout.flush()\n"
        "print('later', file=sys.stderr, flush=True)\n"
        "threading.Event().wait()\n"
    )
    async with running(ImportSpec("one", started(*python(code)), "one")) as imports:
        listing = await imports.until("one", is_lost)
    assert listing.last_error == "it sent a message of more than 33,554,432 bytes"


@pytest.mark.parametrize(("path", "status"), [("/", 404), ("/page", 405), ("/form", 200)])
async def test_a_url_that_is_no_endpoint_of_mcp_is_named_with_what_to_check(path: str, status: int) -> None:
    async def page(request: object) -> HTMLResponse:
        return HTMLResponse("<p>hello")

    app = Starlette(routes=[Route("/page", page), Route("/form", page, methods=["POST"])])
    async with serve_app(app) as url, HttpClient() as http:
        spec = ImportSpec("one", lambda: HttpTransport("one", http, url + path, {}), url)
        async with running(spec) as imports:
            listing = await imports.until("one", is_lost)
    assert listing.last_error is not None
    assert listing.last_error.startswith(f"status {status} ")
    assert "check the path of its url, often /mcp" in listing.last_error
    assert "/sse" in listing.last_error


async def test_a_call_waits_for_no_server_whose_variables_are_missing() -> None:
    problem = "the variable KEY of its env is not set"
    async with running(ImportSpec("one", started("no-such-program"), "one", problem=problem)) as imports:
        listing = await imports.until("one", is_lost)
        assert listing.last_error == problem
        server = imports.servers.find("one")
        assert server is not None
        imports.servers.retry()
        with pytest.raises(Exception, match="the variable KEY of its env is not set"):
            async with asyncio.timeout(60):
                await server.open_session()
