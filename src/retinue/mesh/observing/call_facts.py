"""The facts of a call that its audit row keeps, so that policies can be replayed over it.

A row says who called which skill of which agent, when and at which endpoint. These facts say the rest of what
policies read besides arguments. What is usual is left out, because a hub has many rows.
"""

from __future__ import annotations

from typing import Any

from retinue.core.call import Call

KEY = "facts"
"""The key of the facts in a row; rows of older releases have none."""

MESSAGE = {"message": True}
"""The facts of a message that runs no skill."""

USUAL_SCOPES = ("exposed", "mesh")
"""The scopes of a caller whose facts name none."""

ORIGIN = "origin"
"""The field of a trace with the id of the principal that began the chain of calls."""

MAX_NAMES = 64
"""Agents of a chain that are kept; the guard lets no chain grow longer."""

_DIGEST_CHARACTERS = 12


def shorten_digest(digest: str | None) -> str | None:
    """The part of a listing's digest that rows keep."""
    return None if digest is None else digest.rpartition(":")[2][:_DIGEST_CHARACTERS]


def render_facts(call: Call, listing: str | None) -> dict[str, Any]:
    """The facts of one call of a listing with this digest."""
    principal, trace = call.principal, call.trace
    facts: dict[str, Any] = {}
    if (digest := shorten_digest(listing)) is not None:
        facts["listing"] = digest
    scopes = tuple(sorted(principal.scopes))
    if scopes != USUAL_SCOPES:
        facts["scopes"] = list(scopes)
    if principal.kind == "run":
        facts["run"] = True
    if principal.groups:
        facts["groups"] = list(principal.groups)
    if principal.through:
        facts["through"] = principal.through
    if not trace.trusted:
        facts["trusted"] = False
    if trace.path:
        facts["chain"] = [hop.agent for hop in trace.path[-MAX_NAMES:]]
    if trace.depth and trace.trusted and trace.extension is not None:
        origin = trace.extension.others.get(ORIGIN)
        if isinstance(origin, str):
            facts["origin"] = origin
    return facts
