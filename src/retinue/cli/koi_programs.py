"""The programs of seed 003 by its names: ``koi-mcp-agent`` is ``retinue koi agent``, and so on.

They are scripts of Retinue itself, so that they name the extra where ``retinue-koi`` is not installed.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from retinue.cli.program import program


def coordinator() -> NoReturn:
    """The program ``koi-mcp-coordinator``."""
    _run("coordinator")


def agent() -> NoReturn:
    """The program ``koi-mcp-agent``."""
    _run("agent")


def demo() -> NoReturn:
    """The program ``koi-mcp-demo``."""
    _run("demo")


def _run(command: str) -> NoReturn:
    program.main(["koi", command, *sys.argv[1:]], prog_name="retinue")
