"""``retinue run FILE.py:NAME``: what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Retinue

FLOWS = """
from retinue import Run, workflow

@workflow(name="sum-up")
async def total(run: Run, numbers: list[int]) -> int:
    return sum(numbers)

@workflow
async def other(run: Run) -> None:
    pass
"""


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("flows.py", (), "FILE: flows.py has several workflows — name one: flows.py:other"),
        ("flows.py:none", (), "NAME: flows.py has no workflow none — name one of them: other, sum-up"),
        ("absent.py:x", (), "no file"),
        (
            "flows.py:total",
            ("--hub", "http://127.0.0.1:9"),
            "--hub: http://127.0.0.1:9 does not have flows.py, which this process executes — leave --hub out",
        ),
    ],
)
def test_a_target_that_cannot_run_here_is_refused_with_the_remedy(
    target: str, options: tuple[str, ...], problem: str, retinue: Retinue, retinue_home: Path
) -> None:
    Path("flows.py").write_text(FLOWS)
    done = retinue("run", target, "{}", *options)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert not (retinue_home / "runs.db").exists()
