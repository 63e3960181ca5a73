"""``retinue doctor``: what works here, what does not, and how to mend it."""

from __future__ import annotations

import click

from retinue.cli.options import json_option
from retinue.cli.output import note, print_json, print_table
from retinue.cli.session import find_state, run_command


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Say what works here, what does not, and how to mend it.

    Looks at this Python, the state folder and what lies in it, the hub, its ports and the registries.
    The exit status is 1 when something fails.
    """
    from retinue.apps.checkup import examine
    from retinue.apps.logs import configure_logs
    from retinue.settings import load_settings

    configure_logs("error")
    checks = run_command(examine(load_settings, find_state()))
    failed = [check for check in checks if check.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [check.as_json() for check in checks]})
    else:
        print_table(
            ("STATUS", "CHECK", "FOUND", "REMEDY"),
            [(check.status, check.name, check.found, check.remedy) for check in checks],
        )
        note(f"{len(failed)} of {len(checks)} checks failed" if failed else "nothing is broken")
    return 1 if failed else 0
