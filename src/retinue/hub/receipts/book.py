"""What a hub knows of the receipts of others, and what they weigh.

Receipts only lower the place of an agent: up to `USUAL_FAILURES` of failed calls change nothing, more of them
take from the credit of its card. So praise gains nothing, whoever signs it, and an agent without receipts
keeps its place. Nothing that the agent, its card or its registry says voids a receipt, because the worst
agents would say it. So receipts of a card that was published again count half for the new one, until their
issuers have measured that. One issuer alone counts half; two that agree count in full, as much as the weaker
one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import Any, NamedTuple

from retinue.cards.receipts import MAX_RECEIPT_BYTES, Receipt, SignedReceipt, parse_receipt
from retinue.cards.signatures import TrustedKeys
from retinue.core.errors import MalformedArtifactError
from retinue.core.record import Candidate

USUAL_FAILURES = 0.1
"""The share of failed calls that changes nothing."""

PRIOR_CALLS = 10.0
"""Calls that are assumed to have succeeded, so that few calls weigh little."""

EXAM_CALLS = 5
"""A failed exam counts as so many failed calls."""

ALONE = 0.5
"""What one issuer counts if no second one agrees."""

EARLIER = 0.5
"""What a receipt of another version of the card counts."""

CLOCK_SKEW_S = 300.0
"""How far the clocks of two hubs may differ."""

MAX_PER_CARD = 8
MAX_CARDS = 5_000

_DAY_S = 86_400.0
_KEPT_FOR_S = 3_600.0
_LOOK_AGAIN_S = 1.0
"""A search weighs a hundred agents, and the revision of the keys takes calls of the file system."""


class CardPlace(NamedTuple):
    """A version of an agent: the repository and the digest of its card's manifest."""

    repository: str
    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A receipt that was not taken, by the id of its issuer's key, with the reason."""

    issuer: str
    reason: str


@dataclass(frozen=True, slots=True)
class WeighedReceipt:
    """A receipt with its weight from 0 to 1, and the reason where it is 0.

    ``is_earlier`` = it is for another version of the card.
    """

    receipt: Receipt
    owner: str
    weight: float
    reason: str = ""
    is_earlier: bool = False


@dataclass(frozen=True, slots=True)
class ReceiptTrust:
    """Whose receipts count: ``keys`` that are trusted, of the owners in ``names`` (None = all of them).

    ``own`` is the id of the key of this state, ``max_age_s`` the age from which a receipt weighs nothing.
    """

    keys: TrustedKeys
    own: str | None = None
    names: Collection[str] | None = None
    max_age_s: float = 30 * _DAY_S

    def list_issuers(self) -> frozenset[str]:
        """The ids of the keys whose receipts are read; empty = nothing is fetched."""
        return frozenset(
            str(row["kid"])
            for owner, row in self.keys.list_keys()
            if row["kid"] != self.own and (self.names is None or owner in self.names)
        )


@dataclass(slots=True)
class _Card:
    """The receipts of a card by issuer; ``sources`` are those that have listed it."""

    receipts: dict[str, SignedReceipt] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    sources: set[str] = field(default_factory=set)


class ReceiptBook:
    """The receipts that were read, by card; what is refused is not stored.

    ``trust`` gives the keys that are trusted now, ``revision`` changes with them.
    """

    def __init__(
        self,
        trust: Callable[[], ReceiptTrust],
        revision: Callable[[], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._trust = trust
        self._revision = revision
        self._clock = clock
        self._cards: dict[CardPlace, _Card] = {}
        self._only_refused: dict[CardPlace, None] = {}
        """The places of cards that hold no receipt; a full book drops these first, in their order."""
        self._places: defaultdict[str, set[CardPlace]] = defaultdict(set)
        """The places of cards by repository."""
        self._blames: dict[str, dict[tuple[str, str], float]] = {}
        """The blames by repository, then by source and digest."""
        self._counted: tuple[object, float] | None = None
        self._counted_with: ReceiptTrust | None = None
        self._looked_at = float("-inf")

    def __bool__(self) -> bool:
        return any(card.receipts for card in self._cards.values())

    def list_issuers(self) -> frozenset[str]:
        """The ids of the keys whose receipts are read now."""
        return self._trust().list_issuers()

    # taking

    def take(
        self,
        place: CardPlace,
        receipts: Iterable[SignedReceipt],
        refused: Iterable[Refused] = (),
        *,
        source: str = "",
    ) -> bool:
        """Take what was read of one card that ``source`` lists; returns whether there is news.

        Of each issuer the newest receipt stays, also if its registry has it no more. Receipts for another
        card, of unknown keys and forged ones are refused.
        """
        trust, now = self._trust(), self._clock()
        card = self._cards.get(place) or _Card()
        rejected, is_new = list(refused), False
        for signed in receipts:
            reason = self._find_fault(signed, place, card, trust, now)
            if reason:
                rejected.append(Refused(signed.receipt.issuer, reason))
            elif card.receipts.get(signed.receipt.issuer) != signed:
                card.receipts[signed.receipt.issuer] = signed
                is_new = True
        kept = nlargest(MAX_PER_CARD, card.receipts.values(), key=lambda held: held.receipt.issued_at)
        card.receipts = {held.receipt.issuer: held for held in kept}
        card.refused = tuple(rejected[:MAX_PER_CARD])
        if card.receipts or card.refused:
            card.sources.add(source)
            self._hold(place, card)
            while len(self._cards) > MAX_CARDS:
                self._forget(next(iter(self._only_refused or self._cards)))
        self._blames.pop(place.repository, None)
        return is_new

    def _hold(self, place: CardPlace, card: _Card) -> None:
        self._cards[place] = card
        self._places[place.repository].add(place)
        if card.receipts:
            self._only_refused.pop(place, None)
        else:
            self._only_refused[place] = None

    def _find_fault(
        self, signed: SignedReceipt, place: CardPlace, card: _Card, trust: ReceiptTrust, now: float
    ) -> str:
        receipt = signed.receipt
        if receipt.digest != place.digest:
            return f"it is for another card, {receipt.digest[:19]}"
        if receipt.repository != place.repository:
            return f"it is for another repository, {receipt.repository[:100]}"
        verdict = signed.verify(trust.keys, now)
        if verdict.state != "valid":
            return verdict.reason
        if max(receipt.issued_at, receipt.ends_at) > now + CLOCK_SKEW_S:
            return "it was issued in the future; compare the clocks"
        known = card.receipts.get(receipt.issuer)
        if known is not None and receipt.issued_at < known.receipt.issued_at:
            return "a newer receipt of its issuer is known"
        return ""

    def keep_only(self, listed: Collection[tuple[str, CardPlace]]) -> None:
        """Forget the receipts of agents that have gone, and those that are too old.

        ``listed`` are the cards with their sources. A card that was published again keeps its receipts.
        """
        oldest = self._clock() - self._trust().max_age_s
        places = {place for _, place in listed}
        repositories = {(source, place.repository) for source, place in listed}
        for place, card in list(self._cards.items()):
            for issuer, signed in list(card.receipts.items()):
                if signed.receipt.ends_at < oldest:
                    del card.receipts[issuer]
                    self._blames.pop(place.repository, None)
            is_listed = place in places
            is_earlier = any((source, place.repository) in repositories for source in card.sources)
            if not (card.receipts and (is_listed or is_earlier)) and not (card.refused and is_listed):
                self._forget(place)
            elif not card.receipts:
                self._only_refused[place] = None

    def _forget(self, place: CardPlace) -> None:
        del self._cards[place]
        self._only_refused.pop(place, None)
        self._places[place.repository].discard(place)
        if not self._places[place.repository]:
            del self._places[place.repository]
        self._blames.pop(place.repository, None)

    # weighing

    def find(self, agent: Candidate) -> tuple[list[WeighedReceipt], tuple[Refused, ...]]:
        """The receipts of the version of an agent and of earlier ones, and those that were refused last."""
        if agent.key not in self._places:
            return [], ()
        card, trust = self._cards.get(place_of(agent)), self._trust()
        own = [] if card is None else self._weigh(card, trust)
        return [*own, *self._weigh_earlier(agent, own, trust)], () if card is None else card.refused

    def blame(self, agent: Candidate) -> float:
        """The part of the credit of its card that an agent loses, 0 … 1; 0 without receipts."""
        if agent.key not in self._places:
            return 0.0
        self._forget_changed_keys()
        place = place_of(agent)
        blames, version = self._blames.setdefault(agent.key, {}), (agent.source, place.digest)
        if version not in blames:
            if self._counted_with is None:  # once for all cards, because it reads the file of keys
                self._counted_with = self._trust()
            card = self._cards.get(place)
            own = [] if card is None else self._weigh(card, self._counted_with)
            blames[version] = sum_up([*own, *self._weigh_earlier(agent, own, self._counted_with)])
        return blames[version]

    def _forget_changed_keys(self) -> None:
        """Weigh anew after a change of the keys, and from time to time, because receipts age."""
        now = self._clock()
        if abs(now - self._looked_at) < _LOOK_AGAIN_S:
            return
        self._looked_at = now
        revision = self._revision(), now // _KEPT_FOR_S
        if revision != self._counted:
            self._counted, self._counted_with = revision, None
            self._blames.clear()

    def _weigh(self, card: _Card, trust: ReceiptTrust) -> list[WeighedReceipt]:
        now = self._clock()
        return [weigh(signed, trust, now) for signed in card.receipts.values()]

    def _weigh_earlier(
        self, agent: Candidate, own: Iterable[WeighedReceipt], trust: ReceiptTrust
    ) -> list[WeighedReceipt]:
        """The receipts of other versions of a card, for half.

        The more calls of this version their issuer tells of, the less they count.
        """
        calls = {weighed.owner: _count_calls(weighed.receipt) for weighed in own if weighed.owner}
        place = place_of(agent)
        return [
            replace(
                weighed,
                weight=EARLIER * weighed.weight * PRIOR_CALLS / (calls.get(weighed.owner, 0) + PRIOR_CALLS),
                is_earlier=True,
            )
            for other in self._places.get(place.repository, ())
            if other != place and agent.source in self._cards[other].sources
            for weighed in self._weigh(self._cards[other], trust)
        ]

    # storing

    def to_json(self) -> list[dict[str, Any]]:
        """The cards with receipts as they are stored."""
        return [
            {
                "repository": place.repository,
                "digest": place.digest,
                "receipts": [signed.content.decode() for signed in card.receipts.values()],
                "sources": sorted(card.sources),
            }
            for place, card in self._cards.items()
            if card.receipts
        ]

    def load(self, rows: object) -> None:
        """Take the stored cards; rows of another form are ignored. Nothing is verified before it weighs."""
        for row in rows if isinstance(rows, list) else ():
            try:
                place = CardPlace(str(row["repository"]), str(row["digest"]))
                texts = [text for text in row["receipts"] if len(text) <= MAX_RECEIPT_BYTES]
                signed = [parse_receipt(text.encode(), where=str(place)) for text in texts]
                sources = {str(source) for source in row.get("sources", ())}
            except (KeyError, TypeError, AttributeError, MalformedArtifactError, UnicodeEncodeError):
                continue
            self._hold(place, _Card({held.receipt.issuer: held for held in signed}, sources=sources))
        self._blames.clear()


def weigh(signed: SignedReceipt, trust: ReceiptTrust, now: float) -> WeighedReceipt:
    """The weight of a receipt now: it falls with its age, and grows with its calls.

    It is 0 for a receipt of a key that is trusted no more, of this state, for one that is too old, and for
    one without more failures than usual, because praise raises nothing.
    """
    receipt = signed.receipt
    verdict = signed.verify(trust.keys, now)
    age_s = max(0.0, now - receipt.ends_at)
    reason = verdict.reason if verdict.state != "valid" else _object(receipt, verdict.owner, age_s, trust)
    if reason:
        return WeighedReceipt(receipt, verdict.owner, 0.0, reason)
    calls = _count_calls(receipt)
    weight = (1.0 - age_s / trust.max_age_s) * calls / (calls + PRIOR_CALLS)
    return WeighedReceipt(receipt, verdict.owner, weight)


def _object(receipt: Receipt, owner: str, age_s: float, trust: ReceiptTrust) -> str:
    """Why a valid receipt weighs nothing; "" for no reason."""
    if receipt.issuer == trust.own:
        return "it is of this hub, whose own history counts"
    if trust.names is not None and owner not in trust.names:
        return f"receipts.trust does not name {owner}"
    if age_s >= trust.max_age_s:
        return f"its calls are older than {trust.max_age_s / _DAY_S:g} days"
    if not _count_calls(receipt):
        return "it tells of no calls"
    if _share_of_failures(receipt) <= USUAL_FAILURES:
        return "it tells of no more failures than usual, and praise raises nothing"
    return ""


def sum_up(receipts: Iterable[WeighedReceipt]) -> float:
    """The blame of all receipts of one version; two keys of one owner are one issuer."""
    by_owner: defaultdict[str, float] = defaultdict(float)
    for weighed in receipts:
        share = _share_of_failures(weighed.receipt)
        blame = weighed.weight * max(0.0, share - USUAL_FAILURES) / (1.0 - USUAL_FAILURES)
        by_owner[weighed.owner] = max(by_owner[weighed.owner], blame)
    first, second = (*nlargest(2, by_owner.values()), 0.0, 0.0)[:2]
    return max(second, ALONE * first)


def place_of(agent: Candidate) -> CardPlace:
    """The place of an agent's card."""
    return CardPlace(agent.key, agent.digest or "")


def _count_calls(receipt: Receipt) -> int:
    return receipt.calls + (EXAM_CALLS if receipt.exam == "failed" else 0)


def _share_of_failures(receipt: Receipt) -> float:
    calls = _count_calls(receipt)
    failed = receipt.failed + (EXAM_CALLS if receipt.exam == "failed" else 0)
    return failed / calls if calls else 0.0
