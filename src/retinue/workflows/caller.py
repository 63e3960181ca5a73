"""The port through which steps call out: choose an agent for a skill, call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from retinue.core.call import Outcome


@dataclass(frozen=True, slots=True)
class Choice:
    """The agent that a step will call, as it is recorded in the run; schemas are JSON Schemas.

    ``skill`` is what it is called for. ``score`` = its configured number for the role, where it was
    chosen by role; ``available`` is false for one that was asked for by name and does not answer.
    """

    agent: str
    skill: str = ""
    version: str | None = None
    url: str | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    score: float | None = None
    available: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Choice:
        return cls(**value)


class Caller(Protocol):
    """What a step asks for; implemented over the one dispatch path."""

    async def choose(
        self,
        skill: str,
        agent: str | None = None,
        version_range: str | None = None,
        scopes: frozenset[str] = frozenset(),
    ) -> Choice:
        """The agent to call, seen with ``scopes``: this one when ``agent`` is named.

        Raises SkillNotOfferedError, UnknownAgentError, VersionConflictError, and whatever keeps
        the directory from answering.
        """

    async def list_role(
        self, role: str, agents: Sequence[str] = (), scopes: frozenset[str] = frozenset()
    ) -> Sequence[Choice]:
        """Every available agent that has the role, best first; the named ``agents`` as they are named.

        A named one that does not answer stays in the list, with ``available`` false.
        Raises UnknownRoleError, UnknownAgentError, RoleNotOfferedError.
        """

    async def call(
        self,
        choice: Choice,
        skill: str,
        arguments: Any,
        *,
        run_id: str,
        path: str,
        idempotency_key: str,
        timeout_s: float,
        trace: Mapping[str, Any] | None,
    ) -> Outcome:
        """Call the chosen agent and no other; a failure is an outcome with ``error`` set.

        A cancelled call is cut off. ``trace`` is what the run was started with, less what this call
        may not cause: ``calls_left`` is its share.
        """
