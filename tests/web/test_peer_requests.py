"""For whom a process of the mesh calls, beside its token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.call import ANONYMOUS, LOCAL, Principal
from retinue.core.errors import NotAllowedError
from retinue.web.codec.peer_requests import MAX_CALLER_LENGTH, MAX_GLOB_LENGTH, apply_rights, render_rights

MEMBER = Principal("local", "mesh", frozenset({"exposed", "mesh", "runs_code"}))
STRANGER = Principal("token:ci", "token", frozenset({"exposed", "mesh"}), ("plan-*",))
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


def carry(principal: Principal) -> dict[bytes, bytes]:
    """The headers as they arrive."""
    return {name.encode(): value.encode("ascii") for name, value in render_rights(principal).items()}


@given(
    caller=TEXTS,
    scopes=st.frozensets(st.sampled_from(["exposed", "mesh", "runs_code"])),
    agents=st.lists(TEXTS, max_size=3),
)
def test_the_caller_and_its_rights_arrive_as_they_were(
    caller: str, scopes: frozenset[str], agents: list[str]
) -> None:
    sent = Principal(caller, "token", scopes, tuple(agents))
    arrived = apply_rights(MEMBER, carry(sent))
    assert (arrived.id, arrived.scopes, arrived.agents) == (caller, scopes, tuple(agents))


@given(rights=st.binary(max_size=80), caller=st.binary(max_size=80))
def test_no_header_adds_a_right(rights: bytes, caller: bytes) -> None:
    headers = {b"x-retinue-rights": rights, b"x-retinue-for": caller}
    for sender in (MEMBER, STRANGER, ANONYMOUS):
        held = apply_rights(sender, headers)
        assert held.scopes <= sender.scopes
        assert held.kind == sender.kind
        assert not sender.agents or held.agents == sender.agents


def test_only_a_member_of_the_mesh_speaks_for_others() -> None:
    headers = {b"x-retinue-for": b"local", b"x-retinue-rights": b"exposed mesh team:words through:plan-agent"}
    assert apply_rights(STRANGER, headers) == STRANGER
    assert apply_rights(ANONYMOUS, headers) == ANONYMOUS
    assert apply_rights(MEMBER, {b"x-retinue-for": b"plan-agent"}).id == "plan-agent"
    assert (apply_rights(MEMBER, headers).team, apply_rights(STRANGER, headers).team) == ("words", "")


def test_whoever_has_every_right_is_named_and_not_narrowed() -> None:
    assert render_rights(LOCAL) == {"x-retinue-for": "local"}


def test_a_name_beyond_all_bounds_is_cut_off_and_one_that_arrives_so_is_no_name() -> None:
    sent = render_rights(Principal("x" * 5000, "token"))
    assert len(sent["x-retinue-for"]) == MAX_CALLER_LENGTH
    assert apply_rights(MEMBER, {b"x-retinue-for": b"x" * (MAX_CALLER_LENGTH + 1)}) == MEMBER


@pytest.mark.parametrize("filler", ["", " mesh" * 1000])
def test_a_glob_that_no_name_can_match_is_refused_with_its_length(filler: str) -> None:
    longest = b"agent:" + b"a" * MAX_GLOB_LENGTH + filler.encode()
    assert apply_rights(MEMBER, {b"x-retinue-rights": longest}).agents == ("a" * MAX_GLOB_LENGTH,)
    with pytest.raises(NotAllowedError, match="257 characters; the limit is 256"):
        apply_rights(MEMBER, {b"x-retinue-rights": b"agent:a" + longest[6:]})
