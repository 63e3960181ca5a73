"""A listing in short says what the whole of it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from retinue.core.record import AgentRecord, Endpoint, Listing, Skill, is_visible
from retinue.mesh.entry import entry_of

SCOPES = [frozenset(scopes) for scopes in ((), ("mesh",), ("exposed",), ("mesh", "exposed"), ("private",))]
SKILLS = st.lists(
    st.builds(
        Skill,
        st.sampled_from(["plan", "build", "test"]),
        visibility=st.sampled_from(["private", "mesh", "exposed"]),
        roles=st.lists(st.sampled_from(["plan", "review"]), max_size=2).map(tuple),
    ),
    max_size=4,
    unique_by=lambda skill: skill.id,
)


@given(SKILLS)
def test_each_scope_sees_the_skills_and_roles_that_it_sees_of_the_record(skills: list[Skill]) -> None:
    entry = entry_of(Listing(AgentRecord("a", skills=tuple(skills)), "home", "agents/a"))
    for scopes in SCOPES:
        assert entry.list_skills(scopes) == [one.id for one in skills if is_visible(one.visibility, scopes)]
        for skill in skills:
            assert entry.offers(skill.id, scopes) == is_visible(skill.visibility, scopes)
        for role in ("plan", "review"):
            assert entry.has_role(role, scopes) == any(
                (one.id == role or role in one.roles) and is_visible(one.visibility, scopes) for one in skills
            )


def test_it_names_what_the_listing_names() -> None:
    record = AgentRecord(
        "a", version="1.0.0", endpoints=(Endpoint("execute", "http://a"),), labels={"team": "x"}
    )
    listing = Listing(
        record, "home", "agents/a", tag="v1", digest="sha256:1", reachable=True, last_error="502"
    )
    entry = entry_of(listing)
    for said in ("id", "source", "key", "name", "version", "url", "labels", "tag", "digest", "owner"):
        assert getattr(entry, said) == getattr(listing, said)
    for measured in ("enabled", "reachable", "since", "last_error", "health"):
        assert getattr(entry, measured) == getattr(listing, measured)


def test_texts_that_many_share_are_held_once() -> None:
    pair = [
        entry_of(
            Listing(AgentRecord(name, version="1." + "2.3", skills=(Skill("create_" + "plan"),)), "h", name)
        )
        for name in ("a", "b")
    ]
    assert pair[0].version is pair[1].version
    assert pair[0].skills[0] is pair[1].skills[0]
