"""Which keys belong to which kind of step."""

from __future__ import annotations

from collections.abc import Mapping

from retinue.workflows.definitions.definition import Step, StepKind

KEYS_OF: Mapping[StepKind, frozenset[str]] = {
    "skill": frozenset({"skill", "with", "agent", "version", "retry", "cache", "allow_empty", "compensate"}),
    "role": frozenset({"role", "prompt", "agent", "with", "retry", "cache", "allow_empty", "compensate"}),
    "parallel": frozenset({"parallel", "steps", "branches", "retry", "cache", "allow_empty"}),
    "loop": frozenset({"loop", "steps"}),
    "foreach": frozenset({"foreach", "steps"}),
    "switch": frozenset({"switch", "branches"}),
    "workflow": frozenset({"workflow", "with", "compensate"}),
    "wait_for": frozenset({"wait_for"}),
}
"""What stands beside a kind. Anything else of these sets is refused there."""

ANYWHERE = frozenset({"id", "description", "when", "timeout", "on_error", "then", "transform", "validate"})

_ALL = frozenset().union(*KEYS_OF.values())
_WHERE = {
    "steps": "use parallel or loop, or foreach",
    "branches": "use parallel or switch",
    "with": "put it on a step with a skill, role or workflow",
    "prompt": "put it on a step with a role, or into parallel",
    "role": "put it on a step of its own, or into parallel",
    "compensate": "put it on the steps with a skill, role or workflow in it",
}


def misplaced_keys(step: Step) -> tuple[tuple[str, str], ...]:
    """The keys of a step that its kind does not have, each with a remedy, in order of the alphabet."""
    allowed = KEYS_OF[step.kind]
    if step.kind == "parallel" and not step.asks_agents:
        allowed = allowed - {"retry", "cache", "allow_empty"}
    given = {key for key in _ALL if _is_given(step, key)}
    return tuple((key, _WHERE.get(key, "put it on a step with a skill")) for key in sorted(given - allowed))


def _is_given(step: Step, key: str) -> bool:
    value = getattr(step, "with_" if key == "with" else key)
    return value is not None and not (key == "allow_empty" and value is False)
