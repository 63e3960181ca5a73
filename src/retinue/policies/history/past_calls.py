"""Past calls as the audit has them: which facts of a call are known, and which are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

from retinue.mesh.observing import call_facts
from retinue.policies.recording import SEPARATOR

Past = Literal["allow", "redact", "limited", "approve", "deny"]

_DECIDED = frozenset({"policy_denied", "approval_needed", "circuit_open"})
"""The errors of refused calls that policies had decided about.

The note of the row has their decision, because a guard and a person deny with the same error.
"""

_NOTED: Mapping[str, Past] = {"deny": "deny", "approve": "approve", "redact": "redact"}


class SkillKey(NamedTuple):
    """A skill as a row names it; ``listing`` is the shortened digest of its agent's listing."""

    agent: str
    skill: str
    version: str | None
    listing: str | None


@dataclass(frozen=True, slots=True)
class PastCall:
    """One call of the audit. None = the row does not tell.

    ``inputs`` is what policies have read of its arguments, as `render_inputs` has it. ``past`` is what was
    decided about the call, and ``is_refused`` whether a policy, a guard or a person denied it. ``groups`` are
    those that the JWT of its caller named.
    """

    id: str
    key: SkillKey
    caller: str
    endpoint: str
    began_at: datetime
    depth: int
    past: Past
    is_refused: bool = False
    through: str = ""
    scopes: tuple[str, ...] | None = None
    chain: tuple[str, ...] | None = None
    trusted: bool | None = None
    run: bool | None = None
    origin: str | None = None
    groups: tuple[str, ...] | None = ()
    inputs: Mapping[str, Any] | None = None

    def find_unknown(self) -> frozenset[str]:
        """The facts that the row does not tell."""
        facts = {
            "scopes": self.scopes,
            "chain": self.chain,
            "trusted": self.trusted,
            "run": self.run,
            "origin": self.origin,
        }
        return frozenset(name for name, fact in facts.items() if fact is None)

    def hides_argument(self, path: tuple[str, ...], *, is_value: bool) -> str:
        """Why it is unknown what this argument was, or whether there was one; "" where it is known."""
        inputs = self.inputs
        if inputs is None:
            return "not recorded"
        absent = inputs.get("absent", ())
        for length in range(1, len(path) + 1):
            if SEPARATOR.join(path[:length]) in absent:
                return ""
        name = SEPARATOR.join(path)
        if name in inputs.get("values", {}):
            return ""
        hidden = inputs.get("hidden", {}).get(name)
        if hidden is None and name not in inputs.get("present", ()):
            return "not recorded"
        return (hidden or "not recorded") if is_value else ""

    def render_arguments(self) -> dict[str, Any]:
        """The arguments as far as they are known; one of which only its presence is known is true."""
        inputs = self.inputs or {}
        arguments: dict[str, Any] = {}
        values = dict.fromkeys((*inputs.get("present", ()), *inputs.get("hidden", {})), True)
        for name, value in sorted({**values, **inputs.get("values", {})}.items()):
            place: Any = arguments
            *parents, last = name.split(SEPARATOR)
            for parent in parents:
                if not isinstance(place.get(parent), dict):
                    place[parent] = {}
                place = place[parent]
            place[last] = value
        for name in inputs.get("absent", ()):
            # a record whose attribute was absent is a record all the same
            *parents, _ = name.split(SEPARATOR)
            place = arguments
            for parent in parents:
                if not isinstance(place.get(parent), dict):
                    place[parent] = {}
                place = place[parent]
        return arguments


def read_past_call(row: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> PastCall | None:
    """The call of a row; None for one that policies never decided about, such as a message."""
    facts, agent, policy = row.get(call_facts.KEY), row.get("agent"), row.get("policy")
    if agent is None:
        return None
    noted = policy.get("verdict") if isinstance(policy, Mapping) and not policy.get("watched") else None
    past = _NOTED.get(noted or "", "allow")
    error, is_refused = row.get("error", ""), row["status"] == "refused"
    if noted == "limit" and error == "busy":
        past = "limited"
    elif is_refused and error not in _DECIDED:
        return None
    if isinstance(facts, Mapping) and facts.get("message"):
        return None
    depth = int(row.get("depth") or 0)
    ended_at = datetime.fromisoformat(str(row["timestamp"])).astimezone(UTC)
    is_recorded = isinstance(facts, Mapping)
    facts = facts if isinstance(facts, Mapping) else {}
    run = bool(facts.get("run")) if is_recorded else None
    caller = str(row["caller"])
    origin = facts.get("origin")
    if depth == 0 or (run and depth == 1):
        origin = caller
    return PastCall(
        id=str(row["id"]),
        key=SkillKey(str(agent), str(row["skill"]), row.get("version"), facts.get("listing")),
        caller=caller,
        endpoint=str(row["door"]),
        began_at=ended_at - timedelta(milliseconds=float(row.get("duration_ms") or 0)),
        depth=depth,
        past=past,
        is_refused=is_refused and error == "policy_denied",
        through=str(facts.get("through", "")),
        scopes=tuple(facts.get("scopes", call_facts.USUAL_SCOPES)) if is_recorded else None,
        chain=tuple(facts.get("chain", ())) if is_recorded else () if depth == 0 else None,
        trusted=bool(facts.get("trusted", True)) if is_recorded else None,
        run=run,
        groups=tuple(facts.get("groups", ())) if is_recorded or not caller.startswith("jwt:") else None,
        origin=origin,
        inputs=inputs,
    )
