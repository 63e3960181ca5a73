"""Splits the probes of agents among the members of one mesh, which tell each other what they have found.

Members are hubs and workers. Each agent belongs to one member at a time, by rendezvous hashing. The others
leave its probes to that member for as long as they hear of them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from hashlib import blake2b
from struct import iter_unpack, pack
from typing import NamedTuple

from retinue.core.record import Candidate, Health
from retinue.mesh.health.breaker import Clock

BUCKETS = 1024
"""Agents are hashed into buckets, whose members are chosen once, because a choice costs a hash per member."""

FIRST_PATIENCE_S = 10.0
"""How long a member leaves an agent that is new to it to another member of which it hears nothing."""

_DROPPED_AT_ONCE = 2

MAX_WAITING = 200_000
"""Findings that wait until others are told; further ones are left out, so that the others may probe again."""

KEPT_TIMES = 2
"""A word that nobody has read since is dropped when it is this many times as old as the patience."""

_HEALTHS: tuple[Health, ...] = ("healthy", "degraded", "unreachable", "unknown")
_FORM = ">QB"


class _Word(NamedTuple):
    """The last word about an agent: None as the health while nothing was heard of it."""

    at: float
    health: Health | None


class ProbeSharing:
    """The share of this member; without other members it has all agents.

    ``place`` names what a loopback address means: members at another place have other agents there.
    """

    def __init__(self, place: str = "", clock: Clock = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._own = ""
        self._owners: list[str] = []
        # in the order of their times; of a plain dict the first one is found by a walk over dropped ones
        self._words: OrderedDict[int, _Word] = OrderedDict()
        self._patience_s = FIRST_PATIENCE_S
        self._waiting: dict[int, Health] = {}

    @property
    def is_shared(self) -> bool:
        """Whether there are other members."""
        return bool(self._owners)

    def set_members(self, own: str, members: Collection[str]) -> None:
        """Set the living members, by their ids; this one is always among them."""
        self._own = own
        others = set(members) - {own}
        if not others:
            self._owners = []
            self._waiting.clear()
            self._words.clear()
            return
        self._owners = _choose_owners(sorted({own, *others}))

    def is_own(self, agent: Candidate) -> bool:
        """Whether this member probes the agent."""
        return not self._owners or self._owners[self._key_of(agent) % BUCKETS] == self._own

    def leaves(self, agent: Candidate, recent_s: float, patience_s: float) -> bool:
        """Whether this member need not probe an agent now, because of what others tell.

        An own agent is left where another member has heard of it in the last ``recent_s``, one of another
        member for as long as words of it come within ``patience_s``. A word of another health than the one
        that is known here is looked into at once.
        """
        if not self._owners:
            return False
        key, now = self._key_of(agent), self._clock()
        self._patience_s = max(patience_s, FIRST_PATIENCE_S)
        word = self._words.get(key)
        if self._owners[key % BUCKETS] == self._own:
            return word is not None and word.health == agent.health and now - word.at < recent_s
        if word is None:
            self._put(key, _Word(now, None))
            return True
        if word.health is None:
            first_s = FIRST_PATIENCE_S if agent.health == "unknown" else patience_s
            return now - word.at < first_s
        return word.health == agent.health and now - word.at < patience_s

    def note(self, agent: Candidate, health: Health) -> None:
        """Tell the others what a probe or a call has found."""
        if self._owners:
            key = self._key_of(agent)
            self._put(key, _Word(self._clock(), health))
            if len(self._waiting) < MAX_WAITING:
                self._waiting[key] = health

    def note_answer(self, name: str, url: str | None) -> None:
        """Tell the others that an agent has answered a call, which is as good as a probe."""
        if self._owners and len(self._waiting) < MAX_WAITING:
            self._waiting.setdefault(agent_key(name, url, self._place), "healthy")

    def hear_of(self, agent: Candidate, health: Health) -> None:
        """Take the word of another member about one agent."""
        self._put(self._key_of(agent), _Word(self._clock(), health))

    def forget(self, agent: Candidate) -> None:
        """Forget an agent that is gone."""
        if self._words:
            self._words.pop(self._key_of(agent), None)

    def count_words(self) -> int:
        """Of how many agents a word is known."""
        return len(self._words)

    def take_findings(self) -> bytes:
        """What others have not been told yet, 9 bytes for each agent."""
        waiting, self._waiting = self._waiting, {}
        return b"".join(pack(_FORM, key, _HEALTHS.index(health)) for key, health in waiting.items())

    def hear(self, findings: bytes) -> None:
        """Take the findings of another member."""
        now = self._clock()
        for key, code in iter_unpack(_FORM, findings[: len(findings) // 9 * 9]):
            if code < len(_HEALTHS):
                self._put(key, _Word(now, _HEALTHS[code]))

    def _put(self, key: int, word: _Word) -> None:
        """Keep a word, and drop old ones: members tell of agents that are not listed here as well."""
        words = self._words
        words[key] = word
        words.move_to_end(key)
        for _ in range(_DROPPED_AT_ONCE):
            oldest = next(iter(words))
            if word.at - words[oldest].at <= KEPT_TIMES * self._patience_s:
                return
            del words[oldest]

    def _key_of(self, agent: Candidate) -> int:
        return agent_key(agent.name, agent.url, self._place)


def agent_key(name: str, url: str | None, place: str) -> int:
    """The number of an agent for all members: of its name and url, and at loopback also of the place."""
    text = f"{name}\0{url}"
    if url is not None and is_loopback(url):
        text += f"\0{place}"
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def is_loopback(url: str) -> bool:
    """Whether a url means the machine of whoever reads it."""
    host = url.partition("://")[2]
    return host.startswith(("127.", "localhost", "[::1]"))


def choose_member(subject: str, members: Iterable[str]) -> str:
    """The member for a subject: rendezvous hashing, so that only its own subjects move when a member ends."""
    return max(members, key=lambda member: blake2b(f"{subject}\0{member}".encode(), digest_size=8).digest())


def _choose_owners(members: Collection[str]) -> list[str]:
    return [choose_member(str(bucket), members) for bucket in range(BUCKETS)]
