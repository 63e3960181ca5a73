"""For whom a process of the mesh calls, beside its token: headers, both ways.

The token says that a process of the mesh sends the request; these say who made it do so, and with what
rights. Only whoever holds a secret of the mesh is believed about the caller's name, and nobody gets
more rights by them than the token has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from retinue.core.call import Principal

RIGHTS_HEADER = "x-retinue-rights"
"""Scopes that the request is to be held to, and ``agent:<glob>`` for each limit of what is seen."""

CALLER_HEADER = "x-retinue-for"
"""The id of the principal for whom the request is made, percent-encoded."""

MAX_CALLER_LENGTH = 600
_EVERY_RIGHT = frozenset({"exposed", "mesh", "runs_code"})
_REMEMBERED = 1024
_AGENT = "agent:"
_PLAIN = ":@+*"


@lru_cache(maxsize=_REMEMBERED)
def render_rights(principal: Principal) -> Mapping[str, str]:
    """The headers that go with this process's own token when it calls for ``principal``."""
    headers = {CALLER_HEADER: quote(principal.id, safe=_PLAIN)[:MAX_CALLER_LENGTH]}
    if principal.agents or not principal.scopes >= _EVERY_RIGHT:
        limits = (_AGENT + quote(glob, safe=_PLAIN + "[]?!") for glob in principal.agents)
        headers[RIGHTS_HEADER] = " ".join((*sorted(principal.scopes), *limits))
    return headers


def apply_rights(sender: Principal, headers: Mapping[bytes, bytes]) -> Principal:
    """Whom the request counts as: ``sender``, or the one for whom it speaks, with no more rights."""
    rights, caller = headers.get(_RIGHTS), headers.get(_CALLER)
    if rights is None and caller is None:
        return sender
    return _apply(sender, rights, caller)


@lru_cache(maxsize=_REMEMBERED)
def _apply(sender: Principal, rights: bytes | None, caller: bytes | None) -> Principal:
    # remembered: a process speaks for the same few callers again and again
    if rights is not None:
        words = rights.decode("latin-1").split()
        scopes = sender.scopes & frozenset(words)
        named = tuple(_unquote(word[len(_AGENT) :]) for word in words if word.startswith(_AGENT))
        # globs cannot be intersected: the limits that came with the token stand
        sender = replace(sender, scopes=scopes, agents=sender.agents or named)
    if caller and sender.kind == "mesh" and len(caller) <= MAX_CALLER_LENGTH:
        sender = replace(sender, id=_unquote(caller.decode("latin-1")))
    return sender


_RIGHTS, _CALLER = RIGHTS_HEADER.encode(), CALLER_HEADER.encode()


def _unquote(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")
