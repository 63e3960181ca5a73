"""Options of ``retinue history``."""

from __future__ import annotations

from click.testing import CliRunner

from retinue.cli.calling.history import history


def test_history_rejects_an_empty_skill_to_rate() -> None:
    for option in ("--good", "--bad"):
        result = CliRunner().invoke(history, [option, ""])
        assert result.exit_code == 2
        assert "need the id of a skill" in result.output


def test_an_agent_is_named_only_where_its_call_is_rated() -> None:
    for arguments in (["--agent", "routes"], ["--good", "plan_route", "--agent", ""]):
        result = CliRunner().invoke(history, arguments)
        assert result.exit_code == 2
        assert "--agent needs the name of an agent, and --good or --bad" in result.output
