"""What a team has spent of its budget, from the file in which its models count."""

from __future__ import annotations

import asyncio

import orjson
from click.testing import CliRunner

from retinue.cli.program import program
from retinue.llm.completion import Usage
from retinue.llm.team_budget import TeamBudget, TeamLimits
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.commands.teams.known import list_known
from retinue.runtime.commands.teams.places import unpack
from retinue.runtime.teams.spending import read_team_spending
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.storage.state import State
from retinue.team.package import Team
from tests.team.conftest import WriteTeam


async def start(teams: TeamCommands, state: State, write_team: WriteTeam, more: str) -> Team:
    team = (await teams.pack(write_team(more=more), registry=None, output=None)).team
    store = TeamStore(state)
    await unpack(store, await teams.pull(team.digest))
    store.write_row(TeamRow("words", team.digest, team.version))
    return team


async def test_spending_and_reservations_are_those_that_limit_the_models(
    teams: TeamCommands, state: State, write_team: WriteTeam
) -> None:
    limits = "[budget]\nmax_cost_per_day = 5.0\nmax_tokens_per_day = 100000\n"
    limits += '[llm.m]\nprovider = "anthropic"\nmodel = "claude-sonnet-5-5"\n'
    team = await start(teams, state, write_team, limits)
    assert read_team_spending(state, team)["cost_usd"] == 0.0

    own = TeamLimits("words", 100_000, 5.0)
    with TeamBudget(state.budget_of_team("words"), own, lapse_s=60.0).changing() as budget:
        budget.settle(budget.reserve(Usage(0, 0)), Usage(1_000, 200, cost_usd=1.25))
        budget.reserve(Usage(3_000, 0, cost_usd=0.5))
        counted = {name: spent for name, _, spent in budget.list_limits()}
    spending = read_team_spending(state, team)
    assert counted == {
        "budget.max_tokens_per_day": spending["tokens"] + spending["tokens_reserved"],
        "budget.max_cost_per_day": spending["cost_usd"] + spending["cost_usd_reserved"],
    }

    shown = "$1.2500 of $5 ($0.5000 reserved), 1,200 of 100,000 tokens (3,000 reserved) on "
    (known,) = await list_known(state)
    assert known["budget"]["text"].startswith(shown)
    output = await asyncio.to_thread(show, state, "words")
    assert f"budget     {shown}" in output
    as_json = await asyncio.to_thread(show, state, "words", "--json")
    assert orjson.loads(as_json)["teams"][0]["budget"] == known["budget"]


def show(state: State, *arguments: str) -> str:
    """What ``retinue team`` prints."""
    environment = {"RETINUE_HOME": str(state.root)}
    return CliRunner().invoke(program, ["team", *arguments], env=environment).output


async def test_a_team_without_a_budget_shows_none(
    teams: TeamCommands, state: State, write_team: WriteTeam
) -> None:
    assert read_team_spending(state, await start(teams, state, write_team, "")) == {}
    (known,) = await list_known(state)
    assert "budget" not in known
