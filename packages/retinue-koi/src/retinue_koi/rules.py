"""Decides whether a node accepts an object of another node (specification 6.3 and 7.4).

On the signed dialect an object is accepted from the node that owns it, and from the node that this one has
joined, which passes on what others own. Anything else about it is taken only as its owner confirms it. On the
unsigned dialect a sender is not known: what would take something away is asked back first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import urlsplit

from retinue.web.addresses import find_refusal, is_loopback
from retinue_koi.codec.bundles import EventType, WireError, has_hash
from retinue_koi.codec.profiles import EdgeProfile, EdgeStatus, NodeProfile, NodeType
from retinue_koi.codec.rids import (
    EDGE_TYPE,
    NODE_TYPE,
    PERSONALITY_TYPE,
    check_rid,
    edge_rids,
    has_key_form,
    is_rid_of_key,
    name_of_personality,
    type_of,
)
from retinue_koi.graph import GRAPH_TYPES, NetworkGraph
from retinue_koi.knowledge import KnowledgeObject
from retinue_koi.storage.cache import KoiCache

Trust = Literal["open", "known", "signed"]
"""``open``: any node, either dialect. ``known``: only nodes that are configured, joined or in the cache.
``signed``: any node, signed requests only."""

SEEN_S: Final = 600.0
"""A node that was heard within this time counts as alive."""

FUTURE_US: Final = 5 * 60 * 1_000_000
"""A state that is dated further ahead of this node's clock can be replaced by an older one of its owner."""


_PLAIN_URL = re.compile(r"https?://([a-z0-9.-]+)(?::[1-5]?\d{1,4})?(?:/[\w./-]*)?\Z", re.ASCII)
"""The usual form, which needs no parser."""


FORGOTTEN: Final = "forgotten:"
"""Prefix of the cache's notes of forgotten objects: RID → time of the last state."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The object is not accepted."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskOwner:
    """Take the object as its owner, or the node that passes it on, has it; refuse it without an answer."""

    owner: str


@dataclass(frozen=True, slots=True)
class AskAlive:
    """Refuse the object if this node answers."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class AskContact:
    """Refuse the object unless what answers at the url of the first contact signs as this node."""

    node: str
    url: str
    public_key: str


@dataclass(frozen=True, slots=True)
class AskGone:
    """Obey the FORGET if the owner does not have the object any more, or does not answer.

    ``must_answer``: it is refused if the owner does not answer.
    """

    owner: str
    must_answer: bool = False


Verdict = Refuse | AskOwner | AskAlive | AskContact | AskGone | None
"""None = accepted."""


def default_trust(base_url: str | None) -> Trust:
    """``open`` on loopback, ``known`` elsewhere."""
    host = urlsplit(base_url or "").hostname
    return "open" if host is None or host == "localhost" or is_loopback(host) else "known"


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of a node by which it judges others.

    ``base_url`` is its own. ``types`` are the RID types that it keeps. ``known`` are RIDs or names of nodes
    that may talk to it. ``contact_url`` is the url of the first contact, if its RID is not configured.
    """

    base_url: str | None
    trust: Trust
    types: frozenset[str]
    known: frozenset[str] = frozenset()
    contact_url: str | None = None
    allow_private_urls: bool = True


@dataclass
class Rules:
    """Judges the objects of other nodes.

    ``seen`` says whether a node was heard within `SEEN_S`, ``proved`` whether it has signed a message; what
    is not signed is then not from it. ``relays`` may pass on what others own. ``names`` maps the name of a
    personality to the node that it is bound to.
    """

    own_rid: str
    terms: Terms
    cache: KoiCache
    graph: NetworkGraph
    seen: Callable[[str], bool]
    proved: Callable[[str], bool]
    now_us: Callable[[], int]
    relays: set[str]
    names: dict[str, str] = field(init=False, default_factory=dict)

    def is_known(self, node: str | None) -> bool:
        """Whether a node may talk to this one under ``known``."""
        if node is None:
            return False
        name = node.removeprefix(f"{NODE_TYPE}:").rpartition("+")[0]
        if {node, name} & self.terms.known or node in self.relays or node == self.own_rid:
            return True
        return self.graph.find_node(node) is not None

    def claims_contact(self, base_url: object) -> bool:
        """Whether a node with this base_url says that it is the first contact, given without its RID."""
        return self.terms.contact_url is not None and base_url == self.terms.contact_url

    def judge(self, kobj: KnowledgeObject) -> Verdict:
        """Judge an object of another node. Before FORGET, the object holds what the cache holds."""
        rid_type = kobj.rid_type
        if rid_type not in self.terms.types:
            return Refuse(f"this node keeps no objects of the type {rid_type}")
        if kobj.rid_text == self.own_rid:
            return Refuse("a node speaks for itself only")
        if kobj.replayed and kobj.event_type is EventType.FORGET:
            return Refuse("the signed message came before: it is replayed")
        if kobj.event_type is not EventType.FORGET and (problem := self._check_contents(kobj)):
            return Refuse(problem)
        if rid_type == PERSONALITY_TYPE:
            return self._judge_personality(kobj)
        if rid_type == NODE_TYPE:
            return self._judge_node(kobj)
        if rid_type == EDGE_TYPE:
            return self._judge_edge(kobj)
        if self.terms.trust == "known" and kobj.dialect == "unsigned":
            return Refuse("the sender of an unsigned message is not known")
        return None

    def _check_contents(self, kobj: KnowledgeObject) -> str | None:
        bundle = kobj.bundle
        if bundle is None:
            return "it has no contents"
        try:
            if has_hash(bundle.contents, bundle.manifest.sha256_hash):
                return None
        except WireError as error:
            return str(error)
        return "its contents do not have the hash of its manifest"

    # Personalities

    def _judge_personality(self, kobj: KnowledgeObject) -> Verdict:
        contents = kobj.contents or {}
        owner = contents.get("node_rid")
        if not isinstance(owner, str) or type_of(owner) != NODE_TYPE:
            return Refuse("contents.node_rid is not the RID of a node")
        try:
            check_rid(owner)
        except ValueError as error:
            return Refuse(f"contents.node_rid: {error}")
        if kobj.event_type is EventType.FORGET:
            return self._judge_forget(kobj, owner)
        if contents.get("rid") != kobj.rid_text:
            return Refuse("contents.rid is not the RID of the event")
        if owner == self.own_rid:
            return Refuse("a node speaks for itself only")
        for key in ("base_url", "mcp_url"):
            if problem := self.refuse_url(contents.get(key)):
                return Refuse(f"{key}: {problem}")
        gone = self.cache.notes.get(f"{FORGOTTEN}{kobj.rid_text}")
        is_late = gone is not None and kobj.manifest is not None and kobj.manifest.instant_us <= gone
        if is_late and "owner" not in kobj.asked:
            if kobj.dialect == "signed" and kobj.source_node in self.relays - {owner}:
                # the relay may have evicted the owner, and taken it back
                return AskOwner(kobj.source_node)
            return Refuse("it was forgotten after this state of it: it is replayed or late")
        if verdict := self._judge_sender(kobj, owner):
            return verdict
        holder = self.names.get(name_of_personality(kobj.rid_text))
        if holder is not None and holder != owner and "alive" not in kobj.asked:
            reason = f"the name belongs to {holder}, which is alive"
            return Refuse(reason) if self.seen(holder) else AskAlive(holder, reason)
        return None

    def _judge_sender(self, kobj: KnowledgeObject, owner: str) -> Verdict:
        if "owner" in kobj.asked:
            return None
        held = self.cache.find_entry(kobj.rid_text)
        if held is not None and held.instant_us > self.now_us() + FUTURE_US:
            return AskOwner(owner)  # what is held is dated in the future: the owner says what is newer
        if kobj.dialect == "signed":
            if kobj.source_node == owner or kobj.source_node in self.relays:
                return None
            if self.find_key(owner):
                return AskOwner(owner)
            return Refuse(f"it belongs to {owner}, not to {kobj.source_node}")
        if self.terms.trust == "known" and not self.is_known(owner):
            return Refuse(f"{owner} is not known to this node")
        name = name_of_personality(kobj.rid_text)
        must_sign = held is not None or name in self.names or self.terms.trust == "known"
        if self.proved(owner) or (must_sign and self.find_key(owner)):
            return AskOwner(owner)  # it has a key, and this message is not signed with it
        return None

    def _judge_forget(self, kobj: KnowledgeObject, owner: str) -> Verdict:
        if kobj.dialect == "unsigned":
            return self._judge_unsigned_forget(kobj, owner)
        if kobj.source_node == owner or kobj.source_node in self.relays:
            return None
        return Refuse(f"it belongs to {owner}, not to {kobj.source_node}")

    def _judge_unsigned_forget(self, kobj: KnowledgeObject, owner: str) -> Verdict:
        profile = self.graph.find_node(owner)
        if self.proved(owner) and profile is not None and profile.node_type is NodeType.PARTIAL:
            return Refuse(f"{owner} has signed messages, and cannot be asked about one that is not signed")
        if "gone" in kobj.asked:
            return None
        # a node that signs takes back its edges by a signed message: while it is away, they stay
        return AskGone(owner, must_answer=self.proved(owner) and kobj.rid_type in GRAPH_TYPES)

    def find_key(self, node: str) -> str | None:
        """The key of a node that is known, if its RID is made from it."""
        profile = self.graph.find_node(node)
        key = None if profile is None else profile.public_key
        return key if key is not None and is_rid_of_key(node, key) else None

    # Nodes and edges

    def _judge_node(self, kobj: KnowledgeObject) -> Verdict:
        signed_by_other = kobj.dialect == "signed" and kobj.source_node != kobj.rid_text
        if signed_by_other and kobj.source_node not in self.relays:
            return Refuse(f"a node speaks for itself only, and it comes from {kobj.source_node}")
        if kobj.event_type is EventType.FORGET:
            return None if kobj.dialect == "signed" else self._judge_unsigned_forget(kobj, kobj.rid_text)
        try:
            profile = NodeProfile.parse(kobj.contents or {})
        except WireError as error:
            return Refuse(str(error))
        if profile.public_key is not None and has_key_form(kobj.rid_text):
            if not is_rid_of_key(kobj.rid_text, profile.public_key):
                return Refuse("its RID is not made from its public_key")
        elif kobj.dialect == "signed":
            return Refuse("its profile has no public_key")
        if profile.node_type is NodeType.FULL and not profile.base_url:
            return Refuse("a FULL node needs a base_url")
        if profile.base_url is not None and profile.base_url == (self.terms.base_url or "").rstrip("/"):
            return Refuse("it has the base_url of this node")
        if problem := self.refuse_url(profile.base_url):
            return Refuse(f"base_url: {problem}")
        if kobj.dialect == "unsigned":
            if (
                self.terms.trust == "known"
                and not self.is_known(kobj.rid_text)
                and "contact" not in kobj.asked
            ):
                if profile.base_url and profile.public_key and self.claims_contact(profile.base_url):
                    return AskContact(kobj.rid_text, profile.base_url, profile.public_key)
                return Refuse("it is not known to this node")
            held = self.graph.find_node(kobj.rid_text)
            changed = held is not None and held.public_key is not None and held != profile
            if changed and "alive" not in kobj.asked:
                return AskAlive(kobj.rid_text, "an unsigned message would change a node that has a key")
        return None

    def _judge_edge(self, kobj: KnowledgeObject) -> Verdict:
        try:
            edge = EdgeProfile.parse(kobj.contents or {})
        except WireError as error:
            return Refuse(str(error))
        ends = (edge.source, edge.target)
        if self.own_rid not in ends:
            return Refuse("it does not concern this node")
        other = edge.target if edge.source == self.own_rid else edge.source
        if kobj.dialect == "signed" and kobj.source_node != other:
            return Refuse(f"it is between this node and {other}, and comes from {kobj.source_node}")
        if kobj.event_type is EventType.FORGET:
            return None if kobj.dialect == "signed" else self._judge_unsigned_forget(kobj, other)
        if kobj.rid_text not in edge_rids(edge.source, edge.target):
            return Refuse("its RID is not made from its source and target")
        if edge.source == self.own_rid and edge.status is EdgeStatus.APPROVED:
            return Refuse("only the source of an edge approves it")
        if self.graph.find_node(other) is None:
            return Refuse(f"{other} is not known to this node")
        if kobj.dialect == "unsigned" and self.proved(other):
            return Refuse(f"{other} has signed messages, and this one is not signed")
        return None

    # Parts

    def refuse_url(self, url: object) -> str | None:
        """Why no request goes to a url, or None. A host name is checked when it is resolved."""
        if url is None:
            return None
        if not isinstance(url, str):
            return "it is not a string"
        plain = _PLAIN_URL.match(url)
        if plain is not None:
            return _refuse_host(plain[1], self.terms.allow_private_urls)
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            return "it is not a url"
        if parts.scheme not in ("http", "https") or not host:
            return "it is not an http or https url with a host"
        return _refuse_host(host, self.terms.allow_private_urls)


@lru_cache(maxsize=4096)
def _refuse_host(host: str, allow_private: bool) -> str | None:
    try:
        return find_refusal(host, allow_private=allow_private)
    except ValueError:
        return None  # a name
