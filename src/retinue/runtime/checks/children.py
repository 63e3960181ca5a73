"""Checks the environment of the hub's agents: names the withheld variables, and agents that inherit all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retinue.core.errors import RetinueError
from retinue.parts.part import Check
from retinue.processes.environment import is_for_agent
from retinue.settings import Settings
from retinue.storage.state import State

_OF_SHELLS = frozenset({"_", "OLDPWD", "PWD", "SHLVL"})


def check_environment(settings: Settings, state: State, environ: Mapping[str, str]) -> list[Check]:
    """The variables that agents do not get, by name, and the agents that get every variable.

    ``environ`` stands for the environment of the hub where that cannot be read.
    """
    names = _read_names(state) or {*environ}
    withheld = sorted(name for name in names - _OF_SHELLS if not is_for_agent(name))
    checks = [Check("agent environment", "ok", "agents get every variable of the hub that is set here")]
    if withheld:
        details = f"agents no longer inherit from the hub: {', '.join(withheld)}"
        remedy = 'to give one to an agent: env = {NAME = "${NAME}"} in its [[agents]] or [llm.NAME]'
        checks = [Check("agent environment", "ok", details, remedy)]
    for table in settings.agents:
        if table.env == "inherit":
            details = 'env = "inherit" gives it every variable of the hub'
            remedy = "name the variables that it needs instead: env = {…}"
            checks.append(Check(f"agent {table.target}", "warn", details, remedy))
    return checks


def _read_names(state: State) -> set[str]:
    """The variables of the running hub; empty without one, and where its environment cannot be read."""
    try:
        hub = state.read_hub()
        text = Path(f"/proc/{hub.pid}/environ").read_bytes() if hub is not None else b""
    except (OSError, RetinueError):
        return set()
    return {line.partition(b"=")[0].decode(errors="replace") for line in text.split(b"\0") if line}
