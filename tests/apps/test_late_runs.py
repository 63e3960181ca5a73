"""Durable runs that are opened when first asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.apps.late_runs import LateRuns
from retinue.drivers.state import State
from retinue.settings import Settings
from retinue.workflows.run_records import RunRequest
from retinue.workflows.runs import RunContext


async def body(context: RunContext, request: RunRequest) -> Any:
    return None


@pytest.mark.parametrize(
    ("database", "place"),
    [
        (None, "{home}/runs.db"),
        ("postgresql://ada:secret@host:5432/runs", "postgresql://host:5432/runs"),
        ("postgresql://host/runs", "postgresql://host/runs"),
    ],
)
def test_where_the_runs_are_is_said_without_the_password(
    database: str | None, place: str, tmp_path: Path
) -> None:
    runs = LateRuns(body, Settings(database=database), State(tmp_path))
    assert runs.place == place.format(home=tmp_path)


def test_nothing_is_made_before_the_first_question(tmp_path: Path) -> None:
    asyncio.run(LateRuns(body, Settings(), State(tmp_path)).aclose())
    assert list(tmp_path.iterdir()) == []
