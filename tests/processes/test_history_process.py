"""The history and the exam as a person meets them: commands beside a hub, and a copy of its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.processes.commands import retinue, run_command
from tests.processes.running import program, wait_until

AGENT = """
from retinue import Agent, Example

agent = Agent("routes-agent", version="1.0.0")


@agent.skill(read_only=True, examples=[Example(arguments={"place": "Rome"})])
def plan_route(place: str) -> str:
    "Plans a journey by train."
    return f"to {place}"


@agent.skill(read_only=True, examples=[Example(arguments={"place": "Rome"})])
def book_hotel(place: str) -> str:
    "Reserves a room."
    raise RuntimeError("no rooms")
"""
ASKED = "plan a journey by train"


def test_a_person_finds_calls_and_rates_and_the_copy_of_the_state_knows_it(
    tmp_path: Path, retinue_home: Path
) -> None:
    (tmp_path / "routes.py").write_text(AGENT)
    copy = tmp_path / "copy"
    at_copy = {"RETINUE_HOME": str(copy)}

    def ask(*arguments: str, environment: Any = None) -> Any:
        return json.loads(retinue(*arguments, "--json", cwd=tmp_path, environment=environment))

    def explain(environment: Any = None) -> str:
        shown = run_command("find", ASKED, "--why", "routes-agent", cwd=tmp_path, environment=environment)
        return shown.stdout + shown.stderr

    with program("serve", "routes.py", cwd=tmp_path) as served:
        served.wait_for("published")
        with program("hub", "--bare", "--port", "0", cwd=tmp_path) as hub:
            hub.url_in("hub at")

            def is_examined() -> bool:
                (row,) = ask("agents")["agents"]
                return bool(row["exam"]["result"] == "failed")

            wait_until(is_examined, "the exam is over")
            assert "book_hotel: " in run_command("agents", cwd=tmp_path).stderr
            shown = retinue("show", "routes-agent", cwd=tmp_path)
            assert "failed (2 calls" in shown
            assert "no rooms" in shown
            assert "it failed its exam: book_hotel" in explain()
            retinue("find", ASKED, cwd=tmp_path)
            assert "to Rome" in retinue("call", "plan_route", '{"place": "Rome"}', cwd=tmp_path)
            (row,) = ask("history")["skills"]
            assert (row["skill"], row["verdicts"]) == ("plan_route", {"done": 1})
            assert ask("history", "--bad", "plan_route")["verdict"] == "bad"
            named = ("history", "--good", "plan_route", "--agent")
            assert run_command(*named, "hotels-agent", cwd=tmp_path).returncode == 2
            assert ask(*named, "routes-agent")["verdict"] == "good"
            assert run_command("history", "--good", "book_hotel", cwd=tmp_path).returncode == 2
            assert "for 1.0 earlier calls" in explain()
        retinue("backup", str(copy), cwd=tmp_path)
        with program("hub", "--bare", "--port", "0", cwd=tmp_path, environment=at_copy) as hub:
            hub.url_in("hub at")
            assert "for 1.0 earlier calls" in explain(at_copy), "the key of the hashes is in the copy"
            assert ask("history", "--forget", environment=at_copy)["forgotten"] == 1
            assert "earlier calls" not in explain(at_copy)
            assert ask("history", environment=at_copy)["skills"] == []
    assert ask("history")["skills"][0]["verdicts"] == {"good": 1}, "the command reads the state"
    own = {"RETINUE_DATABASE": f"sqlite:///{tmp_path}/runs.db"}
    assert ask("history", environment=own)["skills"][0]["verdicts"] == {"good": 1}, "the file is its own"
    off = {"RETINUE_HISTORY__KEEP": "false"}
    for command, what in (("history", "no history here"), ("wishes", "no wishes here")):
        told = run_command(command, cwd=tmp_path, environment=off).stderr
        assert f"{what}: history.keep is false" in told
    no_wishes = {"RETINUE_HISTORY__WISHES": "off"}
    told = run_command("wishes", cwd=tmp_path, environment=no_wishes).stderr
    assert "no wishes here: history.wishes is off" in told
    rated = run_command("history", "--good", "plan_route", cwd=tmp_path, environment=off)
    assert "history.keep is false" in rated.stderr
    told = run_command("history", "--forget", cwd=tmp_path, environment=off).stderr
    assert "1 records forgotten" in told
    assert ask("history")["skills"] == []
