"""Whom an agent hears and whom it may call: lists of globs, by agent (S-17), and limits of a token.

Whoever is not to reach an agent does not see it: no list, search, card or call tells it from one that
does not exist. Callers are known by the id of their principal: ``local`` has the state's token,
``anonymous`` has none, ``token:NAME`` and ``jwt:SUBJECT`` have one that was given out, an agent has its
name. An agent's name is said by the process that calls: all processes of one mesh trust each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from retinue.core.call import Principal
from retinue.mesh.entry import Candidate

C = TypeVar("C", bound=Candidate)

AgentView = Callable[[str], bool]
"""Whether a caller sees the agent of this name; two that are equal show the same."""


@dataclass(frozen=True, slots=True)
class AccessRule:
    """The lists of one agent; None = no list, everybody.

    ``receive``: globs of callers. ``send``: globs ``AGENT`` or ``AGENT/SKILL`` of what it may call.
    """

    receive: tuple[str, ...] | None = None
    send: tuple[str, ...] | None = None


class Access:
    """The rules of the agents that this process knows rules of."""

    def __init__(self, rules: Mapping[str, AccessRule] | None = None) -> None:
        self._receive = {
            agent: rule.receive for agent, rule in (rules or {}).items() if rule.receive is not None
        }

    def view_of(self, principal: Principal) -> AgentView | None:
        """Which agents this caller sees; None = all of them, as this process itself does."""
        if principal.kind == "local" or not (principal.agents or self._receive):
            return None
        closed = {agent for agent, globs in self._receive.items() if not matches(principal.id, globs)}
        globs = principal.agents
        if not (closed or globs):
            return None
        return SeenAgents(frozenset(closed), globs)


@dataclass(frozen=True, slots=True)
class SeenAgents:
    """A view: equal ones show the same. Nobody ``closed``; where there are ``globs`` only whom they fit."""

    closed: frozenset[str]
    globs: tuple[str, ...]

    def __call__(self, agent: str) -> bool:
        return agent not in self.closed and (not self.globs or matches(agent, self.globs))


def is_seen(view: AgentView | None, agent: str) -> bool:
    """Whether a caller with this view sees the agent."""
    return view is None or view(agent)


def matches(name: str, globs: Sequence[str]) -> bool:
    """Whether any of these globs fits; case counts."""
    return any(fnmatchcase(name, glob) for glob in globs)


def within(view: AgentView | None, candidates: tuple[C, ...]) -> tuple[C, ...]:
    """Those of the agents that a caller with this view sees, in their order; the very same without one."""
    return candidates if view is None else tuple(one for one in candidates if view(one.name))
