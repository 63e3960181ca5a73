"""Distributions with parts that are switched off, refused or broken, in real processes.

The toy protocol stands on the path as an installer would put it there; no wheel is built.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.packages.test_toy_protocol import AGENT, TOY
from tests.plugins import install
from tests.processes.running import Program, program, wait_until

PACKAGE = TOY / "src" / "retinue_toy"
MARK = "the toy is imported"
OPENING = "        # imported here, because only a hub needs them\n"

Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that finds the distributions below ``site``; variables are given by name."""
    with ExitStack() as stack:

        def enter(*arguments: str, **variables: str) -> Program:
            environment = {
                "RETINUE_HOME": str(tmp_path / "state"),
                "PYTHONPATH": str(tmp_path / "site"),
                **variables,
            }
            return stack.enter_context(program(*arguments, cwd=tmp_path, environment=environment))

        yield enter


def install_toy(folder: Path, replaced: str = "", by: str = "") -> None:
    """Install the toy protocol, with one text of its part replaced."""
    files = {file.name: file.read_text("utf-8") for file in PACKAGE.glob("*.py")}
    assert replaced in files["part.py"]
    files["part.py"] = files["part.py"].replace(replaced, by, 1)
    install(folder / "site", "retinue-toy", {"retinue.parts": {"toy": "retinue_toy.part:ToyPart"}}, {})
    for name, text in files.items():
        (folder / "site" / "retinue_toy").mkdir(exist_ok=True)
        (folder / "site" / "retinue_toy" / name).write_text(text, "utf-8")


def run_hub(start: Start, **variables: str) -> tuple[Program, str]:
    """A hub that is ready, and its URL."""
    hub = start("hub", "--bare", "--port", "0", **variables)
    url = hub.url_in("hub at")
    hub.wait_for("0 agents")
    return hub, url


def read_problems(url: str, folder: Path) -> list[dict[str, Any]]:
    """The problems of a hub that is degraded and takes calls."""
    token = (folder / "state" / "keys" / "local.token").read_text("utf-8").strip()

    def read() -> urllib3.BaseHTTPResponse:
        return urllib3.request(
            "GET", f"{url}/ready", headers={"authorization": f"Bearer {token}"}, timeout=120.0
        )

    wait_until(lambda: read().status == 200, "the hub gets ready")
    shown = read().json()
    assert shown["status"] == "degraded"
    problems: list[dict[str, Any]] = shown["problems"]
    return problems


def examine(start: Start, **variables: str) -> dict[str, dict[str, str]]:
    """The rows of ``retinue doctor`` by the names of the checks."""
    doctor = start("doctor", "--json", **variables)
    doctor.wait()
    return {row["check"]: row for row in json.loads(doctor.output)["checks"]}


def list_status(url: str) -> int:
    return urllib3.request("GET", f"{url}/toy", timeout=120.0).status


def test_the_settings_switch_a_part_off(start: Start, tmp_path: Path) -> None:
    install_toy(tmp_path)
    off = {"RETINUE_PARTS__OFF": '["toy"]'}
    hub, url = run_hub(start, **off)
    assert list_status(url) == 404
    assert "toy" not in examine(start, **off)
    assert hub.end() == 0
    hub, url = run_hub(start)
    assert list_status(url) == 200
    assert examine(start)["toy"]["found"] == "0 servers"


def test_a_part_of_another_interface_is_refused_by_the_name_of_its_distribution(
    start: Start, tmp_path: Path
) -> None:
    install_toy(tmp_path, "interface = 1", "interface = 2")
    # its table is accepted unread
    (tmp_path / "retinue.toml").write_text("[toy]\nwheels = 4\n", "utf-8")
    hub, url = run_hub(start)
    (problem,) = read_problems(url, tmp_path)
    assert (problem["what"], problem["name"]) == ("part", "toy")
    assert "part toy of retinue-toy: it was made for version 2 of the interface" in problem["reason"]
    (line,) = [line for line in hub.lines if "retinue-toy" in line]
    assert line == f"toy is not available: {problem['reason']}"
    assert list_status(url) == 404
    row = examine(start)["part toy"]
    assert (row["status"], row["remedy"]) == ("fail", "upgrade retinue-toy, or uninstall it")
    assert "retinue-toy" in row["found"]
    assert hub.end() == 0


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        (OPENING, '        raise RuntimeError("it is broken")\n', "it is broken"),
        ('"""The toy protocol', 'raise RuntimeError("it is broken")\n"""', "retinue-toy"),
    ],
    ids=["in open", "at its import"],
)
def test_a_broken_part_leaves_the_hub_running_with_a_problem(
    start: Start, tmp_path: Path, replaced: str, by: str, reason: str
) -> None:
    install_toy(tmp_path, replaced, by)
    hub, url = run_hub(start)
    (problem,) = read_problems(url, tmp_path)
    assert (problem["what"], problem["name"]) == ("part", "toy")
    assert reason in problem["reason"]
    assert f"toy is not available: {problem['reason']}" in hub.lines
    assert list_status(url) == 404
    assert hub.end() == 0


def test_a_check_that_fails_is_a_row_of_the_doctor(start: Start, tmp_path: Path) -> None:
    install_toy(
        tmp_path, "        return [Check(", '        raise RuntimeError("it is broken")\n        [Check('
    )
    row = examine(start)["part toy"]
    assert row["status"] == "fail"
    assert "it is broken" in row["found"]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["serve", "greeter.py", "--stdio"], ["mcp"]],
    ids=["help", "serve --stdio", "mcp"],
)
def test_the_help_and_stdio_import_no_part(start: Start, tmp_path: Path, arguments: list[str]) -> None:
    install_toy(tmp_path, '"""The toy protocol', f'import sys\nprint("{MARK}", file=sys.stderr)\n"""')
    (tmp_path / "greeter.py").write_text(AGENT, "utf-8")
    (tmp_path / "retinue.toml").write_text('[toy]\nservers = ["http://127.0.0.1:9"]\n', "utf-8")
    shown = start(*arguments)
    assert shown.wait() == 0, shown.output
    assert MARK not in shown.output
    # other commands import it, unless it is switched off
    agents = start("agents")
    agents.wait()
    assert MARK in agents.output
    without = start("doctor", RETINUE_PARTS__OFF='["toy"]')
    without.wait()
    assert MARK not in without.output
