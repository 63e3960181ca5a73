"""Sends the messages of a node: requests to its peers, introductions, and queued events."""

from __future__ import annotations

from dataclasses import dataclass

from retinue_koi.introductions import CONTACT_ANSWERS_S, Introductions
from retinue_koi.node_state import NodeState
from retinue_koi.outbox import Outbox
from retinue_koi.peers import Peers
from retinue_koi.rules import Rules


@dataclass(frozen=True, slots=True)
class Wire:
    """The way of one node to the others."""

    peers: Peers
    introductions: Introductions
    outbox: Outbox

    @classmethod
    def of(
        cls, state: NodeState, peers: Peers, rules: Rules, *, contact_answers_s: float = CONTACT_ANSWERS_S
    ) -> Wire:
        """The wire over these peers; a node that does not know this one any more is met again."""
        introductions = Introductions(state, peers, rules, contact_answers_s=contact_answers_s)
        return cls(peers, introductions, Outbox(state.cache, peers, introductions.introduce_again))
