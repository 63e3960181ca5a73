"""Which databases the runs may be in."""

from __future__ import annotations

from pathlib import Path

import pytest

from retinue.core.errors import InvalidSettingError, StateError
from retinue.workflows.durable.database import RunDatabase
from tests.time_bounds import Stopwatch


@pytest.mark.parametrize("url", ["", "nothing", "mysql://host/name"])
def test_other_databases_are_refused_with_what_would_be_right(url: str) -> None:
    with pytest.raises(InvalidSettingError) as caught:
        RunDatabase(url)
    assert "postgresql://" in caught.value.remedy


async def test_a_file_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    database = RunDatabase(f"sqlite:///{tmp_path}/file/runs.db")
    with pytest.raises(StateError):
        await database.prepare()
    database.close()


async def test_a_state_folder_that_was_removed_is_not_made_anew(tmp_path: Path) -> None:
    """Which is said at once: to ask again would not help."""
    database = RunDatabase(f"sqlite:///{tmp_path}/state/runs.db")
    stopwatch = Stopwatch()
    with pytest.raises(StateError, match="state is missing"):
        await database.prepare()
    stopwatch.check(2)
    database.close()
    assert not (tmp_path / "state").exists()


async def test_preparing_twice_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        database = RunDatabase(f"sqlite:///{tmp_path}/runs.db")
        await database.prepare()
        database.close()
