"""``docs/cli.md``: its help is the program's, and its session runs as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from retinue.cli.program import TABLE
from scripts import cli_docs
from scripts.cli_docs import PAGE, list_commands, list_documented, render_page
from tests.cli.conftest import Retinue
from tests.processes.running import program

TEXT = PAGE.read_text("utf-8")
COMMANDS = re.findall(r"^\$ (.*)$", TEXT, re.MULTILINE)
ELSEWHERE = (
    "retinue policy suggest > suggested.cedar",
    "retinue policy replay --default deny suggested.cedar",
    "retinue demo textwrap",
    "retinue koi demo",
    """retinue signal trip approve '{"ok": true}'""",
    "retinue approvals",
    "retinue approvals approve 462cb944d963",
    'retinue approvals deny 462cb944d963 --reason "not on a Sunday"',
    "retinue mcp",
    "retinue hub --detach",
    "retinue stop",
    "retinue top",
    "retinue logs --follow",
    "retinue logs --agent my-agent --failed",
    "retinue chat",
    "retinue chat researcher --session trip",
    'retinue orchestrate "Write a Python web scraper"',
    "retinue keys trust partner https://agents.example.org/.well-known/jwks.json",
    "retinue restore mesh-backup --replace",
    "retinue import a2a https://agents.example.org --token-env PARTNER_TOKEN",
    "retinue up editorial",
    "retinue down editorial",
    "retinue record-team editorial -o calls.json --for 600",
    "retinue replay-team editorial --trace calls.json",
)
"""What other tests run: the demo's own suite, the tests of runs that wait, those of the bridge, of a
hub in the background and its log, of the guide to orchestration, of conversations, of keys at a URL, of
the guide to backups, of imported A2A agents, of teams, and of KOI programs."""

READY = {"hub": "hub at", "serve": "published", "worker": "worker on"}


@contextmanager
def _background(command: str) -> Iterator[None]:
    _, name, *arguments = command.removesuffix("&").split()
    port = ("--port", "0") if name == "hub" else ()
    with program(name, *arguments, *port, cwd=Path.cwd()) as running:
        running.wait_for(READY[name])
        yield


def test_the_help_on_the_page_is_what_the_program_says() -> None:
    assert render_page(TEXT) == TEXT, "run: python -m scripts.cli_docs"


def test_the_script_brings_a_page_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "cli.md"
    page.write_text("before\n<!-- help: retinue call -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(cli_docs, "PAGE", page)
    assert cli_docs.main() == 0
    assert "Usage: retinue call" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("<!-- end -->\nafter\n")


def test_a_block_for_no_command_is_refused() -> None:
    with pytest.raises(LookupError, match="nonsense"):
        render_page("<!-- help: retinue nonsense -->\n<!-- end -->")


def test_every_command_has_its_help_and_an_example() -> None:
    assert sorted(list_documented(TEXT)) == sorted(list_commands())
    examples = {word.split()[1] for word in COMMANDS if word.startswith("retinue ")}
    assert examples == set(TABLE)


def test_the_session_on_the_page_runs(
    retinue: Retinue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    flow = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert flow is not None
    Path("flow.yaml").write_text(flow[1])
    with ExitStack() as running:
        for command in COMMANDS:
            if command in ELSEWHERE:
                continue
            if command.endswith("&"):
                running.enter_context(_background(command))
                continue
            given, piped, rest = command.rpartition(" | ")
            stdin = shlex.split(given)[1] if piped else None
            done = retinue(*shlex.split(rest)[1:], stdin=stdin)
            assert done.exit_code == 0, f"{command}\n{done.output}"
            assert done.output, command
    assert Path("copy.yaml").read_text() == flow[1]
