"""What members of a mesh tell each other of agents, and how long it is known."""

from __future__ import annotations

import pytest

from retinue.mesh.health.probe_sharing import KEPT_TIMES, ProbeSharing
from tests.mesh.scripted import FakeClock, make_listing

PATIENCE_S = 100.0
MEMBERS = {"here", "there"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make_member(own: str, clock: FakeClock) -> ProbeSharing:
    member = ProbeSharing("place", clock)
    member.set_members(own, MEMBERS)
    return member


def test_words_of_agents_that_nobody_lists_here_are_dropped(clock: FakeClock) -> None:
    here, there = make_member("here", clock), make_member("there", clock)
    here.leaves(make_listing("a"), 1.0, PATIENCE_S)
    for _ in range(3):
        for number in range(100):
            there.note(make_listing(f"a{clock.at:.0f}-{number}"), "healthy")
        here.hear(there.take_findings())
        assert 100 <= here.count_words() <= 101
        clock.pass_time(KEPT_TIMES * PATIENCE_S + 1)


def test_an_agent_of_which_nothing_is_heard_is_probed_here_after_a_while(clock: FakeClock) -> None:
    here = make_member("here", clock)
    names = (make_listing(f"a{number}", reachable=True) for number in range(100))
    agent = next(listing for listing in names if not here.is_own(listing))
    here.hear_of(agent, "healthy")
    assert here.leaves(agent, 1.0, PATIENCE_S)
    clock.pass_time(PATIENCE_S + 1)
    assert not here.leaves(agent, 1.0, PATIENCE_S)


def test_an_agent_that_has_moved_takes_its_word_along(clock: FakeClock) -> None:
    here, agent = make_member("here", clock), make_listing("a")
    here.hear_of(agent, "healthy")
    here.forget(agent)
    assert here.count_words() == 0
