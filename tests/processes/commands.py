"""Commands beside real processes, run in the process of the test: starting Python takes longer than most."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import CliRunner

from retinue.cli.program import program


def run_command(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run ``retinue`` with these arguments in a folder, with further variables of the environment."""
    with chdir(cwd):
        result = CliRunner().invoke(program, arguments, env=environment, prog_name="retinue")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)
