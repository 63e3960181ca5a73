"""``python -m benchmarks.hub_without_dashboard hub …``: the command line with a hub that has no pages.

The other side of the comparison in `benchmarks.dashboard`: the modules of the pages are never imported, no
route leads to one, and no session stands in front of the checks of a request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retinue.parts.part import Part
    from retinue.runtime.hub_process import HubOptions
    from retinue.settings import Settings

PAGES = "retinue.runtime.endpoints.dashboard"


def main() -> None:
    # the module of the part imports the pages, which the part alone uses
    pages: Any = ModuleType(PAGES)
    pages.make_dashboard = None
    sys.modules[PAGES] = pages
    from retinue.cli.program import main as run
    from retinue.runtime import hub_process

    list_parts = hub_process.hub_parts

    def without_pages(options: HubOptions, settings: Settings) -> Sequence[Part]:
        return [part for part in list_parts(options, settings) if part.name != "dashboard"]

    hub_process.hub_parts = without_pages
    run()


if __name__ == "__main__":
    main()
