"""The guide to schedules and triggers is one session, with a webhook that curl sends and openssl signs."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from retinue.workflows.triggers import TOLERANCE_S
from tests.docs.pages import ROOT
from tests.docs.sessions.test_guides import list_blocks, list_commands
from tests.docs.shell import Shell
from tests.processes.running import wait_until

PAGE = "guides/scheduling.md"
_FILE = re.compile(r"as `([\w./-]+)`:$")


def test_the_guide_to_schedules_runs_as_shown(
    shell: Shell, fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, str] = {}
    last = ""
    for block in list_blocks(PAGE):
        if file := _FILE.search(block.intro):
            (fresh_folder / file[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            assert len(list(list_commands(block.text))) == block.text.count("$ "), block.text
            for command in list_commands(block.text):
                last = answers[command] = shell.type(command)
                if command == "retinue schedules add deploy":
                    printed = dict(line.split(": ", 1) for line in last.splitlines())
                    monkeypatch.setenv("HOOK_URL", printed["url"])
                    monkeypatch.setenv("HOOK_SECRET", printed["secret"])
        elif block.intro == "Output:":
            assert orjson.loads(last) == orjson.loads(block.text)
    assert re.search(
        r"nightly\tnightly\t0 3 \* \* mon-fri Europe/Berlin\tactive", answers["retinue schedules"]
    )
    assert re.search(r"deploy\tdeploy\twebhook\tactive", answers["retinue schedules"])
    assert "Hello, ab12!" in answers["retinue runs deploy:evt_1 --follow"]
    wait_until(lambda: "welcome" in shell.type("retinue runs --status done"), "the new agent starts a run")
    assert "welcome:joined-other-agent-" in shell.type("retinue runs")
    refused = shell.type("""sh send-event.sh '{"commit": "ab12"}' evt_2""")
    assert "starts nothing now" in orjson.loads(refused)["detail"], "it is paused"


def test_the_shown_answer_of_add_has_the_lines_that_it_prints() -> None:
    (shown,) = (block for block in list_blocks(PAGE) if block.language == "text")
    assert [line.partition(": ")[0] for line in shown.text.splitlines()] == ["deploy", "url", "secret"]


def test_the_guide_says_how_old_a_request_may_be() -> None:
    assert TOLERANCE_S == 300
    assert (ROOT / "docs" / PAGE).read_text(encoding="utf-8").count("five minutes away") == 2
