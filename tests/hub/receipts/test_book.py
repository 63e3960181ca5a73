"""Receipts lower an agent within bounds, and forged, replayed, self-praising and stale ones do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest

from retinue.cards.receipts import Receipt, SignedReceipt, parse_receipt, sign_receipt
from retinue.cards.signatures import CardSigner, SigningKey, TrustedKeys
from retinue.core.record import AgentRecord, Listing
from retinue.hub.receipts import book
from retinue.hub.receipts.book import (
    CLOCK_SKEW_S,
    MAX_PER_CARD,
    CardPlace,
    ReceiptBook,
    ReceiptTrust,
    Refused,
    WeighedReceipt,
    weigh,
)
from retinue.hub.receipts.measuring import MAX_PER_CALLER, Version, measure_calls

DAY_S = 86_400
NOW = 1_800_000_000
DIGEST = "sha256:" + "a" * 64
PLAN = Listing(AgentRecord("plan-agent"), "http://registry", "agents/plan", tag="v1", digest=DIGEST)
PLACE = CardPlace("agents/plan", DIGEST)
OWN, BERLIN, PARIS, STRANGER = (SigningKey.create() for _ in range(4))


def issue(key: SigningKey = BERLIN, calls: int = 90, failed: int = 90, **facts: object) -> SignedReceipt:
    receipt = Receipt(
        "agents/plan",
        DIGEST,
        "plan-agent",
        key.kid,
        calls,
        {"timeout": failed} if failed else {},
        {"p95": 10},
        "not_examined",
        NOW - DAY_S,
        NOW,
        NOW,
    )
    return sign_receipt(replace(receipt, **facts), CardSigner(key))  # type: ignore[arg-type]


@dataclass
class Mesh:
    """A book with the keys that its owner trusts."""

    sets: dict[str, object] = field(
        default_factory=lambda: {"this state": OWN.public, "berlin": BERLIN.public, "paris": PARIS.public}
    )
    names: tuple[str, ...] | None = None
    now: float = NOW

    def __post_init__(self) -> None:
        self.book = ReceiptBook(self.trust, lambda: tuple(self.sets), lambda: self.now)

    def trust(self) -> ReceiptTrust:
        return ReceiptTrust(TrustedKeys(self.sets), OWN.kid, self.names, 30 * DAY_S)  # type: ignore[arg-type]

    def take(self, *receipts: SignedReceipt) -> float:
        self.book.take(PLACE, receipts, source=PLAN.source)
        self.now += 2
        return self.book.blame(PLAN)

    def reasons(self) -> Sequence[str]:
        weighed, refused = self.book.find(PLAN)
        return [*(one.reason for one in weighed), *(one.reason for one in refused)]


def test_failures_take_credit_within_bounds_and_praise_gains_nothing() -> None:
    assert Mesh().take(issue(failed=0)) == 0.0
    assert Mesh().take(issue(failed=9)) == 0.0, "a tenth is usual"
    alone = Mesh().take(issue())
    assert 0.4 < alone < 0.5
    assert Mesh().take(issue(exam="passed")) == alone, "an agent may pass exams and then fail"
    both = Mesh().take(issue(), issue(PARIS))
    assert 0.85 < both < 1.0
    assert Mesh().take(issue(), issue(PARIS, failed=0)) == pytest.approx(alone), "praise removes no blame"
    assert 0.0 < Mesh().take(issue(calls=2, failed=2)) < 0.1, "few calls weigh little"
    assert 0.0 < Mesh().take(issue(calls=0, failed=0, exam="failed")) < 0.2


def test_two_keys_of_one_owner_are_one_issuer() -> None:
    mesh = Mesh()
    mesh.sets["berlin"] = {"keys": [BERLIN.public, STRANGER.public]}
    assert mesh.take(issue(), issue(STRANGER)) < 0.5


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (issue(digest="sha256:" + "b" * 64), "another card"),
        (issue(repository="agents/rival"), "another repository"),
        (issue(STRANGER), "not trusted"),
        (issue(issued_at=NOW + int(CLOCK_SKEW_S) + 60), "in the future"),
        (issue(ends_at=NOW + int(CLOCK_SKEW_S) + 60), "in the future"),
        (issue(begins_at=NOW - 40 * DAY_S, ends_at=NOW - 31 * DAY_S), "older than 30 days"),
        (issue(OWN), "of this hub"),
        (issue(failed=9), "praise raises nothing"),
        (issue(calls=0, failed=0), "no calls"),
    ],
)
def test_what_weighs_nothing_says_why(signed: SignedReceipt, reason: str) -> None:
    mesh = Mesh()
    assert mesh.take(signed) == 0.0
    (told,) = mesh.reasons()
    assert reason in told


def test_a_forged_receipt_and_one_of_an_owner_that_the_setting_does_not_name_count_nothing() -> None:
    good, bad = issue(failed=0), issue()
    forged = parse_receipt(bad.content.replace(b'"timeout":90', b'"timeout":50'), where="test")
    copied = replace(good, receipt=bad.receipt, content=bad.content)
    for signed in (forged, replace(copied, signature=good.signature, payload=bad.payload)):
        mesh = Mesh()
        assert mesh.take(signed) == 0.0
        assert "is not what berlin signed" in mesh.reasons()[0]
    mesh = Mesh(names=("paris",))
    assert mesh.take(issue()) == 0.0
    assert mesh.trust().list_issuers() == {PARIS.kid}
    assert Mesh(names=()).trust().list_issuers() == frozenset()


def test_an_older_receipt_replaces_no_newer_one_and_a_removed_one_counts_on() -> None:
    mesh = Mesh()
    blame = mesh.take(issue())
    assert mesh.take(issue(failed=0, issued_at=NOW - 60, ends_at=NOW - 120)) == pytest.approx(blame, rel=1e-3)
    assert "a newer receipt" in mesh.reasons()[1]
    assert mesh.take() == pytest.approx(blame, rel=1e-3), "its registry has it no more"
    assert mesh.take(issue(failed=0, issued_at=NOW + 1)) == 0.0


def test_news_of_one_card_weigh_no_other_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, weighed = Mesh(), list[str]()

    def note(signed: SignedReceipt, trust: ReceiptTrust, now: float) -> WeighedReceipt:
        weighed.append(signed.receipt.repository)
        return weigh(signed, trust, now)

    monkeypatch.setattr(book, "weigh", note)
    other = replace(PLAN, key="agents/other")
    mesh.book.take(CardPlace("agents/other", DIGEST), [issue(repository="agents/other")])
    blame = mesh.take(issue())
    assert mesh.book.blame(other) == blame
    weighed.clear()
    newer = mesh.take(issue(issued_at=NOW + 1, failed=80))
    assert mesh.book.blame(other) == blame > newer
    mesh.book.keep_only([("http://registry", PLACE)])
    assert (mesh.book.blame(PLAN), mesh.book.blame(other)) == (newer, 0.0)
    assert weighed == ["agents/plan"]


def test_a_card_that_is_published_again_inherits_its_receipts_at_half_weight() -> None:
    mesh = Mesh()
    blame = mesh.take(issue())
    new_digest = "sha256:" + "b" * 64
    again, elsewhere = (
        replace(PLAN, digest=new_digest),
        replace(PLAN, digest=new_digest, source="http://other"),
    )
    assert mesh.book.blame(again) == pytest.approx(blame / 2, rel=1e-3)
    assert mesh.book.blame(elsewhere) == 0.0, "the same name at another registry is another agent"
    place = CardPlace(PLAN.key, new_digest)
    mesh.book.keep_only([(PLAN.source, place)])
    other = Mesh(now=mesh.now)
    other.book.load(mesh.book.to_json())
    assert other.book.blame(again) == mesh.book.blame(again) > 0.0, "the old card is listed no more"
    measured = issue(digest=new_digest, failed=0)
    mesh.book.take(place, [measured], source=PLAN.source)
    assert mesh.book.blame(again) == pytest.approx(blame / 2 / 10, rel=1e-3), "its issuer has measured it"
    assert [one.is_earlier for one in mesh.book.find(again)[0]] == [False, True]
    mesh.book.keep_only([("http://registry", CardPlace("agents/other", new_digest))])
    assert not mesh.book


def test_a_key_that_is_trusted_no_more_voids_its_receipts() -> None:
    mesh = Mesh()
    assert mesh.take(issue()) > 0.0
    del mesh.sets["berlin"]
    mesh.now += 2
    assert mesh.book.blame(PLAN) == 0.0
    assert "not trusted" in mesh.reasons()[0]


def test_the_weight_falls_with_the_age_of_the_calls_and_the_stored_book_is_the_same() -> None:
    mesh = Mesh()
    fresh = mesh.take(issue())
    mesh.now = NOW + 15 * DAY_S
    assert mesh.book.blame(PLAN) == pytest.approx(fresh / 2, rel=1e-3)
    other = Mesh(now=mesh.now)
    other.book.load(mesh.book.to_json())
    other.book.load([{"repository": "x"}, None])
    assert other.book.blame(PLAN) == mesh.book.blame(PLAN)
    mesh.now = NOW + 31 * DAY_S
    mesh.book.keep_only({("http://registry", PLACE)})
    assert not mesh.book
    assert mesh.book.to_json() == []


def test_a_card_keeps_the_newest_receipts_only() -> None:
    keys = [SigningKey.create() for _ in range(MAX_PER_CARD + 2)]
    mesh = Mesh()
    mesh.sets.update({f"hub{number}": key.public for number, key in enumerate(keys)})
    mesh.take(*(issue(key, issued_at=NOW + number) for number, key in enumerate(keys)))
    weighed, _ = mesh.book.find(PLAN)
    assert {one.receipt.issuer for one in weighed} == {key.kid for key in keys[2:]}
    assert all(isinstance(one, WeighedReceipt) and one.weight > 0.5 for one in weighed)


def test_a_full_book_drops_cards_that_hold_refusals_only_before_those_with_receipts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(book, "MAX_CARDS", 3)
    mesh = Mesh()
    blame = mesh.take(issue())

    def take(name: str, *receipts: SignedReceipt) -> None:
        refused = Refused("unknown", "its key is not trusted")
        mesh.book.take(CardPlace(name, DIGEST), receipts, [] if receipts else [refused])

    for number in range(20):
        take(f"agents/flood-{number}")
    assert mesh.book.blame(PLAN) == blame > 0.0
    take("agents/second", issue(repository="agents/second"))
    take("agents/third", issue(repository="agents/third"))
    take("agents/flood")
    assert mesh.book.find(replace(PLAN, key="agents/flood")) == ([], ())
    assert [card["repository"] for card in mesh.book.to_json()] == [
        PLAN.key,
        "agents/second",
        "agents/third",
    ]
    mesh.now = NOW + 31 * DAY_S  # the receipt of the second is too old, and something is refused
    take("agents/second")
    mesh.book.keep_only([("", CardPlace(f"agents/{name}", DIGEST)) for name in ("second", "third")])
    assert mesh.book.to_json() == []
    late = [f"agents/late-{number}" for number in range(3)]
    for name in late:
        take(name, issue(repository=name, issued_at=int(mesh.now), ends_at=int(mesh.now)))
    assert [card["repository"] for card in mesh.book.to_json()] == late
    assert mesh.book.find(replace(PLAN, key="agents/second")) == ([], ())


def row(**facts: object) -> dict[str, object]:
    at = datetime.fromtimestamp(NOW, UTC).isoformat()
    return {
        "agent": "plan-agent",
        "caller": "token:anna",
        "door": "mcp",
        "skill": "plan",
        "status": "done",
        "duration_ms": 5.0,
        "timestamp": at,
        "facts": {"listing": "a" * 12},
    } | facts


def test_the_measure_counts_failures_of_the_agent_and_bounds_each_caller() -> None:
    failed = {"status": "failed", "error": "timeout", "caller": "local"}
    rows = [
        *[row() for _ in range(MAX_PER_CALLER + 50)],
        *[row(caller=f"agent-{number}", **{}) for number in range(MAX_PER_CALLER + 50)],
        row(**failed),
        row(**{**failed, "error": "invalid_parameters"}),
        row(**{**failed, "status": "refused"}),
        row(door="exam"),
        row(skill="query_capabilities"),
        row(caller="plan-agent"),
        row(facts={"listing": "a" * 12, "chain": ["plan-agent", "other", "plan-agent"]}),
        row(facts={"listing": "a" * 12, "message": True}),
        row(facts={}),
        row(agent="retinue"),
        {},
    ]
    measured = measure_calls(rows)
    assert list(measured) == [Version("plan-agent", "a" * 12)]
    (figures,) = measured.values()
    assert figures.calls == 2 * MAX_PER_CALLER + 1
    assert figures.failures == {"timeout": 1}
    assert (figures.begins_at, figures.ends_at) == (NOW, NOW)
