"""What ``call`` and ``run`` refuse before anything is asked."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from retinue.cli.options import MAX_INPUT_CHARACTERS
from tests.cli.conftest import Retinue

FLOW = "name: hello\nsteps:\n  - id: one\n    skill: greet\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"a', "arguments: not valid JSON (unexpected end of data, line 1, column 4)"),
        ("name: Ada", "arguments: not valid JSON (invalid literal, expected 'null', line 1, column 1)"),
        ('["Ada"]', "arguments: a list, not an object"),
        ('"Ada"', "arguments: a string, not an object"),
        ("5", "arguments: a number, not an object"),
        ("true", "arguments: a boolean, not an object"),
        ("null", "arguments: null, not an object"),
    ],
)
def test_arguments_that_are_no_json_object_are_refused_with_an_example(
    given: str, said: str, retinue: Retinue
) -> None:
    refused = retinue("call", "greet", given)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == f"""error: {said} — write an object, such as '{{"name": "Ada"}}'\n"""


@pytest.mark.parametrize("place", ["-", "@-", "@given.json"])
def test_arguments_come_from_standard_input_or_a_file_as_with_curl(
    place: str, retinue: Retinue, plan_card: bytes
) -> None:
    Path("given.json").write_text('{"rounds": 1}')
    refused = retinue("call", "create_plan", place, stdin='{"rounds": 1}')
    assert "missing required field 'requirements'" in refused.stderr
    assert refused.exit_code == 2


def test_a_file_of_arguments_that_cannot_be_read_is_named(retinue: Retinue) -> None:
    assert "arguments: none.json cannot be read: No such file" in retinue("call", "x", "@none.json").stderr
    Path("latin.json").write_bytes(b'{"a": "\xe9"}')
    assert "latin.json is not UTF-8" in retinue("call", "x", "@latin.json").stderr
    Path("large.json").write_text("1" * (MAX_INPUT_CHARACTERS + 1))
    assert "large.json is over" in retinue("call", "x", "@large.json").stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            b'{"text": "' + b"x" * MAX_INPUT_CHARACTERS,
            "arguments: standard input is over 4,194,304 characters",
        ),
        (b'{"text": "\xff"}', "arguments: standard input is not UTF-8"),
    ],
)
def test_standard_input_that_cannot_be_taken_is_named_for_what_it_is(
    given: bytes, said: str, retinue: Retinue
) -> None:
    refused = retinue("call", "create_plan", "-", stdin=given)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"error: {said} — ")


def test_a_skill_that_nobody_offers_is_answered_with_a_near_one(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("call", "create_plam", "{}", "--json")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert orjson.loads(refused.stderr)["error"]["remedy"] == "did you mean create_plan?"


def test_an_agent_that_is_gone_is_named_with_its_url(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("call", "create_plan", '{"requirements": "x"}')
    assert (refused.exit_code, refused.stdout) == (7, "")
    assert "plan-agent" in refused.stderr
    assert "http://127.0.0.1:1" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_version_that_nobody_has_is_refused(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("call", "create_plan", '{"requirements": "x"}', "--version", ">=2")
    assert refused.exit_code == 3
    assert "1.2.0" in refused.stderr


def test_a_workflow_file_that_is_not_there(retinue: Retinue) -> None:
    refused = retinue("run", "flow.yaml")
    assert (refused.exit_code, refused.stderr) == (2, "error: FILE: no file flow.yaml — check the path\n")


def test_a_wrong_workflow_is_named_with_its_line(retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW.replace("skill:", "skil:"))
    refused = retinue("run", "flow.yaml")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: flow.yaml:4: ")
    assert "did you mean skill?" in refused.stderr


def test_an_unknown_workflow_is_named(retinue: Retinue) -> None:
    refused = retinue("run", "no-such-flow")
    assert refused.exit_code == 3
    assert "no-such-flow" in refused.stderr


def test_the_input_of_a_run_must_be_an_object(retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    refused = retinue("run", "flow.yaml", "[]")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: input: a list, not an object")


def test_a_step_that_nobody_offers_is_refused_before_the_run_with_file_and_line(retinue: Retinue) -> None:
    Path("flow.yaml").write_text(FLOW)
    refused = retinue("run", "flow.yaml", "{}", "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    error = orjson.loads(refused.stderr.splitlines()[-1])["error"]
    assert error["message"] == "flow.yaml:4: steps[0].skill: Unknown skill: greet"
    assert error["data"]["column"] == 5
    assert orjson.loads(retinue("runs", "--json").stdout) == {"runs": []}


def test_a_step_that_nobody_offers_and_that_may_not_run_is_a_warning_with_file_and_line(
    retinue: Retinue,
) -> None:
    Path("flow.yaml").write_text(FLOW + "    when: has(input.name)\noutput: {}\n")
    done = retinue("run", "flow.yaml", "{}")
    assert (done.exit_code, done.stdout) == (0, "{}\n")
    assert "warning: flow.yaml:4: steps[0].skill: Unknown skill: greet" in done.stderr
