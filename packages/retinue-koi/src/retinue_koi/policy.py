"""Decides which objects of other nodes a node accepts: applies the rules, and asks the owners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from retinue_koi.knowledge import KnowledgeObject
from retinue_koi.node_state import NodeState
from retinue_koi.peers import NodeClient
from retinue_koi.questions import Questions
from retinue_koi.rules import Rules, Terms, Trust, Verdict, default_trust


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whose messages a node takes.

    ``trust`` is by default ``open`` on loopback, ``known`` elsewhere. ``known`` are RIDs or names of nodes
    for the policy ``known``; ``relays`` RIDs of nodes that may pass on what others own. Without
    ``allow_private_urls``, nodes at private addresses are not asked.
    """

    trust: Trust | None = None
    known: Iterable[str] = ()
    relays: Iterable[str] = ()
    allow_private_urls: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """Judges the objects of other nodes, and asks other nodes where the rules alone cannot decide."""

    rules: Rules
    questions: Questions

    @classmethod
    def of(cls, state: NodeState, peers: NodeClient, acceptance: Acceptance) -> Policy:
        """The policy of the node with this state. The first contact is a relay if its RID is known."""
        base_url, contact = state.identity.profile.base_url, peers.first_contact
        terms = Terms(
            base_url,
            acceptance.trust or default_trust(base_url),
            state.list_kept_types(),
            frozenset(acceptance.known),
            contact.url if contact and not contact.rid else None,
            acceptance.allow_private_urls,
        )
        rules = Rules(
            state.rid,
            terms,
            state.cache,
            state.graph,
            state.memory.was_seen,
            state.memory.has_proved,
            state.now_us,
            relays={*acceptance.relays, *([contact.rid] if contact and contact.rid else [])},
        )
        return cls(rules, Questions(state.rid, peers, state.graph, state.memory))

    def judge(self, kobj: KnowledgeObject) -> Verdict:
        """The verdict of the rules alone on an object."""
        return self.rules.judge(kobj)

    async def settle(self, kobj: KnowledgeObject, verdict: Verdict) -> str | None:
        """Ask the nodes that a verdict names until the object is accepted; a text = why it is refused."""
        return await self.questions.settle(kobj, verdict, self.rules.judge)

    async def find_other_holder(self, name: str) -> str | None:
        """The other node that the name of a personality belongs to, if that node is alive."""
        holder = self.rules.names.get(name)
        if holder is None or holder == self.rules.own_rid:
            return None
        return holder if await self.questions.is_alive(holder) else None

    def release_name(self, name: str) -> bool:
        """Let another node take the name of a personality; False if no other node has it."""
        if self.rules.names.get(name) in (None, self.rules.own_rid):
            return False
        del self.rules.names[name]
        return True
