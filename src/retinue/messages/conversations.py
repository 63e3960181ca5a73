"""Conversations as a state machine: matches replies to earlier messages (W-24).

A conversation begins with a performative that opens a codon and moves with each reply, as the codon's states
say. Replies are matched by ``message_id`` or ``reply_with``. Closed conversations are forgotten at once, open
ones after a time or when there are too many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from retinue.messages.codec.envelope import Envelope
from retinue.messages.codec.performatives import CLOSED, CODONS, OPEN

KEEP = 10_000
TTL_S = 24 * 3600.0

Listener = Callable[[Envelope], None]
"""Gets each reply of a conversation that this process began."""


@dataclass(slots=True)
class Conversation:
    """One exchange; ``owner`` is who began it: the key of a principal, or "" for this process."""

    owner: str
    opening: str
    message_id: str
    reply_with: str | None
    began_at: float
    state: str = OPEN
    listener: Listener | None = None

    def admits(self, performative: str) -> bool:
        """Whether this reply may come now."""
        return performative in CODONS[self.opening].states.get(self.state, {})

    def advance(self, performative: str) -> None:
        """Take one reply; raises ValueError for a reply that does not fit."""
        if not self.admits(performative):
            raise ValueError(f"{performative} does not fit {self.opening} in state {self.state}")
        self.state = CODONS[self.opening].states[self.state][performative]

    @property
    def is_closed(self) -> bool:
        """Whether nothing more may follow."""
        return self.state == CLOSED


class Conversations:
    """The open conversations of one process, at most ``keep``; the oldest are forgotten first."""

    def __init__(
        self, *, keep: int = KEEP, ttl_s: float = TTL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep = keep
        self._ttl_s = ttl_s
        self._clock = clock
        self._open: dict[tuple[str, str], Conversation] = {}

    def __len__(self) -> int:
        return len({id(conversation) for conversation in self._open.values()})

    def begin(self, opening: Envelope, owner: str = "", listener: Listener | None = None) -> Conversation:
        """A new conversation; it replaces a conversation of the same owner with the same id."""
        conversation = Conversation(
            owner,
            opening.performative,
            opening.message_id,
            opening.reply_with,
            self._clock(),
            listener=listener,
        )
        self._prune()
        for key in _keys(conversation):
            if (old := self._open.get(key)) is not None:
                self.forget(old)
            self._open[key] = conversation
        return conversation

    def find(self, reference: str | None, owner: str = "") -> Conversation | None:
        """The open conversation that a ``message_id`` or ``reply_with`` names."""
        self._prune()
        return None if reference is None else self._open.get((owner, reference))

    def take(self, reference: str | None, performative: str, owner: str = "") -> Conversation | None:
        """Move the conversation that a reply belongs to; None where it fits none."""
        conversation = self.find(reference, owner)
        if conversation is None or not conversation.admits(performative):
            return None
        conversation.advance(performative)
        if conversation.is_closed:
            self.forget(conversation)
        return conversation

    def forget(self, conversation: Conversation) -> None:
        """End a conversation, whatever its state."""
        for key in _keys(conversation):
            if self._open.get(key) is conversation:
                del self._open[key]

    def _prune(self) -> None:
        """Drop old conversations, and the oldest of too many; the dict is in the order of their beginning."""
        limit = self._clock() - self._ttl_s
        while self._open:
            oldest = next(iter(self._open.values()))
            # a conversation has up to two keys
            if oldest.began_at > limit and len(self._open) < self._keep:
                return
            self.forget(oldest)


def _keys(conversation: Conversation) -> list[tuple[str, str]]:
    ids = dict.fromkeys([conversation.message_id, conversation.reply_with])
    return [(conversation.owner, reference) for reference in ids if reference is not None]
