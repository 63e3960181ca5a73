"""``show --markdown``: the document of an agent, without a hub."""

from __future__ import annotations

from tests.cli.conftest import Retinue
from tests.requirements import requirement


@requirement("P-21")
def test_show_makes_a_document_of_the_card(retinue: Retinue, plan_card: bytes) -> None:
    shown = retinue("show", "plan-agent", "--markdown")
    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert lines[:3] == ["# `plan-agent`", "", "Plans things"]
    assert [line for line in lines if line.startswith("## ")] == ["## `create_plan`", "## `read_docs`"]
    assert "| `requirements` | `string` | yes |  |  |" in lines
    assert "| `rounds` | `integer` | no |  |  |" in lines
    assert shown.stdout.endswith("```\n")


def test_a_document_and_json_at_once_are_refused(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("show", "plan-agent", "--markdown", "--json")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--markdown and --json" in refused.stderr
