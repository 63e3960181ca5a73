"""``retinue`` that ends by SIGKILL after a stage of ``up``: ``python -m … STAGE ARGUMENTS``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from retinue.cli.program import program
from retinue.runtime.commands.teams import commands
from retinue.runtime.teams.staging import Staging
from retinue.runtime.teams.store import TeamStore

STAGES: dict[str, tuple[Any, str]] = {
    "fetched": (commands, "pull_team"),
    "verified": (commands.TeamCommands, "_check"),
    "unpacking": (Staging, "end"),
    "unpacked": (Staging, "publish"),
    "environments made": (commands, "make_environments"),
    "switched": (TeamStore, "write_row"),
    "checked": (commands, "pass_check"),
}
"""By stage, the function after which the command is killed, so that the digest before serves."""

SERVES: dict[str, tuple[Any, str]] = {"settled": (TeamStore, "settle")}
"""The same where the new digest serves, and its schedules are not there yet."""


def killed_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose process is killed when it has returned."""
    if iscoroutinefunction(function):

        @wraps(function)
        async def run_later(*arguments: Any, **options: Any) -> None:
            await function(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        return run_later

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    return run


if __name__ == "__main__":
    owner, name = {**STAGES, **SERVES}[sys.argv.pop(1)]
    setattr(owner, name, killed_after(getattr(owner, name)))
    program(prog_name="retinue")
