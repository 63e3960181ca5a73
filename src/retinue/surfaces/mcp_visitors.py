"""Who visits an MCP door: what such a client sees, and under which name it owns what it opens."""

from __future__ import annotations

from dataclasses import replace

from retinue.core.call import ANONYMOUS, Principal

_EXPOSED = frozenset({"exposed"})
CLIENT = replace(ANONYMOUS, scopes=_EXPOSED)
"""An MCP client without a token."""


def narrow(principal: Principal) -> Principal:
    """Without a token an MCP client sees what is exposed, and not what the mesh sees (DESIGN 2)."""
    if principal is ANONYMOUS:
        return CLIENT
    if principal.kind == "anonymous" and principal.scopes != _EXPOSED:
        return replace(principal, scopes=_EXPOSED & principal.scopes)
    return principal


def owner_of(principal: Principal) -> str:
    """One name per principal and its rights: a narrowed caller is not the wide one's heir."""
    rights = " ".join((*sorted(principal.scopes), *principal.agents))
    return f"{principal.kind}:{principal.id}:{rights}"
