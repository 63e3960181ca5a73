"""Sends the messages of a node: requests to its peers, introductions, and queued events."""

from __future__ import annotations

from dataclasses import dataclass

from retinue_koi.introductions import CONTACT_ANSWERS_S, Introductions
from retinue_koi.node_state import NodeState
from retinue_koi.outbox import Outbox
from retinue_koi.peers import NodeClient
from retinue_koi.rules import Rules


@dataclass(frozen=True, slots=True)
class Messenger:
    """Sends the messages of one node to the others."""

    peers: NodeClient
    introductions: Introductions
    outbox: Outbox

    @classmethod
    def of(
        cls,
        state: NodeState,
        peers: NodeClient,
        rules: Rules,
        *,
        contact_answers_s: float = CONTACT_ANSWERS_S,
    ) -> Messenger:
        """The messenger over these peers; a node that has forgotten this one gets another introduction."""
        introductions = Introductions(state, peers, rules, contact_answers_s=contact_answers_s)
        return cls(peers, introductions, Outbox(state.cache, peers, introductions.introduce_again))
