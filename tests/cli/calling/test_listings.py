"""``agents``, ``show``, ``find`` and ``workflows`` without a hub: straight from the registries."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from retinue.cards.signatures import CardSigner, SigningKey
from retinue.cli.calling.agents import describe_age
from retinue.oci.layout.folder_registry import LayoutRegistry
from retinue.oci.registry import publish_card
from retinue.storage.state import State
from tests.cli.conftest import Retinue, publish

DEAD = "http://127.0.0.1:1"


def test_an_empty_mesh_is_said_and_how_to_fill_it(retinue: Retinue) -> None:
    listed = retinue("agents")
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "retinue serve" in listed.stderr


def test_agents_are_a_table_of_whole_lines(retinue: Retinue, plan_card: bytes) -> None:
    listed = retinue("agents")
    heading, row = listed.stdout.splitlines()
    assert heading.split() == ["NAME", "VERSION", "STATUS", "SKILLS", "URL"]
    assert row.split("\t") == ["plan-agent", "1.2.0", "unknown", "2", DEAD]
    assert listed.stderr == ""


def test_an_agent_with_many_skills_is_one_short_row(retinue: Retinue, retinue_home: Path) -> None:
    card = {"name": "many-agent", "url": DEAD, "skills": [{"id": f"skill{n}"} for n in range(1000)]}
    publish(retinue_home, "many-agent", orjson.dumps(card))
    _, row = retinue("agents").stdout.splitlines()
    assert row.split("\t") == ["many-agent", "", "unknown", "1000", DEAD]
    _, row = retinue("agents", "--skills").stdout.splitlines()
    assert row.split("\t")[3].split(", ") == [f"skill{n}" for n in range(1000)], "piped, it is whole"


def test_a_card_with_a_control_character_is_named_with_the_field(
    retinue: Retinue, retinue_home: Path, plan_card: bytes
) -> None:
    card = {"name": "sly-agent", "url": DEAD, "description": "harmless \x1b[2J", "skills": []}
    publish(retinue_home, "sly-agent", orjson.dumps(card))
    listed = retinue("agents")
    assert "plan-agent" in listed.stdout
    assert "sly-agent" not in listed.stdout
    assert "description holds U+001B" in listed.stderr


def test_agents_as_json_are_json_and_nothing_else(retinue: Retinue, plan_card: bytes) -> None:
    reply = orjson.loads(retinue("agents", "--json").stdout)
    assert [row["name"] for row in reply["agents"]] == ["plan-agent"]
    assert reply["missing"] == []


def test_a_failed_exam_is_told_also_to_whom_its_problems_are_not_shown(
    retinue: Retinue, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "plan-agent", "status": "available"}

    async def list_agents(text: str, hub: str | None) -> object:
        exams = ({"result": "failed"}, {"result": "failed", "problems": ["plan: no"]})
        return {"agents": [row | {"exam": exam} for exam in exams]}

    monkeypatch.setattr("retinue.cli.calling.agents._list_agents", list_agents)
    listed = retinue("agents")
    assert listed.stdout.splitlines()[0].split()[-1] == "EXAM"
    assert "plan-agent failed its exam\n" in listed.stderr
    assert "plan-agent failed its exam: plan: no" in listed.stderr


def test_a_signature_that_is_not_valid_is_shown_beside_the_others(
    retinue: Retinue, retinue_home: Path, plan_card: bytes
) -> None:
    card = {"name": "signed-agent", "url": DEAD, "skills": []}
    content, signer = orjson.dumps(card), CardSigner(SigningKey.create())
    asyncio.run(
        publish_card(
            LayoutRegistry(State(retinue_home).registry),
            "signed-agent",
            content,
            version=None,
            skills=[],
            created=datetime.now(UTC),
            signatures=[signer.sign(content)],
        )
    )
    heading, plan, signed = retinue("agents").stdout.splitlines()
    assert heading.split()[-1] == "SIGNATURE"
    assert signed.split()[-1] == "unknown_key"
    assert "unknown_key" not in plan
    assert "signature:  unknown_key" in retinue("show", "signed-agent").stdout


def test_a_registry_that_does_not_answer_is_named_beside_the_list(
    retinue: Retinue, plan_card: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETINUE_REGISTRIES", f'["{DEAD}"]')
    listed = retinue("agents")
    assert listed.exit_code == 0
    assert "plan-agent" in listed.stdout
    assert listed.stderr.startswith(f"warning: {DEAD}")
    assert "missing" in orjson.loads(retinue("agents", "--json").stdout)


def test_show_tells_what_a_skill_takes(retinue: Retinue, plan_card: bytes) -> None:
    shown = retinue("show", "plan-agent")
    assert shown.stdout.startswith("plan-agent 1.2.0  Plans things\n")
    row = next(line for line in shown.stdout.splitlines() if line.startswith("create_plan"))
    assert row.split()[1:3] == ["requirements,", "rounds?"]


def test_show_as_json_holds_the_card(retinue: Retinue, plan_card: bytes) -> None:
    reply = orjson.loads(retinue("show", "plan-agent", "--json").stdout)
    assert reply["card"] == orjson.loads(plan_card)


def test_an_unknown_agent_is_answered_with_a_near_one(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("show", "plan-agnet")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert refused.stderr == "error: Unknown agent: plan-agnet — did you mean plan-agent?\n"


def test_find_by_words(retinue: Retinue, plan_card: bytes) -> None:
    found = retinue("find", "documentation reading")
    assert [line.split()[0] for line in found.stdout.splitlines()] == ["SKILL", "read_docs"]


def test_find_by_id_in_a_version(retinue: Retinue, plan_card: bytes) -> None:
    assert "1.2.0" in retinue("find", "--skill", "create_plan", "--version", ">=1,<2").stdout
    refused = retinue("find", "--skill", "create_plan", "--version", ">=2")
    assert refused.exit_code == 3
    assert "1.2.0" in refused.stderr


def test_find_keeps_agents_with_a_label(retinue: Retinue, plan_card: bytes) -> None:
    reply = orjson.loads(retinue("find", "--label", "team=search", "--json").stdout)
    assert reply["skills"] == []
    refused = retinue("find", "--label", "team")
    assert refused.exit_code != 0
    assert refused.stderr.startswith("error: --label: 'team' is not K=V")


def test_find_url_prints_urls_only(retinue: Retinue, plan_card: bytes) -> None:
    assert retinue("find", "--skill", "create_plan", "--url").stdout == f"{DEAD}\n"


def test_find_says_when_nothing_fits(retinue: Retinue, plan_card: bytes) -> None:
    found = retinue("find", "astronomy")
    assert (found.exit_code, found.stdout) == (0, "")
    assert "retinue find" in found.stderr


def test_an_unknown_skill_is_answered_with_a_near_one(retinue: Retinue, plan_card: bytes) -> None:
    refused = retinue("find", "--skill", "create_plam")
    assert refused.stderr == "error: Unknown skill: create_plam — did you mean create_plan?\n"
    assert refused.exit_code == 3
    as_json = retinue("find", "--skill", "create_plam", "--json")
    assert as_json.stdout == ""
    assert orjson.loads(as_json.stderr)["error"]["data"]["near"] == ["create_plan"]


def test_find_in_one_registry_looks_nowhere_else(retinue: Retinue, plan_card: bytes, tmp_path: Path) -> None:
    other = tmp_path / "other"
    publish(
        other,
        "read-agent",
        b'{"name": "read-agent", "url": "http://x:2", "skills": [{"id": "read"}]}',
    )
    found = orjson.loads(retinue("find", "--registry", str(other / "registry"), "--json").stdout)
    assert [row["skill"] for row in found["skills"]] == ["read"]
    refused = retinue("find", "--skill", "create_plan", "--registry", str(other / "registry"))
    assert refused.exit_code == 3


def test_a_registry_without_scheme_is_refused_with_the_right_spelling(retinue: Retinue) -> None:
    refused = retinue("find", "--registry", "localhost:5000")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("— write http://localhost:5000\n")


def test_a_dead_hub_is_named_with_the_remedy(retinue: Retinue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETINUE_HUB", DEAD)
    refused = retinue("agents")
    assert (refused.exit_code, refused.stdout) == (7, "")
    assert refused.stderr.count("\n") == 1
    assert DEAD in refused.stderr
    assert "retinue hub" in refused.stderr


def test_a_state_folder_that_is_a_file_is_named_with_the_remedy(retinue: Retinue, retinue_home: Path) -> None:
    retinue_home.write_text("not a folder")
    refused = retinue("agents")
    assert refused.exit_code == 8
    assert refused.stderr == (
        f"error: {retinue_home} is damaged: it is not a folder — move the file away, or set RETINUE_HOME\n"
    )


def test_a_damaged_hub_file_is_named_with_the_remedy(retinue: Retinue, retinue_home: Path) -> None:
    retinue_home.mkdir()
    (retinue_home / "hub.json").write_text("{")
    refused = retinue("agents")
    assert refused.exit_code == 8
    assert "hub.json is damaged" in refused.stderr
    assert "remove the file" in refused.stderr


def test_a_damaged_card_never_empties_the_list(
    retinue: Retinue, plan_card: bytes, retinue_home: Path
) -> None:
    publish(retinue_home, "broken-agent", b"{}")
    listed = retinue("agents")
    assert listed.exit_code == 0
    assert "plan-agent" in listed.stdout
    assert "agents/broken" in listed.stderr


def test_no_workflows_is_said(retinue: Retinue) -> None:
    listed = orjson.loads(retinue("workflows", "--json").stdout)
    assert not any("origin" in row for row in listed["workflows"])


def test_without_a_hub_the_runs_are_those_of_the_state_folder(retinue: Retinue) -> None:
    listed = retinue("runs")
    assert listed.exit_code == 0
    assert "no runs yet" in listed.stderr
    assert retinue("runs", "--status", "limited").stderr == "no such runs\n"


@pytest.mark.parametrize("command", [("runs", "x"), ("resume", "x"), ("cancel", "x"), ("signal", "x", "t")])
def test_a_run_that_does_not_exist_is_named(retinue: Retinue, command: tuple[str, ...]) -> None:
    refused = retinue(*command)
    assert refused.exit_code != 0
    assert refused.stderr.startswith("error: Unknown run: x")


@pytest.mark.parametrize(
    ("time", "told"),
    [
        ("2026-11-22T11:59:55+00:00", "5 s ago"),
        ("2026-11-22T11:59:55Z", "5 s ago"),
        ("2026-11-22T12:00:05+00:00", "0 s ago"),
        ("2026-11-22T11:57:00+00:00", "3 min ago"),
        ("2026-11-22T09:30:00+00:00", "2 h ago"),
        ("2026-11-19T09:30:00+00:00", "3 days ago"),
        ("noon", "noon"),
        ("2026-11-22T11:00:00", "2026-11-22T11:00:00"),
    ],
)
def test_a_time_is_told_by_how_long_ago_it_was(time: str, told: str) -> None:
    assert describe_age(time, datetime(2026, 11, 22, 12, tzinfo=UTC)) == told


def test_a_name_taken_from_a_host_replaces_no_import_of_another_url(retinue: Retinue) -> None:
    first, second = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert "127-0-0-1" in retinue("import", "a2a", first).stdout
    for again in (("a2a", second), ("openapi", f"{second}/openapi.json")):
        refused = retinue("import", *again)
        assert refused.exit_code != 0
        assert "127-0-0-1" in refused.stderr
        assert "--name" in refused.stderr
    listed = orjson.loads(retinue("imports", "--json").stdout)["imports"]
    assert [(one["name"], one["connects_to"]) for one in listed] == [("127-0-0-1", first)]
    assert retinue("import", "a2a", first, "--private", "--replace").exit_code == 0
    assert retinue("import", "a2a", second, "--name", "127-0-0-1", "--replace").exit_code == 0


@pytest.mark.parametrize("url", ["nonsense", "ftp://example.org", "http://", "http://[::1"])
def test_an_import_of_what_is_no_url_says_so(retinue: Retinue, url: str) -> None:
    refused = retinue("import", "a2a", url)
    assert refused.exit_code != 0
    assert "is not an http or https url" in refused.stderr
