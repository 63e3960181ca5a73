"""``retinue doctor``: check what works on this machine and print remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import find_state, run_command

if TYPE_CHECKING:
    from retinue.parts.part import Check


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check what works on this machine and print remedies.

    Checks this Python, the state folder and its contents, the hub, its ports and the registries. The exit
    status is 1 if a check fails.
    """
    from retinue.cli.session import configure_logs
    from retinue.runtime.commands.doctor import examine
    from retinue.settings import load_settings

    configure_logs("error")
    checks = run_command(examine(load_settings, find_state()))
    failed = [check for check in checks if check.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [check.as_json() for check in checks]})
    else:
        print_table(("STATUS", "CHECK", "FOUND"), [row for check in checks for row in _rows_of(check)])
        note(f"{len(failed)} of {len(checks)} checks failed" if failed else "no check failed")
    return 1 if failed else 0


def _rows_of(check: Check) -> list[tuple[str, str, str]]:
    """The row of a check, and below it the remedy, so that the table stays narrow."""
    return [
        (check.status, check.name, check.found),
        *([("", "", f"→ {check.remedy}")] if check.remedy else []),
    ]
