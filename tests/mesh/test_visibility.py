"""Who sees which skill."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.record import AgentRecord, Prompt, Resource, Skill, Visibility, is_visible
from retinue.mesh.permissions import ExposureLists, expose_resources
from tests.requirements import requirement

CLIENT = Principal("client", "anonymous")
RECORD = AgentRecord(
    "coder",
    skills=(
        Skill("fs:read_file"),
        Skill("fs:write_file", visibility="exposed"),
        Skill("git:status", visibility="private"),
        Skill("admin:reset", visibility="exposed"),
    ),
)


def visibilities(record: AgentRecord) -> dict[str, Visibility]:
    return {skill.id: skill.visibility for skill in record.skills}


@pytest.mark.parametrize(
    ("visibility", "seen_by"),
    [
        ("private", {"local"}),
        ("mesh", {"local", "anonymous"}),
        ("exposed", {"local", "anonymous", "client"}),
    ],
)
def test_each_visibility_has_its_audience(visibility: Visibility, seen_by: set[str]) -> None:
    assert {who.id for who in (LOCAL, ANONYMOUS, CLIENT) if is_visible(visibility, who.scopes)} == seen_by


def test_what_is_exposed_is_open_to_a_caller_of_the_mesh_alone() -> None:
    assert is_visible("exposed", frozenset({"mesh"}))
    assert not is_visible("exposed", frozenset({"runs_code"}))


@requirement("S-07")
def test_listed_skills_are_exposed_and_the_others_private() -> None:
    assert visibilities(ExposureLists(["fs:read_file", "git:*"]).apply(RECORD)) == {
        "fs:read_file": "exposed",
        "fs:write_file": "private",
        "git:status": "exposed",
        "admin:reset": "private",
    }


@requirement("S-08")
def test_the_private_list_wins_over_the_exposed_one() -> None:
    seen = visibilities(ExposureLists(["*"], ["admin:*", "fs:write_file"]).apply(RECORD))
    assert [skill for skill, visibility in seen.items() if visibility == "private"] == [
        "fs:write_file",
        "admin:reset",
    ]


@requirement("S-06")
def test_an_empty_list_exposes_nothing() -> None:
    assert set(visibilities(ExposureLists().apply(RECORD)).values()) == {"private"}


def test_globs_mind_the_case() -> None:
    assert visibilities(ExposureLists(["FS:*"]).apply(RECORD))["fs:read_file"] == "private"


READABLE = AgentRecord(
    "coder",
    resources=(
        Resource("agent:coder", "profile"),
        Resource("notes://{day}", "notes", visibility="exposed"),
        Resource("db://[main]", "db"),
    ),
    prompts=(Prompt("review", visibility="exposed"), Prompt("plan")),
)


def readables(lists: ExposureLists) -> dict[str, Visibility]:
    seen = lists.apply(READABLE)
    resources = {one.name: one.visibility for one in seen.resources}
    return resources | {one.name: one.visibility for one in seen.prompts}


def test_resources_are_listed_by_name_or_uri_and_prompts_by_name() -> None:
    lists = ExposureLists(
        expose_resources=["profile", "db://[main]", "notes://*"],
        private_resources=["notes"],
        expose_prompts=["p*"],
    )
    assert readables(lists) == {
        "profile": "exposed",
        "notes": "private",
        "db": "exposed",
        "review": "private",
        "plan": "exposed",
    }


def test_without_lists_a_glob_exposes_resources_and_hides_none() -> None:
    shown = {one.name: one.visibility for one in expose_resources(READABLE.resources, ["profile"])}
    assert shown == {"profile": "exposed", "notes": "exposed", "db": "mesh"}


def test_an_entry_that_matches_nothing_is_told_with_the_names_near_it() -> None:
    lists = ExposureLists(["fs:read_fil", "git:*", "nope:*"], ["admin:reset"])
    told = [str(entry) for entry in lists.find_unknown(RECORD)]
    assert told == [
        "mcp.expose_tools: 'fs:read_fil' matches nothing of this agent;"
        " did you mean fs:read_file, fs:write_file?",
        "mcp.expose_tools: 'nope:*' matches nothing of this agent",
    ]
