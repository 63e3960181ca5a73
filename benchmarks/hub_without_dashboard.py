"""``python -m benchmarks.hub_without_dashboard hub …``: the command line with a hub that has no pages.

The other side of the comparison in `benchmarks.dashboard`: the modules of the pages are never imported, no
route leads to one, and no session stands in front of the checks of a request.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

REPLACED = "retinue.runtime.endpoints.dashboard"


class NoDashboard:
    """In place of `HubDashboard`: no routes, and the checks as they are."""

    routes: tuple[()] = ()

    def in_front_of(self, checks: Any) -> Any:
        return checks

    def end(self) -> None:
        pass


def main() -> None:
    module: Any = ModuleType(REPLACED)
    module.HubDashboard = NoDashboard
    module.make_dashboard = lambda *given: NoDashboard()
    sys.modules[REPLACED] = module
    from retinue.cli.program import main as run

    run()


if __name__ == "__main__":
    main()
