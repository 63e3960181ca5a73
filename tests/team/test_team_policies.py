"""Policies of a team: what they bind, what they may not do, and what changes with another digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retinue.core.call import LOCAL, Principal
from retinue.core.errors import InvalidSettingError
from retinue.core.record import Skill
from retinue.policies.decision import CallFacts, Engine
from retinue.policies.entities import CALL, Caller, Resource, TeamScope
from retinue.policies.policy_set import load_policies
from retinue.runtime.commands.teams.commands import TeamCommands
from retinue.runtime.loading.policy_files import PolicyFiles
from retinue.runtime.teams.programs import CONFIG
from retinue.runtime.teams.rollout import StoredRollout
from retinue.runtime.teams.store import TeamRow, TeamStore
from retinue.settings_tables import PolicyTable
from retinue.storage.state import State
from tests.team.conftest import WriteTeam

NEXT = "sha256:" + "2" * 64
SCOPE = TeamScope("words", frozenset({"counter", "files"}))
NO_LONG = """
@id("short") @reason("texts are short")
forbid(principal, action == Retinue::Action::"call", resource)
when { context.args has size && context.args.size > 10 };
"""
OWNERS = """
@id("kind")
forbid(principal, action == Retinue::Action::"call", resource)
when { context.args has size && context.args.size == "huge" };
"""


def decide(engine: Engine, caller: str, agent: str, arguments: Mapping[str, Any]) -> tuple[str, list[str]]:
    resource = Resource.make(agent, "1.0.0", "home", "own_mesh", Skill("run"))
    facts = CallFacts(Caller.of(Principal(caller, "mesh")), resource, CALL, arguments)
    decision = engine.decide(facts)
    return decision.verdict, [policy.id for policy in decision.policies]


def test_policies_of_a_team_bind_calls_of_and_to_its_own_agents_only() -> None:
    engine = Engine(load_policies({"team.cedar": NO_LONG}, teams={"team.cedar": SCOPE}))
    assert decide(engine, "local", "counter", {"size": 11}) == ("deny", ["words/short"])
    assert decide(engine, "local", "counter", {"size": 1}) == ("allow", [])
    assert decide(engine, "counter", "stranger", {"size": 11}) == ("deny", ["words/short"])
    assert decide(engine, "local", "stranger", {"size": 11}) == ("allow", [])
    assert decide(engine, "stranger", "stranger", {"size": 11}) == ("allow", [])


def test_the_policies_of_a_team_bind_no_agent_of_that_name_in_another_team() -> None:
    texts = {"news.cedar": NO_LONG, "words.cedar": NO_LONG.replace("> 10", "> 20")}
    scopes = {
        "news.cedar": TeamScope("news", frozenset({"word"})),
        "words.cedar": TeamScope("words", frozenset({"word"})),
    }
    engine = Engine(load_policies(texts, teams=scopes))
    made = Resource.make("word", "1.0.0", "home", "own_mesh", Skill("run"))
    stranger = Resource.make("stranger", "1.0.0", "home", "own_mesh", Skill("run"))

    def decide_for(resource: Resource, size: int, principal: Principal = LOCAL) -> str:
        facts = CallFacts(Caller.of(principal), resource, CALL, {"size": size})
        return engine.decide(facts).verdict

    of_news, of_words = replace(made, team="news"), replace(made, team="words")
    assert (decide_for(of_news, 11), decide_for(of_words, 11)) == ("deny", "allow")
    assert (decide_for(of_news, 1), decide_for(of_words, 21)) == ("allow", "deny")
    for team, verdict in (("news", "deny"), ("words", "allow"), ("", "deny")):
        caller = Principal("word", "mesh", team=team)
        assert decide_for(stranger, 11, caller) == verdict, "an agent that does not tell its team is bound"
        assert decide_for(replace(stranger, team="else"), 11, caller) == verdict
    assert decide_for(made, 11) == "deny", "an agent elsewhere is bound by its name"


def test_a_team_that_reads_an_argument_as_another_type_disturbs_nobody_else() -> None:
    policies = load_policies({"own.cedar": OWNERS, "team.cedar": NO_LONG}, teams={"team.cedar": SCOPE})
    engine = Engine(policies)
    assert decide(engine, "local", "stranger", {"size": "huge"}) == ("deny", ["kind"])
    assert decide(engine, "local", "stranger", {"size": "small"}) == ("allow", [])
    assert decide(engine, "local", "counter", {"size": "small"})[0] == "deny"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('@id("a") permit(principal, action, resource);', "permit in a team"),
        (
            '@id("a") forbid(principal, action == Retinue::Action::"publish", resource);',
            "the action 'publish'",
        ),
        ('@id("a") forbid(principal, action == Retinue::Action::"list", resource);', "the action 'list'"),
        ('@id("a") forbid(principal in Retinue::Group::"g", action, resource);', "a group in a team"),
    ],
)
def test_a_team_permits_nothing_and_names_nothing_of_the_owner(text: str, problem: str) -> None:
    load_policies({"team.cedar": text})
    with pytest.raises(InvalidSettingError, match=problem):
        load_policies({"team.cedar": text}, teams={"team.cedar": SCOPE})


def write_policy(folder: Path, text: str, cases: str = "") -> None:
    (folder / "policies" / "tests").mkdir(parents=True, exist_ok=True)
    (folder / "policies" / "words.cedar").write_text(text)
    if cases:
        (folder / "policies" / "tests" / "words.yaml").write_text(cases)


CASES = """
- {name: a long text, call: words-agent/run, arguments: {size: 11}, expect: deny}
- {name: a long text elsewhere, call: other/run, arguments: {size: 11}, expect: allow}
"""


async def test_pack_runs_the_cases_of_policies(teams: TeamCommands, write_team: WriteTeam) -> None:
    folder = write_team()
    write_policy(folder, NO_LONG, CASES.replace("deny", "allow"))
    write_team()
    with pytest.raises(InvalidSettingError, match=r"a long text: deny by words/short; expected allow"):
        await teams.pack(folder, registry=None, output=None)


async def test_diff_tells_what_other_policies_permit_over_the_cases_of_both(
    teams: TeamCommands, write_team: WriteTeam
) -> None:
    digests = []
    for version, limit in (("1.0.0", 10), ("1.1.0", 20), ("1.2.0", 20)):
        folder = write_team(version)
        write_policy(folder, NO_LONG.replace("> 10", f"> {limit}"), CASES if limit == 10 else "")
        write_team(version)
        digests.append((await teams.pack(folder, registry=None, output=None)).team.digest)
    compared = await teams.compare(digests[0], digests[1])
    lines = [line for change in compared.changes for line in change.render()]
    assert "~ policy words/short: it decides otherwise  WIDER" in lines
    assert "~ case a long text: deny → allow  WIDER" in lines
    assert not any("elsewhere" in line for line in lines)
    assert compared.status == 3
    assert (await teams.compare(digests[1], digests[2])).status == 1


async def test_the_policies_of_a_team_count_while_it_runs(
    teams: TeamCommands, write_team: WriteTeam, state: State
) -> None:
    folder = write_team()
    write_policy(folder, NO_LONG)
    write_team()
    team = (await teams.pack(folder, registry=None, output=None)).team
    pulled = await teams.pull("words")
    config = await pulled.source.pull_blob(pulled.repository, pulled.manifest.config)
    content = {f"files/{file.path}": file.content for file in await pulled.pull_files()}
    store, files = TeamStore(state), PolicyFiles(state.root, None, ())
    with store.changing("words"):
        store.install("words", team.digest, {CONFIG: config, **content})
    assert files.load(PolicyTable()) is None

    store.write_row(TeamRow("words", team.digest, names=sorted(team.names)))
    policies, seen = files.load(PolicyTable()), files.look()
    assert policies is not None
    texts, scopes = files.read_all()
    assert load_policies(texts, teams=scopes).digest == policies.digest
    assert [(policy.id, policy.agents) for policy in policies.policies] == [
        ("words/short", frozenset({"words-agent"}))
    ]
    with store.changing("words"):
        store.install("words", NEXT, {CONFIG: config, **content})
    rollout = StoredRollout(team.digest, NEXT, "1.1.0", (5,), 0.0, 0.0, stage="serve")
    store.write_row(TeamRow("words", team.digest, names=sorted(team.names), rollout=rollout.as_json()))
    both = files.load(PolicyTable())
    assert both is not None
    assert [policy.id for policy in both.policies] == ["words/short", "words@222222222222/short"]
    store.write_row(TeamRow("words", None, before=team.digest))
    assert files.look() != seen
    assert files.load(PolicyTable(), before=seen) is None
