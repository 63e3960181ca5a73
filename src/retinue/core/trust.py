"""The levels of trust in an agent, for calls that name no agent."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Trust(IntEnum):
    """The origin of an agent, the most trusted first (specification 7)."""

    OWN_MESH = 0
    SIGNED = 1
    """Its card has a valid signature of a key that the owner trusts."""
    IMPORTED = 2
    """From a source that the owner has configured: an import, or a registry of others."""
    NETWORK_MEMBER = 3
    """From a network in which others list agents themselves, such as KOI."""


TRUST_PHRASES: Mapping[Trust, str] = {
    Trust.OWN_MESH: "an agent of the own mesh",
    Trust.SIGNED: "signed by a trusted key",
    Trust.IMPORTED: "imported by the owner",
    Trust.NETWORK_MEMBER: "a member of an open network",
}
"""Each origin as the end of a sentence about an agent."""
