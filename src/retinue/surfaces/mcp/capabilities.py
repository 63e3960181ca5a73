"""What a door declares to one kind of caller, and which requests need that declaration (SPEC 7, seed 004)."""

from __future__ import annotations

from typing import Any

from retinue.core.call import Principal
from retinue.protocols.mcp.uris import is_template
from retinue.surfaces.mcp.offer import Offer

UNDECLARED = {
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completions",
    "logging/setLevel": "logging",
}
"""Method → the capability without which it is as unknown as a method that does not exist."""


def capabilities_of(offer: Offer, principal: Principal) -> dict[str, Any]:
    """Exactly the seed's for an agent of tools and resources (S-04); more only where there is more.

    What a caller cannot see is not hinted at either: a hidden prompt declares nothing.
    """
    resources = offer.resources(principal)
    prompts = offer.prompts(principal)
    declared: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {"listChanged": True}}
    if any(one.live for one in resources):
        declared["resources"] = {"subscribe": True, "listChanged": True}
    if prompts:
        declared["prompts"] = {"listChanged": True}
    if prompts or any(is_template(one.uri) for one in resources):
        declared["completions"] = {}
    if offer.facts.logs:
        declared["logging"] = {}
    return declared
