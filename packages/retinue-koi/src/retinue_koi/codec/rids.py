"""Parses RIDs: a RID of any kind as text, its type, and the classes of the known types.

Inside the room a RID is its text, which is a key of dictionaries and goes into JSON as it is. `parse_rid`
gives the object that handlers see.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from typing import Final, Self

from retinue.cards.personality_profile import MAX_RID_BYTES, check_rid_length
from retinue_koi.codec.orn import ORN, KoiNetNode
from retinue_koi.codec.personality import AgentPersonality

NODE_TYPE: Final = "orn:koi-net.node"
EDGE_TYPE: Final = "orn:koi-net.edge"
PERSONALITY_TYPE: Final = "orn:agent.personality"

_WITH_NAMESPACE: Final = frozenset({"orn", "urn"})
_HASH_DIGITS: Final = 64
_PLAIN_PERSONALITY = re.compile(r"orn:agent\.personality:[\w.-]+/[\w.-]+\Z", re.ASCII)
"""The usual form of the most frequent type."""


class KoiNetEdge(ORN):
    """An edge between two nodes: ``orn:koi-net.edge:<sha256>``."""

    namespace = "koi-net.edge"

    def __init__(self, id: str) -> None:  # noqa: A002 - rid-lib's name
        if not id:
            raise ValueError("an edge has an id: orn:koi-net.edge:<id>")
        self.id = id

    @property
    def reference(self) -> str:
        return self.id

    @classmethod
    def from_reference(cls, reference: str) -> Self:
        return cls(reference)


class OtherRid(ORN):
    """A RID of a type that has no class here."""

    def __init__(self, text: str) -> None:
        check_rid(text)
        self._text = text

    @property
    def reference(self) -> str:
        return self._text[len(type_of(self._text)) + 1 :]

    @classmethod
    def from_string(cls, string: str) -> Self:
        return cls(string)

    @classmethod
    def from_reference(cls, reference: str) -> Self:
        """Parse a whole RID: without a class of its own, its namespace is not known apart from it."""
        return cls(reference)

    def __str__(self) -> str:
        return self._text


_CLASSES: Final[dict[str, type[ORN]]] = {
    NODE_TYPE: KoiNetNode,
    EDGE_TYPE: KoiNetEdge,
    PERSONALITY_TYPE: AgentPersonality,
}


def type_of(rid: str) -> str:
    """The type of a RID: ``orn:<namespace>``, or the scheme where it has no namespace."""
    scheme, _, rest = rid.partition(":")
    if scheme not in _WITH_NAMESPACE:
        return scheme
    return f"{scheme}:{rest.partition(':')[0]}"


def check_rid(rid: str) -> None:
    """Raise ValueError for a text that is no RID, or is longer than `MAX_RID_BYTES`."""
    if len(rid) > MAX_RID_BYTES or not _PLAIN_PERSONALITY.match(rid):
        _check_rid(rid)


@lru_cache(maxsize=8192)
def _check_rid(rid: str) -> None:
    check_rid_length(rid)
    scheme, _, rest = rid.partition(":")
    if scheme in _WITH_NAMESPACE:
        namespace, colon, reference = rest.partition(":")
        whole = bool(namespace and colon and reference)
    else:
        whole = bool(scheme and rest)
    if not whole or "\x00" in rid:
        raise ValueError(f"{rid[:80]!r} is no RID; its form is orn:<namespace>:<reference>")
    known = _CLASSES.get(type_of(rid))
    if known is not None:
        known.from_string(rid)


def parse_rid(rid: str) -> ORN:
    """The object of a RID: a node, an edge, a personality or an `OtherRid`; raises ValueError."""
    return _CLASSES.get(type_of(rid), OtherRid).from_string(rid)


def type_name(rid_type: str | type[ORN]) -> str:
    """The text of a RID's type, which is given as a text or as a class."""
    return rid_type if isinstance(rid_type, str) else f"orn:{rid_type.namespace}"


def name_of_personality(rid: str) -> str:
    """The agent's name in the RID of a personality."""
    return rid[len(PERSONALITY_TYPE) + 1 :].partition("/")[0]


def node_rid(name: str, public_key: str) -> str:
    """The RID of a node with this key, in base64 of DER (koi-net 1.1.0 and newer)."""
    return f"{NODE_TYPE}:{name}+{hashlib.sha256(public_key.encode()).hexdigest()}"


def is_rid_of_key(rid: str, public_key: str) -> bool:
    """Whether the RID of a node is made from this key."""
    return rid.rpartition("+")[2] == hashlib.sha256(public_key.encode()).hexdigest()


def has_key_form(rid: str) -> bool:
    """Whether the RID of a node ends in a SHA-256, so that only the owner of the key can sign for it."""
    digest = rid.rpartition("+")[2]
    return len(digest) == _HASH_DIGITS and not set(digest) - set("0123456789abcdef")


def edge_rids(source: str, target: str) -> tuple[str, str]:
    """The RID of the edge from one node to another, on the signed and on the unsigned dialect."""
    plain = json.dumps({"source": source, "target": target}).encode()
    signed = hashlib.sha256((source + target).encode()).hexdigest()
    return f"{EDGE_TYPE}:{signed}", f"{EDGE_TYPE}:{hashlib.sha256(plain).hexdigest()}"
