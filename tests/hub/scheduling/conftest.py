"""Fixtures of the tests of schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hub.scheduling.bench import ScheduleBench, open_schedule_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ScheduleBench]:
    async with open_schedule_bench(tmp_path) as opened:
        yield opened
