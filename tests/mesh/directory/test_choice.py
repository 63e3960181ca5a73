"""The order of choice: trust and the kind of an agent decide before any statistic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from retinue.core.record import AgentRecord, Listing, SignatureState, Skill
from retinue.core.trust import Trust
from retinue.mesh.directory.choice import choice_order, describe_trust, list_groups
from retinue.mesh.directory.directory import Directory
from retinue.mesh.directory.listings import Listings, MemoryListings
from retinue.mesh.directory.routing import (
    MANY,
    StrategyName,
    list_offers,
    make_strategy,
    order_candidates,
    rank_by_score,
)
from retinue.mesh.health.agent_stats import AgentStatsTable
from retinue.storage.listing_store import SqliteListings
from tests.mesh.directory.listings import MESH, listing
from tests.support.memory_source import MemorySource

MODEL = {"kind": "model"}


def agent(
    name: str,
    trust: Trust,
    signature: SignatureState = "none",
    *,
    labels: dict[str, str] | None = None,
    reachable: bool | None = None,
    last_error: str | None = None,
    score: float | None = None,
) -> Listing:
    scores = None if score is None else {"planning": score}
    record = AgentRecord(name, skills=(Skill("plan"),), labels=labels or {}, scores=scores)
    return Listing(
        record,
        "any",
        name,
        signature=signature,
        source_trust=trust,
        reachable=reachable,
        last_error=last_error,
    )


OWN = agent("own", Trust.OWN_MESH)
SIGNED = agent("signed", Trust.IMPORTED, "valid")
IMPORTED = agent("imported", Trust.IMPORTED)
MEMBER = agent("member", Trust.NETWORK_MEMBER)

CASES = {
    "own mesh before a signed card": (OWN, SIGNED),
    "a signed card before an import": (SIGNED, IMPORTED),
    "an import before a member of a network": (IMPORTED, MEMBER),
    "a signed member of a network before an import": (
        agent("signed-member", Trust.NETWORK_MEMBER, "valid"),
        IMPORTED,
    ),
    "a signature of the own mesh adds nothing": (OWN, agent("z-own", Trust.OWN_MESH, "valid")),
    "an unknown key is no signature": (SIGNED, agent("unknown", Trust.IMPORTED, "unknown_key")),
    "an invalid signature is none": (SIGNED, agent("invalid", Trust.IMPORTED, "invalid")),
    "a slow agent of the own mesh before a fast import": (
        agent("own-slow", Trust.OWN_MESH, reachable=True, last_error="slow"),
        IMPORTED,
    ),
    "a model of the own mesh before an import": (agent("own-model", Trust.OWN_MESH, labels=MODEL), IMPORTED),
    "a specialised agent before a model": (OWN, agent("model", Trust.OWN_MESH, labels=MODEL)),
    "a slow specialised agent before a model": (
        agent("own-slow", Trust.OWN_MESH, reachable=True, last_error="slow"),
        agent("model", Trust.OWN_MESH, labels=MODEL),
    ),
    "a model before an agent that does not answer": (
        agent("model", Trust.OWN_MESH, labels=MODEL),
        agent("own-away", Trust.OWN_MESH, reachable=False),
    ),
    "an import before an own agent that does not answer": (
        IMPORTED,
        agent("own-away", Trust.OWN_MESH, reachable=False),
    ),
    "of unreachable agents the own first": (
        agent("own-away", Trust.OWN_MESH, reachable=False),
        agent("imported-away", Trust.IMPORTED, reachable=False),
    ),
    "healthy before degraded among equals": (
        OWN,
        agent("own-slow", Trust.OWN_MESH, reachable=True, last_error="slow"),
    ),
}


@pytest.mark.parametrize(("first", "second"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("name", get_args(StrategyName))
def test_trust_decides_before_every_strategy(name: StrategyName, first: Listing, second: Listing) -> None:
    statistics = AgentStatsTable()
    for _ in range(5):
        statistics.of(first).call_started()
        statistics.of(first).answered("plan", 9.0)
        statistics.of(second).call_started()
        statistics.of(second).answered("plan", 0.001)
    strategy = make_strategy(name, statistics, seed=1)
    is_equal = choice_order(first) == choice_order(second)
    for _ in range(10):
        tried = order_candidates([second, first], strategy, "plan")
        assert is_equal or [one.name for one in tried] == [first.name, second.name]
    many = sorted([*[replace(second, key=str(n)) for n in range(MANY)], first], key=choice_order)
    assert is_equal or order_candidates(many, strategy, "plan")[0] is first


def test_groups_are_those_of_equal_order_however_many() -> None:
    for sizes in ((1,), (1, 1, 1), (2, 3, 1), (5, 0, 8), (64, 1, 33)):
        ordered = [
            one for one, size in zip((OWN, IMPORTED, MEMBER), sizes, strict=False) for _ in range(size)
        ]
        assert [len(group) for _, group in list_groups(ordered)] == [size for size in sizes if size]
    assert list(list_groups([])) == []


def test_a_score_of_a_card_does_not_lift_a_foreign_agent_over_an_own_one() -> None:
    loud = agent("loud", Trust.IMPORTED, score=1.0)
    quiet = agent("quiet", Trust.OWN_MESH, score=0.1)
    assert [offer.listing.name for offer in list_offers([loud, quiet], "plan", MESH)] == ["quiet", "loud"]
    opened = {one.id: one for one in (loud, quiet)}
    tried = order_candidates([loud, quiet])
    assert [one.name for one in rank_by_score(tried, lambda one: opened[one.id], "plan")] == ["quiet", "loud"]


def test_a_model_with_a_higher_score_does_not_take_the_skill_of_a_specialised_agent() -> None:
    model = agent("claude", Trust.OWN_MESH, labels=MODEL, score=0.9)
    special = agent("plan-agent", Trust.OWN_MESH, score=0.5)
    opened = {one.id: one for one in (model, special)}
    tried = order_candidates([model, special])
    assert rank_by_score(tried, lambda one: opened[one.id], "plan")[0] is special
    # as a role, the score that its owner has configured decides among agents of the own mesh
    assert list_offers([special, model], "plan", MESH)[0].listing is model


async def test_the_directory_gives_each_listing_the_trust_of_its_source() -> None:
    home, foreign = MemorySource("home", [listing("vic", "echo")]), MemorySource("imports")
    foreign.put(listing("aaa", "echo", source="imports"))
    home.trust = Trust.OWN_MESH
    directory = Directory(MemoryListings(), [foreign, home])
    found = await directory.resolve_skill("echo", MESH)
    assert [one.name for one in found] == ["vic", "aaa"]
    assert [one.trust for one in found] == [Trust.OWN_MESH, Trust.IMPORTED]
    assert [one.trust for one in directory.open_all(found)] == [Trust.OWN_MESH, Trust.IMPORTED]
    assert await directory.discover_agent("echo") == "http://vic.example:8001"


@pytest.mark.parametrize("is_stored", [False, True])
async def test_signed_cards_keep_their_place_in_the_next_process(tmp_path: Path, is_stored: bool) -> None:
    signed = replace(listing("zed", "echo", source="far"), signature="valid")

    def open_store() -> Listings:
        return SqliteListings(tmp_path / "retinue.db")

    store = open_store()
    first = Directory(store, [MemorySource("far", [listing("aaa", "echo", source="far"), signed])])
    await first.refresh()
    if is_stored:
        store.close()
        store = open_store()
        first = Directory(store, [MemorySource("far")])
    found = first.find_by_skill("echo", MESH)
    assert [(one.name, one.trust) for one in found] == [("zed", Trust.SIGNED), ("aaa", Trust.IMPORTED)]
    store.close()


async def test_a_listing_that_came_before_its_source_has_the_trust_of_the_source() -> None:
    directory = Directory(MemoryListings())
    directory.upsert(listing("member", "echo", source="koi"))
    koi = MemorySource("koi", [listing("member", "echo", source="koi")])
    koi.trust = Trust.NETWORK_MEMBER
    directory.add_sources([koi])
    (found,) = directory.find_by_skill("echo", MESH)
    assert found.trust is Trust.NETWORK_MEMBER
    assert directory.get("member").trust is Trust.NETWORK_MEMBER


def test_the_reason_of_a_place_is_one_sentence() -> None:
    assert describe_trust(OWN) == "for calls that name no agent it is an agent of the own mesh"
    model = agent("model", Trust.IMPORTED, labels=MODEL, reachable=False)
    assert describe_trust(model) == (
        "for calls that name no agent it is imported by the owner, "
        "a model, which comes after agents made for the skill, unreachable"
    )
