"""Requests that no skill served, and their clusters.

The words of a request are kept only if the owner permits it; otherwise its hashed stems, which are enough to
count similar requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from retinue.mesh.history.records import Wish, find_voice

WishPolicy = Literal["text", "count", "off"]
"""What is kept of a request that nobody serves: its words, its hashed stems, or nothing."""

MAX_WISHES = 1_000
MAX_WISH_CHARS = 500

MAX_PER_CALLER = 100
"""Wishes of one caller (`find_voice`); the oldest are dropped."""

ALIKE = 0.5
"""Requests with this share of common stems belong to one cluster."""


@dataclass(frozen=True, slots=True)
class WishCluster:
    """Similar requests that no skill served; ``texts`` are different words for it, newest first."""

    count: int
    callers: int
    first_at: float
    last_at: float
    texts: tuple[str, ...]


class WishBook:
    """The wishes in memory, and what of them is not stored yet."""

    def __init__(self) -> None:
        self._wishes: dict[str, Wish] = {}
        self._changed: dict[str, Wish] = {}
        self._dropped: set[str] = set()
        self.policy: WishPolicy = "off"

    def __len__(self) -> int:
        return len(self._wishes)

    @property
    def has_changes(self) -> bool:
        """Whether something is not stored yet."""
        return bool(self._changed or self._dropped)

    def open(self, wishes: Iterable[Wish], policy: WishPolicy) -> None:
        """Begin with stored wishes; words that the owner permits no longer are removed from the store."""
        self.policy = policy
        for wish in wishes:
            if policy == "off":
                self._dropped.add(wish.id)
            else:
                self._take(wish)

    def read_others(self, stored: Iterable[Wish], forgotten_at: float) -> None:
        """Take over what hubs have stored, and forget what another one has removed.

        At ``forgotten_at`` one of them has forgotten everything.
        """
        self.clear_until(forgotten_at)
        if self.policy == "off":
            return
        shared: set[str] = set()
        for wish in stored:
            if wish.at <= forgotten_at:  # it was written after another hub had removed everything
                self._dropped.add(wish.id)
            elif wish.id not in self._dropped:
                shared.add(wish.id)
                if wish.id not in self._wishes:
                    self._take(wish)
        for wish_id in self._wishes.keys() - shared - self._changed.keys():
            del self._wishes[wish_id]
        self._settle()

    def _take(self, wish: Wish) -> None:
        """Hold a stored wish, without the words that the owner does not permit."""
        if wish.text and self.policy != "text":
            wish = self._changed[wish.id] = Wish(wish.id, wish.at, wish.stems, wish.caller, "")
        self._wishes[wish.id] = wish

    def _settle(self) -> None:
        """Put the wishes of several hubs in order, and drop repeated ones and those beyond the limits."""
        kept = sorted(self._wishes.values(), key=lambda one: (one.at, one.id))
        self._wishes = {wish.id: wish for wish in kept}
        requests: set[tuple[int, tuple[int, ...]]] = set()
        counts: Counter[int] = Counter()
        for wish in reversed(kept):
            request, voice = (wish.caller, wish.stems), find_voice(wish.caller)
            if request in requests or counts[voice] >= MAX_PER_CALLER or len(requests) >= MAX_WISHES:
                self._remove(wish.id)
            else:
                requests.add(request)
                counts[voice] += 1

    def note(self, wish_id: str, at: float, stems: tuple[int, ...], caller: int, text: str) -> None:
        """Keep one request; a repeated one of the same caller replaces the earlier one."""
        if self.policy == "off":
            return
        kept = _clean(text) if self.policy == "text" else ""
        for same in [one for one in self._wishes.values() if (one.caller, one.stems) == (caller, stems)]:
            self._remove(same.id)
        self._wishes[wish_id] = self._changed[wish_id] = Wish(wish_id, at, stems, caller, kept)
        voice = find_voice(caller)
        own = [one.id for one in self._wishes.values() if find_voice(one.caller) == voice]
        for dropped in own[:-MAX_PER_CALLER]:
            self._remove(dropped)
        while len(self._wishes) > MAX_WISHES:
            self._remove(next(iter(self._wishes)))

    def fulfil(self, wish_id: str) -> None:
        """Forget a wish whose search led to a call that was done."""
        if wish_id in self._wishes:
            self._remove(wish_id)

    def clear(self) -> None:
        """Forget all wishes, and what is not stored of them."""
        self._wishes.clear()
        self._changed.clear()
        self._dropped.clear()

    def clear_until(self, at: float) -> None:
        """Forget the wishes up to this time, in seconds since 1970."""
        for wish in self.list_all():
            if wish.at <= at:
                self._remove(wish.id)

    def list_all(self) -> Sequence[Wish]:
        """All wishes, oldest first."""
        return tuple(self._wishes.values())

    def take_changes(self) -> tuple[list[Wish], set[str]]:
        """What is not stored yet: new wishes, and the ids of dropped ones."""
        changes = list(self._changed.values()), self._dropped
        self._changed, self._dropped = {}, set()
        return changes

    def put_back(self, wishes: Sequence[Wish], dropped: Collection[str]) -> None:
        """Take back changes that could not be stored."""
        self._changed = {**{wish.id: wish for wish in wishes if wish.id in self._wishes}, **self._changed}
        self._dropped.update(dropped)

    def list_clusters(self) -> list[WishCluster]:
        """As `cluster_wishes`, of all wishes."""
        return cluster_wishes(self.list_all())

    def _remove(self, wish_id: str) -> None:
        del self._wishes[wish_id]
        self._changed.pop(wish_id, None)
        self._dropped.add(wish_id)


def _clean(text: str) -> str:
    """The words of a request, without a NUL, which Postgres refuses, and without lone surrogates."""
    words = text.replace("\0", " ").encode("utf-8", "replace").decode().split()
    return " ".join(words)[:MAX_WISH_CHARS]


def cluster_wishes(wishes: Iterable[Wish]) -> list[WishCluster]:
    """The clusters of similar requests, those of most callers first, then the largest.

    Each wish joins the cluster of the newer wish that is most like it.
    """
    clusters: list[list[Wish]] = []
    cluster_of: dict[frozenset[int], list[Wish]] = {}
    by_stem: defaultdict[int, list[frozenset[int]]] = defaultdict(list)
    for wish in sorted(wishes, key=lambda one: -one.at):
        stems = frozenset(wish.stems)
        if stems not in cluster_of:
            shared = Counter(other for stem in stems for other in by_stem[stem])
            shares = {other: 2 * count / (len(stems) + len(other)) for other, count in shared.items()}
            nearest = max(shares, key=shares.__getitem__, default=stems)
            if shares.get(nearest, 0.0) >= ALIKE:
                cluster_of[stems] = cluster_of[nearest]
            else:
                cluster_of[stems] = []
                clusters.append(cluster_of[stems])
            for stem in stems:
                by_stem[stem].append(stems)
        cluster_of[stems].append(wish)
    rendered = [
        WishCluster(
            len(cluster),
            len({find_voice(wish.caller) for wish in cluster}),
            min(wish.at for wish in cluster),
            max(wish.at for wish in cluster),
            tuple(dict.fromkeys(wish.text for wish in cluster if wish.text)),
        )
        for cluster in clusters
    ]
    return sorted(rendered, key=lambda one: (-one.callers, -one.count, -one.last_at))
