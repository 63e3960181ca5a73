"""Look-ups that are kept ready are, after any change, what they would be if they were made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.record import AgentRecord, Endpoint, Listing, Skill
from retinue.mesh.directory import listing_index
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
    index = ListingIndex(RANKS.__getitem__)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing_index, "MAX_INCREMENTAL_CHANGES", few)
        for kind, one in [*changes, *[("look", one) for _, one in changes[-1:]]]:
            if kind == "put":
                index.put(one)
            elif kind == "remove":
                index.remove(one.id)
            else:
                fresh = ListingIndex(RANKS.__getitem__)
                for held in index:
                    fresh.put(held)
                for skill_id in ("plan", "build"):
                    for scopes in (MESH, EXPOSED):
                        wanted = fresh.list_offering(skill_id, scopes)
                        assert index.list_offering(skill_id, scopes) == wanted
                        assert index.is_offered(skill_id, scopes) == bool(wanted)
                everybody = fresh.list_agents()
                assert index.list_agents() == everybody
                for role in ("plan", "review", "execute"):
                    for scopes in (MESH, EXPOSED):
                        having = [one for one in everybody if one.has_role(role, scopes)]
                        assert index.list_with_role(role, scopes) == having


def test_look_ups_that_were_not_asked_for_longest_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_index, "MAX_CACHED_SKILLS", 1)
    index = ListingIndex(RANKS.__getitem__)
    index.put(entry(1, "home", "plan", "build"))
    plan = index.list_offering("plan", MESH)
    assert index.list_offering("plan", MESH) is plan
    assert index.list_offering("build", MESH) == plan
    assert index.list_offering("plan", MESH) is not plan
