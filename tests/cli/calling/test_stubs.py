"""``retinue stubs`` writes a module, and checks the one that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.conftest import PLAN_CARD, Retinue, publish

pytestmark = pytest.mark.usefixtures("plan_card")


def test_a_module_is_written_once_and_the_check_accepts_it(retinue: Retinue) -> None:
    made = retinue("stubs", "mesh_stubs.py")
    assert (made.exit_code, made.stdout) == (0, "mesh_stubs.py: 2 skills\n")
    text = Path("mesh_stubs.py").read_text()
    assert "    requirements: str\n    rounds: NotRequired[int]\n" in text
    assert "Make it again: retinue stubs mesh_stubs.py\n" in text
    again = retinue("stubs", "mesh_stubs.py")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "up to date" in again.stderr
    assert retinue("stubs", "mesh_stubs.py", "--check").exit_code == 0
    assert retinue("stubs", "-").stdout == text.replace("mesh_stubs.py", "-")


def test_the_check_names_the_skills_that_differ(retinue: Retinue, retinue_home: Path) -> None:
    retinue("stubs", "s.py")
    plan: Any = PLAN_CARD["skills"][0]
    skills = [{**plan, "description": "Plans."}, {"id": "fly"}]
    publish(retinue_home, "plan-agent", orjson.dumps({**PLAN_CARD, "skills": skills}), ("create_plan", "fly"))
    checked = retinue("stubs", "s.py", "--check")
    assert checked.exit_code == 1
    assert checked.stdout.splitlines() == [
        "s.py differs from the mesh",
        '  added    "fly"',
        '  removed  "read_docs"',
        '  changed  "create_plan"',
    ]
    assert checked.stderr == "make it again: retinue stubs s.py\n"
    assert retinue("stubs", "s.py").exit_code == 0
    assert retinue("stubs", "s.py", "--check").exit_code == 0


def test_the_check_of_an_edited_or_missing_file_fails(retinue: Retinue) -> None:
    retinue("stubs", "s.py")
    with Path("s.py").open("a") as file:
        file.write("# mine\n")
    checked = retinue("stubs", "s.py", "--check")
    assert checked.exit_code == 1
    assert "it was edited, or made by another version" in checked.stdout
    missing = retinue("stubs", "other.py", "--check")
    assert missing.exit_code == 1
    assert missing.stdout.startswith("other.py does not exist\n  added ")
    assert not Path("other.py").exists()


def test_agents_and_skills_are_chosen_by_globs(retinue: Retinue) -> None:
    made = retinue("stubs", "s.py", "--agent", "plan-*", "--skill", "create_*", "--sync")
    assert made.stdout == "s.py: 1 skills\n"
    text = Path("s.py").read_text()
    assert "Make it again: retinue stubs s.py --agent 'plan-*' --skill 'create_*' --sync\n" in text
    assert "\ndef create_plan(\n    mesh: SyncMeshConnection, /, *,\n" in text
    assert "await" not in text.partition("# digest")[2]
    refused = retinue("stubs", "s.py", "--agent", "nobody")
    assert refused.exit_code == 2
    assert (
        refused.stderr
        == "error: stubs: no skill of the mesh fits --agent and --skill — list them: retinue find\n"
    )


@pytest.mark.parametrize("content", [b"print('mine')\n", b"\xff\xfe"])
def test_a_file_that_stubs_did_not_make_is_kept(retinue: Retinue, content: bytes) -> None:
    Path("mine.py").write_bytes(content)
    for options in ((), ("--check",)):
        refused = retinue("stubs", "mine.py", *options)
        assert refused.exit_code == 2
        assert refused.stderr.startswith("error: mine.py: ")
    assert Path("mine.py").read_bytes() == content


def test_a_folder_that_is_not_there_is_one_line(retinue: Retinue) -> None:
    refused = retinue("stubs", "nowhere/s.py")
    assert refused.exit_code == 8
    assert refused.stderr.startswith("error: cannot write nowhere/s.py: No such file or directory")


def test_a_hub_that_does_not_answer_is_named(retinue: Retinue) -> None:
    refused = retinue("stubs", "s.py", "--hub", "http://127.0.0.1:1")
    assert refused.exit_code == 7
    assert "http://127.0.0.1:1" in refused.stderr
    assert not Path("s.py").exists()
