"""Commands beside real processes, run in the process of the test: starting Python takes longer than most."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import CliRunner, Result

from retinue.cli.program import program


def run_command(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run ``retinue`` with these arguments in a folder, with further variables of the environment.

    A test with an event loop waits as for a process; what the command needs of that loop, it never gets.
    """

    def invoke() -> Result:
        with chdir(cwd):
            return CliRunner().invoke(program, arguments, env=environment, prog_name="retinue")

    if _has_loop():
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(invoke).result()
    else:
        result = invoke()
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


def retinue(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints; it must succeed."""
    done = run_command(*arguments, cwd=cwd, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
