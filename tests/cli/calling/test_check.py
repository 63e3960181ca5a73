"""``retinue workflows check``: faults of files without a run, and without a hub."""

from __future__ import annotations

from pathlib import Path

import orjson

from retinue.flows.source_digest import digest_source
from tests.cli.conftest import Retinue

FAULTY = """\
name: nightly
steps:
  - id: first
    skill: create_plan
    retri: {attempts: 2}
  - {id: second, skill: plus}
  - {id: second, skill: plus}
"""
GOOD = "name: nightly\nsteps:\n  - {id: a, skill: create_plan}\n"


def test_a_fault_is_one_line_with_file_line_column_and_remedy(retinue: Retinue) -> None:
    Path("faulty.yaml").write_text(FAULTY)
    Path("good.yaml").write_text(GOOD)
    done = retinue("workflows", "check", "faulty.yaml", "good.yaml")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "faulty.yaml:5:5: steps[0].retri: unknown key 'retri' — did you mean retry?",
        "good.yaml: ok",
    ]


def test_all_faults_of_a_file_are_listed_as_json(retinue: Retinue) -> None:
    text = FAULTY.replace("    retri: {attempts: 2}\n", '    when: "1 +"\n').replace("id: second", "id: b", 1)
    Path("faulty.yaml").write_text(text + '  - {id: c, skill: plus, with: {a: "${{ nope( }}"}}\n')
    done = retinue("workflows", "check", "--json", "faulty.yaml")
    assert done.exit_code == 1
    reply = orjson.loads(done.stdout)
    (file,) = reply["files"]
    assert (reply["valid"], reply["hub"], file["file"], file["valid"]) == (False, None, "faulty.yaml", False)
    assert [(one["line"], one["column"]) for one in file["problems"]] == [(5, 5), (8, 33)]
    assert all(one["message"] and one["remedy"] for one in file["problems"])


def test_files_without_faults_exit_with_0_and_it_is_said_that_no_hub_was_asked(retinue: Retinue) -> None:
    Path("good.yaml").write_text(GOOD)
    done = retinue("workflows", "check", "good.yaml")
    assert (done.exit_code, done.stdout) == (0, "good.yaml: ok\n")
    assert "no hub is running" in done.stderr


def test_text_that_is_no_yaml_and_a_missing_file_are_faults_of_that_file(retinue: Retinue) -> None:
    Path("broken.yaml").write_text("name: w\nsteps: [\n")
    done = retinue("workflows", "check", "broken.yaml", "missing.yaml")
    assert done.exit_code == 1
    broken, missing = done.stdout.splitlines()
    assert broken.startswith("broken.yaml:3:1: ")
    assert missing == "missing.yaml: FILE: no file missing.yaml — check the path"


def test_a_check_without_a_file_names_the_argument(retinue: Retinue) -> None:
    done = retinue("workflows", "check")
    assert done.exit_code == 2
    assert "FILE" in done.stderr


def test_a_new_workflow_names_the_schema_beside_it_and_has_no_fault(retinue: Retinue) -> None:
    made = retinue("new", "--workflow", "word-flow")
    assert made.exit_code == 0
    first, second = Path("word-flow.yaml").read_text("utf-8").splitlines()[:2]
    assert (first, second) == ("# yaml-language-server: $schema=workflow.schema.json", "name: word-flow")
    assert orjson.loads(Path("workflow.schema.json").read_bytes())["title"] == "Workflow"
    assert retinue("workflows", "check", "word-flow.yaml").exit_code == 0
    again = retinue("new", "--workflow", "word-flow")
    assert again.exit_code != 0
    assert "word-flow.yaml exists" in again.stderr


FLOWS = """import time

from retinue import Run, workflow


@workflow
async def stamps(run: Run) -> float:
    return time.time()
"""


def test_a_warning_of_a_workflow_in_python_names_line_and_remedy_and_is_no_fault(retinue: Retinue) -> None:
    Path("stamping.py").write_text(FLOWS)
    checked = retinue("workflows", "check", "stamping.py")
    assert checked.exit_code == 0
    assert checked.stdout.splitlines() == [
        "stamping.py:8:12: warning: time.time() reads the clock, which differs each time "
        "the function is begun — use await run.now()",
        f"stamping.py: ok ({digest_source(FLOWS)})",
    ]
