"""``retinue ask``: what is refused, what is printed, and the exit status, without a hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.conftest import Retinue, publish

TWO = "python,debugging"


class _Agent(BaseHTTPRequestHandler):
    """An agent of another make: answers with the reply of its server, and echoes other calls."""

    def do_POST(self) -> None:
        asked = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
        is_query = asked["method"] == "query_capabilities"
        server: Any = self.server
        result = server.reply if is_query else {"did": asked["method"], **asked["params"]}
        body = orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def answering(home: Path, name: str, **reply: Any) -> Iterator[None]:
    """A published agent that answers every question with ``reply``."""
    server = HTTPServer(("127.0.0.1", 0), _Agent)
    server.reply = {"status": "success", **reply}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    card = {"name": name, "url": f"http://127.0.0.1:{server.server_port}", "skills": [{"id": "repair"}]}
    publish(home, name, orjson.dumps(card), ("repair",))
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def matched(*capabilities: str, wanted: int = 2, **more: Any) -> dict[str, Any]:
    return {"match_result": len(capabilities) == wanted, "matched_capabilities": [*capabilities], **more}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name agents, or give --all"),
        (("a", "--all"), "name agents, or give --all"),
        (("--all", "--summary", "--action", "x"), "give one of --summary, --capabilities and --action"),
        (("--all", "--any"), "--any belongs to --capabilities"),
        (("--all", "--capabilities", " , "), "--capabilities names none"),
        (("--all", "--action", "x", "--delegate", "a", "{}"), "--delegate can be combined"),
        (("--all", "--delegate", "a", "[]"), "a list, not an object"),
    ],
)
def test_contradictory_options_are_refused(arguments: tuple[str, ...], said: str, retinue: Retinue) -> None:
    refused = retinue("ask", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_answers_are_ranked_the_silent_named_and_the_status_is_0(
    retinue: Retinue, retinue_home: Path, plan_card: bytes
) -> None:
    with (
        answering(retinue_home, "half", **matched("python")),
        answering(
            retinue_home, "whole", **matched("python", "debugging", confidence=0.9, price=2, time_s=30)
        ),
        answering(retinue_home, "none", **matched()),
    ):
        done = retinue("ask", "--all", "--capabilities", TWO)
        as_json = retinue("ask", "--all", "--capabilities", TWO, "--json")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1][:6] == ["whole", "100%", "yes", "0.9", "2", "30"]
    assert rows[2][:3] == ["half", "50%", "yes"]
    assert "1 more cannot do it" in done.stderr
    assert "no answer of plan-agent" in done.stderr
    assert done.exit_code == 0
    reply = orjson.loads(as_json.stdout)
    assert [row["agent"] for row in reply["answers"]] == ["whole", "half"]
    assert [row["agent"] for row in reply["silent"]] == ["plan-agent"]


def test_nobody_that_has_everything_is_status_1(retinue: Retinue, retinue_home: Path) -> None:
    with answering(retinue_home, "half", **matched("python")):
        partial = retinue("ask", "half", "--capabilities", TWO)
        delegated = retinue("ask", "--all", "--capabilities", TWO, "--delegate", "repair", "{}")
    assert (partial.exit_code, delegated.exit_code) == (1, 1)
    assert "half" in partial.stdout


def test_the_best_is_called_and_its_result_is_printed(retinue: Retinue, retinue_home: Path) -> None:
    with (
        answering(retinue_home, "one", **matched("python", "repair", confidence=0.2)),
        answering(retinue_home, "two", **matched("python", "repair", confidence=0.9)),
    ):
        done = retinue("ask", "--all", "--capabilities", "python", "--delegate", "repair", '{"code": "x"}')
    assert orjson.loads(done.stdout) == {"did": "repair", "code": "x"}
    assert "two is the best of 2 and was called" in done.stderr
    assert done.exit_code == 0


def test_a_summary_and_the_details_of_an_action_are_printed(retinue: Retinue, retinue_home: Path) -> None:
    actions = [{"name": "repair", "description": "Repairs"}]
    with answering(retinue_home, "one", capabilities={"topics": ["Python", "Go"], "actions": actions}):
        summary = retinue("ask", "one")
    assert summary.stdout.splitlines()[1].split() == ["one", "yes", "Python,", "Go", "repair"]
    with answering(retinue_home, "one", action={"name": "repair", "input_schema": None}):
        details = retinue("ask", "one", "--action", "repair")
    assert orjson.loads(details.stdout) == {"one": {"name": "repair", "input_schema": None}}
    with answering(retinue_home, "one", error_code="unknown_action"):
        unknown = retinue("ask", "one", "--action", "fly")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no agent can do it" in unknown.stderr
