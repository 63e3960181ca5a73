"""The check of ``retinue doctor`` for the policies of a state and its project."""

from __future__ import annotations

from retinue.core.errors import RetinueError
from retinue.parts.part import Check
from retinue.runtime.checks.machine import failed
from retinue.runtime.loading.policy_files import PolicyFiles
from retinue.settings import Settings
from retinue.storage.state import State


def check_policies(settings: Settings, state: State) -> list[Check]:
    """Whether the policies are valid; no row where there are none."""
    table = settings.policy
    files = PolicyFiles.of(state.root, table)
    try:
        policies = files.load(table)
    except RetinueError as error:
        return [failed("policies", error)]
    if policies is None:
        count = len(files.list_files())
        remedy = "set policy.mode to enforce"
        return (
            [Check("policies", "warn", f"policy.mode is off; {count} files are not used", remedy)]
            if count
            else []
        )
    watched = "" if table.mode == "enforce" else f"; policy.mode is {table.mode}: nothing is denied"
    what = f"{len(policies.policies)} valid, calls are {_DEFAULTS[policies.default]} by default{watched}"
    return [Check("policies", "ok" if table.mode == "enforce" else "warn", what)]


_DEFAULTS = {"allow": "allowed", "deny": "denied"}
