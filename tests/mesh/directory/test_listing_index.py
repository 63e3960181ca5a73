"""Look-ups that are kept ready are, after any change, what they would be if they were made anew."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory.listing_index import ListingIndex
from retinue.mesh.entry import Entry, entry_of

MESH = frozenset({"mesh", "exposed"})
EXPOSED = frozenset({"exposed"})
RANKS = {"home": 0, "far": 1}


def entry(
    number: int,
    source: str,
    *skills: str,
    name: str | None = None,
    roles: tuple[str, ...] = (),
    tag: str = "",
    deprecated: bool = False,
) -> Entry:
    offered = tuple(Skill(one, visibility="exposed" if number % 2 else "mesh") for one in skills)
    named = name or f"a{number}-{source}"
    if roles:
        offered += (Skill("do", roles=roles, visibility="private" if number == 3 else "mesh"),)
    record = AgentRecord(
        named,
        version=tag or None,
        endpoints=(Endpoint("execute", f"http://{named}{tag}"),),
        skills=offered,
        deprecated=deprecated,
    )
    return entry_of(Listing(record, source, f"agents/{number}", tag=tag or None))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    made = entry(
        draw(st.integers(0, 5)),
        draw(st.sampled_from(["home", "far"])),
        *draw(st.sampled_from([("plan",), ("build",), ("plan", "build")])),
        name=draw(st.sampled_from([None, None, "shared"])),
        roles=draw(st.sampled_from([(), (), ("review",), ("plan", "review")])),
        tag=draw(st.sampled_from(["", "v1", "v2", "v3-rc.1"])),
        deprecated=draw(st.sampled_from([False, False, True])),
    )
    return replace(
        made,
        enabled=draw(st.sampled_from([True, True, False])),
        reachable=draw(st.sampled_from([None, True, False])),
        last_error=draw(st.sampled_from([None, "slow"])),
    )


CHANGES = st.lists(st.tuples(st.sampled_from(["put", "remove", "look"]), entries()), max_size=40)


@settings(max_examples=300)
@given(CHANGES, st.sampled_from([2, 200]))
def test_a_change_mends_the_look_ups_that_it_touches(changes: list[tuple[str, Entry]], few: int) -> None:
    index = ListingIndex(RANKS.__getitem__, max_incremental_changes=few)
    for kind, subject in [*changes, *[("look", last) for _, last in changes[-1:]]]:
        if kind == "put":
            index.put(subject)
        elif kind == "remove":
            index.remove(subject.id)
        else:
            fresh = ListingIndex(RANKS.__getitem__)
            for held in index:
                fresh.put(held)
            for skill_id in ("plan", "build"):
                for scopes in (MESH, EXPOSED):
                    offering = fresh.list_offering(skill_id, scopes)
                    assert index.list_offering(skill_id, scopes) == offering
                    assert index.is_offered(skill_id, scopes) == bool(offering)
            everybody = fresh.list_agents()
            assert index.list_agents() == everybody
            for role in ("plan", "review", "execute"):
                for scopes in (MESH, EXPOSED):
                    having = [agent for agent in everybody if agent.has_role(role, scopes)]
                    assert index.list_with_role(role, scopes) == having


def test_the_newest_version_of_a_key_is_first_though_it_has_another_name_and_came_later() -> None:
    index = ListingIndex(RANKS.__getitem__)
    older, newer = (
        entry(1, "home", "plan", name="old", tag="v1"),
        entry(1, "home", "plan", name="new", tag="v2"),
    )
    index.put(older)
    assert index.list_offering("plan", MESH) == (older,)
    index.put(newer)
    assert index.list_offering("plan", MESH) == (newer, older)


def test_look_ups_that_were_not_asked_for_longest_are_made_anew() -> None:
    index = ListingIndex(RANKS.__getitem__, max_cached_skills=1)
    index.put(entry(1, "home", "plan", "build"))
    plan = index.list_offering("plan", MESH)
    assert index.list_offering("plan", MESH) is plan
    assert index.list_offering("build", MESH) == plan
    assert index.list_offering("plan", MESH) is not plan
