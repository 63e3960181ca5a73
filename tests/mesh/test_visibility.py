"""Who sees which skill."""

from __future__ import annotations

import pytest

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.record import AgentRecord, Skill, Visibility
from retinue.mesh.visibility import apply_lists, is_visible
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
    skill = Skill("s", visibility=visibility)
    assert {who.id for who in (LOCAL, ANONYMOUS, CLIENT) if is_visible(skill, who.scopes)} == seen_by


def test_what_is_exposed_is_open_to_a_caller_of_the_mesh_alone() -> None:
    assert is_visible(Skill("s", visibility="exposed"), frozenset({"mesh"}))
    assert not is_visible(Skill("s", visibility="exposed"), frozenset({"runs_code"}))


@requirement("S-07")
def test_listed_skills_are_exposed_and_the_others_private() -> None:
    assert visibilities(apply_lists(RECORD, ["fs:read_file", "git:*"])) == {
        "fs:read_file": "exposed",
        "fs:write_file": "private",
        "git:status": "exposed",
        "admin:reset": "private",
    }


@requirement("S-08")
def test_the_private_list_wins_over_the_exposed_one() -> None:
    seen = visibilities(apply_lists(RECORD, ["*"], ["admin:*", "fs:write_file"]))
    assert [skill for skill, visibility in seen.items() if visibility == "private"] == [
        "fs:write_file",
        "admin:reset",
    ]


@requirement("S-06")
def test_an_empty_list_exposes_nothing() -> None:
    assert set(visibilities(apply_lists(RECORD, [])).values()) == {"private"}


def test_globs_mind_the_case() -> None:
    assert visibilities(apply_lists(RECORD, ["FS:*"]))["fs:read_file"] == "private"
