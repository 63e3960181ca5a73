from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from retinue.core.errors import ExecutionFailedError, InvalidParametersError
from retinue.processes.limited import run_command
from retinue_testwriter import builder, planner, running, tester
from retinue_testwriter.notes import parse_code_notes, parse_plan_notes
from tests.requirements import requirement
from testwriter.shared import AGENTS, write_tests

LEDGER = '''
"""A ledger."""

def settle(amount: int, rate: int = 2) -> int:
    """What is due; raises ValueError for a negative amount."""
    if amount < 0:
        raise ValueError(amount)
    if amount == 13:
        return "unlucky"[20]
    return amount * rate
'''


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.py"
    file.write_text(LEDGER)
    return file


@requirement("P-25")
def test_the_three_agents_offer_the_skills_of_the_example_and_need_only_its_fields() -> None:
    offered = {skill.id: skill for agent in AGENTS for skill in agent.skills}
    schemas = {name: skill.input_schema or {} for name, skill in offered.items()}
    assert {name: schema["required"] for name, schema in schemas.items()} == {
        "create_plan": ["requirements"],
        "generate_code": ["plan"],
        "review_code": ["code"],
    }
    assert {name: skill.roles for name, skill in offered.items()} == {
        "create_plan": ("plan",),
        "generate_code": ("execute",),
        "review_code": ("review",),
    }
    assert all(skill.hints.runs_code and skill.visibility == "exposed" for skill in offered.values())
    assert [agent.name for agent in AGENTS] == ["plan-agent", "build-agent", "test-agent"]


async def test_a_plan_says_what_to_test_in_words_and_for_machines(ledger: Path) -> None:
    plan = await planner.agent.call("create_plan", {"requirements": f"tests for {ledger}"})
    assert "settle(amount: int, rate: int = 2) → int; may raise ValueError" in plan["plan"]
    assert plan["steps"]
    notes = parse_plan_notes(plan["plan"])
    assert notes is not None
    assert (notes["module"], notes["source"], notes["targets"]) == ("ledger", str(ledger), ["settle"])


async def test_a_request_without_a_module_is_refused_with_a_way_out() -> None:
    with pytest.raises(ExecutionFailedError, match=r"names no Python module") as caught:
        await planner.agent.call(
            "create_plan", {"requirements": "Create a function that calculates Fibonacci numbers"}
        )
    assert "textwrap" in caught.value.remedy


async def test_a_plan_of_somebody_else_that_names_no_module_is_refused() -> None:
    with pytest.raises(ExecutionFailedError, match="names no Python module"):
        await builder.agent.call("generate_code", {"plan": "1. think 2. write 3. rest"})


@pytest.mark.parametrize(
    ("exception", "raises", "named"),
    [
        ("ValueError", ("ValueError",), True),
        ("UnicodeDecodeError", ("ValueError",), True),
        ("packaging.version.InvalidVersion", ("InvalidVersion",), True),
        ("KeyError", ("ValueError",), False),
        ("ValueError", (), False),
    ],
)
def test_an_exception_is_documented_by_its_own_name_or_a_base(
    exception: str, raises: tuple[str, ...], named: bool
) -> None:
    assert builder.is_named(exception, raises) is named


async def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidParametersError, match="'code'"):
        await tester.agent.call("review_code", {})


@pytest.mark.parametrize(
    ("code", "message"),
    [("def f(:", r"no Python \(line 1\)"), ("x = 1", "no tests"), ("", "no tests")],
)
async def test_code_without_tests_is_refused(code: str, message: str) -> None:
    with pytest.raises(ExecutionFailedError, match=message):
        await tester.agent.call("review_code", {"code": code})


async def test_any_pytest_file_can_be_reviewed() -> None:
    code = "def test_sum():\n    assert 1 + 1 == 2\n\ndef test_wrong():\n    assert 1 + 1 == 3\n"
    review = await tester.agent.call("review_code", {"code": code}, timeout_s=60)
    assert (review["passed"], review["failed"], review["coverage"]) == (1, 1, None)
    assert "test_wrong" in review["review"]


@requirement("P-25")
@pytest.mark.timeout(600)
async def test_the_workflow_narrows_until_every_test_passes(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = await write_tests(str(ledger))
    assert output["failed"] == 0
    assert output["rounds"] in (2, 3)
    assert all(output[name] for name in ("plan", "code", "review", "feedback"))
    # The counter-example is a finding about the module, in the review and in the test itself.
    assert [e["what"] for e in output["counter_examples"]] == [
        "raises IndexError, which it does not document"
    ]
    assert "except IndexError:  # found, not documented" in output["code"]
    assert output["coverage"] == 100
    assert parse_code_notes(output["code"])["source"] == str(ledger)
    assert "nothing()" not in output["code"]


@pytest.mark.timeout(600)
async def test_the_same_plan_gives_the_same_tests(ledger: Path) -> None:
    plan = await planner.agent.call("create_plan", {"requirements": str(ledger)})
    first = await builder.agent.call("generate_code", {"plan": plan["plan"]}, timeout_s=120)
    builder._probed.clear()
    second = await builder.agent.call("generate_code", {"plan": plan["plan"]}, timeout_s=120)
    assert first == second


async def test_targets_struck_from_a_plan_are_not_tested() -> None:
    plan = await planner.agent.call("create_plan", {"requirements": "html"})
    only = plan["plan"].replace('"targets": [\n  "escape",\n  "unescape"\n ]', '"targets": ["unescape"]')
    code = await builder.agent.call("generate_code", {"plan": only}, timeout_s=120)
    assert all("unescape" in test for test in code["tests"])


async def test_code_is_not_reviewed_as_root_where_nothing_bounds_its_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "run_command", partial(run_command, bounds=()))
    code = "def test_one():\n    assert True\n"
    if os.getuid() == 0:
        with pytest.raises(ExecutionFailedError, match="as root, nothing on this machine limits") as caught:
            await tester.agent.call("review_code", {"code": code})
        assert "RETINUE_UNBOUNDED_PROGRAMS=1" in caught.value.remedy
    monkeypatch.setenv("RETINUE_UNBOUNDED_PROGRAMS", "1")
    review = await tester.agent.call("review_code", {"code": code}, timeout_s=120)
    assert review["passed"] == 1
