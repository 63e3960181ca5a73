"""Headers and statuses of requests between processes of a mesh.

A process authenticates with its own token. Two headers name the principal on whose behalf it calls, and
restrict the request to that principal's rights. They can only reduce the rights of the token, and the
caller's id is accepted only with a token of the mesh.

The status of an agent's reply tells, for any protocol, whether the agent rejected the token or a proxy lost
it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

import orjson

from retinue.core.call import Principal
from retinue.core.errors import AgentUnreachableError, NotAllowedError, NotAuthenticatedError

RIGHTS_HEADER = "x-retinue-rights"
"""Scopes to which the request is restricted, and ``agent:<glob>`` for each restriction of visible agents.

``through:<agent>`` names the agent that starts a run for the caller, and ``send:<entry>`` what this agent may
call. ``team:<name>`` names the team of the agent that calls.
"""

CALLER_HEADER = "x-retinue-for"
"""The id of the principal on whose behalf the request is sent, percent-encoded."""

CLOCK_HEADER = "x-retinue-clock"
"""The time of the agent in seconds since 1970, where it rejects a mesh token for its time."""

MESH_HEADER = "x-retinue-mesh"
"""``other`` where the agent rejects a token because it is one of another mesh."""

OTHER_MESH = "other"

MAX_CALLER_LENGTH = 600
MAX_GLOB_LENGTH = 256

_RIGHTS, _CALLER = RIGHTS_HEADER.encode(), CALLER_HEADER.encode()
_EVERY_RIGHT = frozenset({"exposed", "mesh", "runs_code"})
_REMEMBERED = 256
_MAX_REMEMBERED_BYTES = 2048
_MAX_DETAIL = 200
_CLOCK_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_AGENT = "agent:"
_THROUGH = "through:"
_SEND = "send:"
_TEAM = "team:"
_PLAIN = ":@+*"
_GLOB = _PLAIN + "[]?!"
_REJECTED = frozenset({401, 403})
_GATEWAY_FAILURES = frozenset({502, 503, 504})

STOPPING = orjson.dumps({"detail": "it was stopping", "data": {"type": "cancelled"}})
"""The body of the 503 that a stopping process answers to requests that it cuts off.

It is no JSON-RPC error, from which a caller would conclude that the call has not run.
"""


@lru_cache(maxsize=_REMEMBERED)
def render_rights(principal: Principal) -> Mapping[str, str]:
    """The headers sent along with the process's own token when it calls on behalf of ``principal``."""
    headers = {CALLER_HEADER: quote(principal.id, safe=_PLAIN)[:MAX_CALLER_LENGTH]}
    limits = [_AGENT + quote(glob, safe=_GLOB) for glob in principal.agents]
    if principal.through:
        limits.append(_THROUGH + quote(principal.through, safe=_PLAIN))
        limits += [_SEND + quote(entry, safe=_GLOB + "/") for entry in _list_sent(principal.send)]
    if principal.team:
        limits.append(_TEAM + quote(principal.team, safe=_PLAIN))
    if limits or not principal.scopes >= _EVERY_RIGHT:
        headers[RIGHTS_HEADER] = " ".join((*sorted(principal.scopes), *limits))
    return headers


def _list_sent(send: tuple[str, ...] | None) -> tuple[str, ...]:
    """The entries of a ``send`` list for the wire, where an empty list is one empty entry."""
    return () if send is None else send or ("",)


def apply_rights(sender: Principal, headers: Mapping[bytes, bytes]) -> Principal:
    """The effective principal: ``sender``, restricted and renamed as the headers say.

    Raises NotAllowedError for a restriction to a longer glob than `MAX_GLOB_LENGTH`.
    """
    rights, caller = headers.get(_RIGHTS), headers.get(_CALLER)
    if rights is None and caller is None:
        return sender
    if len(rights or b"") + len(caller or b"") > _MAX_REMEMBERED_BYTES:
        return _restrict(sender, rights, caller)
    return _remembered(sender, rights, caller)


def check_not_refused(
    agent: str, url: str, status: int, headers: Mapping[str, str], clock: Callable[[], float] = time.time
) -> None:
    """Raise NotAuthenticatedError when the agent rejected the token of this process.

    Raises AgentUnreachableError where it did so because the clocks of both machines differ: the call was not
    made, and is worth a retry when they agree. The same is raised for a process of another mesh, because the
    agent is not there. ``clock`` gives seconds since 1970.
    """
    if status in _REJECTED:
        if headers.get(MESH_HEADER) == OTHER_MESH:
            raise AgentUnreachableError.of_other_mesh(agent, url)
        agent_time = headers.get(CLOCK_HEADER, "")
        if _CLOCK_TIME.fullmatch(agent_time):
            raise AgentUnreachableError.clocks_differ(agent, url, float(agent_time) - clock())
        raise NotAuthenticatedError(
            f"agent {agent} rejected the token of this process (HTTP {status})",
            remedy="join its machine to this mesh (retinue token new --join), or set registry.NAME.mesh",
        )


def is_lost(status: int) -> bool:
    """Whether a load balancer or proxy failed to reach the agent; the agent may have received the call."""
    return status in _GATEWAY_FAILURES


def lost(agent: str, url: str, status: int, body: bytes = b"") -> AgentUnreachableError:
    """Build the error for such a reply, of a proxy in front of the agent or of its server."""
    return AgentUnreachableError(agent, url, _describe_loss(status, body), sent=True)


def _describe_loss(status: int, body: bytes) -> str:
    if body == STOPPING:
        return "it was stopping"
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    detail = value.get("detail") if isinstance(value, dict) else None
    if isinstance(detail, str) and detail:
        return f"it answered with status {status}: {detail[:_MAX_DETAIL]}"
    return f"it, or a proxy in front of it, answered with status {status}"


def _restrict(sender: Principal, rights: bytes | None, caller: bytes | None) -> Principal:
    words: Sequence[str] = ()
    if rights is not None:
        words = rights.decode("latin-1").split()
        scopes = sender.scopes & frozenset(words)
        named = tuple(_unquote(word[len(_AGENT) :]) for word in words if word.startswith(_AGENT))
        for glob in named:
            if len(glob) > MAX_GLOB_LENGTH:
                raise NotAllowedError(
                    f"header {RIGHTS_HEADER} names agents by {len(glob)} characters; the limit is "
                    f"{MAX_GLOB_LENGTH}",
                    remedy="restrict the token to shorter globs: retinue token new --agent GLOB",
                )
        # globs cannot be intersected: the restrictions of the token take precedence
        sender = replace(sender, scopes=scopes, agents=sender.agents or named)
    if caller and sender.kind == "mesh" and len(caller) <= MAX_CALLER_LENGTH:
        sender = replace(sender, id=_unquote(caller.decode("latin-1")))
        sender = _read_agent_between(sender, words)
    return sender


def _read_agent_between(sender: Principal, words: Sequence[str]) -> Principal:
    """The principal with the agent that starts a run for it, the ``send`` list and the team of that agent."""
    through = _find_word(words, _THROUGH)
    if team := _find_word(words, _TEAM):
        sender = replace(sender, team=_unquote(team))
    if not through:
        return sender
    entries = [_unquote(word[len(_SEND) :]) for word in words if word.startswith(_SEND)]
    send = tuple(entry for entry in entries if entry) if entries else None
    return replace(sender, through=_unquote(through), send=send)


def _find_word(words: Sequence[str], kind: str) -> str:
    return next((word[len(kind) :] for word in words if word.startswith(kind)), "")


_remembered = lru_cache(maxsize=_REMEMBERED)(_restrict)  # a process calls on behalf of few principals


def _unquote(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "replace")
